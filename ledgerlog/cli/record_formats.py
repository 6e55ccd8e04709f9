"""The formats of records besides lines, for ``log append`` and ``log read``. Each format keeps every byte.

**JSON**: an object a line. ``data`` has the record as text. A record that is not UTF-8 is in ``data_base64``
instead. If it has a key, that is in ``key`` or ``key_base64``. If it has headers, ``headers`` is a list of
objects, each with a ``name`` and a ``value`` or ``value_base64``. All other fields are for people and are
ignored. So ``log read --json`` into ``log append --format json`` copies a log.

**Framed**: for each record its length, four bytes, little endian, and then its bytes. For example, the
records ``ab`` and an empty one are ``02000000 6162 00000000``. A frame has no place for a key or headers, so
``log read --framed`` refuses a record with any of them.

A *cutter* cuts the input into records. It gets the input in chunks, keeps at most one unfinished record, and
refuses a record as soon as it knows that the record is too long. After a failure the cutter takes nothing
more; it still gives out the records before the failure.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from ledgerlog.cli.lines import LineCutter
from ledgerlog.cli.output import bytes_fields
from ledgerlog.errors import InvalidArgument, LedgerLogError, RecordTooLarge
from ledgerlog.limits import KIB, RECORD_BYTES_MAX
from ledgerlog.model.attributes import Headers, attributes_of
from ledgerlog.model.record import Record

__all__ = ["FrameCutter", "InputRecord", "JsonCutter", "framed", "record_fields"]

_JSON_LINE_BYTES_MAX = 6 * RECORD_BYTES_MAX + 64 * KIB
"""The longest line of JSON. A character of a record takes at most six bytes in JSON (``\\\\u0001``). The
names of the fields take some more bytes."""
_LENGTH_BYTES = 4


def framed(records: list[bytes]) -> bytes:
    """Return records in the framed format."""
    return b"".join(part for data in records for part in (len(data).to_bytes(_LENGTH_BYTES, "little"), data))


class InputRecord(NamedTuple):
    """A record of the input that may have a key and headers."""

    data: bytes
    key: bytes | None = None
    headers: Headers = ()


def record_fields(record: Record) -> dict[str, Any]:
    """Return the data, the key and the headers of a record as fields of a JSON object."""
    fields: dict[str, Any] = bytes_fields(record.data)
    if record.key is not None:
        fields |= bytes_fields(record.key, "key")
    if record.headers:
        fields["headers"] = [{"name": name, **bytes_fields(value, "value")} for name, value in record.headers]
    return fields


class JsonCutter:
    """Cuts chunks of bytes into records: a JSON object a line."""

    holds_a_line = False

    def __init__(self) -> None:
        self._lines = LineCutter(line_bytes_max=_JSON_LINE_BYTES_MAX)
        self._number = 0
        self.failure: LedgerLogError | None = None

    def cut(self, chunk: bytes) -> list[InputRecord]:
        """Return the records that ``chunk`` completes."""
        return self._decoded(self._lines.cut(chunk))

    def finish(self) -> list[InputRecord]:
        """Return the record of a last line without its newline, if there is one."""
        return self._decoded(self._lines.finish()) if self.failure is None else []

    def _decoded(self, lines: list[bytes]) -> list[InputRecord]:
        records = []
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            try:
                records.append(_record_of(json.loads(line)))
            except (ValueError, RecursionError) as error:  # InvalidArgument is a ValueError, too.
                self.failure = InvalidArgument(f"line {self._number} is not a record in JSON: {error}")
                return records
        self.failure = self._lines.failure
        return records


def _record_of(fields: Any) -> InputRecord:
    if not isinstance(fields, dict) or (data := _bytes_of(fields, "data")) is None:
        raise InvalidArgument("it is not an object with a text in 'data' or 'data_base64'")
    if len(data) > RECORD_BYTES_MAX:
        raise RecordTooLarge(len(data), RECORD_BYTES_MAX)
    key = _bytes_of(fields, "key")
    headers = _headers_of(fields.get("headers") or [])
    attributes_of(len(data), key, headers)
    return InputRecord(data, key, headers)


def _headers_of(given: Any) -> Headers:
    found = []
    for header in given if isinstance(given, list) else [None]:
        name = header.get("name") if isinstance(header, dict) else None
        value = _bytes_of(header, "value") if isinstance(header, dict) else None
        if not isinstance(name, str) or value is None:
            raise InvalidArgument(
                "'headers' is not a list of objects with a text in 'name' and in 'value' or 'value_base64'"
            )
        found.append((name, value))
    return tuple(found)


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes in a field that ``bytes_fields`` made. None: there is no such field."""
    text, packed = fields.get(name), fields.get(f"{name}_base64")
    if text is not None and packed is not None:
        raise InvalidArgument(f"it has both {name!r} and '{name}_base64'")
    if isinstance(text, str):
        return text.encode()
    if isinstance(packed, str):
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error as error:
            raise InvalidArgument(f"'{name}_base64': {error}") from error
    if text is not None or packed is not None:
        raise InvalidArgument(f"{name!r} is not a text")
    return None


class FrameCutter:
    """Cuts chunks of bytes into records: each with its length before it."""

    holds_a_line = False

    def __init__(self) -> None:
        self._held = bytearray()
        self._number = 0
        self.failure: LedgerLogError | None = None

    def cut(self, chunk: bytes) -> list[bytes]:
        """Return the records that ``chunk`` completes."""
        held = self._held
        held += chunk
        records: list[bytes] = []
        at = 0
        while len(held) - at >= _LENGTH_BYTES:
            size = int.from_bytes(held[at : at + _LENGTH_BYTES], "little")
            if size > RECORD_BYTES_MAX:
                self.failure = RecordTooLarge(size, RECORD_BYTES_MAX, f"record (number {self._number + 1})")
                break
            end = at + _LENGTH_BYTES + size
            if end > len(held):
                break
            records.append(bytes(held[at + _LENGTH_BYTES : end]))
            self._number += 1
            at = end
        del held[:at]
        return records

    def finish(self) -> list[bytes]:
        """Return nothing. If the input ends within a record, that is a failure."""
        if self._held and self.failure is None:
            self.failure = InvalidArgument(
                f"the input ends within record {self._number + 1}: after {len(self._held)} bytes of it"
            )
        return []
