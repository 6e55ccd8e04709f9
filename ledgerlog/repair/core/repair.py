"""Repairing a fragment: new bookies get the entries of lost ones and take their slots (rules 20 to 24).

A ledger survives the loss of a bookie, but then its entries have one copy less. Repair restores the copy. It
works on fragments that take no more entries. Other processes may change the same ledger at the same time: the
ledger's writer changes the last fragment, recoverers close the ledger, another worker repairs the same
fragment. Verbs in, state out:

    survey              finds the fragments that name lost bookies, and how to repair each
    FragmentRepair      repairs one fragment, all its lost bookies at once:
      COPYING           reads and copies, a round of entries at a time
                            take_asks -> on_reply, on_failed;  take_copies -> on_copied, on_copy_failed,
                            on_target_lost
      WRITING           ``intent``: the compare-and-set that names the new bookies     -> on_metadata_read
      DONE, FAILED

**Which fragments repair may change.** Every fragment of a closed ledger, and every fragment but the last of a
ledger that is not closed (rule 20). All entries of these fragments are committed and never change, so a copy
is right, no matter when it was read. The last fragment of a ledger that is not closed belongs to its writer:
the writer may be about to store more entries, and bookies that the metadata no longer names would acknowledge
them. If a worker finds a lost bookie in this last fragment, the worker waits a while and checks that the same
ensemble still names the bookie. Then it recovers the ledger, which ends the fragment (``Work.RECOVER``).

**Which entries repair copies.** All entries that the lost bookie's slot holds; checking only the first and
the last would miss holes (rule 24). Each entry is read from another member of its write set by the rules of
an ordinary read (``ledger.core.reader.RangeRead``). If the old bookie still serves (for example, an operator
empties it), it is asked last: with a write quorum of one, no other bookie has the entry. In a striped
fragment that is shorter than its ensemble, a slot may hold no entry; in an empty fragment no slot holds an
entry. Then nothing is lost, and repair changes only the metadata (rule 21, ``Work.NAME``).

**What copies carry.** Copies go as recovery adds, which pass the fence. Their LAC is the last entry that is
certainly committed: the end of a closed ledger, otherwise the entry before the last fragment. This LAC may be
below or above the copied entry, and no reader concludes anything from that (rule 23). Copies carry no LAFR,
because repair does not know how many copies the other bookies have.

**The metadata write** replaces only this fragment's lost bookies, in their slots, in the newest stored
metadata. The write keeps what the writer and recoverers did to other fragments, and they keep what repair did
(rule 13). The write is formed once every copy is durable. Repair reads the metadata afterwards to learn the
outcome (rule 14):

    the new bookies are named    done, no matter which process wrote them
    the old bookies are named    write again, at the version just read
    anything else                another repair was faster with other bookies; this one fails

Unnecessary copies do no harm.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from ledgerlog.errors import LedgerLogError, LedgerNotFound
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.core.copy_queue import Copy, CopyQueue

__all__ = ["Finding", "FragmentRepair", "RepairFailed", "RepairPhase", "Work", "survey"]

ROUND_ENTRIES = 4096
"""How many ids of the fragment one round covers."""


class RepairFailed(LedgerLogError):
    """A fragment could not be repaired now, and this repair did not change its metadata.

    You may retry: survey the ledger again.
    """

    def __init__(self, ledger_id: int, first_entry: int, why: str) -> None:
        super().__init__(f"fragment {first_entry} of ledger {ledger_id} could not be repaired: {why}")
        self.ledger_id = ledger_id
        self.first_entry = first_entry


class Work(enum.Enum):
    """How a fragment that names lost bookies may be repaired."""

    COPY = "copy its entries, then name other bookies"
    NAME = "name other bookies: nothing that it holds is lost"
    RECOVER = "recover the ledger first, after a while and a second look (rule 20)"


@attrs.frozen
class Finding:
    """A fragment that names lost bookies."""

    fragment_index: int
    lost: tuple[BookieId, ...]
    """The fragment's lost bookies, in slot order."""
    work: Work


def survey(metadata: LedgerMetadata, lost: Collection[BookieId]) -> list[Finding]:
    """Return the fragments that name any of the ``lost`` bookies, in order, with the work that each needs."""
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
    """Whether a bookie's slot holds any entry of a fragment that ends at ``end``."""
    slot = fragment.ensemble.index(bookie)
    # Of any E consecutive entries, every slot holds at least one.
    stop = min(end, fragment.first_entry + replication.ensemble - 1)
    return any(replication.holds(slot, entry_id) for entry_id in range(fragment.first_entry, stop + 1))


