"""The ledgers that are gone, as ranges: what they hold, how they grow, which damaged files are refused."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.gone_ledgers import GoneLedgers
from ledgerlog.errors import IncompatibleVersion, StorageCorrupt
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.model.id_ranges import ranges_of, without

ids = st.integers(0, 60)
sets = st.sets(ids, max_size=30)


def gone(ledger_ids: set[int]) -> GoneLedgers:
    return GoneLedgers().joined(ranges_of(sorted(ledger_ids)))


def decode(data: bytes) -> GoneLedgers:
    return GoneLedgers.decode_untrusted(data, path="b/gone", instance="instance-1")


@given(sets, st.lists(sets, max_size=4))
def test_ranges_hold_what_was_put_in_and_nothing_else(first: set[int], later: list[set[int]]) -> None:
    value, model = gone(first), set(first)
    for more in later:
        value, model = value.joined(ranges_of(sorted(more))), model | more
        assert value.ranges == ranges_of(sorted(model)), "ascending, and not adjacent"
    assert [ledger_id for ledger_id in range(70) if ledger_id in value] == sorted(model)


@given(sets, ids, ids)
def test_a_gap_reaches_to_the_next_ranges_and_ends_with_the_last_id_if_none_follows(
    held: set[int], one: int, other: int
) -> None:
    first, last = sorted((one, other))
    low, high = gone(held).gap_around(first, last)
    assert low <= first
    assert last <= high
    assert held.isdisjoint(range(low, first))
    assert held.isdisjoint(range(last + 1, high + 1))
    if first not in held and first - 1 not in held:
        assert low == 0 or low - 1 in held
    if high > last:
        assert high + 1 in held


@given(sets, sets)
def test_ranges_without_some_ids_hold_all_others(held: set[int], left_out: set[int]) -> None:
    assert without(ranges_of(sorted(held)), ranges_of(sorted(left_out))) == ranges_of(sorted(held - left_out))


@given(sets)
def test_the_bytes_say_the_same(held: set[int]) -> None:
    assert decode(gone(held).encode("instance-1")) == gone(held)


def test_ids_may_be_as_great_as_ids_get() -> None:
    value = GoneLedgers().joined([(5, LEDGER_ID_MAX)])
    assert LEDGER_ID_MAX in value
    assert decode(value.encode("instance-1")) == value


def test_any_flipped_byte_and_any_end_that_is_missing_is_noticed() -> None:
    data = gone({1, 2, 7}).encode("instance-1")
    for at in range(len(data)):
        with pytest.raises(StorageCorrupt):
            decode(data[:at])
        with pytest.raises(StorageCorrupt):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_the_file_of_another_bookie_is_not_taken() -> None:
    with pytest.raises(StorageCorrupt, match="instance-2, not of instance-1"):
        decode(gone({1}).encode("instance-2"))


@pytest.mark.parametrize("bounds", [[3, 2], [1, 2, 3, 4], [5, 6, 1, 2], [1, 2**63]])
def test_ranges_that_no_bookie_writes_are_damage(bounds: list[int]) -> None:
    with pytest.raises(StorageCorrupt):
        decode(GoneLedgers(array("Q", bounds)).encode("instance-1"))


def test_a_newer_format_is_refused_by_name() -> None:
    from ledgerlog.wire.checksum import checksum

    body = bytearray(gone({1}).encode("instance-1")[:-4])
    body[8] = 2
    with pytest.raises(IncompatibleVersion, match="b/gone"):
        decode(bytes(body) + checksum(bytes(body)).to_bytes(4, "little"))
