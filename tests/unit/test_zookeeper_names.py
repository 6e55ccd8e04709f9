"""The places of nodes in ZooKeeper: every node has its own place, and every place belongs to one node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.arguments import check_path
from ledgerlog.meta.zookeeper.names import Names, parse_child


def _is_path(path: str) -> bool:
    try:
        check_path(path)
    except InvalidArgument:
        return False
    return True


component = st.text(
    st.one_of(st.sampled_from("ab=+^0/é"), st.characters(codec="utf-8")), min_size=1, max_size=6
).filter(lambda text: "/" not in text)
paths = st.lists(component, min_size=1, max_size=4).map("/".join).filter(_is_path)
chroots = st.sampled_from(["", "/ledgerlog", "/a/b"])


@given(chroot=chroots, path=paths)
def test_value_and_directory_of_a_node_lead_back_to_it(chroot: str, path: str) -> None:
    names = Names(chroot)
    for znode in (names.value(path), names.directory(path)):
        assert znode.startswith(chroot + "/")
        assert all(ord(character) <= 0xFFFF for character in znode), "Java checks UTF-16 units"
        assert names.logical(znode) == path
    last = path.rpartition("/")[2]
    assert parse_child(names.value(path).rpartition("/")[2]) == (last, True)
    assert parse_child(names.directory(path).rpartition("/")[2]) == (last, False)


@given(first=paths, second=paths)
def test_no_two_nodes_have_a_place_in_common(first: str, second: str) -> None:
    names = Names("")
    places = {names.value(first), names.directory(first), names.value(second), names.directory(second)}
    assert len(places) == (2 if first == second else 4)


@given(chroot=chroots, path=paths)
def test_the_directories_above_a_node_are_those_of_its_ancestors(chroot: str, path: str) -> None:
    names = Names(chroot)
    above = names.directories_above(path)
    components = path.split("/")
    expected = [names.directory("/".join(components[:end])) for end in range(1, len(components))]
    assert above[chroot.count("/") :] == expected
    assert above[: chroot.count("/")] == (["/a", "/a/b"] if chroot == "/a/b" else [chroot] if chroot else [])
    parent = names.parent_directory(names.value(path))
    assert parent == (expected[-1] if expected else None)


def test_a_person_finds_the_way() -> None:
    names = Names("/ledgerlog")
    assert names.value("ledgers/00000000/0000/002a") == "/ledgerlog/ledgers/00000000/0000/=002a"
    assert names.directory("bookies/writable") == "/ledgerlog/bookies/writable"
    assert names.counter("ledger") == "/ledgerlog/+counters/ledger"
    assert names.counter("a/b") == "/ledgerlog/+counters/a^00002fb"


@pytest.mark.parametrize(
    "znode",
    [
        "/elsewhere/=a",
        "/ledgerlog/=a/=b",
        "/ledgerlog/+counters/ledger/0",
        "/ledgerlog/=",
        "/ledgerlog/^ffffff",
    ],
)
def test_what_is_not_ours_is_nobodys(znode: str) -> None:
    names = Names("/ledgerlog")
    found = names.logical(znode)
    assert found is None or (znode == "/ledgerlog/^ffffff" and names.value(found) != znode)
