"""Text files as records and back, byte for byte.

A record is a line without its newline. If you append a file and print it with ``log read --raw``, you get the
same bytes. That includes empty lines, binary lines, and lines of megabytes. A list of lines does not tell
whether the last one had a newline. So if the input of an append ends without a newline, the append stores the
offset of its last record in the log's property ``UNTERMINATED``. If this record is the last one printed, its
newline is left out. If more records follow it, the newline is printed, because it separates two records.

``LineCutter`` keeps only one unfinished line. It refuses a line as soon as it is longer than a record may be.
``Source`` and ``Sink`` read standard input and write standard output in a thread, so a slow or stuck pipe
does not stop the loop, and does not block signals.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO

import trio

from ledgerlog.cli.output import telling_of_output
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import LedgerLogError, RecordTooLarge
from ledgerlog.limits import MIB, RECORD_BYTES_MAX

__all__ = ["UNTERMINATED", "LineCutter", "LineJoiner", "Sink", "Source", "open_sink"]

UNTERMINATED = "text.unterminated-offset"
"""The log property with the offset of the last record that came from a file without a final newline."""

CHUNK_BYTES = MIB
SINK_BYTES = 4 * MIB
"""The most bytes that a ``Sink`` keeps for a reader that is slower than the log. Then ``put`` waits."""


class LineCutter:
    """Cuts chunks of bytes into lines.

    Args:
        line_bytes_max: The longest line.
    """

    def __init__(self, *, line_bytes_max: int = RECORD_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []
        self._held = 0
        self._lines = 0
        self.failure: RecordTooLarge | None = None
        """The error for a line that is longer than a record may be; it names the line.

        Nothing is cut after it.
        """

    @property
    def holds_a_line(self) -> bool:
        """Whether the bytes so far end in the middle of a line."""
        return bool(self._pieces)

    def cut(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` completes. If one is too long, return those before it."""
        assert self.failure is None, "nothing follows a line that is too long"
        *lines, rest = chunk.split(b"\n")
        if lines and self._pieces:
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces, self._held = [], 0
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
        if lines and max(map(len, lines)) > self._line_bytes_max:
            at = next(i for i, line in enumerate(lines) if len(line) > self._line_bytes_max)
            self._fail(at, len(lines[at]))
            lines = lines[:at]
        elif self._held > self._line_bytes_max:
            self._fail(len(lines), self._held)
        self._lines += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the unfinished line, if there is one."""
        lines = [b"".join(self._pieces)] if self._pieces and self.failure is None else []
        self._pieces, self._held = [], 0
        return lines

    def _fail(self, index: int, size: int) -> None:
        self._pieces, self._held = [], 0
        self.failure = RecordTooLarge(size, self._line_bytes_max, f"record (line {self._lines + index + 1})")


class LineJoiner:
    """Joins records to text, a line for each record.

    The newline of the record at the offset ``unterminated`` is held back until another record follows.
    """

    def __init__(self, unterminated: int | None) -> None:
        self._unterminated = unterminated
        self._owes_newline = False

    def join(self, first_offset: int, records: list[bytes]) -> bytes:
        """Return the text of consecutive records, at least one."""
        parts = [b"", *records] if self._owes_newline else [*records]
        self._owes_newline = first_offset + len(records) - 1 == self._unterminated
        if not self._owes_newline:
            parts.append(b"")
        return b"\n".join(parts)


class Source:
    """Standard input or a file, read in chunks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._fd = _descriptor(file)

    @property
    def size(self) -> int | None:
        """The size in bytes of a regular file; None for everything else."""
        if self._fd is None:
            return None
        status = os.fstat(self._fd)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    async def read(self) -> bytes:
        """Return the next bytes as soon as there are any; b"" at the end.

        If you cancel this, a thread may stay that waits for bytes and drops them.
        """
        fd = self._fd
        if fd is None:
            await trio.lowlevel.checkpoint()
            return self._file.read(CHUNK_BYTES)
        # Read the descriptor, not the file object: at the program's end, the thread could hold the object's
        # lock.
        return await trio.to_thread.run_sync(os.read, fd, CHUNK_BYTES, abandon_on_cancel=True)


class Sink:
    """Standard output. A task writes the bytes that were queued since its last write."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._fd = _descriptor(file)
        self._gathered: list[bytes] = []
        self._bytes = 0
        self._is_writing = False
        self._is_ending = False
        self._more = trio.Event()
        self._taken = trio.Event()

    async def put(self, data: bytes) -> None:
        """Queue ``data``; it is written soon and in order. This waits if too many bytes are unwritten."""
        while self._bytes >= SINK_BYTES:
            await self._taken.wait()
        self._gathered.append(data)
        self._bytes += len(data)
        self._more.set()

    def _end(self) -> None:
        self._is_ending = True
        self._more.set()

    async def _run(self) -> None:
        self._file.flush()  # Bytes that were printed in another way come first.
        while not self._is_ending or self._gathered:
            await self._more.wait()
            self._more = trio.Event()
            if self._is_ending:
                self._more.set()
            gathered, self._gathered = self._gathered, []
            if gathered:
                await self._write(b"".join(gathered))
                self._bytes -= sum(map(len, gathered))
                self._taken.set()
                self._taken = trio.Event()

    async def _write(self, data: bytes) -> None:
        fd = self._fd
        with telling_of_output():
            if fd is None:
                self._file.write(data)
                await trio.lowlevel.checkpoint()
            else:
                await trio.to_thread.run_sync(_write_all, fd, data, abandon_on_cancel=True)


@asynccontextmanager
async def open_sink(file: BinaryIO) -> AsyncIterator[Sink]:
    """Open a ``Sink`` for the body.

    If the body ends normally or with a LedgerLogError, the remaining bytes are written. So what was read
    before an error is printed. The error comes out after that.

    Raises:
        BrokenPipeError: The reader of standard output has gone away.
    """
    failure: LedgerLogError | None = None
    async with open_nursery() as nursery:
        sink = Sink(file)
        nursery.start_soon(sink._run)
        try:
            yield sink
        except LedgerLogError as error:
            failure = error
        sink._end()
    if failure is not None:
        raise failure


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])  # Another process shares the file and made it non-blocking.


def _descriptor(file: BinaryIO) -> int | None:
    """Return the file's descriptor; None if it is not a real file."""
    fileno: Callable[[], int] | None = getattr(file, "fileno", None)
    try:
        return None if fileno is None else fileno()
    except (OSError, ValueError):
        return None
