"""The list of ledgers that a gathered ledger has replaced in its log (``log.gather``).

The transaction that replaces the ledgers makes this node. After a delay, the ledgers are deleted, then the
node. The value is canonical CBOR:

    v         1                     at_ms     when the ledgers were replaced, by the wall clock
    ledger    the gathered ledger   ledgers   the ledgers that it replaced
"""

from __future__ import annotations

from typing import Self

import attrs

from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["ReplacedLedgers"]

_FORMAT = 1


@attrs.frozen(kw_only=True)
class ReplacedLedgers:
    """Ledgers that left the list of a log, because one ledger holds all their records now."""

    ledger_id: int
    """The ledger that holds their records."""
    ledgers: tuple[int, ...]
    """The ledgers that it replaced."""
    at_ms: int
    """When they were replaced, by the wall clock, in milliseconds since 1970."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def encode(self) -> bytes:
        return encode_record(
            {"v": _FORMAT, "ledger": self.ledger_id, "ledgers": list(self.ledgers), "at_ms": self.at_ms},
            self.decode_untrusted,
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes) -> Self:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the field."""
        fields = decode_record_untrusted(data, "list of replaced ledgers", MetadataCorrupt)
        fields.format(_FORMAT)
        ledgers = tuple(fields.sequence("ledgers", int))
        if not all(0 <= each <= LEDGER_ID_MAX for each in ledgers):
            fields.fail("the field 'ledgers' has a number that is not the id of a ledger")
        return cls(
            ledger_id=fields.integer("ledger"),
            ledgers=ledgers,
            at_ms=fields.integer("at_ms"),
            unknown=fields.unknown(),
        )
