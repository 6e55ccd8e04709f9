"""Spark's side of an audit: ``spark.read.format("ledgeraudit")``.

The table has rows about copies that are missing or at fault, about lost ledgers, and about logs and archived
files with a fault. The driver's host plans the audit (``audit_plan``). Tasks carry out the plan
(``audit_task``). Each task connects to the cluster by itself, and reads the metadata of its ledgers when it
checks them. The order of the rows has no meaning. Nothing is shuffled.

    log           string   the logs that list the ledger, separated by commas; null if none does
    ledger_id     long
    bookie        string   the bookie that has the copies, or should have them
    first_entry   long     the first entry that the row is about
    last_entry    long     the last entry that the row is about
    copies        long     how many of these entries the bookie has, or should have
    copies_left   int      how many sound copies other bookies have of each of these entries, at least
    write_quorum  int      how many copies of each entry there should be
    kind          string   missing, corrupt, diverging, limbo or unreachable
                           (``ledger.core.comparison.FaultKind``); metadata if the metadata of the ledger
                           cannot be read; lost, log, archive, file_missing, file_corrupt, file_unreachable;
                           with ``summary`` also checked, checked_log and checked_file (``audit_task``)
    file          string   the archived file that the row is about
    why           string   the reason, for people, for kinds that are not about copies
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
from ledgerlog.spark.connection import connected, run_connected, taken
from ledgerlog.spark.options import AuditOptions, parse_audit_options

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
    """One task's ledgers, logs and archived files."""

    def __init__(self, part: AuditPart) -> None:
        super().__init__(part)


def audit_schema(declared: StructType) -> Any:
    """Return the Arrow schema for a declared schema.

    Args:
        declared: The schema that the reader asks for.

    Raises:
        InvalidArgument: ``declared`` has a column that does not exist, or that has another type.
    """
    return arrow_schema(declared, _TYPES)


def batch_of(rows: list[AuditRow], schema: Any) -> Any:
    """Make an Arrow batch of rows, with the columns of ``schema``."""
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), type=pa.struct([])))
    columns = [pa.array([getattr(row, field.name) for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read_audit(part: AuditPart, schema: Any) -> Iterator[Any]:
    """Carry out one task, and yield its rows as Arrow batches.

    If you stop early, close the generator; then nothing keeps running.

    Args:
        part: The task.
        schema: The result of ``audit_schema``.

    Raises:
        MetadataUnavailable: The metadata store did not answer. Spark runs the task again.
    """
    with Portal() as portal:
        client, _ = portal.enter(connected(part.uri, cluster=part.cluster))
        for rows in taken(open_audit(part, client), portal, AuditBroken):
            yield batch_of(rows, schema)


class AuditReader(DataSourceReader):
    """The reader for ``spark.read.format("ledgeraudit")``. Spark calls it.

    Args:
        options: Which copies to check, and how.
        schema: The columns that the reader asks for.

    Raises:
        InvalidArgument: ``schema`` has a column that does not exist, or that has another type.
    """

    def __init__(self, options: AuditOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        audit_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Plan the audit: list the ledgers that exist now. If a ledger changes later, its task sees that."""

        parts = run_connected(self._options.uri, lambda client: plan_audit(client, self._options))
        return [AuditPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Carry out one task, and yield its rows as Arrow batches."""
        # Spark passes an empty plan as one partition without a value.
        if isinstance(partition, AuditPartition):
            yield from read_audit(partition.value, audit_schema(self._schema))


def audit_reader(options: dict[str, str], schema: StructType) -> AuditReader:
    """Return the reader for ``spark.read``.

    Args:
        options: The options of the query, by name.
        schema: The columns that the query asks for.

    Raises:
        InvalidArgument: An option or a column is wrong.
    """
    return AuditReader(parse_audit_options(options), schema)
