"""Ledger metadata: its transitions, what each transition refuses, and its bytes."""

from __future__ import annotations

import itertools
import re
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.limits import ENSEMBLE_MAX, ENTRY_ID_MAX, LEDGER_ID_MAX, METADATA_BYTES_MAX
from ledgerlog.model.codec import encode_record
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import (
    Fragment,
    LedgerMetadata,
    LedgerState,
    MetadataCorrupt,
    change_fragments,
)
from ledgerlog.model.quorum import Replication

KEY = bytes(range(16))
FRESH = LedgerMetadata.create(
    ledger_id=7,
    replication=Replication(3, 3, 2),
    ensemble=["a", "b", "c"],
    key=KEY,
    token=b"t0",
    created_ms=1_700_000_000_000,
    custom={"owner": b"me"},
)
STRIPED = LedgerMetadata.create(
    ledger_id=8,
    replication=Replication(5, 3, 2),
    ensemble=["a", "b", "c", "d", "e"],
    key=KEY,
    token=b"t0",
    created_ms=0,
)


def starts(metadata: LedgerMetadata) -> list[int]:
    return [fragment.first_entry for fragment in metadata.fragments]


# --- questions ------------------------------------------------------------------------------------


def test_a_new_ledger_is_open_and_empty() -> None:
    assert FRESH.state is LedgerState.OPEN
    assert FRESH.fragments == (Fragment(0, ("a", "b", "c")),)
    assert FRESH.last_entry is None
    assert not FRESH.is_closed


def test_an_entry_belongs_to_the_last_fragment_that_starts_at_or_before_it() -> None:
    changed = FRESH.with_ensemble(10, ["a", "b", "d"], b"t1").with_ensemble(25, ["a", "e", "d"], b"t2")
    for entry_id, index in [(0, 0), (9, 0), (10, 1), (24, 1), (25, 2), (10**12, 2)]:
        assert changed.fragment_index(entry_id) == index
        assert changed.fragment_of(entry_id) is changed.fragments[index]
    assert changed.last_fragment is changed.fragments[2]
    assert [changed.fragment_end(index) for index in range(3)] == [9, 24, None]
    assert changed.closed(30, b"t3").fragment_end(2) == 30
    assert changed.closed(24, b"t3").fragment_end(2) == 24, "the last fragment may be empty"


@given(st.lists(st.integers(1, 1000), max_size=12, unique=True).map(sorted), st.integers(0, 1100))
def test_looking_a_fragment_up_is_a_search_from_the_end(later: list[int], entry_id: int) -> None:
    metadata = FRESH
    for first_entry in later:
        metadata = metadata.with_ensemble(first_entry, ["a", "b", "c"], b"t")
    index = metadata.fragment_index(entry_id)
    assert index == max(i for i, first in enumerate([0, *later]) if first <= entry_id)


def test_the_bookies_of_an_entry_are_its_write_set_in_slot_order() -> None:
    assert STRIPED.bookies_of(0) == ("a", "b", "c")
    assert STRIPED.bookies_of(3) == ("d", "e", "a")
    assert STRIPED.bookies_of(4) == ("e", "a", "b")
    changed = STRIPED.with_ensemble(4, ["a", "b", "c", "d", "x"], b"t")
    assert changed.bookies_of(3) == ("d", "e", "a")
    assert changed.bookies_of(4) == ("x", "a", "b")


# --- edges ----------------------------------------------------------------------------------------


def test_an_ensemble_change_appends_a_fragment_or_replaces_one_that_would_own_nothing() -> None:
    appended = FRESH.with_ensemble(5, ["a", "b", "d"], b"t1")
    assert starts(appended) == [0, 5]
    replaced = appended.with_ensemble(5, ["a", "x", "d"], b"t2")
    assert replaced.fragments == (FRESH.fragments[0], Fragment(5, ("a", "x", "d")))
    assert starts(FRESH.with_ensemble(0, ["x", "y", "z"], b"t1")) == [0]
    assert replaced.token == b"t2"
    assert FRESH.fragments == (Fragment(0, ("a", "b", "c")),), "values do not change"


