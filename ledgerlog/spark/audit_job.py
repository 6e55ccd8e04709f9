"""An audit as a job: one pass over all copies. You can count and list its rows, and mark faults for repair.

The table is persisted while the job runs, so the copies are checked once, no matter how often you look at the
table. The table has few rows: one for each fault, and one for each ledger and bookie, each log and each file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from ledgerlog.errors import LedgerLogError
from ledgerlog.spark.audit_repairs import MarkedForRepair, mark_for_repair
from ledgerlog.spark.audit_task import CHECKED, CHECKED_FILE, CHECKED_LOG, SOUND
from ledgerlog.spark.job_progress import Progress, parallelism, watched

__all__ = ["AuditRun", "AuditFailed", "Found", "audit"]


class AuditFailed(LedgerLogError):
    """Spark could not complete the audit. The message is the error of the plan or of a task."""


@attrs.frozen
class Found:
    """The sum of the rows of one kind."""

    kind: str
    """The kind; docs/SPARK.md lists the kinds."""
    runs: int
    """How many rows there are."""
    copies: int
    """How many copies these rows are about."""


@attrs.frozen
class AuditRun:
    """The result of an audit. Use it inside the ``with`` block of ``audit``."""

    ledgers: int
    """How many ledgers have copies that were checked."""
    checked: int
    """How many copies bookies answered about."""
    logs: int
    """How many logs have a sound record."""
    files: int
    """How many archived files are sound."""
    found: tuple[Found, ...]
    """The faults, by kind."""
    table: DataFrame
    """The rows about faults. Rows with the fewest copies left come first."""
    uri: str
    """The URI of the cluster."""

    @property
    def is_clean(self) -> bool:
        """Whether the audit found no fault."""
        return not self.found

    def mark(self) -> MarkedForRepair:
        """Make tasks for auto-recovery from the faults.

        Returns:
            How many ledgers have tasks now.

        Raises:
            MetadataUnavailable: The metadata store did not answer. Some tasks may have been made; you may
                call this again.
            AuditFailed: Spark failed.
        """
        with _translated():
            return mark_for_repair(self.table, self.uri)

    def rows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows about faults, each as a dictionary by column.

        Args:
            limit: How many rows to yield at most; None: all.

        Raises:
            AuditFailed: Spark failed.
        """
        with _translated():
            table = self.table if limit is None else self.table.limit(limit)
            for row in table.toLocalIterator():
                yield row.asDict()


@contextmanager
def audit(
    spark: SparkSession, uri: str, *, on_progress: Progress | None = None, **options: str
) -> Iterator[AuditRun]:
    """Check copies, and give the result to the body of the ``with``.

    Args:
        spark: The session.
        uri: The URI of the cluster.
        on_progress: Called with two numbers: the tasks that are done, and all tasks.
        options: Options of the format ``ledgeraudit``; see docs/SPARK.md.

    Raises:
        AuditFailed: Spark could not complete the audit.

    Example:
        ```python
        with audit(spark, "zk://localhost:2181/ledgerlog", log="orders") as result:
            for row in result.rows(limit=10):
                print(row["ledger_id"], row["bookie"], row["kind"])
        ```
    """
    with _translated():
        given = {"minPartitions": str(parallelism(spark)), **options, "uri": uri, "summary": "true"}
        table = spark.read.format("ledgeraudit").options(**given).load().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with _translated():
            counts = watched(spark, "audit of all copies", lambda: _counts(table), on_progress)
        yield AuditRun(
            ledgers=sum(ledgers for kind, _, _, ledgers in counts if kind == CHECKED),
            checked=sum(copies for kind, _, copies, _ in counts if kind == CHECKED),
            logs=sum(rows for kind, rows, _, _ in counts if kind == CHECKED_LOG),
            files=sum(rows for kind, rows, _, _ in counts if kind == CHECKED_FILE),
            found=tuple(
                Found(kind, runs, copies) for kind, runs, copies, _ in sorted(counts) if kind not in SOUND
            ),
            table=table.where(~table.kind.isin(*SOUND)).orderBy(
                "copies_left", "ledger_id", "first_entry", "bookie"
            ),
            uri=uri,
        )
    finally:
        table.unpersist()


def _counts(table: DataFrame) -> list[tuple[str, int, int, int]]:
    """Return for each kind of row: the kind, and the numbers of rows, of copies and of ledgers."""
    # A LONG is too small for the sum if a ledger's metadata have an absurd end, and Spark would fail.
    copies = functions.sum(table.copies.cast("decimal(19,0)"))
    by_kind = table.groupBy("kind").agg(functions.count("*"), copies, functions.countDistinct("ledger_id"))
    return [(row[0], row[1], int(row[2]), row[3]) for row in by_kind.collect()]


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the errors of Spark, inside the body, as AuditFailed."""
    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise AuditFailed(_reason(str(failure))) from failure


def _reason(text: str) -> str:
    """Return the line of Spark's message that has the error of our own code, or else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("ledgerlog.") and ": " in line]
    return ours[-1].partition(": ")[2] if ours else (lines[0] if lines else "Spark gives no reason")
