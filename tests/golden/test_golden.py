"""What earlier versions wrote is read, written on and repaired by this one.

Each folder here is a version that was released, made by ``make.py`` of its own tree. A test that fails says
that somebody's data cannot be read any more: mend the code, never the files.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from ledgerlog.cluster import Cluster
from tests.golden.make import BOOKIES, digests, open_golden, plain
from tests.index_kinds import convert_index
from tests.unit.test_codecs_agree import CODECS
from tests.waiting import until
from tests.zookeepers import new_chroot

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "contents.json").exists())
CLUSTERS = [
    pytest.param(version, name, id=f"{version}-{name}")
    for version in VERSIONS
    for name in ("cluster-stopped", "cluster-killed")
]


def golden(version: str, name: str) -> Any:
    return json.loads((HERE / version / f"{name}.json").read_text())


class Said(dict[str, Any]):
    """What a record or message said when it was written, in the place of the value that it was made from."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def is_kept(old: Any, new: Any) -> bool:
    """Whether what an old version wrote is read as it was meant; a new version may know more fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and is_kept(value, new[name]) for name, value in old.items())
    return bool(old == new)


async def unpacked(version: str, name: str, path: Path) -> Path:
    with tarfile.open(HERE / version / f"{name}.tar.xz") as tar:
        tar.extractall(path, filter="data")
    for number in range(1, BOOKIES + 1):
        await convert_index(path / f"bookie-{number}")
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_records_and_messages_of_every_version_are_read(version: str) -> None:
    for name, rows in golden(version, "codecs").items():
        for old, data in rows:
            value = Said(old) if isinstance(old, dict) else old
            read = plain(CODECS[name].decode(bytes.fromhex(data), value))
            assert is_kept(old, read), name


async def check(cluster: Cluster, told: dict[str, Any], *, more: dict[str, list[bytes]]) -> None:
    """All that the golden cluster held is there, and what was appended since."""
    for name, records in told["logs"].items():
        log = await cluster.open_log(name)
        first = told["first_offset"][name]
        async with log.read(first) as reader:
            found = [record.data async for record in reader]
        assert digests(found) == [*records, *digests(more.get(name, []))][first:], name
    for ledger, entries in told["ledgers"].items():
        reader = await cluster.ledgers.open(int(ledger), recover=True)
        found = await reader.read(0, len(entries) - 1)
        assert digests([bytes(entry) for entry in found]) == entries, ledger


async def write_on(cluster: Cluster) -> dict[str, list[bytes]]:
    """Append to the log that goes on, by the producer that it knows; cursors and the order stay."""
    log = await cluster.open_log("orders")
    assert (await log.cursor("billing").get()).offset == 250
    more = [f"more {number}".encode() * 100 for number in range(50)]
    async with log.writer(producer="till-1") as writer:
        next_sequence = writer.next_offset
        before = writer.next_offset
        await writer.append(b"told before", sequence=next_sequence - 1)
        assert writer.next_offset == before, "the producer's last record counts once"
        for number, data in enumerate(more, next_sequence):
            await writer.append(data, sequence=number)
    return {"orders": more}


async def closed(cluster: Cluster) -> list[int]:
    return [
        ledger
        for ledger in await cluster.ledgers.list()
        if (await cluster.ledgers.metadata(ledger)).last_entry is not None
    ]


@pytest.mark.parametrize(("version", "name"), CLUSTERS)
async def test_a_cluster_of_every_version_is_read_and_written_on(
    version: str, name: str, tmp_path: Path
) -> None:
    told = golden(version, "contents")[name]
    path = await unpacked(version, name, tmp_path)
    async with open_golden(path) as cluster:
        more = await write_on(cluster)
        await check(cluster, told, more=more)
    async with open_golden(path) as cluster:
        await check(cluster, told, more=more)


@pytest.mark.parametrize(("version", "name"), CLUSTERS)
async def test_a_bookie_of_every_version_is_filled_again_from_its_peers(
    version: str, name: str, tmp_path: Path
) -> None:
    told = golden(version, "contents")[name]
    path = await unpacked(version, name, tmp_path)
    shutil.rmtree(path / "bookie-4")
    async with open_golden(path, lost="bookie-4") as cluster:
        await check(cluster, told, more=await write_on(cluster))
        await until(partial(is_whole, cluster))


async def is_whole(cluster: Cluster) -> bool:
    """Whether every copy of every closed ledger is there."""
    for ledger in await cluster.ledgers.list():
        is_closed = (await cluster.ledgers.metadata(ledger)).last_entry is not None
        if is_closed and (await cluster.ledgers.verify(ledger)).under_replicated:
            return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_of_every_version_in_zookeeper_is_read_and_written_on(
    version: str, zookeeper_hosts: str, tmp_path: Path
) -> None:
    told = golden(version, "contents")["cluster-zookeeper"]
    path = await unpacked(version, "cluster-zookeeper", tmp_path)
    chroot = new_chroot()
    await trio.to_thread.run_sync(bring_back, zookeeper_hosts, chroot, golden(version, "zookeeper"))
    async with open_golden(path, f"zk://{zookeeper_hosts}{chroot}") as cluster:
        await check(cluster, told, more={})
        await check(cluster, told, more=await write_on(cluster))


def bring_back(hosts: str, chroot: str, nodes: dict[str, str]) -> None:
    client = KazooClient(hosts=hosts)
    client.start()
    for path, node in nodes.items():
        (version, data), here = node.split(" "), path.replace("/golden", chroot, 1)
        client.create(here, bytes.fromhex(data), makepath=True)
        for _ in range(int(version)):  # A counter has its number in the version.
            client.set(here, bytes.fromhex(data))
    client.stop()
    client.close()
