"""Entry logs as files: their names, writing one, reading its records. Their bytes: ``bookie.core.entry_log``.

A log is written under a name that no boot looks at, in pieces of ``_PIECE_BYTES`` that are each durable when
they are written. Its header comes last, and then, durably, its real name: who finds a log finds all of it.
Its number is that of the last log and one, taken in the same step, so that numbers have no gaps, however
many logs are being written or were given up. Its size is known before the first byte, so the disk is asked
for all the room at once, and a full disk is noticed before anything is moved.

Between pieces, and every ``_STEP_BYTES`` of the work of putting small runs together, other tasks run: what
is written here may never hold up an add.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import attrs
import trio

from bookie.core import entry_log
from bookie.core.block import PADDING
from bookie.core.entry_log import (
    FOOTER,
    HEAD_BYTES,
    LEDGER,
    LEDGER_BYTES,
    LOG_HEADER_BYTES,
    REPLACES,
    TAIL_BYTES,
    LoggedLedger,
    LogHeader,
    record_bytes,
)
from bookie.core.facts import Fact, Replaces, log_fact
from bookie.core.file_set import FileSet
from bookie.core.frames import is_head_sound
from bookie.core.journal_items import ADD, EntryRun
from bookie.core.merging import Merged, merge_frames
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.disk import Disk, File, FileMissing
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from ledgerlog.limits import KIB, MIB

_NAME = re.compile(r"([0-9a-f]{16})\.entries\Z")
_UNFINISHED = ".new"
_UNFINISHED_NAME = re.compile(r"[0-9a-f]{16}\.new\Z")
_PIECE_BYTES = MIB
_STEP_BYTES = 64 * KIB
_STEP_RUNS = 1024
_STEP_RECORDS = 128
_FETCH_BYTES = MIB
_FETCH_RUNS = 2048

Fetch = Callable[[Sequence[EntryRun]], Awaitable[Sequence[bytes | memoryview]]]
"""The verified frames of some runs. UnreadableSource if they cannot be had."""


class UnreadableSource(StorageError):
    """What was to be written cannot be read: the file with that number, of a ``run`` that is in it."""

    def __init__(self, file: int, text: str, run: EntryRun | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.run = run


@attrs.frozen
class WrittenLog:
    """An entry log that is complete and durable under its own name."""

    number: int
    size: int
    level: int
    runs: list[EntryRun]
    """Where its runs lie, by ledger and first id."""

    @property
    def file(self) -> int:
        return -self.number


class EntryLogFiles:
    """The directory of entry logs."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        instance: str,
        new_nonce: Callable[[], bytes],
        *,
        ballast: Ballast | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.instance = instance
        self._new_nonce = new_nonce
        self._ballast = ballast
        """What must stay free, if anything."""
        self._next = 1
        self._begun = 0
        self._naming = trio.Lock()

    @classmethod
    def for_reading(cls, disk: Disk, directory: str, instance: str) -> EntryLogFiles:
        """For a directory in which no log will be written."""

        def no_nonce() -> bytes:
            raise AssertionError("these logs are only read")

        return cls(disk, directory, instance, no_nonce)

    def path(self, number: int) -> str:
        return f"{self.directory}/{number:016x}.entries"

    async def numbers(self) -> list[int]:
        """The numbers of all logs, sorted. Files of other names are not ours and are left alone."""
        names = await self.disk.list_directory(self.directory)
        return sorted(int(match[1], 16) for name in names if (match := _NAME.match(name)))

    async def prepare(self) -> list[int]:
        """Make the directory if need be, remove what an interrupted ``write`` left, and number the next log
        behind all that are there: their numbers, the names of which are durable."""
        await self.disk.make_directory(self.directory)
        await self.disk.sync_directory(self.directory.rpartition("/")[0])
        await self.disk.sync_directory(self.directory)
        for name in await self.disk.list_directory(self.directory):
            if _UNFINISHED_NAME.match(name):
                await self.disk.unlink(f"{self.directory}/{name}")
        numbers = await self.numbers()
        self._next = max(numbers, default=0) + 1
        return numbers

    async def remove(self, number: int) -> None:
        """Remove a log's file, durably."""
        await self.disk.unlink(self.path(number))
        await self.disk.sync_directory(self.directory)

    # --- writing ----------------------------------------------------------------------------------

    async def write(
        self,
        *,
        level: int,
        replaced: FileSet,
        ledgers: Mapping[int, LoggedLedger],
        runs: Sequence[Merged],
        usage: Mapping[int, int],
        fetch: Fetch,
        pace: Pace | None,
    ) -> WrittenLog:
        """A new log with these ledgers and their runs, both sorted, in the place of ``replaced``. Every
        ledger of a run is in ``ledgers``; ``usage`` says how many bytes of runs each has.

        DiskFull if there is no room, and nothing is left then. After any other failure, or cancelled, it may
        leave a file that the next start removes."""
        replaces, footer = entry_log.encode_replaces(replaced), entry_log.encode_footer(len(runs), usage)
        records = record_bytes(len(replaces)) + record_bytes(len(footer))
        records += len(ledgers) * record_bytes(LEDGER_BYTES)
        records += len(runs) * record_bytes(0) + sum(usage.values())
        size, nonce = entry_log.file_size(records), self._new_nonce()
        if self._ballast is not None:
            await self._ballast.check(size)
        buffer = await self.disk.make_buffer(min(size, _PIECE_BYTES))
        self._begun += 1
        unfinished = f"{self.directory}/{self._begun:016x}{_UNFINISHED}"
        file = await self.disk.create(unfinished, size)
        try:
            output = _Output(self.disk, file, nonce, buffer, pace)
            await output.record(REPLACES, replaces)
            offsets = await _write_ledgers(output, ledgers, runs, fetch)
            footer_at = output.offset
            await output.record(FOOTER, footer)
            await output.put(PADDING * (size - output.offset - TAIL_BYTES))
            await output.put(entry_log.encode_tail(nonce, footer_at, record_bytes(len(footer))))
            await output.finish(size)
            async with self._naming:
                number = self._next
                header = LogHeader(number, size, nonce, self.instance, level)
                buffer[:LOG_HEADER_BYTES] = header.encode()
                await self.disk.write_behind(file, 0, buffer[:LOG_HEADER_BYTES])
                await self.disk.rename(unfinished, self.path(number))
                await self.disk.sync_directory(self.directory)
                self._next += 1
        except (UnreadableSource, DiskFull):
            # The disk is well, and the room is wanted: a flush that found none is tried every second.
            with contextlib.suppress(FileMissing):  # It may have its name.
                await self.disk.unlink(unfinished)
            raise
        finally:
            self.disk.close(file)
        placed: list[EntryRun] = []
        for start in range(0, len(runs), _STEP_RUNS):
            step = slice(start, start + _STEP_RUNS)
            placed += [each.placed(-number, at) for each, at in zip(runs[step], offsets[step], strict=True)]
            await trio.lowlevel.checkpoint()
        return WrittenLog(number, size, level, placed)

    # --- reading ----------------------------------------------------------------------------------

    async def read_header(self, number: int) -> LogHeader:
        """A log's header, of a file that has its end. StorageCorrupt if either is damaged."""
        path = self.path(number)
        file = await self.disk.open(path)
        try:
            (page,) = await self.disk.read(file, [(0, LOG_HEADER_BYTES)])
            header = LogHeader.decode(page, path=path, number=number, instance=self.instance)
            (tail,) = await self.disk.read(file, [(header.size - TAIL_BYTES, TAIL_BYTES)])
        finally:
            self.disk.close(file)
        entry_log.decode_tail(tail, header, path)
        return header

    async def read_replaced(self, number: int) -> FileSet:
        """Which files a log took the place of, and which these had replaced."""
        async with aclosing(self.facts(number)) as facts:
            async for fact in facts:
                if isinstance(fact, Replaces):
                    return fact.files
                break
        raise StorageCorrupt(self.path(number), LOG_HEADER_BYTES, "the log does not begin as it should")

    async def facts(
        self, number: int, *, passes_rot: bool = False, pace: Pace | None = None
    ) -> AsyncGenerator[Fact, None]:
        """What the records of a log but its FOOTER say, in order, each of them proved, read at a ``pace`` if
        there is one. StorageCorrupt for damage; with ``passes_rot`` not for payloads that have rotted: the
        frame of such an ADD still says, under its own checksum, which entries it holds and how long it is."""
        path = self.path(number)
        header = await self.read_header(number)
        file = await self.disk.open(path)
        try:
            (tail,) = await self.disk.read(file, [(header.size - TAIL_BYTES, TAIL_BYTES)])
            stop, _ = entry_log.decode_tail(tail, header, path)
            at, data, start, count = LOG_HEADER_BYTES, b"", LOG_HEADER_BYTES, 0
            while at < stop:
                need = HEAD_BYTES
                if len(data) - (at - start) >= HEAD_BYTES:
                    head = entry_log.decode_head(data, at - start)
                    need = HEAD_BYTES + head.length
                if at + need > stop:
                    raise StorageCorrupt(path, at, f"a record of {need} bytes passes the last one")
                if len(data) - (at - start) < need:
                    size = min(stop - at, max(need, _PIECE_BYTES))
                    if pace is not None:
                        await pace.pass_through(size)
                    (data,) = await self.disk.read(file, [(at, size)])
                    start = at
                    if len(data) < need:
                        raise StorageCorrupt(path, at, "the file ends inside a record")
                    continue
                body = data[at - start + HEAD_BYTES : at - start + need]
                if not entry_log.is_whole(header.nonce, at, head, body) and not (
                    passes_rot and head.kind == ADD and is_head_sound(memoryview(body))
                ):
                    raise StorageCorrupt(path, at, "the checksum of a record does not match")
                yield log_fact(head.kind, at + HEAD_BYTES, body, file=-number, path=path)
                at += need
                count += 1
                if not count % _STEP_RECORDS:
                    await trio.lowlevel.checkpoint()
        finally:
            self.disk.close(file)


