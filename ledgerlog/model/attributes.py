"""The attributes of a record: its key and its headers. Most records have none.

The *key* is bytes, or None if the record has no key. An empty key is a key. *Headers* are pairs of a name
(text) and a value (bytes). Their order is kept, and a name may occur more than once, as in Kafka.

The headers of one record as bytes, one after the other; all numbers are little endian:

    size  field
       2  bytes of the name
       -  the name, UTF-8
       4  bytes of the value
       -  the value

For example, the header ``("a", b"xy")`` is ``0100 61 02000000 7879``. The size of a record is the size of its
data, its key and these bytes. All bounds count this size: windows, rolls and retention.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ledgerlog.errors import InvalidArgument, RecordTooLarge
from ledgerlog.limits import (
    RECORD_ATTRIBUTES_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORD_HEADER_NAME_BYTES_MAX,
    RECORD_HEADERS_MAX,
)
from ledgerlog.model.checks import utf8

__all__ = [
    "Attributes",
    "Headers",
    "HeadersLike",
    "attributes_column",
    "attributes_of",
    "attributes_size",
    "decode_headers",
    "encode_headers",
    "headers_size",
]

Headers = tuple[tuple[str, bytes], ...]
"""The headers of a record, as a reader gets them."""

HeadersLike = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""The headers of a record, as you may give them."""

_NAME = struct.Struct("<H")
_VALUE = struct.Struct("<I")


class Attributes(NamedTuple):
    """A record's key and its headers. Both are checked, and the headers are already encoded."""

    key: bytes | None
    headers: bytes

    @property
    def size(self) -> int:
        """The bytes of the key and the headers."""
        return len(self.key or b"") + len(self.headers)


def attributes_of(size: int, key: bytes | None, headers: HeadersLike | None) -> Attributes | None:
    """Check the attributes of a record that is to be appended.

    Args:
        size: The bytes of the record's data.
        key: The key.
        headers: The headers.

    Returns:
        The attributes; None if there is no key and no header.

    Raises:
        InvalidArgument: The key is not bytes, or the headers are not pairs of text and bytes, or too many.
        RecordTooLarge: The key and the headers are over ``limits.RECORD_ATTRIBUTES_BYTES_MAX``, or the
            record with them is over ``limits.RECORD_BYTES_MAX``.
    """
    if key is not None and type(key) is not bytes:
        key = _as_bytes(key, "a key")
    encoded = b"" if headers is None else encode_headers(headers)
    if key is None and not encoded:
        return None
    attributes = Attributes(key, encoded)
    attributes_size = attributes.size
    if attributes_size > RECORD_ATTRIBUTES_BYTES_MAX:
        raise RecordTooLarge(attributes_size, RECORD_ATTRIBUTES_BYTES_MAX, "key with its headers")
    if size + attributes_size > RECORD_BYTES_MAX:
        raise RecordTooLarge(size + attributes_size, RECORD_BYTES_MAX, "record with its key and headers")
    return attributes


def attributes_column(
    sizes: Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[HeadersLike | None] | None,
) -> list[Attributes | None] | None:
    """Check the attributes of many records, as ``attributes_of`` does.

    Args:
        sizes: The bytes of each record's data.
        keys: A key or None for each record; None: no record has one.
        headers: The headers of each record, or None; None: no record has any.

    Returns:
        The attributes of each record; None if no record has any.

    Raises:
        InvalidArgument: As for ``attributes_of``, or there are not as many keys or headers as records.
        RecordTooLarge: As for ``attributes_of``.
    """
    if keys is None and headers is None:
        return None
    columns: list[list[Any]] = []
    for what, column in (("keys", keys), ("headers", headers)):
        columns.append([None] * len(sizes) if column is None else list(column))
        if isinstance(column, Mapping) or len(columns[-1]) != len(sizes):
            raise InvalidArgument(
                f"{what} has an item for each record: {len(sizes)} records, {len(columns[-1])} items"
            )
    found = list(map(attributes_of, sizes, *columns))
    return found if any(found) else None


def encode_headers(headers: HeadersLike) -> bytes:
    """Encode the headers of one record.

    Raises:
        InvalidArgument: The headers are not pairs of text and bytes, or there are too many, or a name is too
            long.
    """
    parts: list[bytes] = []
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        pairs = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"headers are a mapping, or pairs of a name and bytes, not {headers!r:.80}"
        ) from None
    if len(pairs) > RECORD_HEADERS_MAX:
        raise InvalidArgument(f"{len(pairs)} headers are over the limit of {RECORD_HEADERS_MAX} a record")
    for name, value in pairs:
        if not isinstance(name, str):
            raise InvalidArgument(f"the name of a header is text, not {type(name).__name__}")
        encoded = utf8(name)
        if len(encoded) > RECORD_HEADER_NAME_BYTES_MAX:
            raise InvalidArgument(
                f"the name of a header has {len(encoded)} bytes, over the limit of "
                f"{RECORD_HEADER_NAME_BYTES_MAX}"
            )
        if type(value) is not bytes:
            value = _as_bytes(value, f"the value of header {name!r:.80}")
        if len(value) > RECORD_ATTRIBUTES_BYTES_MAX:
            raise RecordTooLarge(len(value), RECORD_ATTRIBUTES_BYTES_MAX, "header")
        parts += (_NAME.pack(len(encoded)), encoded, _VALUE.pack(len(value)), value)
    return b"".join(parts)


def decode_headers(data: bytes, fail: Callable[[str], NoReturn]) -> Headers:
    """Decode the bytes of ``encode_headers``. If they do not decode, ``fail`` is called; it must raise."""
    found: list[tuple[str, bytes]] = []
    at, end = 0, len(data)
    while at < end:
        if len(found) == RECORD_HEADERS_MAX:
            fail(f"a record has more than {RECORD_HEADERS_MAX} headers")
        if at + _NAME.size > end:
            fail("a record's headers end within the length of a name")
        name_at = at + _NAME.size
        value_at = name_at + _NAME.unpack_from(data, at)[0] + _VALUE.size
        if value_at > end:
            fail("a record's headers end within a name")
        at = value_at + _VALUE.unpack_from(data, value_at - _VALUE.size)[0]
        if at > end:
            fail("a record's headers end within a value")
        try:
            name = data[name_at : value_at - _VALUE.size].decode()
        except UnicodeDecodeError:
            fail("the name of a header is not UTF-8")
        found.append((name, data[value_at:at]))
    return tuple(found)


def headers_size(headers: Headers) -> int:
    """Return the bytes that headers take when they are encoded."""
    return sum(_NAME.size + _VALUE.size + len(name.encode()) + len(value) for name, value in headers)


def attributes_size(keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None) -> int:
    """Return the bytes of the keys and headers of some records."""
    size = 0
    if keys is not None:
        size += sum(len(key) for key in keys if key)
    if headers is not None:
        size += sum(map(headers_size, filter(None, headers)))
    return size


def _as_bytes(data: object, what: str) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"{what} is bytes, not {type(data).__name__}")