def test_a_fragment_never_starts_before_the_one_it_follows() -> None:
    changed = FRESH.with_ensemble(5, ["a", "b", "d"], b"t1")
    with pytest.raises(AssertionError, match="R-B4"):
        changed.with_ensemble(4, ["a", "b", "e"], b"t2")
    with pytest.raises(AssertionError, match="R-B4"):
        change_fragments(changed.fragments, 4, ["a", "b", "e"])


def test_only_an_open_ledger_changes_its_ensemble_or_enters_recovery() -> None:
    recovering = FRESH.in_recovery(b"t1")
    assert recovering.state is LedgerState.IN_RECOVERY
    for metadata in (recovering, FRESH.closed(3, b"t1")):
        with pytest.raises(AssertionError, match="T22"):
            metadata.with_ensemble(5, ["a", "b", "d"], b"t2")
        with pytest.raises(AssertionError, match="D9"):
            metadata.in_recovery(b"t2")


def test_closing_sets_the_end_for_ever() -> None:
    for before in (FRESH, FRESH.in_recovery(b"t1")):
        closed = before.closed(3, b"t2")
        assert closed.is_closed
        assert closed.last_entry == 3
        with pytest.raises(AssertionError, match="never changes"):
            closed.closed(3, b"t3")
    assert FRESH.closed(NO_ENTRY, b"t1").last_entry == NO_ENTRY
    with pytest.raises(AssertionError):
        FRESH.closed(-2, b"t1")


def test_a_recoverer_publishes_its_fragments_with_the_end() -> None:
    private = change_fragments(FRESH.fragments, 4, ["a", "b", "d"])
    closed = FRESH.in_recovery(b"t1").closed(6, b"t2", private)
    assert closed.fragments == private
    assert closed.last_entry == 6


def test_a_ledger_never_ends_below_what_its_last_fragment_follows() -> None:
    changed = FRESH.with_ensemble(5, ["a", "b", "d"], b"t1")
    assert changed.closed(4, b"t2").last_entry == 4
    with pytest.raises(AssertionError, match="R-B3"):
        changed.closed(3, b"t2")
    with pytest.raises(AssertionError, match="R-B3"):
        attrs.evolve(changed.closed(4, b"t2"), last_entry=3)


def test_repair_replaces_a_bookie_in_its_slot_but_never_in_the_open_last_fragment() -> None:
    changed = FRESH.with_ensemble(5, ["a", "b", "d"], b"t1")
    repaired = changed.with_replacement(0, "b", "x", b"t2")
    assert repaired.fragments == (Fragment(0, ("a", "x", "c")), changed.fragments[1])
    assert (repaired.state, repaired.token) == (LedgerState.OPEN, b"t2")
    for metadata in (changed, changed.in_recovery(b"t2")):
        with pytest.raises(AssertionError, match="rule 20"):
            metadata.with_replacement(1, "b", "x", b"t3")
    closed = changed.closed(9, b"t2").with_replacement(1, "b", "x", b"t3")
    assert closed.fragments[1] == Fragment(5, ("a", "x", "d"))
    assert closed.last_entry == 9
    with pytest.raises(AssertionError, match="each bookie once"):
        changed.with_replacement(0, "b", "c", b"t2")
    with pytest.raises(AssertionError, match="z cannot be replaced, because it is not in the fragment"):
        changed.with_replacement(0, "z", "x", b"t2")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"fragments": ()}, "at least one fragment"),
        ({"fragments": (Fragment(1, ("a", "b", "c")),)}, "starts at entry 0"),
        ({"fragments": (Fragment(0, ("a", "b", "c")), Fragment(0, ("a", "b", "d")))}, "strictly grow"),
        ({"fragments": (Fragment(0, ("a", "b")),)}, "E bookies"),
        ({"fragments": (Fragment(0, ("a", "b", "a")),)}, "each bookie once"),
        ({"last_entry": 3}, "exactly when CLOSED"),
        ({"state": LedgerState.CLOSED}, "exactly when CLOSED"),
        (
            {
                "state": LedgerState.CLOSED,
                "last_entry": 3,
                "fragments": (Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "b", "d"))),
            },
            "R-B3",
        ),
        ({"key": b"short"}, "16 bytes"),
    ],
)
def test_metadata_that_breaks_a_rule_cannot_be_made(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        attrs.evolve(FRESH, **change)


# --- bytes ----------------------------------------------------------------------------------------

bookies = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,20}", fullmatch=True)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble))
    replication = Replication(
        ensemble, write_quorum, draw(st.integers(1, write_quorum)), guaranteed=draw(st.booleans())
    )
    ensembles = st.lists(bookies, min_size=ensemble, max_size=ensemble, unique=True).map(tuple)
    later = sorted(draw(st.sets(st.integers(1, ENTRY_ID_MAX), max_size=4)))
    state = draw(st.sampled_from(LedgerState))
    end = draw(st.integers(later[-1] - 1 if later else NO_ENTRY, ENTRY_ID_MAX))
    return LedgerMetadata(
        ledger_id=draw(st.integers(0, LEDGER_ID_MAX)),
        replication=replication,
        state=state,
        fragments=tuple(Fragment(first, draw(ensembles)) for first in [0, *later]),
        last_entry=end if state is LedgerState.CLOSED else None,
        key=draw(st.binary(min_size=16, max_size=16)),
        token=draw(st.binary(max_size=20)),
        created_ms=draw(st.integers(0, 2**63 - 1)),
        custom=draw(st.dictionaries(st.text(max_size=10), st.binary(max_size=10), max_size=3)),
    )


