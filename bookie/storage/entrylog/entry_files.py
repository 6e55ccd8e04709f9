"""The files that hold entries, of both kinds: segments of the journal and entry logs.

One number names a file: a segment by its own, an entry log by minus its own. ``EntryFiles`` knows by it where
a file is, removes it, and goes through it: ``facts`` is the one walk over what a file says that the index has
passed, each part of it proved.
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
"""What is looked at without a pause, while adds wait."""


@attrs.frozen
class EntryFiles:
    segments: SegmentFiles
    logs: EntryLogFiles

    def path(self, file: int) -> str:
        return self.segments.path(file) if file > 0 else self.logs.path(-file)

    async def remove(self, file: int, *, used: int | None = None) -> None:
        """Remove a file that the index does not name, durably. ``used``: so many of the first bytes of a
        segment were ever written."""
        if file > 0:
            await self.segments.remove(file, used=used)
        else:
            await self.logs.remove(-file)

    async def facts(self, file: int, *, end: int, pace: Pace | None = None) -> AsyncGenerator[Fact, None]:
        """What a file says up to its ``end``, which the index knows, read at a ``pace`` if there is one.
        StorageCorrupt for damage anywhere before its end, StorageError if it cannot be read."""
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
