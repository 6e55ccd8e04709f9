"""A metadata record keeps the keys that only a later version knows, whoever rewrites it."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ledgerlog.model.access import Grant, Grants, Role
from ledgerlog.model.archive import ArchiveDestination
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.election import ElectionState
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.repair import Draining, RepairSettings, RepairTask
from ledgerlog.model.snapshots import ListedSnapshot, encode_snapshot_list, read_snapshot_list
from tests.unit.test_codecs_agree import CODECS, COOKIE, MARK, REFUSALS

RECORDS = (
    "registration",
    "cookie",
    "ledger",
    "log",
    "policies",
    "election",
    "cursor",
    "mark",
    "archive",
    "last entry of an archive",
    "destination",
    "settings of repair",
    "placement",
    "grants",
    "repair task",
    "draining",
    "audit",
    "admission",
)
REWRITTEN_WHOLE = {
    "name of a log": "made and deleted, never changed",
    "progress of repair": "ephemeral: one worker makes and changes it",
    "restoration": "each restore makes a new one, and accepting its loss removes it",
    "list of snapshots": "a list, with a test of its own below",
    "replaced ledgers": "made and deleted, never changed",
    "request": "ephemeral: only the process that made it reads it after the leader has changed it",
}
"""The other metadata records, and why they have no attribute for the keys."""

keys = st.text("abcdefgh", min_size=1, max_size=8).map("later_{}".format)
plain = st.none() | st.booleans() | st.integers(0, 2**63) | st.binary(max_size=8) | st.text("xyz", max_size=8)
later = st.dictionaries(keys, plain | st.lists(plain, max_size=3), min_size=1, max_size=3)


def with_later(data: bytes, more: dict[str, Any]) -> bytes:
    return cbor2.dumps({**cbor2.loads(data), **more}, canonical=True)


@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), more=later)
def test_a_rewritten_record_keeps_the_keys_of_a_later_version(
    name: str, data: st.DataObject, more: dict[str, Any]
) -> None:
    codec = CODECS[name]
    makers = codec.values
    if codec.sized is not None:
        makers |= st.just(partial(codec.sized, b"a"))
    try:
        value = data.draw(makers)()
        written = codec.encode(value)
        as_read = codec.decode(written, value)
    except (*REFUSALS, MetadataCorrupt):
        assume(False)
    by_later = with_later(written, more)
    read = codec.decode(by_later, value)
    assert read == as_read, "a key that this version does not know changes nothing for it"
    assert codec.encode(attrs.evolve(read)) == by_later
    assert as_read.unknown == b""


def test_every_kind_of_metadata_record_is_asked() -> None:
    kinds = {name for name, codec in CODECS.items() if _is_metadata(codec)}
    assert kinds == {*RECORDS, *REWRITTEN_WHOLE}


def _is_metadata(codec: Any) -> bool:
    """Whether the decoder refuses damage as MetadataCorrupt: it reads what the metadata store holds."""
    try:
        codec.decode(b"", Anything())
    except MetadataCorrupt:
        return True
    except Exception:
        return False
    return False


class Anything:
    """The names that a decoder asks its example for."""

    ledger_id = incarnation = version = 1
    name = bookie_id = producer = "b1"

    def __getitem__(self, at: int) -> str:
        return "b1"


LATER = encode_record({"later": [1, b"x"]})


def test_changes_of_a_record_keep_the_keys_of_a_later_version() -> None:
    state = ElectionState(unknown=LATER)
    taken = state.taken_by("h", candidate="c", address=None, tenure_ms=1)
    mark = attrs.evolve(MARK, unknown=LATER)
    moved = mark.moved(batch=2, run="r2", epoch=1, token=b"u", records=1, end_offset=1)
    task = RepairTask(ledger_id=7, unknown=LATER)
    grants = Grants("client/billing", unknown=LATER).granted(Grant(Role.READER, "a"))
    changed = (
        grants,
        grants.revoked(None),
        taken,
        taken.vacated(),
        moved,
        task.merged(lost=["b1"]),
        task.troubled("why"),
    )
    for record in changed:
        assert record.unknown == LATER
        assert cbor2.loads(record.encode())["later"] == [1, b"x"]


def test_a_list_of_snapshots_keeps_the_keys_of_a_later_version() -> None:
    data = with_later(encode_snapshot_list([ListedSnapshot(1, 2, 3)]), {"later": 1})
    listed, unknown = read_snapshot_list(data, 5)
    assert encode_snapshot_list(listed, unknown=unknown) == data


def test_a_key_that_this_version_writes_wins_over_one_that_was_kept() -> None:
    again = encode_record({"v": 2}, unknown=encode_record({"v": 1, "later": 1}))
    assert cbor2.loads(again) == {"v": 2, "later": 1}


def test_a_key_that_was_looked_for_and_is_null_is_known() -> None:
    fields = decode_record_untrusted(encode_record({"a": None}), "r", MetadataCorrupt)
    assert fields.optional("a", int) is None
    assert fields.unknown() == b""


@pytest.mark.parametrize(
    "record",
    [
        COOKIE,
        BookieInfo("b1", "a", "i"),
        CursorState(name="c", offset=1),
        Draining(bookie_id="b1", instance="i"),
        RepairSettings(),
        PlacementPolicy(),
        ArchiveDestination(where="w", marker=bytes(16), made_ms=1),
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_are_equal_if_they_differ_in_keys_of_a_later_version_alone(record: Any) -> None:
    later_record = attrs.evolve(record, unknown=LATER)
    assert later_record == record
    assert "unknown" not in repr(later_record)


def test_a_cookie_that_a_later_version_wrote_to_one_place_alone_is_the_same_cookie() -> None:
    there = Cookie.decode_untrusted(with_later(COOKIE.encode(), {"later": 1}), "b1")
    assert there == COOKIE