@given(ledgers())
def test_metadata_comes_back_and_equal_values_are_equal_bytes(metadata: LedgerMetadata) -> None:
    data = metadata.encode()
    again = LedgerMetadata.decode_untrusted(data, metadata.ledger_id)
    assert again == metadata
    assert again.encode() == data


CLOSED = FRESH.with_ensemble(5, ["a", "b", "d"], b"t1").closed(9, b"t2")
WRONG: dict[str, list[Any]] = {
    "v": [2, "1", None, True, b"1"],
    "id": [8, -1, "7", None],
    "ensemble": [0, 4, -3, "3", None, True, 3.0, 2**64 - 1],
    "write_quorum": [0, 4, "3", None],
    "ack_quorum": [0, 4, "2", None],
    "guaranteed": [0, 1, None, "yes"],
    "state": ["open", "", 5, None, b"OPEN"],
    "last_entry": [-2, ENTRY_ID_MAX + 1, 3, "9", True, 9.0, None],
    "first_entries": [[0], [0, 5, 6], [0, 0], [1, 5], [5, 0], [0, "5"], [0, ENTRY_ID_MAX + 1], {}, None, 5],
    "ensembles": [
        [],
        [["a", "b", "c"]],
        [["a", "b", "c"], ["a", "b"]],
        [["a", "b", "c"], ["a", "b", "b"]],
        [["a", "b", "c"], ["a", "b", 5]],
        [["a", "b", "c"], ["a", "b", "no id"]],
        [["a", "b", "c"], "abd"],
        None,
    ],
    "key": [b"", bytes(15), bytes(17), "k" * 16, None],
    "token": ["t", None, 5],
    "created_ms": [-1, 2**63, 1.5, None],
    "custom": [[], {"a": "text"}, {5: b"x"}, {b"a": b"x"}, None],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_that_is_wrong_or_missing_is_refused_by_name(name: str) -> None:
    fields = cbor2.loads(CLOSED.encode())
    assert set(fields) == set(WRONG), "every field is tried"
    # The names that messages may use for the field, for example if another rule finds the fault.
    words = {
        "v": "format|'v'",
        "id": "another ledger|'id'",
        "last_entry": "last_entry|last fragment",
        "first_entries": "first_entries|fragment",
        "ensembles": "ensembles|ensemble",
        "write_quorum": "write.quorum",
        "ack_quorum": "ack.quorum",
    }.get(name, name)
    for value in WRONG[name]:
        with pytest.raises(MetadataCorrupt, match=f"^metadata of ledger 7:? .*({words})"):
            LedgerMetadata.decode_untrusted(encode_record({**fields, name: value}), 7)
    del fields[name]
    with pytest.raises(MetadataCorrupt, match=f"ledger 7.*({words})"):
        LedgerMetadata.decode_untrusted(encode_record(fields), 7)


def test_an_unknown_field_is_of_a_later_version_of_the_same_format() -> None:
    fields = cbor2.loads(CLOSED.encode())
    assert LedgerMetadata.decode_untrusted(encode_record({**fields, "zz": 1}), 7) == CLOSED


def test_every_flipped_bit_and_every_cut_decodes_or_is_refused() -> None:
    data = CLOSED.encode()
    for at, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        try:
            LedgerMetadata.decode_untrusted(bytes(flipped), 7)
        except MetadataCorrupt:
            continue
    for size in range(len(data)):
        with pytest.raises(MetadataCorrupt):
            LedgerMetadata.decode_untrusted(data[:size], 7)
    with pytest.raises(MetadataCorrupt, match="over the limit"):
        LedgerMetadata.decode_untrusted(data + bytes(METADATA_BYTES_MAX), 7)


numbers = st.integers(-(2**63), 2**64 - 1)
long_texts = st.integers(0, 100_000).map("x".__mul__)
plain = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(allow_nan=False),
    long_texts,
    st.binary(max_size=40),
    st.lists(numbers, max_size=4),
    st.lists(st.lists(st.one_of(bookies, long_texts), max_size=100), max_size=3),
    st.dictionaries(long_texts, st.binary(max_size=3), max_size=2),
)


