"""Repairing a fragment: another bookie gets what a lost one held, and is named instead (rules 20 to 24).

A ledger survives the loss of a bookie, with one copy less. Repair brings the copy back. It works on fragments
that take no more entries, and it works beside everybody else: the owner may be changing the last fragment of
the same ledger, recoverers may be closing it, another repair may be doing the same. Verbs in, state out:

    survey              which fragments name lost bookies, and what may be done about each
    FragmentRepair      one fragment, all its lost bookies at once:
      COPYING           reads and copies, a round of entries at a time
                            take_asks -> on_reply, on_failed;  take_copies -> on_copied, on_copy_failed,
                            on_target_lost
      WRITING           ``intent``: the compare-and-set that names the new bookies     -> on_metadata_read
      DONE, FAILED

**What may be touched.** Every fragment of a closed ledger, and those before the last of one that is not (rule
20). All their entries are committed and never change, so a copy is right whenever it was read. The last
fragment of a ledger that is not closed belongs to its writer: it may be about to store more, and acknowledge
it by bookies that the metadata would not name any more. Who finds a lost bookie there waits a while, looks
again whether that ensemble still names it, and recovers the ledger, which ends it (``Work.RECOVER``).

**What there is to copy** are the entries that the lost bookie's slot holds, each read from another member of
its write set by the rules of an ordinary read (``ledger.core.reader.RangeRead``), and last of all from the
bookie itself, if that serves and is only to be emptied: of a write quorum of one nobody else has any. Of a
striped fragment that is shorter than its ensemble a slot may hold none, and of an empty one no slot holds
any: nothing is lost then, and the metadata alone is changed (rule 21, ``Work.NAME``). *All* entries of the
slot are copied: a check of the first and the last would miss holes (rule 24).

**What copies carry.** They go as recovery adds, which pass the fence, with the last entry that is certainly
committed as their LAC: the end of a closed ledger, else all before the last fragment. It may be below or
above the entry itself; nobody concludes anything from that (rule 23). The LAFR they carry is none, for how
many copies the others have is not known here.

**The write** replaces only this fragment's lost bookies, in their slots, in what the store holds then; what
owner and recoverers did to other fragments stays, as they keep what repair does (rule 13). It is formed once
every copy is durable, and settled by reading (rule 14): the new names are there: done, whoever wrote them.
The old ones are there: written again, at the version just read. Anything else: another repair was faster with
other bookies, and this one is over. What was copied for nothing harms nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import attrs

from ledgerlog.errors import LedgerLogError, LedgerNotFound
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.limits import FRAME_BYTES_TARGET, FRAME_ENTRIES_MAX
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.quorum import Replication

__all__ = ["Copy", "Finding", "FragmentRepair", "RepairFailed", "RepairPhase", "Work", "cut", "survey"]

ROUND_ENTRIES = 4096
"""Entries of the fragment that one round goes over."""

COPY_BYTES = 16 * FRAME_BYTES_TARGET
"""Reading pauses while this many bytes are on their way to the new bookies."""


class RepairFailed(LedgerLogError):
    """A fragment could not be repaired now; its metadata is unchanged by this repair. Retryable: survey the
    ledger again."""

    def __init__(self, ledger_id: int, first_entry: int, why: str) -> None:
        super().__init__(f"fragment {first_entry} of ledger {ledger_id} could not be repaired: {why}")
        self.ledger_id = ledger_id
        self.first_entry = first_entry


class Work(enum.Enum):
    """What may be done about a fragment that names lost bookies."""

    COPY = "copy its entries, then name other bookies"
    NAME = "name other bookies: nothing that it holds is lost"
    RECOVER = "recover the ledger first, after a while and a second look (rule 20)"


@attrs.frozen
class Finding:
    """A fragment that names lost bookies."""

    fragment_index: int
    lost: tuple[BookieId, ...]
    """Its lost bookies, in slot order."""
    work: Work


def survey(metadata: LedgerMetadata, lost: Collection[BookieId]) -> list[Finding]:
    """The fragments that name any of the ``lost`` bookies, in order, and what may be done about each."""
    findings: list[Finding] = []
    for index, fragment in enumerate(metadata.fragments):
        gone = tuple(bookie for bookie in fragment.ensemble if bookie in lost)
        if not gone:
            continue
        end = metadata.fragment_end(index)
        if end is None:
            work = Work.RECOVER
        elif any(_holds_any(metadata.replication, fragment, bookie, end) for bookie in gone):
            work = Work.COPY
        else:
            work = Work.NAME
        findings.append(Finding(index, gone, work))
    return findings


def _holds_any(replication: Replication, fragment: Fragment, bookie: BookieId, end: int) -> bool:
    """Whether a bookie of a fragment that ends at ``end`` is to hold any entry of it."""
    slot = fragment.ensemble.index(bookie)
    # Each slot holds some of any E consecutive entries.
    stop = min(end, fragment.first_entry + replication.ensemble - 1)
    return any(replication.holds(slot, entry_id) for entry_id in range(fragment.first_entry, stop + 1))


@attrs.frozen(eq=False)
class Copy:
    """Entries to be stored on a new bookie by a recovery add; ``entries`` are in order of their ids."""

    bookie: BookieId
    entries: Mapping[int, bytes]
    byte_count: int


def cut(bookie: BookieId, found: Mapping[int, bytes]) -> Iterator[Copy]:
    """Entries for a bookie, in pieces that a frame holds each."""
    entries: dict[int, bytes] = {}
    byte_count = 0
    for entry_id in sorted(found):
        payload = found[entry_id]
        is_full = byte_count + len(payload) > FRAME_BYTES_TARGET or len(entries) >= FRAME_ENTRIES_MAX
        if entries and is_full:
            yield Copy(bookie, entries, byte_count)
            entries, byte_count = {}, 0
        entries[entry_id] = payload
        byte_count += len(payload)
    if entries:
        yield Copy(bookie, entries, byte_count)


class RepairPhase(enum.Enum):
    COPYING = "copying"
    WRITING = "writing"
    DONE = "done"
    FAILED = "failed"


class FragmentRepair:
    """The repair of one fragment by one process."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        fragment_index: int,
        replacements: Mapping[BookieId, BookieId],
        *,
        new_token: Callable[[], bytes],
        avoid: Sequence[BookieId] = (),
        serving: Collection[BookieId] = (),
        round_entries: int = ROUND_ENTRIES,
    ) -> None:
        """``replacements`` has a new bookie, which is not in the fragment, for each lost one. Bookies to
        ``avoid`` are read from last; the lost ones are among them. Those that are ``serving`` though they
        count as lost (one is being emptied, or has a damaged copy) may be the only ones that have an entry,
        and are asked for their own share where all others fail. The last fragment of a ledger that is not
        closed is refused (rule 20)."""
        end = metadata.fragment_end(fragment_index)
        assert end is not None, "the last fragment of an open ledger belongs to its writer (rule 20)"
        fragment = metadata.fragments[fragment_index]
        assert replacements
        assert all(old in fragment.ensemble for old in replacements)
        assert not set(replacements.values()) & set(fragment.ensemble), "a new bookie is not in the fragment"
        assert len(set(replacements.values())) == len(replacements)
        self.ledger_id = metadata.ledger_id
        self.fragment = fragment
        self.end = end
        """The fragment's last entry."""
        self.replacements = dict(replacements)
        self.metadata = metadata
        """The newest metadata known to be stored, at ``version``."""
        self.version = version
        self.phase = RepairPhase.COPYING
        self.failure: LedgerLogError | None = None
        self.intent: MetadataIntent | None = None
        self.lac = metadata.last_fragment.first_entry - 1
        """What every copy carries, with ``lafr``."""
        if metadata.last_entry is not None:
            self.lac = metadata.last_entry
        self.lafr = NO_ENTRY
        self._base = metadata
        """What is read by. The fragment and its entries are the same in whatever is stored later."""
        self._new_token = new_token
        self._avoid = (*replacements, *avoid)
        self._serving = tuple(sorted(serving))
        self._round_entries = round_entries
        self._todo = [old for old in replacements if _holds_any(metadata.replication, fragment, old, end)]
        """The lost bookies whose entries are not all read; the first one's are being read."""
        self._next = fragment.first_entry
        """The first entry of the next round."""
        self._read: RangeRead | None = None
        self._copies: list[Copy] = []
        self._unconfirmed: list[Copy] = []
        self._go_on()

    @property
    def is_over(self) -> bool:
        return self.phase in (RepairPhase.DONE, RepairPhase.FAILED)

    # --- copying ------------------------------------------------------------------------------

    def take_asks(self) -> list[RangeAsk]:
        """Reads to be sent now. Each must be answered by ``on_reply`` or ``on_failed``."""
        if self._read is None or sum(copy.byte_count for copy in self._unconfirmed) >= COPY_BYTES:
            return []
        asks = self._read.take_asks()
        self._look()
        return asks

    def on_reply(
        self,
        ask: RangeAsk,
        found: Mapping[int, bytes],
        through: int,
        negative: Negative,
        damaged: int | None = None,
    ) -> None:
        """A bookie's answer to a read of the present round; see ``RangeRead.on_reply``."""
        if self._read is not None:
            self._read.on_reply(ask, found, through, negative, damaged)
            self._look()

    def on_failed(self, ask: RangeAsk) -> None:
        """A bookie did not answer, or answered with an error."""
        if self._read is not None:
            self._read.on_failed(ask)
            self._look()

    def take_copies(self) -> list[Copy]:
        """What is to be stored now. Each must be answered by ``on_copied`` or ``on_copy_failed``."""
        copies, self._copies = self._copies, []
        return copies

    def on_copied(self, copy: Copy) -> None:
        """Its bookie has a copy durably."""
        if self.phase is RepairPhase.COPYING and copy in self._unconfirmed:
            self._unconfirmed.remove(copy)
            self._go_on()

    def on_copy_failed(self, copy: Copy, why: str) -> None:
        """Its bookie cannot take a copy: the repair fails, to be tried with another bookie."""
        self._fail(RepairFailed(self.ledger_id, self.fragment.first_entry, f"{copy.bookie}: {why}"))

    def on_target_lost(self, bookie: BookieId, why: str) -> None:
        """A new bookie is lost, whatever it has confirmed: it is not named, unless it is already. Not to be
        said while a write is under way, whose outcome decides."""
        assert bookie in self.replacements.values()
        self._fail(RepairFailed(self.ledger_id, self.fragment.first_entry, f"{bookie}: {why}"))

    def _look(self) -> None:
        read = self._read
        assert read is not None
        # What came is passed on at once, so that no more is kept than copies and answers are under way.
        self._split(self.replacements[self._todo[0]], read.found)
        read.found.clear()
        if read.failure is not None:
            # An entry that nobody else has, or that cannot be read now: the fragment stays as it is, for
            # what the metadata names is where somebody may still find it.
            self._fail(read.failure)
        elif read.is_done:
            self._read = None
            self._next += self._round_entries
            if self._next > self.end:
                del self._todo[0]
                self._next = self.fragment.first_entry
            self._go_on()

    def _split(self, bookie: BookieId, found: Mapping[int, bytes]) -> None:
        for copy in cut(bookie, found):
            self._emit(copy)

    def _emit(self, copy: Copy) -> None:
        self._copies.append(copy)
        self._unconfirmed.append(copy)

    def _go_on(self) -> None:
        """The next round; the write, when all copies are durable."""
        if self._todo:
            if self._read is None:
                last = min(self.end, self._next + self._round_entries - 1)
                holder = self._todo[0]
                self._read = RangeRead(
                    *(self._base, self._next, last),
                    avoid=self._avoid,
                    holder=holder,
                    even_holder=holder in self._serving,
                )
                self._look()  # A round may have nothing for this slot.
        elif not self._unconfirmed:
            self.phase = RepairPhase.WRITING
            self._form_intent()

    # --- writing ------------------------------------------------------------------------------

    def _form_intent(self) -> None:
        changed = self.metadata
        token = self._new_token()
        index = changed.fragment_index(self.fragment.first_entry)
        for old, new in self.replacements.items():
            changed = changed.with_replacement(index, old, new, token)
        self.intent = MetadataIntent(changed, self.version)

    def on_metadata_read(self, stored: LedgerMetadata | None, version: int) -> None:
        """What the store holds after a write was attempted, however that went."""
        if self.phase is not RepairPhase.WRITING:
            return
        self.intent = None
        if stored is None:
            self._fail(LedgerNotFound(self.ledger_id))
            return
        self.metadata, self.version = stored, version
        index = stored.fragment_index(self.fragment.first_entry)
        ensemble = stored.fragments[index].ensemble
        slots = {self.fragment.ensemble.index(old): (old, new) for old, new in self.replacements.items()}
        if all(ensemble[slot] == new for slot, (_, new) in slots.items()):
            self.phase = RepairPhase.DONE
        elif all(ensemble[slot] == old and new not in ensemble for slot, (old, new) in slots.items()):
            self._form_intent()
        else:
            self._fail(
                RepairFailed(self.ledger_id, self.fragment.first_entry, "somebody else changed its ensemble")
            )

    def _fail(self, failure: LedgerLogError) -> None:
        if not self.is_over:
            self.phase = RepairPhase.FAILED
            self.failure = failure
            self.intent = None
            self._read = None
            self._copies = []
            self._unconfirmed = []
