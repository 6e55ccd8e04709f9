"""A stream over logs: its position, and the records of the next micro-batch.

**Offsets.** Spark writes the stream's offsets into the checkpoint and compares them as strings. So each
position has only one spelling:

    {"v": 1, "logs": {"orders": {"id": "7", "offset": 123}}}

The names are sorted. ``offset`` is the next record to read. ``id`` is the log's incarnation as text. If a log
is deleted and made again, the new log has another incarnation. Its offset 123 is not the record that the
checkpoint means, so the stream fails (``DataLoss``). With ``failOnDataLoss=false`` the stream drops a log
that is gone, and reads a recreated log from its start.

**Replay.** After a failure, Spark asks for a batch again, by the offsets in the checkpoint. Spark gets the
same records, because offsets do not change and a confirmed record stays.

**New logs.** With ``logPattern``, a log may appear after the query started. The stream reads it from the
first record that the log has when the stream first sees it. The batch that first sees the log reads none of
its records; it only writes the log's position into the checkpoint. If the batch read records at once, the
checkpoint would not yet have the position, and a replay would begin at the log's first record at the time of
the replay. If the log was truncated in between, records would be lost silently.

**Available now** fixes the ends of the logs when the query starts. A log that is made later waits for the
next run.

**Waiting for more.** With ``minOffsetsPerTrigger``, the stream tells Spark that there is nothing new until
the logs have that many new records, or until ``maxTriggerDelay`` has passed since the last batch. An
available-now run does not wait. A stream that sees a new log does not wait either: the log's position must
get into the checkpoint.

**The cursor** named by ``cursorName`` follows the stream in each log. The cursor is at the committed position
and pins the records from there on, so retention keeps the records that the stream has not read. The cursor
moves only forward. If a query starts over, the cursor does not move back, because earlier records may be
gone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import trio

from ledgerlog.errors import CursorConflict, InvalidArgument, LedgerLogError, LogNotFound, Truncated
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.core.scan import Backlog, admit
from ledgerlog.log.log import Log
from ledgerlog.spark.options import ReadOptions
from ledgerlog.spark.planning import (
    DataLoss,
    LogView,
    look,
    look_at_all,
    offset_of,
    plan,
    readable,
    select,
    still_there,
    view_reaching,
)
from ledgerlog.spark.scanning import ScanPart

__all__ = ["LogStream", "StreamOffset", "decode_offsets", "encode_offsets"]

logger = logging.getLogger(__name__)

_FORMAT = 1


@attrs.frozen
class StreamOffset:
    """A position in one incarnation of a log."""

    incarnation: int
    """The incarnation of the log."""
    offset: int
    """The offset to read next."""


def encode_offsets(offsets: Mapping[str, StreamOffset]) -> dict[str, Any]:
    """Return the stream's positions by log, as a value for ``json.dumps``. Each position has one spelling."""
    return {
        "v": _FORMAT,
        "logs": {
            name: {"id": str(place.incarnation), "offset": place.offset}
            for name, place in sorted(offsets.items())
        },
    }


def decode_offsets(value: object) -> dict[str, StreamOffset]:
    """Return the positions of a stream, by log: the inverse of ``encode_offsets``.

    Raises:
        InvalidArgument: ``encode_offsets`` cannot have made this value. The checkpoint is of another source
            or of a later version.
    """
    try:
        assert isinstance(value, dict)
        assert set(value) == {"v", "logs"}
        assert value["v"] == _FORMAT
        offsets = {
            name: StreamOffset(int(place["id"]), place["offset"]) for name, place in value["logs"].items()
        }
        assert all(type(place.offset) is int and place.offset >= 0 for place in offsets.values())
        assert encode_offsets(offsets) == value
    except (AssertionError, ValueError, KeyError, TypeError, AttributeError):
        raise InvalidArgument(
            f"{value!r} is not an offset of this source; another source made the checkpoint"
        ) from None
    return offsets


def _ends_of(views: Mapping[str, LogView]) -> dict[str, StreamOffset]:
    return {name: StreamOffset(view.incarnation, view.end) for name, view in views.items()}


