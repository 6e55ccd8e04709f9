"""A stream over logs: where it stands, how far it goes next, and which records that is.

**Offsets** are what Spark writes into the checkpoint and compares as strings, so there is one spelling:

    {"v": 1, "logs": {"orders": {"id": "7", "offset": 123}}}

names sorted, ``offset`` the next record that has not been read, ``id`` the log's incarnation as text. A log
that was deleted and made again has another one: its offset 123 is not the record that the checkpoint means,
so it is an error (``DataLoss``) and not a jump. Only with ``failOnDataLoss=false`` does the stream forget a
log that is gone, and read one that was made anew from its start.

**Replay.** After a failure Spark asks for a batch again, by the offsets that it wrote down, and gets the same
records: offsets are dense, and what was confirmed stays.

**Logs that come later**, with ``logPattern``, are read from the first record that they have when they are
seen. The batch that sees one reads nothing of it and only writes down where it begins. Were its records read
at once, a replay would begin wherever the log begins by then, and truncation in between would lose records
without a word.

**Available now** pins the ends of the logs when the query starts; logs that are made later wait for the next
run.

**The cursor** named by ``cursorName`` stands in each log where the stream has been committed to, and pins
what is behind it, so that retention keeps what the stream has not read. It only moves forward: a query that
starts over does not give it back, since what lies before may be gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

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
    """A place in one incarnation of a log."""

    incarnation: int
    offset: int


def encode_offsets(offsets: Mapping[str, StreamOffset]) -> dict[str, Any]:
    """The one spelling of it, for ``json.dumps``."""
    return {
        "v": _FORMAT,
        "logs": {
            name: {"id": str(place.incarnation), "offset": place.offset}
            for name, place in sorted(offsets.items())
        },
    }


def decode_offsets(value: object) -> dict[str, StreamOffset]:
    """The inverse. InvalidArgument where it is not what ``encode_offsets`` makes: the checkpoint is another
    source's, or a later version's."""
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
            f"{value!r} is not an offset of this source; the checkpoint was made by something else"
        ) from None
    return offsets


class LogStream:
    """One stream's questions, and the answers. Keeps nothing but the target of an available-now run."""

    def __init__(self, client: LedgerClient, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._target: dict[str, StreamOffset] | None = None

    async def initial(self) -> dict[str, StreamOffset]:
        """Where a new query begins. DataLoss, InvalidArgument, LogNotFound."""
        offsets = {}
        for view in await look_at_all(self._client, self._options):
            start = await offset_of(
                self._client, view, self._options.start_of(view.name), self._options.starting_ms
            )
            offsets[view.name] = StreamOffset(
                view.incarnation, readable(view, start, self._options.fail_on_data_loss)
            )
        # Spark asks again as it plans the first batch, and when it does that again. "latest" is further on
        # then, and a cursor that followed would give up what the second batch reads.
        await self._move_cursors(offsets, forward=False)
        return offsets

    async def pin(self) -> None:
        """From now on there is nothing beyond what is there now."""
        self._target = await self._ends()

    async def newest(self) -> dict[str, StreamOffset] | None:
        """The ends of all logs of the stream, for people who want to see how far it lags behind. None where
        that cannot be told now, which is no reason to end a query."""
        try:
            return await self._ends()
        except LedgerLogError as failure:
            logger.warning("how far the stream lags behind is not known: %s", failure)
            return None

    async def _ends(self) -> dict[str, StreamOffset]:
        return {
            name: StreamOffset(view.incarnation, view.end) for name, view in (await self._views({})).items()
        }

    async def latest(
        self,
        start: Mapping[str, StreamOffset],
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, StreamOffset]:
        """The end of the next micro-batch, which is ``start`` where there is nothing new. DataLoss."""
        views = await self._views(start)
        backlogs, ends = {}, {}
        for name, view in views.items():
            begun = start.get(name)
            if begun is None or begun.incarnation != view.incarnation:
                ends[name] = view.first
            else:
                backlogs[name] = self._backlog(view, begun.offset)
        ends |= admit(backlogs, max_records=max_records, max_bytes=max_bytes)
        return {name: StreamOffset(view.incarnation, ends[name]) for name, view in views.items()}

    def _backlog(self, view: LogView, start: int) -> Backlog:
        end = view.end
        if self._target is not None:
            target = self._target.get(view.name)
            is_pinned = target is not None and target.incarnation == view.incarnation
            end = min(end, target.offset) if is_pinned and target is not None else view.first
        # What a cautious reader would call lost is reported when the batch is planned.
        begin = max(start, view.first)
        return Backlog(view.stretches, begin, max(begin, end))

    async def parts(
        self, start: Mapping[str, StreamOffset], end: Mapping[str, StreamOffset]
    ) -> list[ScanPart]:
        """What reads the records from ``start`` to below ``end``. DataLoss, EntryUnavailable."""
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
                continue  # It was first seen by this batch, and is read from the next one on.
            at = readable(view, begun.offset, self._options.fail_on_data_loss)
            ranges.append((view, at, until.offset))
        return await plan(self._client, ranges, self._options)

    async def commit(self, end: Mapping[str, StreamOffset]) -> None:
        """All before ``end`` was done with. MetadataUnavailable."""
        await self._move_cursors(end, forward=True)

    async def _views(self, start: Mapping[str, StreamOffset]) -> dict[str, LogView]:
        options = self._options
        # A log that the checkpoint names and the store does not is looked for all the same: it was deleted.
        names = sorted({*await select(self._client, options), *start})
        views = {}
        for name in names:
            begun = start.get(name)
            checked = begun.incarnation if begun is not None and options.fail_on_data_loss else None
            try:
                views[name] = await look(self._client, name, incarnation=checked)
            except LogNotFound:
                # One that the pattern has found a moment ago, and that was never read, is nobody's loss.
                if options.fail_on_data_loss and (begun is not None or options.pattern is None):
                    raise
                logger.warning("log %r is gone and left out", name)
        return views

    async def _move_cursors(self, offsets: Mapping[str, StreamOffset], *, forward: bool) -> None:
        """Have a cursor pin each log, and stand there at least; one that pins already stays unless
        ``forward``."""
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
                    continue  # Somebody else moved it; perhaps not as far.
                except Truncated as gone:
                    # They went before it stood there. A lenient stream skips them, and so does its cursor.
                    at = still_there(name, at, gone.first_offset, self._options.fail_on_data_loss)
                    continue
                except LogNotFound:
                    logger.warning("log %r is gone; its cursor is not moved", name)
                break
