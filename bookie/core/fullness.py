"""How full a disk may become, and what a bookie does about it: decided here, by free bytes alone.

    free bytes      much                                                     none
                     |--------------|----------------|-----------------|-------|
                  ROOMY           SHORT          READ_ONLY          (the reserve)
                          warning          read-only    <- comes back only further up, at the writable mark

*Short* of space a bookie looks for what may go, at once and not when its time has come. *Read-only* it takes
no ordinary adds and says so, so that nobody gives it new ledgers. What is left then is the reserve: for
fences, for what recovery and repair write, for index, checkpoints and compaction, none of which asks whether
the bookie is read-only (rule 5). A bookie without that would be stuck: to free anything it has to write.

Marks are shares of the disk, because a share is what an operator sees, and the reserve is in bytes, because
what has to fit does not grow with the disk. Whichever asks for more holds. A bookie is writable again only
where as much more is free as lies between the two marks, or it would change its mind with each segment.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from ledgerlog.errors import InvalidArgument


@attrs.frozen
class DiskSpace:
    """What a file system has, in bytes, for whom a bookie runs as."""

    total: int
    free: int


class Fullness(enum.IntEnum):
    ROOMY = 0
    SHORT = 1
    READ_ONLY = 2


@attrs.frozen(kw_only=True)
class FullnessPolicy:
    """Raises InvalidArgument if the marks do not grow from the warning to the read-only mark."""

    warning_ratio: float
    writable_ratio: float
    read_only_ratio: float
    reserve_bytes: int

    def __attrs_post_init__(self) -> None:
        lower = max(self.warning_ratio, self.writable_ratio)
        if not (min(self.warning_ratio, self.writable_ratio) > 0 and lower <= self.read_only_ratio <= 1):
            raise InvalidArgument(
                f"disk_warning_ratio {self.warning_ratio} and disk_writable_ratio {self.writable_ratio} must "
                f"be above 0 and at most disk_read_only_ratio, {self.read_only_ratio}, and that at most 1"
            )
        if self.reserve_bytes < 0:
            raise InvalidArgument(f"disk_reserve_bytes is {self.reserve_bytes}: it must not be negative")

    def read_only_below(self, total: int) -> int:
        """With fewer free bytes the bookie turns read-only."""
        return max(self.reserve_bytes, round(total * (1 - self.read_only_ratio)))

    def writable_from(self, total: int) -> int:
        """With so many free bytes a read-only bookie is writable again."""
        return self.read_only_below(total) + round(total * (self.read_only_ratio - self.writable_ratio))

    def short_below(self, total: int) -> int:
        """With fewer free bytes it is short of space."""
        return self.read_only_below(total) + round(total * (self.read_only_ratio - self.warning_ratio))

    def judge(self, spaces: Iterable[DiskSpace], *, was: Fullness) -> Fullness:
        """What a bookie is whose disks have so much, the fullest of which decides."""
        return max((self._judge(space, was) for space in spaces), default=Fullness.ROOMY)

    def _judge(self, space: DiskSpace, was: Fullness) -> Fullness:
        bound = self.read_only_below if was is not Fullness.READ_ONLY else self.writable_from
        if space.free < bound(space.total):
            return Fullness.READ_ONLY
        return Fullness.SHORT if space.free < self.short_below(space.total) else Fullness.ROOMY