class _Output:
    """Bytes on their way into a log, a piece at a time."""

    def __init__(self, disk: Disk, file: File, nonce: bytes, buffer: memoryview, pace: Pace | None) -> None:
        self.offset = LOG_HEADER_BYTES
        """Where in the file the next byte goes."""
        self._disk = disk
        self._file = file
        self._nonce = nonce
        self._buffer = buffer
        self._pace = pace
        self._fill = 0
        self._written = LOG_HEADER_BYTES

    async def record(self, kind: int, body: bytes) -> int:
        """Put a record; the offset of its body."""
        await self.put(entry_log.encode_head(self._nonce, self.offset, kind, body))
        at = self.offset
        await self.put(body)
        return at

    async def put(self, data: bytes) -> None:
        self.offset += len(data)
        if self._fill + len(data) <= len(self._buffer):  # The common case, without a view.
            self._buffer[self._fill : self._fill + len(data)] = data
            self._fill += len(data)
            return
        rest = memoryview(data)
        while rest:
            if self._fill == len(self._buffer):
                await self._write()
            part = rest[: len(self._buffer) - self._fill]
            self._buffer[self._fill : self._fill + len(part)] = part
            self._fill += len(part)
            rest = rest[len(part) :]

    async def _write(self) -> None:
        if self._pace is None:
            await trio.lowlevel.checkpoint()  # As fast as the disk takes it, while others run in between.
        else:
            await self._pace.pass_through(self._fill)
        await self._disk.write_behind(self._file, self._written, self._buffer[: self._fill])
        self._written += self._fill
        self._fill = 0

    async def finish(self, size: int) -> None:
        assert self.offset == size
        if self._fill:
            await self._write()
        assert self._written == size


