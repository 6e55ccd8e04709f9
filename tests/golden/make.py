"""Write the golden files of the version that runs this: ``python -m tests.golden.make DIRECTORY``.

Run it once for each release, from the tree of that release, and keep the result for ever. Later versions
read these files, go on writing on them, and repair them (``test_golden.py``).

    cluster-stopped.tar.xz    a cluster of four bookies on SQLite, every bookie stopped in order
    cluster-killed.tar.xz     the same, ended by ``os._exit`` in the middle of its work
    cluster-zookeeper.tar.xz  the bookies of such a cluster whose metadata is in ZooKeeper
    zookeeper.json            the znodes of that cluster: path to version and value in hex
    contents.json             what the logs and ledgers of each hold
    codecs.json               records and messages: what each says, and its bytes in hex

``bookie-4`` runs without the journal's copy of the data. The bookies were
made with small segments, so that they have entry logs too.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from hypothesis import HealthCheck, given, seed, settings
from kazoo.client import KazooClient

import ledgerlog
from bookie.server.node import open_bookie
from bookie.storage.engine.config import StorageConfig
from ledgerlog.cluster import Cluster
from ledgerlog.ledger.client import open_client
from ledgerlog.limits import FRAME_BYTES_MAX, KIB, MIB, SHARED_DISK
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.net.local import LocalNetwork
from ledgerlog.repair.peers import open_peers
from tests.unit.test_codecs_agree import CODECS, REFUSALS, Codec
from tests.zookeepers import open_ensemble

BOOKIES = 4


def _config(number: int, *, is_small: bool) -> StorageConfig:
    return StorageConfig(
        segment_bytes=256 * KIB if is_small else 8 * MIB,
        frame_bytes_max=64 * KIB if is_small else FRAME_BYTES_MAX + 4,
        journal_write_data=number <= 3,
        write_cache_age_s=0.2,
        ballast_bytes=0,
        **SHARED_DISK,
    )


@asynccontextmanager
async def open_golden(
    path: Path, uri: str | None = None, *, create: bool = False, lost: str = ""
) -> AsyncIterator[Cluster]:
    """A cluster in this process: ``bookie-1`` to ``bookie-4`` of ``path``, with its metadata at ``uri``, by
    default in ``metadata.sqlite`` of ``path``. The bookie ``lost`` may have lost its directory: it copies
    from the others what it lacks."""
    network = LocalNetwork()
    uri = uri or f"sqlite:{path / 'metadata.sqlite'}"
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(parse_uri(uri), create=create))

        for number in range(1, BOOKIES + 1):
            name = f"bookie-{number}"
            await stack.enter_async_context(
                open_bookie(
                    str(path / name),
                    store,
                    bookie_id=name,
                    network=network,
                    listen=name,
                    random_bytes=os.urandom,
                    config=_config(number, is_small=create),
                    find_place=partial(str, name),
                    fix_cookie=name == lost,
                    peers=partial(open_peers, store, network),
                )
            )
        client = await stack.enter_async_context(open_client(store, network))
        yield Cluster(uri, client)


def _payloads(name: str, count: int, size: int) -> list[bytes]:
    """Different records of different sizes, which pack well."""
    dice = random.Random(name)
    return [
        f"{name} {number} ".encode() + dice.randbytes(8).hex().encode() * dice.randrange(size // 16)
        for number in range(count)
    ]


def digests(records: list[bytes]) -> list[str]:
    """What ``contents.json`` says of records."""
    return [hashlib.sha256(data).hexdigest()[:16] for data in records]


async def _tell_story(cluster: Cluster) -> dict[str, Any]:
    """Fill the cluster; what it holds then."""
    three = Replication(3, 3, 2)
    small = RollPolicy(max_bytes=64 * KIB)
    logs: dict[str, list[bytes]] = {}

    orders = await cluster.create_log("orders", replication=three, roll=small, properties={"owner": "sales"})
    logs["orders"] = _payloads("orders", 300, 2000)
    async with orders.writer(producer="till-1") as writer:
        for number, data in enumerate(logs["orders"][:200]):
            await writer.append(data, sequence=number)
    async with orders.writer(producer="till-1", compression="zstd") as writer:
        for number, data in enumerate(logs["orders"][200:], 200):
            await writer.append(data, sequence=number)
    await orders.cursor("billing").set(250)
    await orders.truncate(50)

    sealed = await cluster.create_log("sealed", replication=Replication(4, 3, 2, guaranteed=True))
    logs["sealed"] = _payloads("sealed", 40, 500)
    async with sealed.writer() as writer:
        for data in logs["sealed"]:
            await writer.append(data)
    await sealed.seal()

    gone = await cluster.create_log("gone", replication=three)
    async with gone.writer() as writer:
        for data in _payloads("gone", 50, 5000):
            await writer.append(data)
    await cluster.delete_log("gone")

    ledgers: dict[str, list[bytes]] = {}
    closed = await cluster.ledgers.create(replication=Replication(4, 2, 2), metadata={"what": b"closed"})
    ledgers[str(closed.ledger_id)] = _payloads("closed", 100, 3000)
    for data in ledgers[str(closed.ledger_id)]:
        await closed.append(data)
    await closed.close()

    left = await cluster.ledgers.create(replication=three, metadata={"what": b"left open"})
    ledgers[str(left.ledger_id)] = _payloads("left open", 30, 500)
    for data in ledgers[str(left.ledger_id)]:
        await left.append(data)

    async with cluster.election("boss", candidate="golden").leadership():
        pass
    return {
        "logs": {name: digests(found) for name, found in logs.items()},
        "first_offset": {"orders": 50, "sealed": 0},
        "ledgers": {ledger: digests(found) for ledger, found in ledgers.items()},
        "left_open": left.ledger_id,
    }


async def _fill(path: Path, contents: Path) -> None:
    with contents.open("w") as out:
        async with open_golden(path, create=True) as cluster:
            told = await _tell_story(cluster)
            if path.name.endswith("killed"):
                log = await cluster.open_log("orders")
                async with log.writer(producer="till-1") as writer:
                    more = _payloads("killed", 20, 500)
                    for number, data in enumerate(more, 300):
                        await writer.append(data, sequence=number)
                    told["logs"]["orders"] += digests(more)
                    json.dump(told, out)
                    out.flush()
                    os._exit(0)
        json.dump(told, out)


async def _fill_on_zookeeper(path: Path, contents: Path) -> dict[str, str]:
    """Tell the story over a ZooKeeper server; its lasting znodes: path to "VERSION HEX"."""
    async with open_ensemble(path.with_name("ensemble"), 1) as ensemble:
        uri = f"zk://{ensemble.hosts}/golden"
        async with open_golden(path, uri, create=True) as cluster:
            await trio.Path(contents).write_text(json.dumps(await _tell_story(cluster)))
        return await trio.to_thread.run_sync(_dump, ensemble.hosts)


def _dump(hosts: str) -> dict[str, str]:
    found: dict[str, str] = {}
    client = KazooClient(hosts=hosts)
    client.start()

    def walk(path: str) -> None:
        value, stat = client.get(path)
        if not stat.ephemeralOwner:
            found[path] = f"{stat.version} {value.hex()}"
        for name in sorted(client.get_children(path)):
            walk(f"{path}/{name}")

    walk("/golden")
    client.stop()
    client.close()
    return found


def plain(value: Any) -> Any:
    """A value of a codec as JSON: what was read, whatever its classes are called."""
    match value:
        case bytes():
            return value.hex()
        case enum.Enum():
            return value.name
        case dict():
            return {str(key): plain(found) for key, found in value.items()}
        case list() | tuple() if not hasattr(value, "_asdict"):
            return [plain(found) for found in value]
        case float() | int() | str() | None:
            return value
        case _ if attrs.has(type(value)):
            return {
                field.name.strip("_"): plain(getattr(value, field.name))
                for field in attrs.fields(type(value))
            }
        case _:
            return plain(value._asdict())


def _codecs() -> dict[str, list[Any]]:
    """Records and messages of every kind: what they say, and their bytes."""
    found = {name: _examples(codec) for name, codec in CODECS.items()}
    assert all(found.values()), [name for name, rows in found.items() if not rows]
    return found


def _examples(codec: Codec) -> list[Any]:
    kept: list[Any] = []

    @seed(1)
    @settings(max_examples=300, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(make=codec.values)
    def collect(make: Any) -> None:
        try:
            value = make()
            data = codec.encode(value)
        except REFUSALS:
            return
        row = [plain(value), data.hex()]
        if len(kept) < 8 and row not in kept and len(data) < 2000:
            kept.append(row)

    if codec.sized is not None:
        kept.append([plain(codec.sized(b"abcdefgh")), codec.encode(codec.sized(b"abcdefgh")).hex()])
    collect()
    return kept


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        trio.run(_fill, Path(sys.argv[2]), Path(sys.argv[3]))
        return
    whole: dict[str, Any] = {"version": ledgerlog.__version__}
    told = target / "told"
    for name in ("cluster-stopped", "cluster-killed", "cluster-zookeeper"):
        path = target / name
        path.mkdir()
        if name == "cluster-zookeeper":
            nodes = trio.run(_fill_on_zookeeper, path, told)
            (target / "zookeeper.json").write_text(json.dumps(nodes, indent=1) + "\n")
        else:
            words = [sys.executable, "-m", "tests.golden.make", str(target), str(path), str(told)]
            subprocess.run(words, check=True)
        whole[name] = json.loads(told.read_text())
        told.unlink()
        with tarfile.open(target / f"{name}.tar.xz", "w:xz") as tar:
            tar.add(path, arcname=".", filter=_anonymous)
        shutil.rmtree(path)
    shutil.rmtree(target / "ensemble")
    (target / "codecs.json").write_text(json.dumps(_codecs(), indent=1) + "\n")
    (target / "contents.json").write_text(json.dumps(whole, indent=1) + "\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if member.name.endswith("/LOCK") else member


if __name__ == "__main__":
    main()
