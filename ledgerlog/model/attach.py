"""The mark of a producer's last splice into a log. With the mark, each batch counts only once.

A producer writes batches. It numbers the batches from 0, or by growing numbers of its own. Each batch
consists of whole ledgers that become part of the log in one transaction (``log.core.attach``). The same
transaction moves the mark. The mark's node lies below the incarnation of the log, and its value is one
canonical CBOR map:

    v         1                        epoch       of the log after the last splice
    producer  its name                 run         the run that spliced last
    source    the origin of batches    former      the runs before it, the newest last, a bounded number
    batch     the last one             token       of the writer of this mark
    records   in that batch            end_offset  the offset in the log after the last of them

Version 0.1 wrote no ``records`` and no ``end_offset``, and ignores both when it reads. In a mark that version
0.1 wrote, both are absent or null. Only version 0.1 uses ``epoch``: its run ends if the log has another
epoch.

A *source* numbers the batches. An example is a checkpoint of Spark. If a producer comes back with another
source, it has lost its checkpoint, and its numbers begin again. A *run* is one start of a program over that
source.
"""

from __future__ import annotations

from typing import Self

import attrs

from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ids import check_log_name
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["RUNS_KEPT", "SpliceMark", "check_splicer"]

_FORMAT = 1

RUNS_KEPT = 64
"""How many former runs are remembered. If a former run is still alive, it can learn that it was deposed."""


def check_splicer(value: str) -> str:
    """Return ``value`` if it can name a producer, by the rules for logs; else raise InvalidArgument."""
    return check_log_name(value, "the name of a producer")


@attrs.frozen(kw_only=True)
class SpliceMark:
    """A producer's mark, as it was read or will be written."""

    producer: str
    source: str
    batch: int
    run: str
    former: tuple[str, ...]
    epoch: int
    token: bytes
    records: int | None = None
    """How many records the batch has; None in a mark that version 0.1 wrote."""
    end_offset: int | None = None
    """The offset in the log after the batch's last record; None in a mark that version 0.1 wrote."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def moved(
        self, *, batch: int, run: str, epoch: int, token: bytes, records: int, end_offset: int
    ) -> SpliceMark:
        """Return the mark after the next batch of the same source."""
        assert batch > self.batch, "a batch is spliced once"
        assert run not in self.former, "a run that was deposed splices nothing"
        former = self.former if run == self.run else (*self.former, self.run)[-RUNS_KEPT:]
        return attrs.evolve(
            self,
            batch=batch,
            run=run,
            former=former,
            epoch=epoch,
            token=token,
            records=records,
            end_offset=end_offset,
        )

    def encode(self) -> bytes:
        return encode_record(
            {
                "v": _FORMAT,
                "producer": self.producer,
                "source": self.source,
                "batch": self.batch,
                "run": self.run,
                "former": list(self.former),
                "epoch": self.epoch,
                "token": self.token,
                "records": self.records,
                "end_offset": self.end_offset,
            },
            lambda data: self.decode_untrusted(data, self.producer),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, producer: str) -> Self:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the producer and the field."""
        fields = decode_record_untrusted(data, f"mark of producer {producer}", MetadataCorrupt)
        fields.format(_FORMAT)
        if fields.get("producer", str) != producer:
            fields.fail("it names another producer")
        return cls(
            producer=producer,
            source=fields.get("source", str),
            batch=fields.integer("batch"),
            run=fields.get("run", str),
            former=tuple(fields.sequence("former", str)),
            epoch=fields.integer("epoch"),
            token=fields.get("token", bytes),
            records=None if fields.optional("records", int) is None else fields.integer("records"),
            end_offset=None if fields.optional("end_offset", int) is None else fields.integer("end_offset"),
            unknown=fields.unknown(),
        )
