"""Merging small runs: choose the runs that become one frame, and make the bytes of that frame.

A *run* is a frame of entries of one ledger at its place in a file. Successive runs of one ledger become one
frame of up to ``FRAME_BYTES``. A sequential read then needs one lookup in the index for hundreds of entries,
even if they were added one by one. Merging computes only the checksum of the new frame. It copies the lengths
and digests of the entries, which were verified when they arrived.

Runs with consecutive ids become a run without gaps. Runs with small gaps are merged too, because striping
leaves such gaps: for example, with E=3 and a write quorum of 1, a bookie stores entries 0, 3, 6. This module
does not know whether another file has the entries in a gap. A merged run may therefore overlap other runs:
see ``BookieLedger.on_merge``.

A merged frame has -1 as its LAC and its LAFR. The entry log's LEDGER record keeps the values that clients
sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bookie.core.journal_items import EntryRun
from ledgerlog.limits import ENSEMBLE_MAX, FRAME_ENTRIES_MAX, KIB
from ledgerlog.wire.frame import HEADER_BYTES, SPARSE, Kind, encode_head

FRAME_BYTES = 64 * KIB
"""The approximate size of a merged run. Reading this many bytes from the disk costs as much as reading one
entry."""

PARTS_MAX = 512
"""The most runs that are merged into one. Merging this many takes the bookie's event loop about a
millisecond, and adds wait for that time. Compaction merges the results again."""

_GAP_MAX = 2 * ENSEMBLE_MAX
"""With striping, each bookie stores at least one of this many successive entries."""

_SPAN_MAX = 2**32
"""A frame stores each id as an offset of 32 bits from its first id."""


class Merged(NamedTuple):
    """Runs that become one frame, and the length of this frame in bytes."""

    parts: tuple[EntryRun, ...]
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

    def placed(self, file: int, offset: int) -> EntryRun:
        """Return the merged run, placed at ``offset`` of the entry log ``file``."""
        return EntryRun(
            self.ledger_id, self.first, self.last, self.entry_count, file, offset, self.length, sequence=0
        )


def merge_runs(runs: Iterable[EntryRun]) -> Iterator[Merged]:
    """Group runs: each group becomes one frame. ``runs`` are sorted by ledger and first id."""
    parts: list[EntryRun] = []
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
            or len(parts) >= PARTS_MAX
        ):
            yield _merged(parts, payload, count)
            parts, payload, count = [], 0, 0
        parts.append(run)
        payload += size
        count += run.entry_count
    if parts:
        yield _merged(parts, payload, count)


def _merged(parts: list[EntryRun], payload: int, count: int) -> Merged:
    if len(parts) == 1:
        return Merged((parts[0],), parts[0].length, parts[0].entry_count)
    is_dense = count == parts[-1].last - parts[0].first + 1
    return Merged(tuple(parts), HEADER_BYTES + (8 if is_dense else 12) * count + payload, count)


def merge_frames(merged: Merged, frames: Sequence[bytes | memoryview], key: bytes) -> bytes:
    """Make the frame of a merged run.

    Args:
        merged: The runs to merge.
        frames: The frame of each run, in the same order. The caller has verified their bytes.
        key: The ledger's key.

    Returns:
        The merged frame, or a copy of the only frame if there is one run.
    """
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


def _offsets(run: EntryRun, frame: bytes | memoryview, first: int) -> bytes:
    """Encode a run's ids as offsets from ``first``, the merged run's first id."""
    base, count = run.first - first, run.entry_count
    layout = struct.Struct(f"<{count}I")
    if run.is_dense:
        return layout.pack(*range(base, base + count))
    start = HEADER_BYTES + 8 * count
    return layout.pack(*[base + offset for offset in layout.unpack(frame[start : start + 4 * count])])