class LogStream:
    """Answers Spark's questions about one stream.

    It keeps only two things: the target of an available-now run, and the time of the last micro-batch.

    Args:
        client: The cluster.
        options: The options of the read.
    """

    def __init__(self, client: LedgerClient, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._target: dict[str, StreamOffset] | None = None
        self._last_batch_s: float | None = None

    async def initial(self) -> dict[str, StreamOffset]:
        """Return the position at which a new query begins. Make the stream's cursors.

        Raises:
            LogNotFound: A log that the options name does not exist.
            InvalidArgument: A log ends before the offset in the options.
            DataLoss: Records that the options ask for are gone, and ``failOnDataLoss`` is true.
            EntryUnavailable: Too few bookies say how far an open ledger is confirmed.
            MetadataUnavailable: The metadata store did not answer.
        """
        offsets = {}
        for view in await look_at_all(self._client, self._options):
            start = await offset_of(
                self._client, view, self._options.start_of(view.name), self._options.starting_ms
            )
            offsets[view.name] = StreamOffset(
                view.incarnation, readable(view, start, self._options.fail_on_data_loss)
            )
        # Spark calls this again when it plans the first batch, and again if it repeats that batch. By then
        # "latest" is a later offset. So do not move a cursor that exists: it would release records that the
        # second batch reads.
        await self._move_cursors(offsets, forward=False)
        return offsets

    async def pin(self) -> None:
        """From now on, read only up to the present ends of the logs.

        Raises:
            EntryUnavailable: Too few bookies say how far an open ledger is confirmed.
            LogNotFound, MetadataUnavailable: As for ``latest``.
        """
        views = await self._views({})
        for view in views.values():
            view.check_whole()
        self._target = _ends_of(views)

    async def newest(self) -> dict[str, StreamOffset] | None:
        """Return the ends of all logs of the stream. Spark shows how far the stream lags behind them.

        Return None if the ends are not known now. That does not end the query.
        """
        try:
            return _ends_of(await self._views({}))
        except LedgerLogError as failure:
            logger.warning("the lag of the stream is not known: %s", failure)
            return None

    async def latest(
        self,
        start: Mapping[str, StreamOffset],
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, StreamOffset]:
        """Return the end of the next micro-batch; ``start`` if there is nothing new.

        Args:
            start: Where the micro-batch begins, by log.
            max_records: The most records that the batch reads, from all logs together; None: any number.
            max_bytes: About the most bytes that the batch reads; None: any number.

        Raises:
            LogNotFound: A log that the options name is gone, and ``failOnDataLoss`` is true.
            DataLoss: A log was deleted, or deleted and made again, and ``failOnDataLoss`` is true.
            EntryUnavailable: No bookie gives the last entry that is known to be confirmed. Or ``pin`` was
                called, and no bookie confirms in time that a log reaches its target.
            MetadataUnavailable: The metadata store did not answer.
        """
        views = await self._views(start)
        for name, view in [*views.items()]:
            target = self._target_of(view)
            if target is not None and view.end < target:
                # If the query stopped below its target, Spark would take it for complete.
                try:
                    views[name] = await view_reaching(
                        self._client, name, target, incarnation=view.incarnation
                    )
                except (DataLoss, LogNotFound) as loss:
                    if self._options.fail_on_data_loss:
                        raise
                    logger.warning("log %r is left out: %s", name, loss)
                    del views[name]
            elif view.doubt is not None:
                logger.warning("the stream reads log %r up to offset %d: %s", name, view.end, view.doubt)
        backlogs, ends = {}, {}
        for name, view in views.items():
            begun = start.get(name)
            if begun is None or begun.incarnation != view.incarnation:
                ends[name] = view.first
            else:
                backlogs[name] = self._backlog(view, begun.offset)
        if not ends and self._waits(backlogs.values()):
            return dict(start)
        ends |= admit(backlogs, max_records=max_records, max_bytes=max_bytes)
        return {name: StreamOffset(view.incarnation, ends[name]) for name, view in views.items()}

    def _waits(self, backlogs: Iterable[Backlog]) -> bool:
        """Return whether the next micro-batch waits for more records. If not, note that it begins now."""
        options = self._options
        now_s = trio.current_time()
        records = sum(backlog.records for backlog in backlogs)
        if self._last_batch_s is None:  # The query has just started.
            self._last_batch_s = now_s
        if (
            self._target is None
            and options.min_offsets_per_trigger is not None
            and records < options.min_offsets_per_trigger
            and now_s - self._last_batch_s < options.max_trigger_delay_s
        ):
            return True
        if records:  # Without records there is no micro-batch.
            self._last_batch_s = now_s
        return False

    def _target_of(self, view: LogView) -> int | None:
        """Return the offset at which ``pin`` found the end of a log. None: it did not see this log."""
        target = (self._target or {}).get(view.name)
        return target.offset if target is not None and target.incarnation == view.incarnation else None

    def _backlog(self, view: LogView, start: int) -> Backlog:
        end = view.end
        if self._target is not None:
            target = self._target_of(view)
            end = view.first if target is None else min(end, target)
        # Truncated records are reported later, when the batch is planned.
        begin = max(start, view.first)
        return Backlog(view.stretches, begin, max(begin, end))

    async def parts(
        self, start: Mapping[str, StreamOffset], end: Mapping[str, StreamOffset]
    ) -> list[ScanPart]:
        """Plan the micro-batch from ``start`` up to ``end``.

        Args:
            start: Where the micro-batch begins, by log.
            end: Where it ends, by log.

        Raises:
            LogNotFound: A log is gone, and ``failOnDataLoss`` is true.
            DataLoss: A log or some of the records are gone, and ``failOnDataLoss`` is true.
            EntryUnavailable: No bookie confirms in time that a log reaches ``end``.
            MetadataUnavailable: The metadata store did not answer.
        """
        ranges = []
        for name, until in end.items():
            begun = start.get(name)
            try:
                view = await view_reaching(self._client, name, until.offset, incarnation=until.incarnation)
            except (DataLoss, LogNotFound) as loss:
                if self._options.fail_on_data_loss:
                    raise
                logger.warning("log %r is left out: %s", name, loss)
                continue
            if begun is None or begun.incarnation != until.incarnation:
                continue  # This batch is the first one to see the log. The next batch reads the log.
            at = readable(view, begun.offset, self._options.fail_on_data_loss)
            ranges.append((view, at, until.offset))
        return await plan(self._client, ranges, self._options)

    async def commit(self, end: Mapping[str, StreamOffset]) -> None:
        """Move the stream's cursors to ``end``: all records before it are processed.

        Raises:
            DataLoss: Records were truncated away before a cursor reached them, and ``failOnDataLoss`` is
                true.
            MetadataUnavailable: The metadata store did not answer. Some cursors may have moved.
        """
        await self._move_cursors(end, forward=True)

    async def _views(self, start: Mapping[str, StreamOffset]) -> dict[str, LogView]:
        options = self._options
        # Look for the logs in the checkpoint even if the store does not list them: they were deleted.
        names = sorted({*await select(self._client, options), *start})
        views = {}
        for name in names:
            begun = start.get(name)
            checked = begun.incarnation if begun is not None and options.fail_on_data_loss else None
            try:
                views[name] = await look(self._client, name, incarnation=checked)
            except LogNotFound:
                # If the pattern found the log a moment ago and nothing was read from it, this is not a loss.
                if options.fail_on_data_loss and (begun is not None or options.pattern is None):
                    raise
                logger.warning("log %r is gone and left out", name)
        return views

    async def _move_cursors(self, offsets: Mapping[str, StreamOffset], *, forward: bool) -> None:
        """Make the cursor pin each log, at the position in ``offsets`` or later.

        If a log already has the cursor, move the cursor only if ``forward`` is set.
        """
        if self._options.cursor_name is None:
            return
        for name, place in offsets.items():
            cursor = Log(self._client, name, place.incarnation).cursor(self._options.cursor_name)
            at = place.offset
            while True:
                state = await cursor.get()
                if state is not None:
                    if state.pins and (state.offset >= at or not forward):
                        break
                    at = max(at, state.offset)
                try:
                    await cursor.move(at, expected=state, pins=True)
                except CursorConflict:
                    continue  # Another client moved the cursor, perhaps not as far.
                except Truncated as gone:
                    # Records after the cursor were truncated. A lenient stream skips those records, and so
                    # does its cursor.
                    at = still_there(name, at, gone.first_offset, self._options.fail_on_data_loss)
                    continue
                except LogNotFound:
                    logger.warning("log %r is gone; its cursor is not moved", name)
                break
