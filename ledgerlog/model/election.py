"""The record of an election: the leader, its term, and the address of its heartbeat.

One node in the metadata store holds it. It changes only by compare-and-set. The term grows by one with every
leadership and is never reused, so a term is a fencing token. A record without a holder is vacant.

The record is a canonical CBOR map (``model.codec``):

    v          1
    term       of the newest leadership; 0 before the first
    holder     the candidacy that has the term; null: it was given up
    candidate  the holder's name for people, and for clients that look for the leader
    address    of the holder's heartbeat, to which standbys connect; null: it sends none
    tenure_ms  for this long no standby may claim the term on suspicion

While the holder offers the term, the map has three more keys; see ``ElectionState.on_offer``:

    offer_term     the term that is offered; below ``term``: the offer is void
    offer_bookies  the bookies that the holder cannot reach, sorted
    offer_needed   how many of them a candidate must reach to take the term
"""

from __future__ import annotations

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record, kept_unknown, known_fields
from ledgerlog.model.ids import check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.reach import OutOfReach

__all__ = ["ElectionState", "check_candidate"]

_FORMAT = 1
_CANDIDATE_CHARS_MAX = 256
_OFFER_BOOKIES_MAX = 2 * ENSEMBLE_MAX


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
    offer_term: int | None = None
    offer: OutOfReach | None = None
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    @property
    def on_offer(self) -> OutOfReach | None:
        """The bookies that a candidate must reach to take the term; None if the term is not offered.

        A version that knows no offers copies these keys into the record of the next term. There they are
        void.
        """
        return self.offer if self.holder is not None and self.offer_term == self.term else None

    def offered(self, offer: OutOfReach | None) -> ElectionState:
        """Return the record in which the holder makes an offer, or withdraws it (None)."""
        return attrs.evolve(self, offer_term=None if offer is None else self.term, offer=offer)

    def taken_by(self, holder: str, *, candidate: str, address: str | None, tenure_ms: int) -> ElectionState:
        """Return the record of the next term, with this holder."""
        return attrs.evolve(
            self,
            term=self.term + 1,
            holder=holder,
            candidate=candidate,
            address=address,
            tenure_ms=tenure_ms,
            offer_term=None,
            offer=None,
        )

    def vacated(self) -> ElectionState:
        """Return the record of the same term without a holder: the next term may begin at once."""
        return attrs.evolve(self, holder=None, address=None, offer_term=None, offer=None)

    def encode(self) -> bytes:
        fields = {"v": _FORMAT, **known_fields(self)}
        del fields["offer_term"], fields["offer"]
        if self.offer is not None:
            fields["offer_term"] = self.offer_term
            fields["offer_bookies"] = list(self.offer.bookies)
            fields["offer_needed"] = self.offer.needed
        return encode_record(
            fields,
            lambda data: ElectionState.decode_untrusted(data, "to be written"),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, name: str) -> ElectionState:
        """Decode the record of the election ``name``. Raise MetadataCorrupt with the field."""
        fields = decode_record_untrusted(data, f"election {name}", MetadataCorrupt)
        fields.format(_FORMAT)
        offer_term = fields.optional("offer_term", int)
        return cls(
            term=fields.integer("term"),
            holder=fields.optional("holder", str),
            candidate=fields.optional("candidate", str),
            address=fields.optional("address", str),
            tenure_ms=fields.integer("tenure_ms"),
            offer_term=offer_term,
            offer=None if offer_term is None else _read_offer(fields),
            unknown=fields.unknown(),
        )


def _read_offer(fields: Fields) -> OutOfReach:
    bookies = fields.sequence("offer_bookies", str)
    if len(bookies) > _OFFER_BOOKIES_MAX:
        fields.fail(
            f"the field 'offer_bookies' has {len(bookies)} items, over the limit of {_OFFER_BOOKIES_MAX}"
        )
    try:
        offer = OutOfReach(tuple(map(check_bookie_id, bookies)), fields.integer("offer_needed", low=1))
    except InvalidArgument as cause:
        fields.fail(str(cause))
    return offer
