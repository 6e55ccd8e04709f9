"""Cluster URIs: the parts that each scheme reads, one canonical spelling, and clear complaints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.cluster import connect
from ledgerlog.errors import ClusterNotFound, InvalidArgument
from ledgerlog.meta.uri import (
    ClusterUri,
    FileUri,
    MemoryUri,
    SqliteUri,
    ZooKeeperUri,
    make_cluster_at,
    open_store,
    parse_uri,
    restore_at,
)
from tests.zookeepers import new_chroot


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory:", MemoryUri(3)),
        ("memory:?bookies=1", MemoryUri(1)),
        ("file:data", FileUri("data", 1)),
        ("file:./data?bookies=3", FileUri("./data", 3)),
        ("file:/var/lib/log", FileUri("/var/lib/log")),
        ("file:///var/lib/log", FileUri("/var/lib/log")),
        ("FILE:data", FileUri("data")),
        ("file:a%3Fb%25c d#e", FileUri("a?b%c d#e")),
        ("sqlite:meta.db", SqliteUri("meta.db")),
        ("sqlite:///tmp/m.db", SqliteUri("/tmp/m.db")),
        ("zk://h1", ZooKeeperUri((("h1", 2181),))),
        ("zk://h1:2182,h2:2183/", ZooKeeperUri((("h1", 2182), ("h2", 2183)))),
        ("zk://h1:2181,[::1]:2181/a/b", ZooKeeperUri((("h1", 2181), ("::1", 2181)), "/a/b")),
    ],
)
def test_each_scheme_reads_what_it_says(text: str, expected: ClusterUri) -> None:
    assert parse_uri(text) == expected
    assert parse_uri(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no scheme"),
        ("data", "no scheme"),
        ("http://x", "no scheme 'http'"),
        ("memory:x", "takes no path"),
        ("memory:?bookies=0", "1 to 64"),
        ("memory:?bookies=-1", "1 to 64"),
        ("memory:?bookies=", "1 to 64"),
        ("memory:?bookies=x", "1 to 64"),
        ("file:", "no path"),
        ("file:?bookies=3", "no path"),
        ("file:data?bookie=3", "no option 'bookie'"),
        ("file:data?bookies", "NAME=VALUE"),
        ("file:data?bookies=3&bookies=4", "twice"),
        ("file:data?bookies=65", "1 to 64"),
        ("file:data?", "NAME=VALUE"),
        ("file://host/data", "'host'"),
        ("file:a%zz", "%25"),
        ("file:a%ff", "UTF-8"),
        ("file:a%00b", "zero byte"),
        ("sqlite:", "no path"),
        ("sqlite:m.db?mode=ro", "no options"),
        ("zk:h1", "zk://"),
        ("zk://", "HOST"),
        ("zk://h1,", "HOST"),
        ("zk://h1:port", "HOST"),
        ("zk://h1:0", "port 0"),
        ("zk://h1:65536", "port 65536"),
        ("zk://h1/a//b", "empty component"),
        ("zk://h1/a/../b", "'..'"),
        ("zk://h1/a b", "blank"),
        ("zk://h1/a?x=1", "?"),
    ],
)
def test_a_malformed_uri_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_uri(text)
    assert repr(text) in str(caught.value)
    assert why in str(caught.value)


def test_a_uri_is_text() -> None:
    with pytest.raises(InvalidArgument, match="str, not NoneType"):
        parse_uri(None)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for prefix in ("", "memory:", "file:", "sqlite:", "zk://"):
        try:
            parsed = parse_uri(prefix + text)
        except InvalidArgument:
            continue
        assert parse_uri(str(parsed)) == parsed


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), st.integers(1, 64)
)
def test_every_path_has_a_spelling(path: str, bookies: int) -> None:
    assert parse_uri(str(FileUri(path, bookies))) == FileUri(path, bookies)
    assert parse_uri(str(SqliteUri(path))) == SqliteUri(path)


@pytest.mark.parametrize("path", ["a%FF", "a\udcff", "%C3", "\ud800"])
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_a_path_that_is_not_utf_8_is_refused(scheme: str, path: str) -> None:
    with pytest.raises(InvalidArgument, match="its path is not UTF-8"):
        parse_uri(f"{scheme}:{path}")


def test_a_file_cluster_names_its_parts() -> None:
    uri = FileUri("data", 2)
    assert uri.metadata_path == "data/metadata.sqlite"
    assert [uri.bookie_path(number) for number in (1, 2)] == ["data/bookie-1", "data/bookie-2"]


async def test_a_store_opens_by_its_uri(tmp_path: Path) -> None:
    for uri in (MemoryUri(), FileUri(str(tmp_path / "cluster")), SqliteUri(str(tmp_path / "m.db"))):
        async with open_store(uri, create=True) as store:
            await store.create("a/b", b"1")
            assert await store.children("a") == ["b"]
    async with open_store(SqliteUri(str(tmp_path / "m.db"))) as store:
        assert await store.children("a") == ["b"]


async def test_no_store_is_made_in_the_place_of_a_cluster_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with pytest.raises(ClusterNotFound):
        async with open_store(SqliteUri(str(path)), create=True, cluster="that-of-yesterday"):
            pass
    assert not path.exists()


@pytest.mark.parametrize("create", [False, True])
async def test_a_directory_in_place_of_its_file_is_no_cluster(tmp_path: Path, create: bool) -> None:
    async with open_store(FileUri(str(tmp_path / "cluster")), create=True):
        pass
    for place, words in (
        (tmp_path / "cluster", f"write sqlite:{tmp_path}/cluster/metadata.sqlite"),
        (tmp_path, "and it has no metadata.sqlite"),
    ):
        with pytest.raises(ClusterNotFound, match=f"{place} is a directory, {words}"):
            async with connect(f"sqlite:{place}", create=create):
                pass
    assert os.listdir(tmp_path) == ["cluster"], "no secret is made beside it"


async def test_no_cluster_is_made_or_restored_in_place_of_a_directory(tmp_path: Path) -> None:
    uri = SqliteUri(str(tmp_path))
    with pytest.raises(ClusterNotFound, match="is a directory"):
        await make_cluster_at(uri)
    with pytest.raises(ClusterNotFound, match="is a directory"):
        await restore_at(uri, str(tmp_path / "backup"), now_ms=0)


@pytest.mark.processes
async def test_a_zookeeper_store_opens_by_its_uri_below_its_chroot(zookeeper_hosts: str) -> None:
    uri = parse_uri(f"zk://{zookeeper_hosts}{new_chroot()}/below")
    for _ in range(2):
        async with open_store(uri, create=True) as store:
            if not await store.children("a"):
                await store.create("a/b", b"1")
    async with open_store(uri) as store:
        assert await store.children("a") == ["b"]
    other = parse_uri(f"zk://{zookeeper_hosts}{new_chroot()}")
    with pytest.raises(ClusterNotFound, match=r"no cluster at zk://.*Is the chroot .* spelled right"):
        async with open_store(other):
            pass
    async with open_store(other, create=True) as store:
        assert await store.children("a") == []