@given(st.dictionaries(st.sampled_from(sorted(WRONG)), plain, max_size=3))
def test_whatever_the_fields_hold_they_decode_or_are_refused_in_a_few_words(changes: dict[str, Any]) -> None:
    data = encode_record({**cbor2.loads(CLOSED.encode()), **changes})
    refused = ""
    try:
        metadata = LedgerMetadata.decode_untrusted(data, 7)
    except MetadataCorrupt as cause:
        refused = str(cause)
    if refused:
        assert refused.startswith("metadata of ledger 7: ")
        assert len(refused) < 600
        return
    assert metadata.encode() == data
    assert metadata.last_entry is None or -1 <= metadata.last_entry <= ENTRY_ID_MAX
    assert all(0 <= start <= ENTRY_ID_MAX for start in starts(metadata))
    assert 1 <= metadata.replication.ensemble <= ENSEMBLE_MAX


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ack_quorum": 0}, "ack_quorum must be a positive integer, not 0"),
        ({"ack_quorum": 4}, "not 3/3/4"),
        ({"ensemble": 65, "ensembles": [[f"b{n}" for n in range(65)]] * 2}, "at most 64 bookies, not 65"),
        ({"first_entries": [0, 0]}, "'first_entries' has 0 after 0"),
        ({"first_entries": [1, 5]}, "'first_entries' has 1 after -1"),
        ({"first_entries": [0, 2**63]}, f"'first_entries' has {2**63} after 0"),
        (
            {"ensembles": [["a", "b", "c"], ["a", "b"]]},
            "3, but the ensemble of the fragment at entry 5 has 2",
        ),
        ({"ensembles": [["a", "b", "c"], ["a", "b", "b"]]}, "names b twice at entry 5"),
        ({"last_entry": 3}, "last_entry is 3, and the fragment starts at entry 5"),
        ({"last_entry": 2**63 - 1}, f"'last_entry' is {2**63 - 1}"),
        ({"last_entry": None}, "the state is CLOSED and last_entry is None"),
        ({"created_ms": -1}, "'created_ms' is -1"),
        ({"key": b"short"}, "the key has 16 bytes, not 5"),
    ],
)
def test_an_impossible_number_is_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MetadataCorrupt, match=f"^metadata of ledger 7: .*{re.escape(words)}"):
        LedgerMetadata.decode_untrusted(encode_record({**cbor2.loads(CLOSED.encode()), **changes}), 7)
