"""How a bookie's storage is set up, and how much memory and disk that means.

Memory: ``arenas * segment_bytes`` for what was received and for reads of recent entries (192 MiB by default);
about 250 bytes for each run in them, of which there are at most ``arenas * segment_records_max``; about 400
bytes for each ledger state in memory, of which there are ``ledgers_max`` and beyond that only those that
cannot leave memory (in flight, not yet in the index, or with runs in an arena); LevelDB's own buffers, about
20 MiB.

Disk: segments are allocated whole, one of them in advance, which is also the reserve for fences and recovery
writes when the disk is full.
"""

from __future__ import annotations

import attrs

from bookie.core.block import PAGE_BYTES, content_capacity
from bookie.core.journal import GROUP_BYTES_MAX
from bookie.core.records import RECORD_HEAD_BYTES
from bookie.core.segment import SEGMENT_HEADER_BYTES
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import FRAME_BYTES_MAX, MIB


@attrs.frozen(kw_only=True)
class StorageConfig:
    """Raises InvalidArgument if the values do not fit together."""

    segment_bytes: int = 64 * MIB
    """The size of a journal segment; a multiple of 4096. Existing segments keep theirs."""
    arenas: int = 3
    """How many segments are held in memory, the one being written included."""
    frame_bytes_max: int = FRAME_BYTES_MAX + 4
    """The largest frame of entries that is taken, its length field included."""
    group_bytes_max: int = GROUP_BYTES_MAX
    """About how many bytes one sync covers at most."""
    segment_records_max: int = 128 * 1024
    """A segment with so many records is left though it has room, because each costs memory."""
    ledgers_max: int = 32 * 1024
    """How many ledger states stay in memory."""
    journal_write_data: bool = True
    """Whether entries are synced in the journal before they are acknowledged. If not, a crash loses the last
    of them, and the bookie comes back through limbo (protocol A.3); fences and keys are synced all the
    same."""
    disk_full_retry_s: float = 1.0
    """How often a full disk is asked again whether it has room for a segment."""

    def __attrs_post_init__(self) -> None:
        if self.segment_bytes % PAGE_BYTES or self.segment_bytes < 4 * PAGE_BYTES:
            raise InvalidArgument(
                f"segment_bytes is {self.segment_bytes}: it must be a multiple of {PAGE_BYTES}, at least four"
            )
        pages = (self.segment_bytes - SEGMENT_HEADER_BYTES - PAGE_BYTES) // PAGE_BYTES
        largest = content_capacity(pages) - RECORD_HEAD_BYTES
        if self.frame_bytes_max > largest:
            raise InvalidArgument(
                f"a frame of {self.frame_bytes_max} bytes does not fit a segment of {self.segment_bytes}: "
                f"at most {largest} do"
            )
        if self.arenas < 2:
            raise InvalidArgument("at least 2 arenas are needed: one is written while another is prepared")
        if self.ledgers_max < 1 or self.segment_records_max < 1 or self.group_bytes_max < 1:
            raise InvalidArgument("ledgers_max, segment_records_max and group_bytes_max must be positive")
