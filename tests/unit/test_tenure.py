"""``ledger.core.tenure``: whether a bookie confirmed all that its slot holds, against a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.ledger.core.tenure import _RANGES_MAX, Tenure
from ledgerlog.model.quorum import Replication

_shapes = st.sampled_from([(3, 3, 2), (4, 2, 1), (5, 3, 2), (7, 1, 1), (1, 1, 1)])
_spans = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 6)), max_size=12)


@given(_shapes, st.data(), _spans, st.integers(0, 8), st.integers(-1, 30))
def test_a_bookie_lacks_what_its_slot_holds_and_it_did_not_confirm(
    shape: tuple[int, int, int], data: st.DataObject, spans: list[tuple[int, int]], first: int, last: int
) -> None:
    replication = Replication(*shape)
    slot = data.draw(st.integers(0, replication.ensemble - 1))
    tenure, confirmed = Tenure(replication, slot, first), set[int]()
    for low, length in spans:
        tenure.on_add_ok(low, low + length - 1)
        confirmed.update(range(low, low + length))
    lacking = {e for e in range(first, last + 1) if replication.holds(slot, e)} - confirmed
    assert tenure.lacks_any(last) == bool(lacking)
    assert tenure.has_gap(last) == any(entry_id < max(confirmed, default=-1) for entry_id in lacking)


def test_a_striped_slot_that_confirms_each_of_its_entries_alone_lacks_nothing() -> None:
    replication = Replication(4, 2, 1)
    tenure = Tenure(replication, 1, 0)
    for entry_id in filter(lambda entry_id: replication.holds(1, entry_id), range(10 * _RANGES_MAX)):
        tenure.on_add_ok(entry_id, entry_id)
    assert not tenure.lacks_any(10 * _RANGES_MAX - 1)


def test_so_many_gaps_that_some_are_forgotten_are_still_gaps() -> None:
    tenure = Tenure(Replication(3, 3, 2), 0, 0)
    last = 4 * _RANGES_MAX
    for entry_id in range(0, last, 2):
        tenure.on_add_ok(entry_id, entry_id)
    tenure.on_add_ok(last - 1, last)
    assert tenure.lacks_any(last)
    assert len(tenure._confirmed.ranges()) <= _RANGES_MAX
