"""The settings of a bookie's storage, and how much memory and disk they cost.

A *run* is a frame of entries of one ledger, stored in one piece.

Memory:

- ``arenas * segment_bytes`` for received entries and for reads of recent ones (192 MiB by default);
- about 250 bytes for each run in the arenas, at most ``arenas * segment_records_max`` runs, or twice that
  while the disk is full;
- about 400 bytes for each ledger state in memory. There are at most ``ledgers_max`` states, plus the states
  that cannot leave memory: a request uses the state, the index does not have it yet, or it has runs in an
  arena;
- ``read_cache_bytes`` for entries that were read from files;
- about 300 bytes for each run that is being rewritten; compaction rewrites about ``log_runs_max`` at a time;
- about 20 MiB for the buffers of the index;
- if ``journal_write_data`` is off, ``arenas * segment_bytes`` more, for entries that are in no file yet.

Disk: the bookie allocates the whole of each segment when it makes the segment, and makes one segment in
advance (unless the first ones are small: ``first_segment_bytes``). While the bookie refuses ordinary adds, it
still has to write; ``disk_reserve_bytes`` stay free for that. Of the entries that it accepted before, it may
have to rewrite up to ``arenas * segment_bytes``, sorted. Fences and recovery adds need a segment or two.
Compaction makes a log of ``log_bytes_max`` before it removes the files that the log replaces. Once the
reserve is used up, only the free rest of the existing segments is left.
"""

from __future__ import annotations

import attrs

from bookie.core.block import BLOCK_PAGES_MAX, PAGE_BYTES, content_capacity
from bookie.core.fullness import FullnessPolicy
from bookie.core.journal import GROUP_BYTES_MAX
from bookie.core.journal_items import RECORD_HEAD_BYTES
from bookie.core.segment import SEGMENT_HEADER_BYTES
from bookie.core.space import SpacePolicy
from bookie.storage.disk.ballast import BALLAST_BYTES
from bookie.storage.index.kinds import NAMES as INDEX_KINDS
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import FRAME_BYTES_MAX, KIB, MIB

LARGEST_FRAME_BYTES = FRAME_BYTES_MAX + 4
"""The largest frame of the protocol, including its length field."""


GROWTH = 8
"""If the first segment is small, each later segment is this many times as large as the previous one."""


