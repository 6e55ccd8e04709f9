"""Helpers for tests of the storage: frames, a small configuration, and a bookie that can be started again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import trio

from bookie.core.gone_ledgers import Range
from bookie.storage.disk.disk import Disk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory, open_directory
from bookie.storage.engine.engine import Engine, ReadResult
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import Indexes
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.id_ranges import ranges_of
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add, encode_lac
from ledgerlog.wire.frame import Frame, Status, decode_frame_untrusted

KEY = b"k" * 16
OTHER_KEY = b"o" * 16
SMALL = StorageConfig(segment_bytes=12 * 4096, arenas=2, frame_bytes_max=20_000, disk_full_retry_s=0.01)
COOKIE = Cookie(bookie_id="b1", instance="instance-1", cluster="cluster-1")


class ToldOracle:
    """Says that the ledgers of a test are gone and not listed."""

    def __init__(self, gone: Collection[int] = ()) -> None:
        self.gone: set[int] = set(gone)

    async def surely_gone(self, ledger_ids: Sequence[int]) -> Collection[int]:
        await trio.lowlevel.checkpoint()
        return self.gone & set(ledger_ids)

    async def absent(self, first: int, last: int) -> list[Range]:
        await trio.lowlevel.checkpoint()
        return ranges_of(sorted(ledger_id for ledger_id in self.gone if first <= ledger_id <= last))


def add_frame(
    ledger_id: int,
    ids: Sequence[int],
    payloads: Sequence[bytes] | None = None,
    *,
    lac: int = -1,
    lafr: int = -1,
    key: bytes = KEY,
    recovery: bool = False,
) -> tuple[Frame, Entries]:
    """An ADD as a server hands it over. Each entry has its own payload by default."""
    if payloads is None:
        payloads = [payload_of(ledger_id, entry_id) for entry_id in ids]
    entries = Entries.gather(ledger_id, dict(zip(ids, payloads, strict=True)))
    raw = b"".join(encode_add(entries, lac=lac, lafr=lafr, key=key, recovery=recovery))
    # A receive buffer is used again: nothing may keep a view of it.
    frame = decode_frame_untrusted(memoryview(bytearray(raw)))
    return frame, decode_entries_untrusted(frame)


def lac_frame(ledger_id: int, *, lac: int, lafr: int = -1, key: bytes = KEY) -> tuple[Frame, Entries]:
    raw = b"".join(encode_lac(ledger_id, lac=lac, lafr=lafr, key=key))
    frame = decode_frame_untrusted(memoryview(raw))
    return frame, decode_entries_untrusted(frame)


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """Different sizes, and some of zeros, which is what torn writes look like too."""
    if entry_id % 7 == 3:
        return bytes(600 + entry_id)
    return b"ledger %d entry %d " % (ledger_id, entry_id) * (1 + entry_id % 5)


def add(engine: Engine, ledger_id: int, ids: Sequence[int], **more: object) -> int:
    """Add entries that must be accepted."""
    position = engine.add(*add_frame(ledger_id, ids, **more))
    assert not isinstance(position, Status), position
    return position


async def add_durably(engine: Engine, ledger_id: int, ids: Sequence[int], **more: object) -> None:
    await engine.wait_room()
    await engine.wait_durable(add(engine, ledger_id, ids, **more))


async def read(engine: Engine, ledger_id: int, first: int = 0, last: int = 10**6, **more: int) -> ReadResult:
    return await engine.read(
        ledger_id,
        first=first,
        last=last,
        stride=more.get("stride", 1),
        bytes_max=more.get("bytes_max", 10**9),
    )


async def read_all(
    engine: Engine, ledger_id: int, last: int = 10**6, *, bytes_max: int = 2000
) -> dict[int, bytes]:
    """Read all entries of a ledger, in as many steps as necessary."""
    found: dict[int, bytes] = {}
    first = 0
    while first <= last:
        result = await read(engine, ledger_id, first, last, bytes_max=bytes_max)
        assert result.status in (Status.OK, Status.NO_SUCH_LEDGER), result.status
        found.update(zip(result.entries.ids, result.entries.payloads(), strict=True))
        first = result.through + 1
    return found


def payloads(ledger_id: int, ids: Sequence[int]) -> dict[int, bytes]:
    return {entry_id: payload_of(ledger_id, entry_id) for entry_id in ids}


@asynccontextmanager
async def opened(
    path: str, disk: Disk | None = None, indexes: Indexes | None = None, index: str = ""
) -> AsyncIterator[StorageDirectory]:
    """A directory that is formatted."""
    async with open_directory(path, disk=disk, indexes=indexes, index=index) as directory:
        if await directory.read_cookie() is None:
            await directory.format(COOKIE)
        yield directory


@asynccontextmanager
async def running(
    path: str,
    config: StorageConfig = SMALL,
    *,
    disk: Disk | None = None,
    indexes: Indexes | None = None,
) -> AsyncIterator[Engine]:
    async with (
        opened(path, disk, indexes, config.index) as directory,
        open_engine(directory, config) as engine,
    ):
        yield engine


class Crash(Exception):
    """Leaves an engine as a crash does: without a clean stop."""
