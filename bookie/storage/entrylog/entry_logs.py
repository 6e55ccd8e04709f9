"""Entry logs as files: naming, writing and reading them. ``bookie.core.entry_log`` defines their bytes.

A log is written in pieces of ``_PIECE_BYTES``, under a temporary name. When the bookie starts, it ignores
files with such names. Each piece is durable when its write returns. The header is written last, and then the
log gets its final name, durably. So a log under its final name is complete.

A log's number is one more than the number of the previous log. It is chosen together with the final name. So
writing leaves no gaps in the numbers, even if several logs are written at once, or if some are abandoned.

The size of a log is known before its first byte is written. The writer allocates all of it at once, so a full
disk is noticed before any entry moves.

Other tasks run between two pieces, and after every ``_STEP_BYTES`` of merging small runs, because writing a
log must never delay an add.
"""

from __future__ import annotations

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
STEP_RUNS = 512
"""How many runs (frames of entries) are handled between two checkpoints. During that time, about a
millisecond, adds wait."""
_STEP_BYTES = 64 * KIB
_STEP_RECORDS = 128
_FETCH_BYTES = MIB

Fetch = Callable[[Sequence[EntryRun]], Awaitable[Sequence[bytes | memoryview]]]
"""Returns the verified frames of some runs, in order. Raises UnreadableSource if a frame cannot be read."""


class UnreadableSource(StorageError):
    """A run that should be written to the log cannot be read from its source.

    ``file`` is the number of the source. ``run`` is the unreadable run, or None if it is not known.
    """

    def __init__(self, file: int, text: str, run: EntryRun | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.run = run


@attrs.frozen
class WrittenLog:
    """An entry log that is complete and durable under its final name."""

    number: int
    size: int
    level: int
    runs: list[EntryRun]
    """The positions of its runs in the log, sorted by ledger and first entry id."""

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
        """The amount of room on the disk that must stay free; None for no limit."""
        self._next = 1
        self._begun = 0
        self._naming = trio.Lock()

    @classmethod
    def for_reading(cls, disk: Disk, directory: str, instance: str) -> EntryLogFiles:
        """Open a directory only for reading. ``write`` must not be called."""

        def no_nonce() -> bytes:
            raise AssertionError("these logs are only read")

        return cls(disk, directory, instance, no_nonce)

    def path(self, number: int) -> str:
        return f"{self.directory}/{number:016x}.entries"

    async def numbers(self) -> list[int]:
        """Return the numbers of all logs, sorted. Files with other names do not belong to the bookie and are
        ignored."""
        names = await self.disk.list_directory(self.directory)
        return sorted(int(match[1], 16) for name in names if (match := _NAME.match(name)))

    async def prepare(self) -> list[int]:
        """Create the directory if it is missing, remove the files of interrupted ``write`` calls, and choose
        the number of the next log: one more than the largest. Return the numbers of all logs. Their names are
        durable then."""
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
        """Write a new log that holds these ledgers and their runs.

        Args:
            level: How often the entries were merged with entries of other files.
            replaced: The files that the log replaces, and the files that those files had replaced.
            ledgers: The state of each ledger. It contains every ledger that has a run.
            runs: The runs, sorted by ledger and first entry id.
            usage: The bytes of runs, by ledger.
            fetch: Reads the frames of runs from their source.
            pace: Limits the speed of writing; None for no limit.

        Raises:
            DiskFull: The disk has no room. The temporary file is removed.
            StorageError: The disk failed, or had no room to make the name of the log durable. The bookie must
                end, because the log may count from now on.
            UnreadableSource: A run cannot be read from its source. The temporary file is removed.

        After any other error, or if this is cancelled, a temporary file may be left. The next start removes
        that file.
        """
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
        except (UnreadableSource, DiskFull) as failure:
            # The disk still works. A flush that finds no room is tried again every second, so free now the
            # space that this attempt took.
            try:
                await self.disk.unlink(unfinished)
            except FileMissing:
                # The log has its name, and a start takes it over. Until then its entries must not be stored
                # again or put together with others: the log would take their place.
                why = f"{self.path(number)} has its name, but not durably: {failure}"
                raise StorageError(why) from failure
            raise
        finally:
            self.disk.close(file)
        placed: list[EntryRun] = []
        for start in range(0, len(runs), STEP_RUNS):
            step = slice(start, start + STEP_RUNS)
            placed += [each.placed(-number, at) for each, at in zip(runs[step], offsets[step], strict=True)]
            await trio.lowlevel.checkpoint()
        return WrittenLog(number, size, level, placed)

    # --- reading ----------------------------------------------------------------------------------

    async def read_header(self, number: int) -> LogHeader:
        """Read a log's header and check its tail. StorageCorrupt if either is damaged or missing."""
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
        """Return the files that a log replaced, and the files that those files had replaced."""
        async with aclosing(self.facts(number)) as facts:
            async for fact in facts:
                if isinstance(fact, Replaces):
                    return fact.files
                break
        raise StorageCorrupt(self.path(number), LOG_HEADER_BYTES, "its first record is not REPLACES")

    async def facts(
        self, number: int, *, passes_rot: bool = False, pace: Pace | None = None
    ) -> AsyncGenerator[Fact, None]:
        """Yield the facts of a log's records in order, without its FOOTER. Each record's checksum is checked.

        Args:
            number: The number of the log.
            passes_rot: Accept an ADD with a damaged payload if the head of its frame is sound. The head has
                its own checksum, and says which entries the frame holds and how long the frame is.
            pace: Limits the speed of reading; None for no limit.

        Raises:
            StorageCorrupt: The log is damaged.
        """
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
                    raise StorageCorrupt(path, at, f"a record of {need} bytes does not fit before the footer")
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
    """Collects bytes in a buffer and writes them to a log, one piece at a time."""

    def __init__(self, disk: Disk, file: File, nonce: bytes, buffer: memoryview, pace: Pace | None) -> None:
        self.offset = LOG_HEADER_BYTES
        """The position in the file of the next byte."""
        self._disk = disk
        self._file = file
        self._nonce = nonce
        self._buffer = buffer
        self._pace = pace
        self._fill = 0
        self._written = LOG_HEADER_BYTES

    async def record(self, kind: int, body: bytes) -> int:
        """Put a record and return the offset of its body."""
        await self.put(entry_log.encode_head(self._nonce, self.offset, kind, body))
        at = self.offset
        await self.put(body)
        return at

    async def put(self, data: bytes) -> None:
        self.offset += len(data)
        if self._fill + len(data) <= len(self._buffer):  # The common case needs no memoryview.
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
            await trio.lowlevel.checkpoint()  # No limit on the speed, but other tasks run between two pieces.
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
    """Put each ledger's LEDGER record and then its runs. Return the offsets of the runs."""
    offsets: list[int] = []
    waiting = iter(sorted(ledgers))
    begun = -1

    async def begin(ledger_id: int) -> None:
        """Put the LEDGER records up to and including the record of ``ledger_id``."""
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
            not batch or (size + runs[at].length <= _FETCH_BYTES and len(parts) < STEP_RUNS)
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
            done += len(frame) + _STEP_BYTES // STEP_RUNS * len(merged.parts)
            if done >= _STEP_BYTES:
                done = 0
                await trio.lowlevel.checkpoint()
    await begin(2**63)
    return offsets