async def _write_ledgers(
    output: _Output, ledgers: Mapping[int, LoggedLedger], runs: Sequence[Merged], fetch: Fetch
) -> list[int]:
    """Put each ledger and its runs; the offsets of these."""
    offsets: list[int] = []
    waiting = iter(sorted(ledgers))
    begun = -1

    async def begin(ledger_id: int) -> None:
        """Put the LEDGER records up to that of ``ledger_id``."""
        nonlocal begun
        while begun < ledger_id:
            following = next(waiting, None)
            if following is None:
                begun = 2**63
                return
            await output.record(LEDGER, entry_log.encode_ledger(ledgers[following]))
            begun = following

    at = 0
    while at < len(runs):
        batch: list[Merged] = []
        parts: list[EntryRun] = []
        size = 0
        while at < len(runs) and (
            not batch or (size + runs[at].length <= _FETCH_BYTES and len(parts) < _FETCH_RUNS)
        ):
            batch.append(runs[at])
            parts.extend(runs[at].parts)
            size += runs[at].length
            at += 1
        frames = await fetch(parts)
        used = done = 0
        for merged in batch:
            await begin(merged.ledger_id)
            assert begun == merged.ledger_id
            frame = merge_frames(
                merged, frames[used : used + len(merged.parts)], ledgers[merged.ledger_id].key
            )
            used += len(merged.parts)
            offsets.append(await output.record(ADD, frame))
            done += len(frame) + 64 * len(merged.parts)
            if done >= _STEP_BYTES:
                done = 0
                await trio.lowlevel.checkpoint()
    await begin(2**63)
    return offsets
