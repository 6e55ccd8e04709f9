"""How far a stream has come: one line for each micro-batch.

    copy batch 7: 40 rows, 133 rows/s; orders at 320, 1,203 behind

Spark reports each micro-batch: its rows, the position of each source after the batch, and the newest position
of each source when the batch was planned. ``micro_batch`` turns such a report into a value. ``show_progress``
writes one line for each micro-batch of the session's queries to standard error, or passes the value to your
own function. For sources of other formats, rows are counted but offsets are not shown.

**Behind** is the number of records between the end of the batch and the end of the log when the batch was
planned. It is 0 if the stream has read to the end of the log. It is not known if Spark does not report the
newest offset, and of a batch that a restarted query repeats. Spark does not ask for the newest offset then,
and reports the end of the batch in its place.

If a log was deleted and made again while the stream reads it, the new log has another incarnation. All its
records are behind.
"""

from __future__ import annotations

import atexit
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.record import parse_moment
from ledgerlog.spark.stream import StreamOffset, decode_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MicroBatch", "ProgressLines", "micro_batch", "show_progress"]

_LOGS_SHOWN = 6
_LAST_REPORTS_MS = 5000
"""How long the exit of the process waits for reports."""


@attrs.frozen(kw_only=True)
class MicroBatch:
    """Spark's report about one micro-batch."""

    query: str
    """The name of the query; if it has none, the first 8 characters of its id."""
    batch: int
    """The number of the batch."""
    begun: datetime
    """When the batch began."""
    duration_s: float
    """How long the batch took, in seconds."""
    rows: int
    """How many rows the batch read, from all sources."""
    rows_per_s: float
    """``rows`` divided by ``duration_s``."""
    reached: Mapping[str, int]
    """The offset that the stream reads next, by log."""
    behind: Mapping[str, int]
    """By log: the number of records from the end of the batch to the end that the log had when the batch was
    planned. A log is left out if this is not known."""

    def __str__(self) -> str:
        shown = sorted(self.reached, key=lambda log: (-self.behind.get(log, 0), log))
        words = [f"{log} at {self.reached[log]:,}{self._behind(log)}" for log in shown[:_LOGS_SHOWN]]
        rest = shown[_LOGS_SHOWN:]
        if rest:
            words.append(f"{len(rest)} more logs{self._behind(*rest)}")
        what = f"{self.query} batch {self.batch}: {self.rows:,} rows, {self.rows_per_s:,.0f} rows/s"
        return "; ".join([what, *words])

    def _behind(self, *logs: str) -> str:
        if any(log not in self.behind for log in logs):
            return ""
        count = sum(self.behind[log] for log in logs)
        return f", {count:,} behind" if count else ", at the end"


def micro_batch(progress: Mapping[str, Any]) -> MicroBatch:
    """Turn a query's progress into a value.

    Args:
        progress: ``json.loads(progress.json)`` of a ``StreamingQueryProgress``.
    """
    reached: dict[str, int] = {}
    behind: dict[str, int] = {}
    # Spark plans a batch that it repeats from its log of offsets, and does not spend time on the newest ones.
    is_repeated = "latestOffset" not in progress["durationMs"]
    for source in progress["sources"]:
        newest = {} if is_repeated else _offsets(source.get("latestOffset"))
        for log, place in _offsets(source.get("endOffset")).items():
            reached[log] = place.offset
            if (end := newest.get(log)) is not None:
                read = place.offset if end.incarnation == place.incarnation else 0
                behind[log] = max(0, end.offset - read)
    rows, duration_s = progress["numInputRows"], progress["batchDuration"] / 1000
    return MicroBatch(
        query=progress.get("name") or progress["id"][:8],
        batch=progress["batchId"],
        begun=parse_moment(progress["timestamp"]),
        duration_s=duration_s,
        rows=rows,
        rows_per_s=rows / duration_s if duration_s else 0.0,
        reached=reached,
        behind=behind,
    )


def _offsets(said: Any) -> Mapping[str, StreamOffset]:
    """Decode the position of a source (an object or text). Empty for a source of another format."""
    try:
        return decode_offsets(json.loads(said) if isinstance(said, str) else said)
    except (InvalidArgument, ValueError):
        return {}


class ProgressLines(StreamingQueryListener):
    """Calls a function for each micro-batch of the session's queries that read at least one row.

    Spark calls it in its own thread, one event after the other.

    Args:
        told: The function.
    """

    def __init__(self, told: Callable[[MicroBatch], object]) -> None:
        self._told = told

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Ignored: nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the micro-batch if it has rows."""
        batch = micro_batch(json.loads(event.progress.json))
        if batch.rows:
            self._told(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Ignored: the last report still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Ignored: Spark tells the reason to the caller that waits for the query."""


def show_progress(spark: SparkSession, told: Callable[[MicroBatch], object] | None = None) -> ProgressLines:
    """Report each micro-batch of the session's queries that read at least one row.

    Args:
        spark: The session.
        told: Called with each micro-batch, in one of Spark's threads. None: write a line to standard error.

    Returns:
        The listener. ``spark.streams.removeListener(listener)`` ends the reports. They also end, after the
        last batch was reported, when this process exits.
    """
    listener = ProgressLines(told or _say)
    spark.streams.addListener(listener)
    atexit.register(_end, spark, listener)
    return listener


def _end(spark: SparkSession, listener: ProgressLines) -> None:
    """Make the reports that are due, and end them. Without this, Spark calls a process that is gone, and
    writes a traceback for each call."""
    with suppress(Exception):  # The session has ended, or it is one of Spark Connect, which has no bus here.
        bus = spark.sparkContext._jsc.sc().listenerBus()
        try:
            bus.waitUntilEmpty(_LAST_REPORTS_MS)
        finally:
            spark.streams.removeListener(listener)


def _say(batch: MicroBatch) -> None:
    sys.stderr.write(f"{batch}\n")
    sys.stderr.flush()
