"""How full a disk is, judged from its free bytes alone, and how its bookie reacts.

    free bytes      much                                                     none
                     |--------------|----------------|-----------------|-------|
                  ROOMY           SHORT          READ_ONLY          (the reserve)
                          warning          read-only    <- comes back only further up, at the writable mark

A bookie that is *short* of space looks for data to delete at once, instead of at its next regular time. A
*read-only* bookie takes no ordinary adds. It announces this, so that no client places new ledgers on it. The
remaining space is the reserve. Fences, the writes of recovery and repair, the index, checkpoints and
compaction use it; none of them asks whether the bookie is read-only (rule 5). Without a reserve the bookie
would be stuck, because it must write in order to free space.

The marks are shares of the disk, because operators think in shares. The reserve is in bytes, because its
writes do not grow with the disk. The bookie turns read-only at the larger of the two: the free bytes that
follow from the share, and the reserve. A read-only bookie becomes writable again only at the writable mark,
which needs more free bytes than the read-only mark. Otherwise the bookie could change its state with each
segment of the journal that it makes or deletes. For example, take a disk of 1000 GB, a read-only mark of
0.95, a writable mark of 0.90 and a small reserve. Then the bookie turns read-only below 50 GB free, and
becomes writable again at 100 GB free.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from ledgerlog.errors import InvalidArgument


@attrs.frozen
class DiskSpace:
    """The bytes of a file system, as the user that runs the bookie may use them."""

    total: int
    free: int


class Fullness(enum.IntEnum):
    ROOMY = 0
    SHORT = 1
    READ_ONLY = 2


@attrs.frozen(kw_only=True)
class FullnessPolicy:
    """The marks of a disk, as shares of its bytes, and the reserve in bytes.

    Raises:
        InvalidArgument: The warning or the writable mark is not above 0, one of them is above the read-only
            mark, the read-only mark is above 1, or the reserve is negative.
    """

    warning_ratio: float
    writable_ratio: float
    read_only_ratio: float
    reserve_bytes: int

    def __attrs_post_init__(self) -> None:
        lower = max(self.warning_ratio, self.writable_ratio)
        if not (min(self.warning_ratio, self.writable_ratio) > 0 and lower <= self.read_only_ratio <= 1):
            raise InvalidArgument(
                f"disk_warning_ratio {self.warning_ratio} and disk_writable_ratio {self.writable_ratio} "
                f"must be above 0 and at most disk_read_only_ratio, {self.read_only_ratio}, and "
                "disk_read_only_ratio must be at most 1"
            )
        if self.reserve_bytes < 0:
            raise InvalidArgument(f"disk_reserve_bytes is {self.reserve_bytes}: it must not be negative")

    def read_only_below(self, total: int) -> int:
        """Return a number of bytes: with fewer free bytes the bookie turns read-only."""
        return max(self.reserve_bytes, round(total * (1 - self.read_only_ratio)))

    def writable_from(self, total: int) -> int:
        """Return a number of bytes: with at least this many free, a read-only bookie becomes writable
        again."""
        return self.read_only_below(total) + round(total * (self.read_only_ratio - self.writable_ratio))

    def short_below(self, total: int) -> int:
        """Return a number of bytes: with fewer free bytes the bookie is short of space."""
        return self.read_only_below(total) + round(total * (self.read_only_ratio - self.warning_ratio))

    def judge(self, spaces: Iterable[DiskSpace], *, was: Fullness) -> Fullness:
        """Judge a bookie by its disks. The fullest disk decides; ``was`` is the previous judgement."""
        return max((self._judge(space, was) for space in spaces), default=Fullness.ROOMY)

    def _judge(self, space: DiskSpace, was: Fullness) -> Fullness:
        bound = self.read_only_below if was is not Fullness.READ_ONLY else self.writable_from
        if space.free < bound(space.total):
            return Fullness.READ_ONLY
        return Fullness.SHORT if space.free < self.short_below(space.total) else Fullness.ROOMY
