"""How far a stream has come, a line for each micro-batch:

    copy batch 7: 40 rows, 133 rows/s; orders at 320, 1,203 behind

Spark says of every micro-batch what went into it, where each of its sources stood at its end, and what the
newest offset was when it was planned. ``micro_batch`` reads that; ``show_progress`` writes a line of it to
the terminal, for every query of the session, and gives it to whoever wants to draw it. Sources of other kinds
have their rows counted and no offsets shown.

**Behind** is the number of records between what was read and the end of the log when the batch was planned. A
log that is read to its end has 0; so has one whose newest offset Spark does not say.

A log that was made anew while the stream reads it has an incarnation of its own: all of it is behind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
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


@attrs.frozen(kw_only=True)
class MicroBatch:
    """What Spark says of one micro-batch."""

    query: str
    """Its name; the start of its id where it has none."""
    batch: int
    begun: datetime
    duration_s: float
    rows: int
    rows_per_s: float
    """Rows of the batch by its duration."""
    reached: Mapping[str, int]
    """The offset that is read next, by log."""
    behind: Mapping[str, int]
    """Records of each log that were there when the batch was planned, and that it left."""

    def __str__(self) -> str:
        shown = sorted(self.reached, key=lambda log: (-self.behind[log], log))
        words = [
            f"{log} at {self.reached[log]:,}, {_behind(self.behind[log])}" for log in shown[:_LOGS_SHOWN]
        ]
        rest = shown[_LOGS_SHOWN:]
        if rest:
            words.append(f"{len(rest)} more logs, {_behind(sum(self.behind[log] for log in rest))}")
        what = f"{self.query} batch {self.batch}: {self.rows:,} rows, {self.rows_per_s:,.0f} rows/s"
        return "; ".join([what, *words])


def _behind(count: int) -> str:
    return f"{count:,} behind" if count else "at the end"


def micro_batch(progress: Mapping[str, Any]) -> MicroBatch:
    """``json.loads(progress.json)`` of a query's progress, as a value."""
    reached: dict[str, int] = {}
    behind: dict[str, int] = {}
    for source in progress["sources"]:
        newest = _offsets(source.get("latestOffset"))
        for log, place in _offsets(source.get("endOffset")).items():
            end = newest.get(log, place)
            read = place.offset if end.incarnation == place.incarnation else 0
            reached[log] = place.offset
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
    """What a source says of where it is, as an object or as text; empty where it is not one of ours."""
    try:
        return decode_offsets(json.loads(said) if isinstance(said, str) else said)
    except (InvalidArgument, ValueError):
        return {}


class ProgressLines(StreamingQueryListener):
    """Tells somebody of every micro-batch of the session's queries that read something. Spark calls it on a
    thread of its own, one event after the other."""

    def __init__(self, told: Callable[[MicroBatch], object]) -> None:
        self._told = told

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        batch = micro_batch(json.loads(event.progress.json))
        if batch.rows:
            self._told(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """What was said last is still so."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whoever waits for the query is told why."""


def show_progress(spark: SparkSession, told: Callable[[MicroBatch], object] | None = None) -> ProgressLines:
    """From now on a line on standard error for each micro-batch of the session's queries that read something,
    or a call of ``told`` in its place. ``spark.streams.removeListener`` of what it returns ends that."""
    listener = ProgressLines(told or _say)
    spark.streams.addListener(listener)
    return listener


def _say(batch: MicroBatch) -> None:
    sys.stderr.write(f"{batch}\n")
    sys.stderr.flush()
