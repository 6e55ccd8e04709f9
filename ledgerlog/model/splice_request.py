"""A request to the leader of a log: splice these ledgers (``log.splice_requests``).

The request is an ephemeral node below the incarnation of the log, ``requests/NUMBER/TOKEN``. Its name is
random, and never used again. Its value is one canonical CBOR map:

    v         1                        gaps     bool: the producer may skip batch numbers
    producer  its name, or null        staged   [id, records, bytes, last entry, ...] of each ledger
    source    the origin of batches    refused  text: why the leader refused the batch; absent: it did not
    run       the run that asks        is_full  bool: the log's list was too long for the batch
    batch     its number

Version 0.1 does not write requests and does not answer them.
"""

from __future__ import annotations

from typing import Self

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.model.attach import check_splicer
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["SpliceRequest"]

_FORMAT = 1
_COLUMNS = 4


@attrs.frozen(kw_only=True)
class SpliceRequest:
    """One request, as it was read or will be written."""

    producer: str | None
    source: str
    run: str
    batch: int
    gaps: bool
    staged: tuple[tuple[int, int, int, int], ...]
    """The ledgers in the order of their records: id, records, bytes and last entry of each."""
    refused: str | None = None
    """The leader's answer, if it cannot splice the batch and the asking process cannot see why; else None."""
    is_full: bool = False
    """Whether the batch was refused because the log's list was too long for it."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def encode(self) -> bytes:
        """Encode the request.

        Raises:
            RecordTooLong: The request names too many ledgers for one record.
        """
        fields: dict[str, object] = {
            "v": _FORMAT,
            "producer": self.producer,
            "source": self.source,
            "run": self.run,
            "batch": self.batch,
            "gaps": self.gaps,
            "staged": [number for ledger in self.staged for number in ledger],
        }
        if self.refused is not None:
            fields |= {"refused": self.refused, "is_full": self.is_full}
        return encode_record(fields, self.decode_untrusted, unknown=self.unknown)

    @classmethod
    def decode_untrusted(cls, data: bytes) -> Self:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the field."""
        fields = decode_record_untrusted(data, "a request for a splice", MetadataCorrupt)
        fields.format(_FORMAT)
        numbers = fields.sequence("staged", int)
        if len(numbers) % _COLUMNS or not all(0 <= number <= LEDGER_ID_MAX for number in numbers):
            fields.fail("the field 'staged' does not hold four numbers for each ledger")
        producer, refused = fields.optional("producer", str), fields.optional("refused", str)
        if producer is not None:
            try:
                check_splicer(producer)
            except InvalidArgument as cause:
                fields.fail(str(cause))
        return cls(
            producer=producer,
            source=fields.get("source", str),
            run=fields.get("run", str),
            batch=fields.integer("batch"),
            gaps=fields.get("gaps", bool),
            staged=tuple(zip(*[iter(numbers)] * _COLUMNS, strict=True)),
            refused=refused,
            is_full=refused is not None and bool(fields.optional("is_full", bool)),
            unknown=fields.unknown(),
        )
