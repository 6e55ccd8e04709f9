"""An audit as a job: one pass over the copies, counted, listed, and marked for repair if that is asked for.

The table is kept while the job goes on (it has no more rows than there are faults, ledgers and bookies), so
the copies are checked once however often it is looked at.
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
from ledgerlog.spark.audit_marks import Marked, mark_for_repair
from ledgerlog.spark.audit_task import CHECKED, CHECKED_FILE, CHECKED_LOG, SOUND
from ledgerlog.spark.job_progress import Progress, watched

__all__ = ["Audit", "AuditFailed", "Found", "audit"]


class AuditFailed(LedgerLogError):
    """Spark could not carry the audit out; the message is what a task or the plan failed with."""


@attrs.frozen
class Found:
    """The rows of one kind together."""

    kind: str
    runs: int
    copies: int


@attrs.frozen
class Audit:
    """An audit that was carried out, for as long as it is kept."""

    ledgers: int
    """Ledgers of which copies were checked."""
    checked: int
    """Copies that bookies answered about."""
    logs: int
    """Logs whose record is sound."""
    files: int
    """Archived files that are sound."""
    found: tuple[Found, ...]
    """What is not as it should be, by kind."""
    table: DataFrame
    """The rows about that, the ones with the fewest copies left first."""
    uri: str

    @property
    def is_clean(self) -> bool:
        return not self.found

    def mark(self) -> Marked:
        """Make tasks for auto-recovery of it. MetadataUnavailable, AuditFailed."""
        with _translated():
            return mark_for_repair(self.table, self.uri)

    def rows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows, by column. AuditFailed."""
        with _translated():
            table = self.table if limit is None else self.table.limit(limit)
            for row in table.toLocalIterator():
                yield row.asDict()


@contextmanager
def audit(
    spark: SparkSession, uri: str, *, on_progress: Progress | None = None, **options: str
) -> Iterator[Audit]:
    """Check copies, and give what came out for the body of the ``with``. ``options`` are those of the format
    ``ledgeraudit``. AuditFailed."""
    with _translated():
        parallelism = str(spark.sparkContext.defaultParallelism)
        given = {"minPartitions": parallelism, **options, "uri": uri, "summary": "true"}
        table = spark.read.format("ledgeraudit").options(**given).load().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with _translated():
            counts = watched(spark, "audit of all copies", lambda: _counts(table), on_progress)
        yield Audit(
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
    """By kind: rows, copies, ledgers."""
    by_kind = table.groupBy("kind").agg(
        functions.count("*"), functions.sum("copies"), functions.countDistinct("ledger_id")
    )
    return [(row[0], row[1], row[2], row[3]) for row in by_kind.collect()]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise AuditFailed(_reason(str(failure))) from failure


def _reason(text: str) -> str:
    """Of Spark's long story, the line that says what our own code failed with; else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("ledgerlog.") and ": " in line]
    return ours[-1].partition(": ")[2] if ours else (lines[0] if lines else "Spark does not say why")
