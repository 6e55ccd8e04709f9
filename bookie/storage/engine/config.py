"""How a bookie's storage is set up, and how much memory and disk that means.

Memory: ``arenas * segment_bytes`` for what was received and for reads of recent entries (192 MiB by default);
about 250 bytes for each run in them, of which there are at most ``arenas * segment_records_max``; about 400
bytes for each ledger state in memory, of which there are ``ledgers_max`` and beyond that only those that
cannot leave memory (in flight, not yet in the index, or with runs in an arena); ``read_cache_bytes`` for what
was read from files; about 300 bytes for each run that is being written again, ``log_runs_max`` in compaction;
LevelDB's own buffers, about 20 MiB. Without the journal's copy of the data ``arenas * segment_bytes`` more,
for entries that are in no file yet.

Disk: segments are allocated whole, one of them in advance. ``disk_reserve_bytes`` stay free for what must
still be written when ordinary adds are refused: ``arenas * segment_bytes`` that were taken before may be
written again, sorted, a segment or two go to fences and recovery, and compaction makes a log of
``log_bytes_max`` before the files that it replaces go. Beyond that the rest of the segments that exist is all
there is.
"""

from __future__ import annotations

import attrs

from bookie.core.block import PAGE_BYTES, content_capacity
from bookie.core.fullness import FullnessPolicy
from bookie.core.journal import GROUP_BYTES_MAX
from bookie.core.records import RECORD_HEAD_BYTES
from bookie.core.segment import SEGMENT_HEADER_BYTES
from bookie.core.space import SpacePolicy
from bookie.storage.disk.ballast import BALLAST_BYTES
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import FRAME_BYTES_MAX, KIB, MIB


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
    write_cache_age_s: float = 10.0
    """Without the journal's copy: entries are in memory alone for about so long at most."""
    read_cache_bytes: int = 32 * MIB
    """What is kept of entries that were read from files; 0: nothing."""
    read_ahead_bytes: int = 256 * KIB
    """So much of a ledger is read at once where it lies together, however little is asked for."""
    small_run_bytes: int = 8 * KIB
    """A segment whose runs are smaller on average is written again, sorted and put together, when it is full.
    0: all stay where they are."""
    spare_segments: int = 1
    """So many files of segments that are not needed any more are kept for the next ones."""
    compact_soon_ratio: float = 0.2
    """A file of which a smaller part counts is compacted at the next look."""
    compact_eventual_ratio: float = 0.8
    """A file of which a smaller part counts is compacted now and then."""
    compact_interval_s: float = 60.0
    """How often compaction looks for something to do."""
    compact_eventual_interval_s: float = 6 * 3600.0
    """How often it does what need not be done soon."""
    compact_bytes_per_s: int = 32 * MIB
    """How fast compaction writes at most."""
    log_bytes_max: int = 256 * MIB
    """About how large compaction makes an entry log."""
    log_runs_max: int = 128 * 1024
    """About how many runs compaction sorts in memory at once."""
    merge_width: int = 8
    """So many small files, or files of small runs, become one."""
    collect_interval_s: float = 3600.0
    """How often ledgers that the metadata store no longer has are looked for."""
    disk_full_retry_s: float = 1.0
    """How often a full disk is asked again whether it has room for a segment."""

    disk_warning_ratio: float = 0.9
    """A disk that is fuller is short of space: collection and compaction are asked for, and the log says
    so."""
    disk_read_only_ratio: float = 0.95
    """With a fuller disk the bookie takes no ordinary adds."""
    disk_writable_ratio: float = 0.9
    """It takes them again when the disk is that full."""
    disk_reserve_bytes: int = 512 * MIB
    """With less free it takes no ordinary adds either, however large the disk is."""
    limbo_bytes_per_s: int = 32 * MIB
    """How fast entries that were lost are copied from other bookies at most."""
    ballast_bytes: int = BALLAST_BYTES
    """So much is kept for the index, starts and stops on a full disk, in a file that is given up then
    (``bookie.storage.disk.ballast``); on a small disk less. 0: nothing."""
    scrub: bool = True
    """Whether what is stored is verified now and then."""
    scrub_interval_s: float = 7 * 24 * 3600.0
    """So long after a pass over everything the next one begins; the first an hour after the start."""
    scrub_bytes_per_s: int = 8 * MIB
    """How fast it reads at most."""
    disk_watch_interval_s: float = 10.0
    """How often the disk is looked at besides when files were made."""

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

    def fullness_policy(self) -> FullnessPolicy:
        """The part of it that decides how full a disk may become."""
        return FullnessPolicy(
            warning_ratio=self.disk_warning_ratio,
            writable_ratio=self.disk_writable_ratio,
            read_only_ratio=self.disk_read_only_ratio,
            reserve_bytes=self.disk_reserve_bytes,
        )

    def space_policy(self, *, is_journal_apart: bool) -> SpacePolicy:
        """The part of it that decides about space; ``is_journal_apart``: the journal has its own device."""
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
