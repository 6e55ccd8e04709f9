"""Group commit: which records go into which block, and which blocks are durable.

A record is copied to its final place as it arrives: after the header of the *open* block, in the memory image
of the current segment. When the disk becomes free, all records gathered so far form one block, which is
written with one sync. In the meantime, new records gather in the next block. There is no timer. A single
record is written at once, and under load the groups grow by themselves.

    image   |file header| block 41 | block 42 (being written) | block 43 (open) ...

    append()      copies a record; returns None if there is no room for it
    take_block()  returns the next block to write, finished, or None
    on_written()  that block is durable: ``durable`` moves to its sequence

Invariants:

* Blocks are handed out one at a time and in order: block n+1 only after ``on_written`` of block n. So a valid
  block proves that the previous one was synced.
* ``durable < sequence``, which is the sequence of the open block. Every appended record is in a block up to
  ``sequence``. The records that are not durable are in blocks from ``durable + 1`` on.
* A block has more than ``group_bytes_max`` bytes of records only if it holds a single record.
* The last page of every segment is kept for the CLOSE record of a clean stop.

If a record does not fit into the rest of the segment, it goes to the next segment's image, if
``offer_segment`` has provided one. Otherwise the record is refused and nothing changes.
"""

from __future__ import annotations

from collections import deque

import attrs

from bookie.core.block import BLOCK_HEADER_BYTES, PAGE_BYTES, content_capacity, finish_block, pages_of
from bookie.core.journal_items import CLOSE, RECORD_HEAD, RECORD_HEAD_BYTES
from bookie.core.segment import SEGMENT_HEADER_BYTES
from ledgerlog.limits import FRAME_BYTES_MAX, MIB

GROUP_BYTES_MAX = 4 * MIB

_pack_head = RECORD_HEAD.pack_into


@attrs.define(eq=False)
class SegmentImage:
    """The number and the nonce of a segment, and the memory that its file is written from.

    The memory is as large as the file.
    """

    number: int
    nonce: bytes
    view: memoryview

    @property
    def size(self) -> int:
        return len(self.view)


@attrs.define(eq=False)
class ClosedBlock:
    """A block that takes no more records. If ``take_block`` returned it, it is finished: write ``view`` at
    ``offset`` of the segment."""

    image: SegmentImage
    offset: int
    sequence: int
    content_bytes: int
    records: int
    view: memoryview
    """The block. Until the block is finished, the view goes on to the end of the segment."""


