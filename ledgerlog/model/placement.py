"""The rule about racks: in how many racks the copies of an entry must lie.

An entry goes to ``write_quorum`` neighbouring slots of its ensemble, its *write set*. The policy says in how
many racks a write set must lie. For example, with a ``min_racks`` of 2 you can lose any one rack, and every
entry that has all of its copies keeps one.

    not strict    a preference: new ledgers and replacements come as close as the bookies allow
    strict        a condition: a new ledger, or a replacement by a writer, that breaks it is refused

In both cases ``ledgerlog repair audit`` reports the ledgers that break the rule. Workers of auto-recovery
move copies until no ledger breaks it, as far as there are bookies in enough racks.

The value of the node ``bookies/placement`` is one canonical CBOR map. If the node is not there, the defaults
hold.

    v    1        min_racks    1 to 255        strict    true or false
"""

from __future__ import annotations

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["DEFAULT_PLACEMENT", "PlacementPolicy"]

_FORMAT = 1


@attrs.frozen(kw_only=True)
class PlacementPolicy:
    """In how many racks each write set must lie."""

    min_racks: int = 2
    """Each write set must lie in at least this many racks. If it has fewer slots than this, each slot must
    lie in another rack. 1: any placement is allowed."""
    strict: bool = False
    """Whether to refuse a placement that breaks the rule."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.min_racks <= ENSEMBLE_MAX:
            raise InvalidArgument(f"min_racks is {self.min_racks}, not from 1 to {ENSEMBLE_MAX}")
        if self.strict and self.min_racks == 1:
            raise InvalidArgument("a strict placement needs a min_racks of 2 or more")

    def encode(self) -> bytes:
        """Encode the policy as canonical CBOR."""
        return encode_record(
            {"v": _FORMAT, "min_racks": self.min_racks, "strict": self.strict},
            self.decode_untrusted,
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes) -> PlacementPolicy:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the field."""
        fields = decode_record_untrusted(data, "the placement policy", MetadataCorrupt)
        fields.format(_FORMAT)
        try:
            return cls(
                min_racks=fields.integer("min_racks"),
                strict=fields.get("strict", bool),
                unknown=fields.unknown(),
            )
        except InvalidArgument as cause:
            fields.fail(str(cause))


DEFAULT_PLACEMENT = PlacementPolicy()
"""The placement policy of a cluster without a record of it."""
