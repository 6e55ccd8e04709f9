"""The files that hold entries: segments of the journal, and entry logs.

One number names a file: a segment has its own number, an entry log its negative number. For example, 7 is
segment 7 and -7 is entry log 7. ``EntryFiles`` finds the path of a file, removes it, and reads through it:
``facts`` yields every fact of a file up to an end that the index knows, each part verified.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import attrs
import trio

from bookie.core.facts import Fact, block_facts
from bookie.core.segment import BlockWalk
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.journal.segments import SegmentFiles
from ledgerlog.concurrency.pace import Pace
from ledgerlog.limits import KIB

_STEP_BYTES = 256 * KIB
"""How many bytes are examined between two checkpoints. Adds wait during that time."""


@attrs.frozen
class EntryFiles:
    segments: SegmentFiles
    logs: EntryLogFiles

    def path(self, file: int) -> str:
        return self.segments.path(file) if file > 0 else self.logs.path(-file)

    async def remove(self, file: int, *, used: int | None = None) -> None:
        """Remove a file durably. The index must not name it.

        Args:
            file: The number of the file.
            used: How many bytes from the start of a segment were ever written, if you know it.
        """
        if file > 0:
            await self.segments.remove(file, used=used)
        else:
            await self.logs.remove(-file)

    async def facts(self, file: int, *, end: int, pace: Pace | None = None) -> AsyncGenerator[Fact, None]:
        """Yield the facts of a file up to its ``end``.

        Args:
            file: The number of the file.
            end: The end that the index knows.
            pace: Read at this pace. None: without a limit.

        Raises:
            StorageCorrupt: The file is damaged somewhere before its end.
            StorageError: The file cannot be read.
        """
        if file < 0:
            async with aclosing(self.logs.facts(-file, pace=pace)) as facts:
                async for fact in facts:
                    yield fact
            return
        path = self.path(file)
        header, image = await self.segments.read(file, pace=pace)
        step = 0
        for block in BlockWalk(image, header, path=path, stop=end):
            for fact in block_facts(image, block, path):
                yield fact
            step += block.header.block_bytes
            if step >= _STEP_BYTES:
                step = 0
                await trio.lowlevel.checkpoint()
