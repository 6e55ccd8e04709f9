"""``repair.core.leaving``: when nobody uses a read-only bookie any more."""

from __future__ import annotations

from ledgerlog.model.ledger import Fragment, LedgerState
from ledgerlog.repair.core.leaving import Leaving, is_in_use
from tests.cores import bookies, new_metadata

B0, B1, B2, B3 = bookies(4)


def test_a_ledger_uses_the_bookies_of_its_last_fragment_until_it_is_closed() -> None:
    fragments = (Fragment(0, (B0, B1, B2)), Fragment(5, (B3, B1, B2)))
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        metadata = new_metadata(state=state, fragments=fragments)
        assert [is_in_use(metadata, bookie) for bookie in (B0, B1, B3)] == [False, True, True], state
    closed = new_metadata(state=LedgerState.CLOSED, fragments=fragments, last_entry=9)
    assert not is_in_use(closed, B1)


def test_a_bookie_is_free_when_no_ledger_uses_it_and_older_views_of_it_are_over() -> None:
    leaving = Leaving(settled_s=2.0)
    leaving.on_look(10.0, is_read_only=True, used_by=())
    assert not leaving.is_free, "a client with an older view may choose it now"
    assert "clients are learning" in leaving.waits_for
    leaving.on_look(11.9, is_read_only=True, used_by=())
    assert not leaving.is_free
    leaving.on_look(12.0, is_read_only=True, used_by=())
    assert leaving.is_free
    assert leaving.waits_for == ""


def test_a_bookie_is_not_free_while_a_ledger_uses_it() -> None:
    leaving = Leaving(settled_s=2.0)
    for began in (10.0, 20.0):
        leaving.on_look(began, is_read_only=True, used_by={*range(7)})
        assert not leaving.is_free
        assert leaving.waits_for == "ledgers that are not closed use it: 7 (0, 1, 2, 3, 4, ...)"
    leaving.on_look(21.0, is_read_only=True, used_by=())
    assert leaving.is_free, "older views were over long ago"


def test_a_bookie_that_takes_ledgers_is_not_free_and_begins_anew() -> None:
    leaving = Leaving(settled_s=2.0)
    leaving.on_look(10.0, is_read_only=True, used_by=())
    leaving.on_look(12.0, is_read_only=False, used_by=())
    assert not leaving.is_free
    assert leaving.waits_for == "it is not registered as read-only"
    leaving.on_look(13.0, is_read_only=True, used_by=())
    assert not leaving.is_free
    leaving.on_look(15.0, is_read_only=True, used_by=())
    assert leaving.is_free
