"""Known bugs that take a whole log on real ledgers to be seen, or frames of several entries, answers that are
cut short, and frames without entries; see ``tests.scenarios.mutants`` for the form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from bookie.core.loss_marks import LossMarks, Range
from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.ledger.core.recovery import LedgerRecovery, Negative, ReadAsk
from ledgerlog.ledger.core.writer import WriterCore
from ledgerlog.model.ids import BookieId
from ledgerlog.repair.core.repair import FragmentRepair
from tests.model import healing

Mutant = Callable[[], AbstractContextManager[Any]]


def _marks(change: Callable[[LossMarks, LossMarks], LossMarks]) -> AbstractContextManager[Any]:
    """``change`` makes other marks of those before a loss and those after it."""
    original = LossMarks.after_loss

    def after_loss(self: LossMarks, highest_ledger_id: int) -> LossMarks:
        return change(self, original(self, highest_ledger_id))

    return patch.object(LossMarks, "after_loss", after_loss)


def the_newest_ledger_gets_no_mark() -> AbstractContextManager[Any]:
    original = LossMarks.after_loss
    return patch.object(LossMarks, "after_loss", lambda self, highest: original(self, highest - 1))


def a_loss_is_no_limbo() -> AbstractContextManager[Any]:
    return _marks(lambda before, after: attrs.evolve(after, limbo=before.limbo))


def a_loss_fences_nothing() -> AbstractContextManager[Any]:
    return _marks(lambda before, after: attrs.evolve(after, fenced_through=before.fenced_through))


def an_accepted_loss_is_not_written_down() -> AbstractContextManager[Any]:
    """So the next leader believes that the ledger lost nothing."""
    original = LedgerRecovery._form_closing_intent

    def form_closing_intent(self: LedgerRecovery) -> None:
        lost_from, self.lost_from = self.lost_from, None
        original(self)
        self.lost_from = lost_from

    return patch.object(LedgerRecovery, "_form_closing_intent", form_closing_intent)


def a_loss_is_accepted_though_somebody_is_silent() -> AbstractContextManager[Any]:
    original = LedgerRecovery.__init__

    def init(self: LedgerRecovery, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self._accept_unreachable = self._accept_loss

    return patch.object(LedgerRecovery, "__init__", init)


def a_loss_is_accepted_before_everybody_answered() -> AbstractContextManager[Any]:
    """The first bookie with an unknown answer decides for all."""
    original = LedgerRecovery.on_read

    def on_read(
        self: LedgerRecovery, ask: ReadAsk, found: Mapping[int, bytes], through: int, negative: Negative
    ) -> None:
        answer = self._answer_to(ask)
        if answer is not None and self._accept_loss and negative is Negative.UNKNOWN and not found:
            for other in self._answers.values():
                other.pending, other.through, other.negative = False, ask.last, negative
        original(self, ask, found, through, negative)

    return patch.object(LedgerRecovery, "on_read", on_read)


def a_replacement_that_refuses_ends_its_writer() -> AbstractContextManager[Any]:
    original = WriterCore.on_fenced

    def on_fenced(self: WriterCore, bookie: BookieId) -> bool:
        self._untried = set()
        return original(self, bookie)

    return patch.object(WriterCore, "on_fenced", on_fenced)


def holes_are_not_seen() -> AbstractContextManager[Any]:
    """So a bookie leaves limbo, and denies what it lost."""
    return patch.object(healing, "gaps", lambda share, stored: [])


def all_ledgers_leave_limbo_with_the_first() -> AbstractContextManager[Any]:
    original = LossMarks.cleared

    def cleared(self: LossMarks, ledgers: Iterable[Range]) -> LossMarks:
        return original(self, self.limbo if any(True for _ in ledgers) else ())

    return patch.object(LossMarks, "cleared", cleared)


def a_new_bookie_is_named_though_it_booted() -> AbstractContextManager[Any]:
    """The bookie has lost the copies that it confirmed, and left limbo before any metadata named it."""
    return patch.object(FragmentRepair, "on_target_lost", lambda self, bookie, why: None)


# --- the ledger's world ---------------------------------------------------------------------------


def a_batch_retires_with_its_first_entry() -> AbstractContextManager[Any]:
    """Queue rule 3: the rest of the frame goes to no replacement."""
    original = PendingAdds._retire

    def retire(self: PendingAdds) -> None:
        original(self)
        while not self._carried and self.batches and self.batches[0].first <= self.settled:
            self.byte_count -= self.batches.popleft().byte_count

    return patch.object(PendingAdds, "_retire", retire)


def an_answer_that_was_cut_short_denies_the_rest() -> AbstractContextManager[Any]:
    original = LedgerRecovery.on_read

    def on_read(
        self: LedgerRecovery, ask: ReadAsk, found: Mapping[int, bytes], through: int, negative: Negative
    ) -> None:
        original(self, ask, found, ask.last, negative)

    return patch.object(LedgerRecovery, "on_read", on_read)


@contextmanager
def a_frame_without_entries_confirms_what_it_tells() -> Iterator[None]:
    """A bookie that was told the LAC counts as having all entries up to it."""
    original = WriterCore.on_add_ok

    def on_add_ok(self: WriterCore, bookie: BookieId, first: int, last: int) -> bool:
        return original(self, bookie, min(first, last, self.lafr + 1), last)

    with patch.object(WriterCore, "on_add_ok", on_add_ok):
        yield