class GroupCommit:
    """The journal's bookkeeping.

    Args:
        durable: The sequence of the last block before this object's first one.
        image: The segment that takes the first records.
        group_bytes_max: Close a block before its records pass this many bytes. A larger record gets its own
            block.
    """

    __slots__ = (
        "_end",
        "_group_bytes_max",
        "_in_flight",
        "_limit",
        "_next",
        "_records",
        "_start",
        "_view",
        "_waiting",
        "durable",
        "image",
        "pending_bytes",
        "sequence",
    )

    def __init__(self, *, durable: int, image: SegmentImage, group_bytes_max: int = GROUP_BYTES_MAX) -> None:
        self.durable = durable
        """The sequence of the last block that is known to be durable."""
        self.sequence = durable + 1
        """The sequence of the open block. A record appended now is durable once ``durable`` reaches it."""
        self.pending_bytes = 0
        """Bytes of records that are not durable."""
        self._group_bytes_max = group_bytes_max
        self._waiting: deque[ClosedBlock] = deque()
        self._in_flight: ClosedBlock | None = None
        self._next: SegmentImage | None = None
        self._open_segment(image)

    def _open_segment(self, image: SegmentImage) -> None:
        self.image = image
        """The segment that takes records now."""
        self._view = image.view
        self._open_block(SEGMENT_HEADER_BYTES)

    def _open_block(self, start: int) -> None:
        self._start = start
        self._end = start + BLOCK_HEADER_BYTES
        self._limit = self._end  # The first record sets the real limit; see _make_room.
        self._records = 0

    # --- questions --------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """The sequence of the last block that has a record. All records are durable once ``durable`` reaches
        this sequence."""
        return self.sequence if self._records else self.sequence - 1

    @property
    def has_next(self) -> bool:
        """Whether ``offer_segment`` has provided the next segment's image."""
        return self._next is not None

    @property
    def room(self) -> int:
        """The largest body, in bytes, of a record that certainly fits the current segment. The record's head
        is not counted."""
        return content_capacity(self._pages_left(self._next_start())) - RECORD_HEAD_BYTES

    def _next_start(self) -> int:
        """Return the start of the block after the open one, or of the open one if it is empty."""
        content = self._end - self._start - BLOCK_HEADER_BYTES
        return self._start + (pages_of(content) * PAGE_BYTES if content else 0)

    def _pages_left(self, start: int) -> int:
        return (len(self._view) - PAGE_BYTES - start) // PAGE_BYTES

    # --- verbs ------------------------------------------------------------------------------------

    def offer_segment(self, image: SegmentImage) -> None:
        """Provide the image of the next segment, for use when the current one is full."""
        assert self._next is None
        assert image.number == self.image.number + 1
        assert image.size > SEGMENT_HEADER_BYTES + PAGE_BYTES
        self._next = image

    def append(self, kind: int, body: bytes | memoryview) -> int | None:
        """Copy a record to the end of the open block.

        Look at ``image`` and ``sequence`` after the call: the record may have begun a new block or a new
        segment.

        Args:
            kind: The record's kind (``bookie.core.journal_items``).
            body: The record's body.

        Returns:
            The offset of the body in the segment ``image``, or None if there is no room for the record now.
        """
        length = len(body)
        if self._end + RECORD_HEAD_BYTES + length > self._limit and not self._make_room(length):
            return None
        at = self._end
        _pack_head(self._view, at, kind, length)
        at += RECORD_HEAD_BYTES
        self._end = end = at + length
        self._view[at:end] = body
        self._records += 1
        self.pending_bytes += RECORD_HEAD_BYTES + length
        return at

    def leave_segment(self) -> bool:
        """Continue in the next segment even if this one has room. Return False if there is no next one."""
        if self._next is None:
            return False
        self._close_block(self._next_start())
        image, self._next = self._next, None
        self._open_segment(image)
        return True

    def append_close(self) -> int:
        """Append the CLOSE record. If everything else is durable, there is always room for it."""
        assert self.durable == self.newest, "a clean stop closes a journal that is durable"
        self._limit = self._start + BLOCK_HEADER_BYTES + RECORD_HEAD_BYTES
        assert self._limit <= self.image.size
        at = self.append(CLOSE, b"")
        assert at is not None
        return at

    def _make_room(self, length: int) -> bool:
        """Prepare an open block that takes a record with a body of ``length`` bytes. If that fails, change
        nothing and return False."""
        size = RECORD_HEAD_BYTES + length
        start = self._next_start()
        if not self._records and self._fits(start, size):
            return True
        if size <= content_capacity(self._pages_left(start)):
            self._close_block(start)
            return self._fits(start, size)
        if self._next is None or size > content_capacity(
            (self._next.size - PAGE_BYTES - SEGMENT_HEADER_BYTES) // PAGE_BYTES
        ):
            return False
        self.leave_segment()
        return self._fits(SEGMENT_HEADER_BYTES, size)

    def _fits(self, start: int, size: int) -> bool:
        """Set the limit of the open, empty block at ``start`` so that ``size`` bytes fit. Return False if
        they cannot."""
        capacity = content_capacity(self._pages_left(start))
        if size > capacity:
            return False
        self._limit = start + BLOCK_HEADER_BYTES + min(capacity, max(size, self._group_bytes_max))
        return True

    def _close_block(self, next_start: int) -> None:
        """Put the open block into the queue of blocks to write, and open the next block at ``next_start``. Do
        nothing if the open block is empty."""
        if not self._records:
            return
        self._waiting.append(
            ClosedBlock(
                self.image,
                self._start,
                self.sequence,
                self._end - self._start - BLOCK_HEADER_BYTES,
                self._records,
                self._view[self._start :],
            )
        )
        self.sequence += 1
        self._open_block(next_start)

    def take_block(self) -> ClosedBlock | None:
        """Return the next block to write, or None if there is none. Call ``on_written`` before you call this
        again."""
        assert self._in_flight is None, "one block is written at a time"
        if not self._waiting:
            self._close_block(self._next_start())
        if not self._waiting:
            return None
        block = self._in_flight = self._waiting.popleft()
        size = finish_block(
            block.view,
            nonce=block.image.nonce,
            segment=block.image.number,
            sequence=block.sequence,
            content_bytes=block.content_bytes,
            records=block.records,
        )
        block.view = block.view[:size]
        return block

    def on_written(self, block: ClosedBlock) -> None:
        """The block that ``take_block`` returned is durable."""
        assert block is self._in_flight
        assert block.sequence == self.durable + 1
        self._in_flight = None
        self.durable = block.sequence
        self.pending_bytes -= block.content_bytes


assert GROUP_BYTES_MAX + FRAME_BYTES_MAX < 2**31