@attrs.frozen(kw_only=True)
class StorageConfig:
    """The settings of one bookie's storage.

    Raises:
        InvalidArgument: The values do not fit together.
    """

    segment_bytes: int = 64 * MIB
    """Bytes of a journal segment, a multiple of 4096. Existing segments keep their size."""
    first_segment_bytes: int = 0
    """Bytes of the first segment after a start, a multiple of 4096. 0: ``segment_bytes``.

    If the first segment is small, a bookie that stores little takes little room. The next segment is made
    when half of the present one is used. It is ``GROWTH`` times as large, and has room for at least two of
    the largest frames."""
    arenas: int = 3
    """Number of segments held in memory, including the one being written. At least 2."""
    frame_bytes_max: int = LARGEST_FRAME_BYTES
    """Bytes of the largest frame of entries that the engine accepts, including its length field. A bookie of
    a cluster accepts every frame of the protocol."""
    group_bytes_max: int = GROUP_BYTES_MAX
    """About how many bytes one sync covers at most."""
    segment_records_max: int = 128 * 1024
    """The most records in a segment. After so many, the journal begins the next segment even if there is room
    left, because each record costs memory. While the disk is full, fences and recovery may add as many
    again."""
    ledgers_max: int = 32 * 1024
    """Number of ledger states that stay in memory."""
    journal_write_data: bool = True
    """Whether the journal syncs entries before the bookie acknowledges them. If False, a crash loses the
    latest entries, and the bookie comes back through limbo (protocol A.3). Fences and keys are synced either
    way."""
    write_cache_age_s: float = 10.0
    """If ``journal_write_data`` is off: about how many seconds entries may be only in memory."""
    read_cache_bytes: int = 32 * MIB
    """Bytes of entries read from files that stay in memory. 0 turns this cache off."""
    read_ahead_bytes: int = 256 * KIB
    """One read takes up to this many bytes of a ledger from the disk if they lie together, even if the client
    asked for fewer."""
    small_run_bytes: int = 8 * KIB
    """If the runs of a full segment are smaller than this on average, the bookie rewrites them sorted and
    merged. 0: all runs stay where they are."""
    spare_segments: int = 1
    """Number of files of old segments that are kept for new segments to reuse."""
    compact_soon_ratio: float = 0.2
    """Compaction rewrites a file at its next look if less than this share of it is live."""
    compact_eventual_ratio: float = 0.8
    """Every ``compact_eventual_interval_s``, compaction rewrites files with less than this share live."""
    compact_interval_s: float = 60.0
    """Seconds between two looks of compaction."""
    compact_eventual_interval_s: float = 6 * 3600.0
    """Seconds between two looks of compaction at files that can wait (``compact_eventual_ratio``)."""
    compact_bytes_per_s: int = 32 * MIB
    """The highest rate at which compaction writes."""
    log_bytes_max: int = 256 * MIB
    """About the largest entry log that compaction makes."""
    log_runs_max: int = 128 * 1024
    """About how many runs compaction sorts in memory at once."""
    merge_width: int = 8
    """Number of small files, or of files of small runs, that are merged into one."""
    collect_interval_s: float = 3600.0
    """Seconds between two searches for ledgers that the metadata store no longer has."""
    disk_full_retry_s: float = 1.0
    """If the disk is full, seconds until the bookie checks again whether it has room for a segment."""

    disk_warning_ratio: float = 0.9
    """If the disk is fuller than this, the bookie logs a warning and asks for collection and compaction."""
    disk_read_only_ratio: float = 0.95
    """If the disk is fuller than this, the bookie refuses ordinary adds."""
    disk_writable_ratio: float = 0.9
    """The bookie accepts ordinary adds again once the disk is no fuller than this.

    If ``disk_reserve_bytes`` is the larger bound, the bookie accepts them once this reserve is free, plus the
    difference of the two ratios."""
    disk_reserve_bytes: int = 512 * MIB
    """If fewer bytes than this are free, the bookie refuses ordinary adds, no matter how large the disk
    is."""
    limbo_bytes_per_s: int = 32 * MIB
    """The highest rate at which the bookie copies lost entries from other bookies."""
    ballast_bytes: int = BALLAST_BYTES
    """Bytes of a file that the bookie deletes when the disk is full, to make room for the index, for starts
    and for stops (``bookie.storage.disk.ballast``). On a small disk the file is smaller. 0: no such file."""
    scrub: bool = True
    """Whether the bookie verifies its stored entries in the background."""
    scrub_interval_s: float = 7 * 24 * 3600.0
    """Seconds from the end of one full scrub to the next. The first begins an hour after the start, or sooner
    if this interval is shorter."""
    scrub_bytes_per_s: int = 8 * MIB
    """The highest rate at which scrubbing reads."""
    disk_watch_interval_s: float = 10.0
    """Seconds between two looks at the free space. The bookie also looks after it has made a file."""
    index: str = ""
    """The kind of the index: ``leveldb`` or ``rocksdb``. Empty: the kind that the directory has; for a new
    directory ``leveldb`` if plyvel is installed, otherwise ``rocksdb``. A directory with another kind is not
    opened."""

    def __attrs_post_init__(self) -> None:
        if self.index and self.index not in INDEX_KINDS:
            raise InvalidArgument(f"index is {self.index!r}: it must be one of {', '.join(INDEX_KINDS)}")
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
        first = self.first_segment_bytes
        if first and (first % PAGE_BYTES or not 4 * PAGE_BYTES <= first <= self.segment_bytes):
            raise InvalidArgument(
                f"first_segment_bytes is {first}: it must be a multiple of {PAGE_BYTES}, at least four, and "
                f"at most segment_bytes"
            )
        if self.arenas < 2:
            raise InvalidArgument("at least 2 arenas are needed: one is written while another is prepared")
        if self.ledgers_max < 1 or self.segment_records_max < 1 or self.group_bytes_max < 1:
            raise InvalidArgument("ledgers_max, segment_records_max and group_bytes_max must be positive")
        block = max(self.group_bytes_max, self.frame_bytes_max + RECORD_HEAD_BYTES)
        largest = content_capacity(BLOCK_PAGES_MAX)
        if min(block, content_capacity(self.segment_bytes // PAGE_BYTES)) > largest:
            raise InvalidArgument(
                f"group_bytes_max is {self.group_bytes_max}, and frame_bytes_max is {self.frame_bytes_max}: "
                f"with segments of this size, both must be below {largest}"
            )
        rates = (self.compact_bytes_per_s, self.scrub_bytes_per_s, self.limbo_bytes_per_s)
        if min(*rates, self.log_bytes_max, self.log_runs_max) < 1:
            raise InvalidArgument(
                "compact_bytes_per_s, scrub_bytes_per_s, limbo_bytes_per_s, log_bytes_max and log_runs_max "
                "must be positive"
            )
        if self.ballast_bytes < 0:
            raise InvalidArgument(f"ballast_bytes is {self.ballast_bytes}: it must not be negative")
        intervals = (self.compact_interval_s, self.compact_eventual_interval_s, self.collect_interval_s)
        if min(*intervals, self.write_cache_age_s, self.disk_watch_interval_s, self.scrub_interval_s) <= 0:
            raise InvalidArgument("intervals must be positive")
        self.space_policy(is_journal_apart=False)
        self.fullness_policy()

    @property
    def starts_small(self) -> bool:
        """Whether the first segment after a start is smaller than others."""
        return 0 < self.first_segment_bytes < self.segment_bytes

    def bytes_after(self, segment_bytes: int) -> int:
        """Return the size of the segment that follows a segment of ``segment_bytes``."""
        if not self.starts_small:
            return self.segment_bytes
        least = 2 * self.frame_bytes_max // MIB * MIB + MIB  # With room for the tables of its blocks.
        return min(self.segment_bytes, max(GROWTH * segment_bytes, least))

    def fullness_policy(self) -> FullnessPolicy:
        """Return the settings that decide how full a disk may become."""
        return FullnessPolicy(
            warning_ratio=self.disk_warning_ratio,
            writable_ratio=self.disk_writable_ratio,
            read_only_ratio=self.disk_read_only_ratio,
            reserve_bytes=self.disk_reserve_bytes,
        )

    def space_policy(self, *, is_journal_apart: bool) -> SpacePolicy:
        """Return the settings that decide about compaction.

        Args:
            is_journal_apart: Whether the journal has its own device.
        """
        return SpacePolicy(
            small_run_bytes=self.small_run_bytes,
            small_file_bytes=min(MIB, self.segment_bytes // 64),
            merge_width=self.merge_width,
            soon_ratio=self.compact_soon_ratio,
            eventual_ratio=self.compact_eventual_ratio,
            log_bytes_max=self.log_bytes_max,
            log_runs_max=self.log_runs_max,
            is_journal_apart=is_journal_apart,
        )
