"""The formats of records that ``log append`` takes besides lines, and ``log read`` prints: each keeps every
byte.

**JSON**: an object a line. ``data`` has the record as text. A record that is not UTF-8 is in ``data_base64``
instead. All other fields are for people and are ignored. So ``log read --json`` into ``log append --format
json`` copies a log.

**Framed**: for each record its length, four bytes, little endian, and then its bytes. For example, the
records ``ab`` and an empty one are ``02000000 6162 00000000``.

A cutter gets the input in chunks, keeps at most one unfinished record, and refuses a record as soon as it
knows that it is too long. After a failure it takes nothing more; the records before it are given out.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from ledgerlog.cli.lines import LineCutter
from ledgerlog.errors import InvalidArgument, LedgerLogError, RecordTooLarge
from ledgerlog.limits import RECORD_BYTES_MAX

__all__ = ["FrameCutter", "JsonCutter", "framed"]

_JSON_LINE_BYTES_MAX = 6 * RECORD_BYTES_MAX + 4096
"""A character of a record takes at most six bytes in JSON (``\\\\u0001``)."""
_LENGTH_BYTES = 4


def framed(records: list[bytes]) -> bytes:
    """Return records in the framed format."""
    return b"".join(part for data in records for part in (len(data).to_bytes(_LENGTH_BYTES, "little"), data))


class JsonCutter:
    """Cuts chunks of bytes into records: a JSON object a line."""

    holds_a_line = False

    def __init__(self) -> None:
        self._lines = LineCutter(line_bytes_max=_JSON_LINE_BYTES_MAX)
        self._number = 0
        self.failure: LedgerLogError | None = None

    def cut(self, chunk: bytes) -> list[bytes]:
        """Return the records that ``chunk`` completes."""
        return self._decoded(self._lines.cut(chunk))

    def finish(self) -> list[bytes]:
        """Return the record of a last line without its newline, if there is one."""
        return self._decoded(self._lines.finish()) if self.failure is None else []

    def _decoded(self, lines: list[bytes]) -> list[bytes]:
        records = []
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            try:
                records.append(_record_of(json.loads(line)))
            except (ValueError, RecursionError) as error:  # InvalidArgument is a ValueError, too.
                self.failure = InvalidArgument(f"line {self._number} is no record in JSON: {error}")
                return records
        self.failure = self._lines.failure
        return records


def _record_of(fields: Any) -> bytes:
    match fields:
        case {"data": str(), "data_base64": str()}:
            raise InvalidArgument("it has both 'data' and 'data_base64'")
        case {"data": str(text)}:
            data = text.encode()
        case {"data_base64": str(text)}:
            try:
                data = base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise InvalidArgument(f"'data_base64': {error}") from error
        case _:
            raise InvalidArgument("it is not an object with a text in 'data' or 'data_base64'")
    if len(data) > RECORD_BYTES_MAX:
        raise RecordTooLarge(len(data), RECORD_BYTES_MAX)
    return data


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
