"""A cursor: a named, durable offset in a log, with properties of its owner.

The value of its node is one canonical CBOR map:

    v           1                       offset      the first record that its owner has not handled
    name        of the cursor           pins        bool: keep the records from the offset on
    token       of its last writer      updated_ms  wall clock of that writer; for people
    properties  text -> text, at most limits.CURSOR_PROPERTIES_BYTES_MAX

Compare-and-set compares the version of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Self

import attrs

from ledgerlog.limits import CURSOR_PROPERTIES_BYTES_MAX, LEDGER_ID_MAX
from ledgerlog.model.checks import checked_properties
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ids import check_log_name
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.record import moment

__all__ = ["CursorState", "check_cursor_name", "check_cursor_properties"]

_FORMAT = 1


def check_cursor_name(value: str) -> str:
    """Return ``value`` if it is well-formed, by the rules for names of logs; else raise InvalidArgument."""
    return check_log_name(value, "the name of a cursor")


def check_cursor_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of ``properties``. Raise InvalidArgument if they are not text or too large."""
    return checked_properties(properties, "a cursor", CURSOR_PROPERTIES_BYTES_MAX)


@attrs.frozen(kw_only=True)
class CursorState:
    """A cursor as it was read or written."""

    name: str
    """The name of the cursor, unique in its log."""
    offset: int
    """The first record that its owner has not handled."""
    pins: bool = False
    """Whether truncation and retention must keep the records from ``offset`` on."""
    properties: dict[str, str] = attrs.field(factory=dict)
    """Text that the cursor's owner keeps with it, at most ``limits.CURSOR_PROPERTIES_BYTES_MAX`` (16 KiB)."""
    updated_ms: int = 0
    """The wall clock of the process that moved the cursor last, in milliseconds since 1970."""
    token: bytes = attrs.field(default=b"", repr=False)
    """Random bytes of the process that wrote this state. If the answer to a write is lost, they show whether
    it succeeded."""
    version: int = attrs.field(default=-1, repr=False)
    """The version of the node. The next move writes only if the node still has this version."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    @property
    def updated(self) -> datetime:
        """The wall clock of the process that moved the cursor last, as a datetime in UTC."""
        return moment(self.updated_ms)

    def encode(self) -> bytes:
        """Encode the state as canonical CBOR."""
        return encode_record(
            {
                "v": _FORMAT,
                "name": self.name,
                "offset": self.offset,
                "pins": self.pins,
                "properties": self.properties,
                "updated_ms": self.updated_ms,
                "token": self.token,
            },
            lambda data: self.decode_untrusted(data, self.name, self.version),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, name: str, version: int) -> Self:
        """Decode the bytes that ``encode`` returned.

        Args:
            data: The value of the cursor's node.
            name: The name of the cursor.
            version: The version of the node.

        Returns:
            The state.

        Raises:
            MetadataCorrupt: The bytes are not a cursor of this name.
        """
        fields = decode_record_untrusted(data, f"cursor {name}", MetadataCorrupt)
        fields.format(_FORMAT)
        if fields.get("name", str) != name:
            fields.fail("it names another cursor")
        return cls(
            name=name,
            offset=fields.integer("offset", high=LEDGER_ID_MAX),
            pins=fields.get("pins", bool),
            properties=fields.strings("properties"),
            updated_ms=fields.integer("updated_ms"),
            token=fields.get("token", bytes),
            version=version,
            unknown=fields.unknown(),
        )
