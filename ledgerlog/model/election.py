"""The record of an election: the leader, its term, and the address of its heartbeat.

One node in the metadata store holds it. It changes only by compare-and-set. The term grows by one with every
leadership and is never reused, so a term is a fencing token. A record without a holder is vacant.

The record is a canonical CBOR map (``model.codec``):

    v          1
    term       of the newest leadership; 0 before the first
    holder     the candidacy that has the term; null: it was given up
    candidate  the holder's name for people, and for clients that look for the leader
    address    where standbys hear the holder's heartbeat; null: nowhere
    tenure_ms  for this long standbys leave the holder alone on mere suspicion
"""

from __future__ import annotations

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown, known_fields
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["ElectionState", "check_candidate"]

_FORMAT = 1
_CANDIDATE_CHARS_MAX = 256


def check_candidate(value: str) -> str:
    """Return ``value`` if it is 1 to 256 printable characters; else raise InvalidArgument."""
    if not isinstance(value, str) or not 1 <= len(value) <= _CANDIDATE_CHARS_MAX or not value.isprintable():
        raise InvalidArgument(
            f"{value!r} does not name a candidate: 1 to {_CANDIDATE_CHARS_MAX} printable characters"
        )
    return value


@attrs.frozen(kw_only=True)
class ElectionState:
    """One version of the record. Its methods return new versions."""

    term: int = 0
    holder: str | None = None
    candidate: str | None = None
    address: str | None = None
    tenure_ms: int = 0
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def taken_by(self, holder: str, *, candidate: str, address: str | None, tenure_ms: int) -> ElectionState:
        """Return the record of the next term, with this holder."""
        return attrs.evolve(
            self,
            term=self.term + 1,
            holder=holder,
            candidate=candidate,
            address=address,
            tenure_ms=tenure_ms,
        )

    def vacated(self) -> ElectionState:
        """Return the record of the same term without a holder: the next term may begin at once."""
        return attrs.evolve(self, holder=None, address=None)

    def encode(self) -> bytes:
        return encode_record(
            {"v": _FORMAT, **known_fields(self)},
            lambda data: ElectionState.decode_untrusted(data, "to be written"),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, name: str) -> ElectionState:
        """Decode the record of the election ``name``. Raise MetadataCorrupt with the field."""
        fields = decode_record_untrusted(data, f"election {name}", MetadataCorrupt)
        fields.format(_FORMAT)
        return cls(
            term=fields.integer("term"),
            holder=fields.optional("holder", str),
            candidate=fields.optional("candidate", str),
            address=fields.optional("address", str),
            tenure_ms=fields.integer("tenure_ms"),
            unknown=fields.unknown(),
        )
