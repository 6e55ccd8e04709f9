"""Ids, positions, paths, and the records that describe bookies."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.cluster import connect
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.model import layout
from ledgerlog.model.attach import check_splicer
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.codec import encode_record
from ledgerlog.model.cursor import check_cursor_name
from ledgerlog.model.ids import Position, check_bookie_id, check_ledger_id, check_log_name
from ledgerlog.model.ledger import MetadataCorrupt

# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["b", "B-1", "10.0.0.1:3181", "a_b.c", "x" * 128, "0"])
def test_bookie_ids(value: str) -> None:
    assert check_bookie_id(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "-a", ".a", "a b", "a/b", "a\n", "ä", "x" * 129, "a\0", None, 5, b"b"],
    ids=itertools.count(),
)
def test_what_is_no_bookie_id(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a bookie id"):
        check_bookie_id(value)


@pytest.mark.parametrize("value", ["orders", "a/b/c", "_x", "0", "a.b-c_d", "x" * 255])
def test_log_names(value: str) -> None:
    assert check_log_name(value) == value
    component = layout.log_name_path(value).removeprefix("logs/")
    assert "/" not in component
    assert layout.log_name_of(component) == value


@pytest.mark.parametrize(
    "value",
    ["", "/a", "a/", "a//b", ".a", "-a", "a b", "a%2Fb", "a\n", "x" * 256, None, 5],
    ids=itertools.count(),
)
def test_what_is_no_log_name(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a log name"):
        check_log_name(value)


async def test_a_name_that_is_refused_is_told_by_what_it_should_name() -> None:
    with pytest.raises(InvalidArgument, match="'a b' is not the name of a cursor: 1 to 255 letters"):
        check_cursor_name("a b")
    with pytest.raises(InvalidArgument, match="'a b' is not the name of a producer: 1 to 255 letters"):
        check_splicer("a b")
    async with connect("memory:") as cluster:
        with pytest.raises(InvalidArgument, match="'a b' is not the name of an election: 1 to 255 letters"):
            cluster.election("a b")


def test_ledger_ids() -> None:
    for value in (0, 1, LEDGER_ID_MAX):
        assert check_ledger_id(value) == value
    for wrong in (-1, LEDGER_ID_MAX + 1, True, 1.0, "1", None):
        with pytest.raises(InvalidArgument, match="is not a ledger id"):
            check_ledger_id(wrong)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 2), st.integers(0, 10**6))
def test_positions_come_back_from_their_text(ledger_id: int, entry_id: int, slot: int) -> None:
    position = Position(ledger_id, entry_id, slot)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1:2",
        "1:2:3:4",
        "1:2:",
        ":2:3",
        "a:2:3",
        "-1:2:3",
        "1:2:+3",
        " 1:2:3",
        "1:2:3\n",
        "1_0:2:3",
        "\u0661:2:3",
        "9" * 5000 + ":1:1",
    ],
    ids=itertools.count(),
)
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a position"):
        Position.parse(text)


def test_positions_are_ordered_within_a_ledger() -> None:
    assert Position(1, 2, 3) < Position(1, 2, 4) < Position(1, 3, 0)


# --- paths ----------------------------------------------------------------------------------------


@given(st.integers(0, LEDGER_ID_MAX))
def test_a_ledgers_path_spells_its_id(ledger_id: int) -> None:
    path = layout.ledger_path(ledger_id)
    root, *components = path.split("/")
    assert root == layout.LEDGERS
    assert layout.ledger_id_of(*components) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "",
        "00000000",
        "00000000/0000",
        "0000000/00000/0000",
        "00000000/0000/00001",
        "0000000g/0000/0000",
        "0000000A/0000/0000",
        "-0000001/0000/0000",
        "+0000001/0000/0000",
        "0000_000/0000/0000",
        " 0000000/0000/0000",
        "ffffffff/ffff/ffff",
        "00000000/0000/0000/0000",
    ],
)
def test_a_path_that_spells_no_ledger_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"path of a ledger|invalid literal"):
        layout.ledger_id_of(*path.split("/"))


# --- bookies --------------------------------------------------------------------------------------

INFO = BookieInfo("b1", "host:3181", "instance-1", {"rack": "r1"})
COOKIE = Cookie("b1", "instance-1", "cluster-1", ("journal", "data"))


def test_registrations_and_cookies_come_back() -> None:
    assert BookieInfo.decode_untrusted(INFO.encode(), "b1") == INFO
    assert Cookie.decode_untrusted(COOKIE.encode(), "b1") == COOKIE


def test_a_registration_says_which_ledgers_it_fences_and_older_ones_say_nothing() -> None:
    fencing = attrs.evolve(INFO, fences_through=7)
    assert BookieInfo.decode_untrusted(fencing.encode(), "b1") == fencing
    assert b"fences_through" not in INFO.encode(), "as version 0.1 wrote it"
    assert INFO.fences_through == -1


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        *[(INFO, "v", value) for value in (2, "1", None)],
        *[(INFO, "id", value) for value in ("b2", 5, None)],
        *[(INFO, "address", value) for value in (5, b"x", None)],
        *[(INFO, "instance", value) for value in (5, b"x", None)],
        *[(INFO, "labels", value) for value in ([], {"a": 1}, {1: "a"}, None)],
        *[(COOKIE, "v", value) for value in (2, "1", None)],
        *[(COOKIE, "id", value) for value in ("b2", 5, None)],
        *[(COOKIE, "instance", value) for value in (5, b"x", None)],
        *[(COOKIE, "cluster", value) for value in (5, b"x", None)],
        *[(COOKIE, "directories", value) for value in ("journal", [5], {"a": "b"}, None)],
    ],
    ids=itertools.count(),
)
def test_a_wrong_field_names_record_and_field(record: BookieInfo | Cookie, name: str, value: Any) -> None:
    data = encode_record({**cbor2.loads(record.encode()), name: value})
    what = "registration" if isinstance(record, BookieInfo) else "cookie"
    words = {"v": "'v'|format", "id": "'id'|another bookie"}.get(name, f"'{name}'")
    with pytest.raises(MetadataCorrupt, match=f"^{what} of bookie b1:? .*({words})"):
        type(record).decode_untrusted(data, "b1")
