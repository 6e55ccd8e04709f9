"""Loss marks: limits on the answers of a bookie that may have lost data (protocol A.3, D27).

If a bookie acknowledges entries before they are synced, a crash loses the last of them. If its disk was
emptied, it loses everything, fences included. Such a bookie must not give either of two answers, because
recovery believes both:

* "This add is stored", if a recoverer had fenced the ledger here. The entry would be acknowledged beyond the
  ledger's end.
* "There is no such entry", if the bookie had acknowledged the entry. Enough of these answers cut a ledger
  short.

So the bookie writes marks, durably, before it serves again. It cannot simply mark the ledgers whose metadata
names the bookie. A ledger may be CLOSED already while its old owner still writes (T09). And a recoverer may
have replaced the bookie; then only the old owner's view of the ensemble still names the bookie (T30). But all
ledger ids come from one counter, so one number covers every ledger, deleted ones included:

    fenced_through   ordinary adds of ledgers up to this id are refused, forever
    limbo            ranges of ledger ids. The bookie gives the entries that it has of these ledgers. An entry
                     that it does not have is *unknown*, never denied. After a loss, the boot puts every id up
                     to the counter into limbo. Repair takes a ledger out of limbo once the ledger is CLOSED
                     and whole here, or deleted
    is_unclean       set while the bookie acknowledges entries that are not synced. If the bookie starts and
                     finds it set, data may be lost

For example, if the highest id given out is 80, ordinary adds of ledgers 0 to 80 are refused, and ledgers 0 to
80 are in limbo.

If a ledger gets its id after the boot, it has lost nothing here and needs no mark (D27.5). A ledger may get
its id before the boot and its metadata after the boot. Then the fence refuses the ledger's first add, and the
ledger's owner takes another ledger. The cost is one unused ledger.

All marks are one value in one file, which is replaced in one step. So a crash cannot leave some of them old
and others new (``bookie.storage.disk.loss_marks``):

    offset  size  field
    0       8     magic "LLMARKS1"
    8       4     format: 1; 2 if there is a file of gone ledgers (``bookie.core.gone_ledgers``)
    12      1     unclean: 0 or 1
    13      3     zero
    16      8     fenced through (i64), -1: no ledger
    24      4     number of ranges
    28      16    each range of ledgers in limbo: first, last (i64); ascending, and not adjacent
            4     CRC-32C of all before it

This module defines the value's meaning, its changes, its bytes, and its effect on an answer (``undenied``).
It does no I/O.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeVar

import attrs

from bookie.core.results import ListResult, ReadResult, ScrubResult
from ledgerlog.errors import IncompatibleVersion, StorageCorrupt
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.model.id_ranges import joined, without
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.frame import Status

NO_LEDGER = -1

_DENIALS = frozenset((Status.OK, Status.NO_SUCH_LEDGER, Status.NO_SUCH_ENTRY))
"""Statuses of answers that deny: if an entry is missing from such an answer, the entry is not stored here."""

_UNREADABLE = frozenset((Status.CORRUPT, Status.IO_ERROR))
"""Statuses which say that the first entry after ``through`` cannot be read."""

_MAGIC = b"LLMARKS1"
_FORMAT, _FORMAT_WITH_GONE_FILE = 1, 2
"""The format is 2 if the directory has a file of gone ledgers. A version of the bookie that does not know
that file must refuse such a directory, and the number makes it do so. Otherwise it would take adds of deleted
ledgers."""
_HEAD = struct.Struct("<8sIB3xqI")
_RANGE = struct.Struct("<qq")
_CHECKSUM = struct.Struct("<I")

Range = tuple[int, int]
"""The first and the last id, both included."""

_Answer = TypeVar("_Answer", ReadResult, ListResult, ScrubResult)


def undenied(answer: _Answer, first: int) -> _Answer:
    """Change an answer about a ledger in limbo so that it denies no entry, and return it.

    An answer with the status CORRUPT or IO_ERROR reports one unreadable entry. It also denies every entry
    that is missing *before* that one. So such an answer becomes UNKNOWN and ends before the unreadable entry.
    The next question begins at that entry and gets its status. For example, if entry 0 is here, entries 1 to
    3 may have been lost, and entry 4 is corrupt, then the answer to a read is UNKNOWN through 3.

    Args:
        answer: The result of the bookie.
        first: The first entry in question.
    """
    denies = answer.status in _DENIALS or (answer.status in _UNREADABLE and answer.through >= first)
    return attrs.evolve(answer, status=Status.UNKNOWN) if denies else answer


@attrs.frozen
class LossMarks:
    """The marks of one bookie (see the module's text). A new directory has the defaults."""

    is_unclean: bool = False
    """The bookie acknowledges (or acknowledged) entries that a crash can lose."""
    fenced_through: int = NO_LEDGER
    """Ordinary adds of ledgers up to this id are refused; -1: none are refused."""
    limbo: tuple[Range, ...] = ()
    """The ranges of ledger ids in limbo, ascending and not adjacent."""
    has_gone_file: bool = False
    """Whether the bookie has a file of gone ledgers. If so and the file is missing, it was lost."""

    def refuses_adds(self, ledger_id: int) -> bool:
        """Whether ordinary adds of the ledger are refused because its fence may have been lost."""
        return ledger_id <= self.fenced_through

    def denies_nothing(self, ledger_id: int) -> bool:
        """Whether the ledger is in limbo: an entry that is not found may have been here."""
        limbo = self.limbo
        if not limbo:
            return False
        at = bisect_right(limbo, (ledger_id, LEDGER_ID_MAX)) - 1
        return at >= 0 and ledger_id <= limbo[at][1]

    @property
    def limbo_count(self) -> int:
        """How many ledger ids are in limbo. Most of these ledgers may never have had entries on this
        bookie."""
        return sum(last - first + 1 for first, last in self.limbo)

    # --- what changes them --------------------------------------------------------------------

    def after_loss(self, highest_ledger_id: int) -> LossMarks:
        """Return the marks to write at a boot if data may have been lost (phase one).

        Every ledger up to ``highest_ledger_id``, the highest id given out, is fenced and in limbo. The
        unclean bit is set and stays set until a stop that lost nothing. If no id was given out (-1), only the
        bit is set.
        """
        if highest_ledger_id < 0:
            return attrs.evolve(self, is_unclean=True)
        return attrs.evolve(
            self,
            is_unclean=True,
            fenced_through=max(self.fenced_through, highest_ledger_id),
            limbo=tuple(joined([*self.limbo, (0, highest_ledger_id)])),
        )

    def serving(self, *, acknowledges_unsynced: bool) -> LossMarks:
        """Return the marks that apply while the bookie serves. The unclean bit is set if and only if a crash
        would lose acknowledged entries."""
        return attrs.evolve(self, is_unclean=acknowledges_unsynced)

    def cleared(self, ledgers: Iterable[Range]) -> LossMarks:
        """Return the marks without these ledgers in limbo. Their fence stays forever (rule 4)."""
        return attrs.evolve(self, limbo=tuple(without(self.limbo, joined(ledgers))))

    # --- bytes --------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        version = _FORMAT_WITH_GONE_FILE if self.has_gone_file else _FORMAT
        head = _HEAD.pack(_MAGIC, version, self.is_unclean, self.fenced_through, len(self.limbo))
        body = head + b"".join(_RANGE.pack(*part) for part in self.limbo)
        return body + _CHECKSUM.pack(checksum(body))

    @classmethod
    def decode_untrusted(cls, data: bytes, path: str) -> LossMarks:
        """Decode the bytes of the file.

        Raises:
            IncompatibleVersion: A newer version wrote the file.
            StorageCorrupt: The bytes are not a file of marks. The error names ``path``.
        """
        if len(data) < _HEAD.size + _CHECKSUM.size:
            raise StorageCorrupt(path, 0, f"a file of marks of {len(data)} bytes")
        body = data[: -_CHECKSUM.size]
        if _CHECKSUM.pack(checksum(body)) != data[-_CHECKSUM.size :]:
            raise StorageCorrupt(path, 0, "the checksum of the marks does not match")
        magic, version, unclean, fenced_through, count = _HEAD.unpack_from(body)
        known = _FORMAT, _FORMAT_WITH_GONE_FILE
        if magic == _MAGIC and version > _FORMAT_WITH_GONE_FILE:
            raise IncompatibleVersion(path, (version, version), known)
        if magic != _MAGIC or version not in known:
            raise StorageCorrupt(path, 0, f"not a file of marks of format {known[0]} or {known[1]}")
        if len(body) != _HEAD.size + count * _RANGE.size or unclean > 1:
            raise StorageCorrupt(path, 12, f"{len(body)} bytes, {count} ranges, unclean {unclean}")
        limbo = tuple(_RANGE.iter_unpack(body[_HEAD.size :]))
        if not NO_LEDGER <= fenced_through <= LEDGER_ID_MAX or not _is_growing(limbo):
            raise StorageCorrupt(path, 16, f"fenced through {fenced_through}, in limbo: {limbo[:4]}")
        return cls(
            is_unclean=bool(unclean),
            fenced_through=fenced_through,
            limbo=limbo,
            has_gone_file=version == _FORMAT_WITH_GONE_FILE,
        )


def _is_growing(ranges: Iterable[Range]) -> bool:
    previous = -2
    for first, last in ranges:
        if not previous + 1 < first <= last <= LEDGER_ID_MAX or first < 0:
            return False
        previous = last
    return True
