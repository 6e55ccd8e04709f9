"""CBOR for metadata: plain data, in exactly one form, and complaints that name the field."""

from __future__ import annotations

import itertools
import random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument, StorageCorrupt, WireError
from ledgerlog.limits import METADATA_BYTES_MAX
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def decode(data: bytes) -> Fields:
    return decode_record_untrusted(data, "thing", WireError)


def fields_of(**values: Any) -> Fields:
    return decode(encode_record(values))


@given(st.dictionaries(st.text(max_size=8), plain, max_size=5))
def test_plain_records_come_back(record: dict[str, Any]) -> None:
    data = encode_record(record)
    fields = decode(data)
    assert {name: fields.get(name, type(value)) for name, value in record.items()} == record
    assert encode_record(dict(reversed(record.items()))) == data, "equal records are equal bytes"


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**64) - 1, [{"deep": 2**70}], "\ud800", object()],
    ids=["large", "small", "deep", "no text", "object"],
)
def test_what_could_not_be_read_again_is_not_written(value: object) -> None:
    with pytest.raises(InvalidArgument, match="no record can hold this"):
        encode_record({"field": value})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "not valid CBOR"),
        ("80", "not a map"),
        ("f6", "not a map"),
        ("a10102", "not a map with text keys"),
        ("a1416101", "not a map with text keys"),
        ("a16161", "not valid CBOR"),
        ("a1616101 00", "followed by more bytes"),
        ("a1616101 a0", "followed by more bytes"),
        ("a2 616101 616102", "not valid CBOR"),
        ("a2 616201 616102", "not in canonical form"),
        ("a1616118 05", "not in canonical form"),
        ("a16161 1900ff", "not in canonical form"),
        ("b801616101", "not in canonical form"),
        ("a16161 fb3ff8000000000000", "not in canonical form"),
        ("bf616101ff", "indefinite"),
        ("a161619f01ff", "indefinite"),
        ("a161615f4101ff", "indefinite"),
        ("a161617f6101ff", "indefinite"),
        ("a161611c", "reserved"),
        ("a16161ff", "indefinite or reserved"),
        ("a16161c11a514b67b0", "a tagged item"),
        ("a16161c249010000000000000000", "a tagged item"),
        ("a16161d82361 61", "a tagged item"),
        ("a16161d81c80", "a tagged item"),
        ("a16161 d9d9f7a0", "a tagged item"),
        ("a16161f7", "simple value"),
        ("a16161f8ff", "simple value"),
        ("a16161e0", "simple value"),
        ("a16161f818", "simple value"),
        ("a16161" + "81" * 8 + "80", "not valid CBOR"),
        ("a16161" + "81" * 100_000 + "80", "not valid CBOR"),
        ("a161619b7fffffffffffffff", "not valid CBOR"),
        ("a16161bb7fffffffffffffff", "not valid CBOR"),
        ("a161615b7fffffffffffffff", "not valid CBOR"),
        ("a161617bffffffffffffffff", "not valid CBOR"),
        ("a1616161ff", "not valid CBOR"),
        ("a1616163eda080", "not valid CBOR"),
    ],
    ids=itertools.count(),
)
def test_what_is_not_plain_or_not_the_one_form_is_refused(data: str, why: str) -> None:
    with pytest.raises(WireError, match=f"^thing: .*{why}"):
        decode(bytes.fromhex(data))


def test_nesting_is_bounded() -> None:
    def nest(depth: int) -> dict[str, Any]:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return {"a": value}

    decode(encode_record(nest(5)))
    with pytest.raises(WireError):
        decode(cbor2.dumps(nest(20), canonical=True))
    with pytest.raises(InvalidArgument):
        encode_record(nest(20))


def test_size_is_bounded() -> None:
    decode(encode_record({"a": bytes(METADATA_BYTES_MAX - 100)}))
    with pytest.raises(WireError, match="over the limit"):
        decode(cbor2.dumps({"a": bytes(METADATA_BYTES_MAX)}, canonical=True))
    with pytest.raises(InvalidArgument, match="over the limit"):
        encode_record({"a": bytes(METADATA_BYTES_MAX)})


def test_any_bytes_are_a_record_in_the_one_form_or_the_given_error() -> None:
    rng = random.Random(8)
    good = encode_record(
        {"v": 1, "list": [1, {"x": b"y"}], "t": "text", "f": 1.5, "n": None, "big": 2**64 - 1}
    )
    survivors = 0
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(data))
            change = rng.randrange(3)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1:
                del data[at]
            else:
                data[at:at] = bytes([rng.randrange(256)])
        try:
            fields = decode(bytes(data))
        except WireError:
            continue
        survivors += 1
        assert encode_record(fields._value) == data
    assert survivors > 100


def test_the_given_error_is_raised() -> None:
    with pytest.raises(StorageCorrupt, match="cookie file: not a map"):
        decode_record_untrusted(b"\x80", "cookie file", lambda why: StorageCorrupt("path", None, why))


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [int, str, bytes, bool, list, dict, float])
@pytest.mark.parametrize("value", [1, "x", b"x", True, [1], {"a": 1}, 1.5, None])
def test_a_field_has_exactly_the_asked_type(kind: type, value: Any) -> None:
    fields = fields_of(name=value)
    if type(value) is kind:
        assert fields.get("name", kind) == value
        assert fields.optional("name", kind) == value
        return
    with pytest.raises(WireError, match=f"the field 'name' is {type(value).__name__}, not {kind.__name__}"):
        fields.get("name", kind)
    if value is None:
        assert fields.optional("name", kind) is None
    else:
        with pytest.raises(WireError, match="the field 'name' is"):
            fields.optional("name", kind)


def test_a_missing_field_is_named_unless_it_may_be_missing() -> None:
    fields = fields_of(other=1)
    for read in (
        lambda: fields.get("name", int),
        lambda: fields.integer("name"),
        lambda: fields.sequence("name", int),
        lambda: fields.strings("name"),
        lambda: fields.blobs("name"),
    ):
        with pytest.raises(WireError, match="thing: the field 'name' is missing"):
            read()
    assert fields.optional("name", int) is None


@pytest.mark.parametrize(("value", "fits"), [(-1, False), (0, True), (9, True), (10, False), (True, False)])
def test_an_integer_is_within_its_bounds(value: Any, fits: bool) -> None:
    fields = fields_of(name=value)
    if fits:
        assert fields.integer("name", low=0, high=9) == value
    else:
        with pytest.raises(WireError, match="the field 'name' is"):
            fields.integer("name", low=0, high=9)


def test_collections_hold_one_type_only() -> None:
    fields = fields_of(
        ints=[1, 2], mixed=[1, True], texts={"a": "b"}, blobs={"a": b"b"}, odd={"a": 1}, keys={1: "a"}
    )
    assert fields.sequence("ints", int) == [1, 2]
    assert fields.strings("texts") == {"a": "b"}
    assert fields.blobs("blobs") == {"a": b"b"}
    with pytest.raises(WireError, match="the field 'mixed' holds a bool"):
        fields.sequence("mixed", int)
    for name in ("odd", "keys", "blobs"):
        with pytest.raises(WireError, match=f"the field '{name}' is not a map of text to text"):
            fields.strings(name)
    for name in ("odd", "keys", "texts"):
        with pytest.raises(WireError, match=f"the field '{name}' is not a map of text to bytes"):
            fields.blobs(name)
