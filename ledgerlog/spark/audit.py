"""Spark's side of an audit: ``spark.read.format("ledgeraudit")``, a table of the copies that are not as they
should be, and of lost ledgers, logs and archived files.

Planned on the driver's host (``audit_plan``), carried out in tasks (``audit_task``), each of which connects
to the cluster by itself: a task reads the metadata of its ledgers when it checks them. What a task found is
in no order that means anything, and there is nothing to shuffle.

    log           string   the logs that list the ledger, separated by commas; null: none does
    ledger_id     long
    bookie        string   which has, or should have, the copies
    first_entry   long     the run of its entries that the row is about
    last_entry    long
    copies        long     how many of them are the bookie's
    copies_left   int      sound copies of each of them on other bookies, at least
    write_quorum  int      copies that there should be
    kind          string   missing, corrupt, diverging, limbo, unreachable
                  (``ledger.core.comparison.FaultKind``);
    metadata
                           where those of the ledger cannot be read; lost, log, archive, file_missing,
                           file_corrupt, file_unreachable; with ``summary`` also checked, checked_log and
                           checked_file (``audit_task``)
    file         string    the archived file that the row is about
    why          string    for people, of the kinds that are not about copies
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from ledgerlog.blocking.portal import Portal
from ledgerlog.spark.audit_plan import AuditPart, plan_audit
from ledgerlog.spark.audit_task import AuditBroken, AuditRow, open_audit
from ledgerlog.spark.columns import ColumnTypes, arrow_schema
from ledgerlog.spark.options import AuditOptions, parse_audit_options
from ledgerlog.spark.source import connected

__all__ = [
    "DECLARED",
    "AuditPartition",
    "AuditReader",
    "audit_reader",
    "audit_schema",
    "batch_of",
    "read_audit",
]

DECLARED = (
    "log STRING, ledger_id LONG, bookie STRING, first_entry LONG, last_entry LONG, "
    "copies LONG NOT NULL, copies_left INT, write_quorum INT, kind STRING NOT NULL, "
    "file STRING, why STRING"
)

_TYPES: ColumnTypes = {
    "log": (StringType(), pa.string()),
    "ledger_id": (LongType(), pa.int64()),
    "bookie": (StringType(), pa.string()),
    "first_entry": (LongType(), pa.int64()),
    "last_entry": (LongType(), pa.int64()),
    "copies": (LongType(), pa.int64()),
    "copies_left": (IntegerType(), pa.int32()),
    "write_quorum": (IntegerType(), pa.int32()),
    "kind": (StringType(), pa.string()),
    "file": (StringType(), pa.string()),
    "why": (StringType(), pa.string()),
}
assert list(_TYPES) == [field.name for field in attrs.fields(AuditRow)]


class AuditPartition(InputPartition):
    """One task's ledgers."""

    def __init__(self, part: AuditPart) -> None:
        super().__init__(part)


def audit_schema(declared: StructType) -> Any:
    """The Arrow schema of a declared one. InvalidArgument for a column that there is not, or not so."""
    return arrow_schema(declared, _TYPES)


def batch_of(rows: list[AuditRow], schema: Any) -> Any:
    """Rows as an Arrow batch."""
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), type=pa.struct([])))
    columns = [pa.array([getattr(row, field.name) for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read_audit(part: AuditPart, schema: Any) -> Iterator[Any]:
    """What a task finds, as Arrow batches. A consumer that stops early leaves nothing running."""
    portal = Portal()
    try:
        client, _ = portal.enter(connected(part.uri, cluster=part.cluster))
        take, held = portal.enter(open_audit(part, client))
        while True:
            try:
                rows = portal.run(take)
            except AuditBroken:
                held.leave()  # It says why.
                raise
            if rows is None:
                return
            yield batch_of(rows, schema)
    finally:
        portal.close()


class AuditReader(DataSourceReader):
    """``spark.read.format("ledgeraudit")``."""

    def __init__(self, options: AuditOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        audit_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """The plan: which ledgers there are now. What becomes of them is seen by who checks them."""

        async def make() -> list[AuditPart]:
            async with connected(self._options.uri) as client:
                return await plan_audit(client, self._options)

        portal = Portal()
        try:
            return [AuditPartition(part) for part in portal.run(make)]
        finally:
            portal.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # An empty plan arrives as one partition without a value.
        if isinstance(partition, AuditPartition):
            yield from read_audit(partition.value, audit_schema(self._schema))


def audit_reader(options: dict[str, str], schema: StructType) -> AuditReader:
    """What ``spark.read`` gets. InvalidArgument for the options or the schema."""
    return AuditReader(parse_audit_options(options), schema)
