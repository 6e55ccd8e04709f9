"""What a bookie must not do any more because it may have lost data: its marks (protocol A.3, D27).

A bookie that acknowledges entries before they are synced loses the last of them in a crash, and one whose
disk was emptied loses all, its fences with them. Neither may then say two things that recovery believes:

* "this add is stored" of a ledger that a recoverer had it fence: acknowledged entries beyond the end;
* "there is no such entry" of one that it had acknowledged: enough of that cut a ledger short.

So before such a bookie serves again it marks itself, durably. Which ledgers? A list of those that name the
bookie is not enough: a ledger may be CLOSED already while its old owner still writes (T09), and a recoverer
may have replaced the bookie, so that nothing names it but that owner's own view of the ensemble (T30). Ledger
ids come from one counter, so one number says it for all of them, those that are deleted included:

    fenced_through   ordinary adds of ledgers up to this id are refused, for ever
    limbo            ranges of ledger ids of which nothing is denied: what is there is given, what is not
                     there is *unknown*. A boot puts everything up to the counter into it, and repair takes
                     out what it has found CLOSED and whole, or deleted
    is_unclean       set while the bookie acknowledges what is not synced; found set at a start, data may
                     be lost

A ledger that gets its id after the boot cannot have lost anything here, and needs no mark (D27.5). One whose
id was given out before and which is created only afterwards meets the fence with its first add, and its owner
takes another: that costs a ledger, where a list would have to be complete.

All of it is one value in one file, replaced in one step, so there is no order between its parts that a crash
could tear (``bookie.storage.disk.loss_marks``):

    offset  size  field
    0       8     magic "LLMARKS1"
    8       4     format, 1
    12      1     unclean: 0 or 1
    13      3     zero
    16      8     fenced through (i64), -1: no ledger
    24      4     how many ranges
    28      16    each range of ledgers in limbo: first, last (i64); growing, and not adjacent
            4     CRC-32C of all before it

This module is the value: what it says, how it changes, its bytes. It knows no file.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable

import attrs

from ledgerlog.errors import StorageCorrupt
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.wire.checksum import checksum

NO_LEDGER = -1

_MAGIC = b"LLMARKS1"
_FORMAT = 1
_HEAD = struct.Struct("<8sIB3xqI")
_RANGE = struct.Struct("<qq")
_CHECKSUM = struct.Struct("<I")

Range = tuple[int, int]
"""First and last, both included."""


@attrs.frozen
class Marks:
    """See the module's text. A new directory has those that the defaults make."""

    is_unclean: bool = False
    fenced_through: int = NO_LEDGER
    limbo: tuple[Range, ...] = ()
    """Growing, not adjacent."""

    def refuses_adds(self, ledger_id: int) -> bool:
        """Whether ordinary adds of the ledger are refused because its fence may have been lost."""
        return ledger_id <= self.fenced_through

    def denies_nothing(self, ledger_id: int) -> bool:
        """Whether the ledger is in limbo: what is not found of it may have been there."""
        limbo = self.limbo
        if not limbo:
            return False
        at = bisect_right(limbo, (ledger_id, LEDGER_ID_MAX)) - 1
        return at >= 0 and ledger_id <= limbo[at][1]

    @property
    def limbo_count(self) -> int:
        """How many ledger ids are in limbo; most of them may be of ledgers that never touched this bookie."""
        return sum(last - first + 1 for first, last in self.limbo)

    # --- what changes them --------------------------------------------------------------------

    def after_loss(self, highest_ledger_id: int) -> Marks:
        """Phase one of a boot after data may have been lost: every ledger up to the highest id given out is
        fenced and in limbo. The unclean bit is set: it stays until a stop that lost nothing."""
        if highest_ledger_id < 0:
            return attrs.evolve(self, is_unclean=True)
        return Marks(
            is_unclean=True,
            fenced_through=max(self.fenced_through, highest_ledger_id),
            limbo=_joined([*self.limbo, (0, highest_ledger_id)]),
        )

    def serving(self, *, acknowledges_unsynced: bool) -> Marks:
        """While the bookie serves: the bit is set exactly if a crash would lose what it acknowledged."""
        return attrs.evolve(self, is_unclean=acknowledges_unsynced)

    def cleared(self, ledgers: Iterable[Range]) -> Marks:
        """Without these ledgers in limbo. Their fence stays: it is for ever (rule 4)."""
        left: list[Range] = []
        gone = iter((*_joined(ledgers), (LEDGER_ID_MAX + 1, LEDGER_ID_MAX + 1)))
        first, last = next(gone)
        for low, high in self.limbo:
            while last < low:
                first, last = next(gone)
            while first <= high:
                if low < first:
                    left.append((low, first - 1))
                low = last + 1
                if low > high:
                    break
                first, last = next(gone)
            if low <= high:
                left.append((low, high))
        return attrs.evolve(self, limbo=tuple(left))

    # --- bytes --------------------------------------------------------------------------------

    def encode(self) -> bytes:
        head = _HEAD.pack(_MAGIC, _FORMAT, self.is_unclean, self.fenced_through, len(self.limbo))
        body = head + b"".join(_RANGE.pack(*part) for part in self.limbo)
        return body + _CHECKSUM.pack(checksum(body))

    @classmethod
    def decode_untrusted(cls, data: bytes, path: str) -> Marks:
        """The inverse of ``encode``; StorageCorrupt, naming ``path``."""
        if len(data) < _HEAD.size + _CHECKSUM.size:
            raise StorageCorrupt(path, 0, f"a file of marks of {len(data)} bytes")
        body = data[: -_CHECKSUM.size]
        if _CHECKSUM.pack(checksum(body)) != data[-_CHECKSUM.size :]:
            raise StorageCorrupt(path, 0, "the checksum of the marks does not match")
        magic, version, unclean, fenced_through, count = _HEAD.unpack_from(body)
        if magic != _MAGIC or version != _FORMAT:
            raise StorageCorrupt(path, 0, f"not a file of marks of format {_FORMAT}")
        if len(body) != _HEAD.size + count * _RANGE.size or unclean > 1:
            raise StorageCorrupt(path, 12, f"{len(body)} bytes, {count} ranges, unclean {unclean}")
        limbo = tuple(_RANGE.iter_unpack(body[_HEAD.size :]))
        if not NO_LEDGER <= fenced_through <= LEDGER_ID_MAX or not _is_growing(limbo):
            raise StorageCorrupt(path, 16, f"fenced through {fenced_through}, in limbo: {limbo[:4]}")
        return cls(is_unclean=bool(unclean), fenced_through=fenced_through, limbo=limbo)


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same ids, as ranges that grow and are not adjacent."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def _is_growing(ranges: Iterable[Range]) -> bool:
    previous = -2
    for first, last in ranges:
        if not previous + 1 < first <= last <= LEDGER_ID_MAX or first < 0:
            return False
        previous = last
    return True