class RepairPhase(enum.Enum):
    """The phase of a fragment's repair; see the module docstring."""

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
        """Start the repair of one fragment.

        Args:
            metadata: The ledger's metadata.
            version: The version at which it was read.
            fragment_index: The fragment to repair. It must have an end: the last fragment of a ledger that is
                not closed is refused (rule 20).
            replacements: A new bookie for each lost bookie. A new bookie must not be in the fragment yet.
            new_token: Makes the token of each metadata write.
            avoid: Bookies to read from last, in addition to the lost ones.
            serving: Bookies that count as lost but still serve: an operator empties the bookie, or its copy
                is damaged. Perhaps no other bookie has an entry of its share. So if all others fail, such a
                bookie is asked for its own share.
            round_entries: How many ids one round covers at most.
        """
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
        self.lac = metadata.surely_committed
        """The LAC that every copy carries, with ``lafr``."""
        self.lafr = NO_ENTRY
        self._base = metadata
        """The metadata that reads use. It need not be the newest: the fragment has the same entries in every
        later version."""
        self._new_token = new_token
        self._avoid = (*replacements, *avoid)
        self._serving = tuple(sorted(serving))
        self._round_entries = round_entries
        self._todo = [old for old in replacements if _holds_any(metadata.replication, fragment, old, end)]
        """The lost bookies whose entries are not all read yet. The first one's entries are being read."""
        self._next = fragment.first_entry
        """The first entry of the next round."""
        self._read: RangeRead | None = None
        self._copies = CopyQueue()
        self._go_on()

    @property
    def is_over(self) -> bool:
        """Whether the repair is done or has failed."""
        return self.phase in (RepairPhase.DONE, RepairPhase.FAILED)

    # --- copying ------------------------------------------------------------------------------

    def take_asks(self) -> list[RangeAsk]:
        """Return the reads to send now. Answer each with ``on_reply`` or ``on_failed``."""
        if self._read is None or self._copies.is_full:
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
        """Take a bookie's answer to a read of the current round; see ``RangeRead.on_reply``."""
        if self._read is not None:
            self._read.on_reply(ask, found, through, negative, damaged)
            self._look()

    def on_failed(self, ask: RangeAsk) -> None:
        """Note that a bookie did not answer a read, or answered with an error."""
        if self._read is not None:
            self._read.on_failed(ask)
            self._look()

    def take_copies(self) -> list[Copy]:
        """Return the copies to store now. Answer each with ``on_copied`` or ``on_copy_failed``."""
        return self._copies.take()

    def on_copied(self, copy: Copy) -> None:
        """Note that the new bookie has stored a copy durably."""
        if self.phase is RepairPhase.COPYING and copy in self._copies:
            self._copies.on_copied(copy)
            self._go_on()

    def on_copy_failed(self, copy: Copy, why: str) -> None:
        """Fail the repair: the new bookie cannot take a copy.

        The caller may try again with another bookie.
        """
        self._fail(RepairFailed(self.ledger_id, self.fragment.first_entry, f"{copy.bookie}: {why}"))

    def on_target_lost(self, bookie: BookieId, why: str) -> None:
        """Fail the repair: a new bookie is lost. This fails the repair even if the bookie has confirmed all
        copies.

        The metadata does not name the bookie, unless a write did so already. Do not call this while a write
        is under way: the write's outcome decides.
        """
        assert bookie in self.replacements.values()
        self._fail(RepairFailed(self.ledger_id, self.fragment.first_entry, f"{bookie}: {why}"))

    def _look(self) -> None:
        read = self._read
        assert read is not None
        # Queue the entries that were read at once. Then memory holds only copies and answers under way.
        self._copies.add(self.replacements[self._todo[0]], read.found)
        read.found.clear()
        if read.failure is not None:
            # Some entry is on no other bookie, or cannot be read now. The fragment stays unchanged: the entry
            # may still turn up on the bookies that the metadata names.
            self._fail(read.failure)
        elif read.is_done:
            self._read = None
            self._next += self._round_entries
            if self._next > self.end:
                del self._todo[0]
                self._next = self.fragment.first_entry
            self._go_on()

    def _go_on(self) -> None:
        """Start the next round; form the write once all copies are durable."""
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
                self._look()  # A round may hold no entry of this slot.
        elif not self._copies:
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
        """Take the stored metadata after a write was attempted, whether or not the write succeeded."""
        if self.phase is not RepairPhase.WRITING:
            return
        self.intent = None
        if stored is None:
            self._fail(LedgerNotFound(self.ledger_id))
            return
        index = stored.fragment_index(self.fragment.first_entry)
        present = stored.fragments[index]
        is_same = (present.first_entry, stored.fragment_end(index), stored.replication) == (
            self.fragment.first_entry,
            self.end,
            self.metadata.replication,
        )
        if not is_same:
            # The copies may not be all that the new fragment needs. For example, a recovery after a restore
            # names other bookies for the whole ledger.
            self._fail(
                RepairFailed(
                    self.ledger_id, self.fragment.first_entry, "another process changed its fragments"
                )
            )
            return
        self.metadata, self.version = stored, version
        ensemble = present.ensemble
        slots = {self.fragment.ensemble.index(old): (old, new) for old, new in self.replacements.items()}
        if all(ensemble[slot] == new for slot, (_, new) in slots.items()):
            self.phase = RepairPhase.DONE
        elif all(ensemble[slot] == old and new not in ensemble for slot, (old, new) in slots.items()):
            self._form_intent()
        else:
            self._fail(
                RepairFailed(
                    self.ledger_id, self.fragment.first_entry, "another process changed its ensemble"
                )
            )

    def _fail(self, failure: LedgerLogError) -> None:
        if not self.is_over:
            self.phase = RepairPhase.FAILED
            self.failure = failure
            self.intent = None
            self._read = None
            self._copies.clear()
