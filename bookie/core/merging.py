"""Putting small runs together: which of them make one frame, and what its bytes are.

Runs of one ledger that follow one another become one frame of up to ``FRAME_BYTES``, so that reading on takes
one look at the index for hundreds of entries, however they came. Nothing is computed anew but the frame's own
checksum: the lengths and digests of the entries are those that were verified when they came.

Runs whose ids are consecutive make a run without gaps. Runs with small gaps (what striping leaves a bookie)
are put together as well; whether another file has entries of the gap is not known here, so such a run may
reach over others: ``LedgerState.on_merge``.

A merged frame has the LAC and LAFR -1. What was told is kept in the ledger's own record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bookie.core.records import Run
from ledgerlog.limits import ENSEMBLE_MAX, FRAME_ENTRIES_MAX, KIB
from ledgerlog.wire.frame import HEADER_BYTES, SPARSE, Kind, encode_head

FRAME_BYTES = 64 * KIB
"""Runs are put together up to about this size. A lone entry read from the disk costs as much."""

_GAP_MAX = 2 * ENSEMBLE_MAX
"""Striping leaves to each bookie at least one of so many entries."""

_SPAN_MAX = 2**32
"""Offsets of ids in a frame have 32 bits."""


class Merged(NamedTuple):
    """Runs that become one, and how long its frame is."""

    parts: tuple[Run, ...]
    length: int
    entry_count: int

    @property
    def ledger_id(self) -> int:
        return self.parts[0].ledger_id

    @property
    def first(self) -> int:
        return self.parts[0].first

    @property
    def last(self) -> int:
        return self.parts[-1].last

    @property
    def is_dense(self) -> bool:
        return self.entry_count == self.last - self.first + 1

    def placed(self, file: int, offset: int) -> Run:
        """The run as it lies in an entry log."""
        return Run(
            self.ledger_id, self.first, self.last, self.entry_count, file, offset, self.length, sequence=0
        )


def merge_runs(runs: Iterable[Run]) -> Iterator[Merged]:
    """Which of these runs, sorted by ledger and first id, become one."""
    parts: list[Run] = []
    payload = count = 0
    for run in runs:
        size = run.length - run.head_length
        if parts and (
            run.ledger_id != parts[0].ledger_id
            or run.first <= parts[-1].last
            or run.first > parts[-1].last + _GAP_MAX
            or payload + size + 12 * (count + run.entry_count) > FRAME_BYTES
            or count + run.entry_count > FRAME_ENTRIES_MAX
            or run.last - parts[0].first >= _SPAN_MAX
        ):
            yield _merged(parts, payload, count)
            parts, payload, count = [], 0, 0
        parts.append(run)
        payload += size
        count += run.entry_count
    if parts:
        yield _merged(parts, payload, count)


def _merged(parts: list[Run], payload: int, count: int) -> Merged:
    if len(parts) == 1:
        return Merged((parts[0],), parts[0].length, parts[0].entry_count)
    is_dense = count == parts[-1].last - parts[0].first + 1
    return Merged(tuple(parts), HEADER_BYTES + (8 if is_dense else 12) * count + payload, count)


def merge_frames(merged: Merged, frames: Sequence[bytes | memoryview], key: bytes) -> bytes:
    """The frame of runs that become one, from theirs, whose bytes were verified."""
    if len(frames) == 1:
        return bytes(frames[0])
    lengths, digests, payloads = [], [], []
    for run, frame in zip(merged.parts, frames, strict=True):
        middle = HEADER_BYTES + 4 * run.entry_count
        lengths.append(frame[HEADER_BYTES:middle])
        digests.append(frame[middle : middle + 4 * run.entry_count])
        payloads.append(frame[run.head_length :])
    index = b"".join(lengths) + b"".join(digests)
    if not merged.is_dense:
        index += b"".join(
            _offsets(run, frame, merged.first) for run, frame in zip(merged.parts, frames, strict=True)
        )
    payload = b"".join(payloads)
    head = encode_head(
        Kind.ADD,
        flags=0 if merged.is_dense else SPARSE,
        count=merged.entry_count,
        ledger_id=merged.ledger_id,
        first=merged.first,
        last=merged.last,
        key=key,
        index=index,
        payload_bytes=len(payload),
    )
    frame = head + payload
    assert len(frame) == merged.length
    return frame


def _offsets(run: Run, frame: bytes | memoryview, first: int) -> bytes:
    """The offsets of a run's ids from another first id."""
    base, count = run.first - first, run.entry_count
    layout = struct.Struct(f"<{count}I")
    if run.is_dense:
        return layout.pack(*range(base, base + count))
    start = HEADER_BYTES + 8 * count
    return layout.pack(*[base + offset for offset in layout.unpack(frame[start : start + 4 * count])])
