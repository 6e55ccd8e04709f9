"""The key and the headers of a record: what may be given, and the bytes of headers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument, RecordTooLarge
from ledgerlog.limits import RECORD_ATTRIBUTES_BYTES_MAX, RECORD_HEADER_NAME_BYTES_MAX, RECORD_HEADERS_MAX
from ledgerlog.model.attributes import (
    Attributes,
    attributes_column,
    attributes_of,
    attributes_size,
    decode_headers,
    encode_headers,
    headers_size,
)


class Refused(Exception):
    pass


def refuse(why: str) -> Any:
    raise Refused(why)


def test_the_example_of_the_page_is_what_is_written() -> None:
    assert encode_headers([("a", b"xy")]) == bytes.fromhex("0100 61 02000000 7879")


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.binary()), max_size=6))
def test_headers_come_back_in_their_order_and_repeated_names_are_kept(pairs: list[tuple[str, bytes]]) -> None:
    encoded = encode_headers(pairs)
    assert decode_headers(encoded, pytest.fail) == tuple(pairs)
    assert headers_size(tuple(pairs)) == len(encoded)
    assert attributes_size([b"ab", None], [tuple(pairs), ()]) == 2 + len(encoded)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_headers_are_refused_and_raise_nothing_else(data: bytes) -> None:
    try:
        found = decode_headers(data, refuse)
    except Refused:
        return
    assert encode_headers(found) == data


def test_a_mapping_pairs_and_a_generator_are_the_same_headers() -> None:
    for given_headers in ({"a": b"1"}, [("a", b"1")], (pair for pair in [("a", bytearray(b"1"))])):
        assert attributes_of(0, None, given_headers) == Attributes(None, encode_headers({"a": b"1"}))
    assert attributes_of(0, None, {}) is None
    assert attributes_of(0, None, None) is None
    assert attributes_of(0, b"", None) == Attributes(b"", b""), "an empty key is a key"
    key: Any = memoryview(b"k")
    assert attributes_of(0, key, ()) == Attributes(b"k", b"")


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("text", None),
        (None, 7),
        (None, "ab"),
        (None, [b"ab"]),
        (None, {"a": "text"}),
        (None, {"a": None}),
        (None, {b"a": b"1"}),
        (None, {"\ud800": b"1"}),
        (None, [("a", b"1", b"2")]),
        (None, {"n" * (RECORD_HEADER_NAME_BYTES_MAX + 1): b"1"}),
        (None, [("a", b"")] * (RECORD_HEADERS_MAX + 1)),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_key_or_no_headers_is_refused(key: Any, headers: Any) -> None:
    with pytest.raises(InvalidArgument):
        attributes_of(0, key, headers)


def test_what_is_too_large_is_refused() -> None:
    for headers in ({"a": bytes(RECORD_ATTRIBUTES_BYTES_MAX)}, {"a": bytes(RECORD_ATTRIBUTES_BYTES_MAX + 1)}):
        with pytest.raises(RecordTooLarge):
            attributes_of(0, None, headers)
    many = encode_headers([("a", b"")] * RECORD_HEADERS_MAX)
    assert len(decode_headers(many, refuse)) == RECORD_HEADERS_MAX
    with pytest.raises(Refused):
        decode_headers(many + encode_headers({"a": b""}), refuse)


def test_many_records_have_an_item_each() -> None:
    assert attributes_column([1, 1], None, None) is None
    assert attributes_column([1, 1], [None, None], [None, {}]) is None
    assert attributes_column([1, 1], [None, b"k"], None) == [None, Attributes(b"k", b"")]
    wrong: list[tuple[Any, Any]] = [([b"k"], None), (None, [{}]), (None, {"a": b"1", "b": b"2"}), ([], None)]
    for keys, headers in wrong:
        with pytest.raises(InvalidArgument):
            attributes_column([1, 1], keys, headers)
