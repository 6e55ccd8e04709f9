"""``ledgerlog log append`` and ``log read``: records in and out.

An append reads the next chunk while the previous one is on its way. So memory is bounded by some chunks and
the log's own window, no matter how large the input is. A chunk is the result of one read: a line of a slow
program is appended as soon as it is there, and a file is appended in pieces of a megabyte.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, Protocol

import attrs
import click
import trio

from ledgerlog.cli import record_formats
from ledgerlog.cli.complaints import complaint
from ledgerlog.cli.lines import UNTERMINATED, LineCutter, LineJoiner, Source, open_sink
from ledgerlog.cli.options import (
    OFFSET,
    connect,
    json_option,
    log_name_argument,
    parse_start,
    parse_time,
    parsed,
    uri_option,
)
from ledgerlog.cli.output import print_json, print_line, printable, raw_output, to_json
from ledgerlog.cli.record_formats import FrameCutter, InputRecord, JsonCutter, record_fields
from ledgerlog.cli.running import Interrupted, run, run_until_interrupted
from ledgerlog.cluster import Cluster
from ledgerlog.errors import InvalidArgument, LedgerLogError, LedgerNotFound, RecordsLost
from ledgerlog.log.log import Log
from ledgerlog.log.reader import Start
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.attributes import Headers, attributes_of
from ledgerlog.model.record import RecordBatch
from ledgerlog.progress_bar import Bar, progress_bar

__all__ = ["log_append", "log_read"]


_AT_ONCE = 20_000
_OFFSET = re.compile("[0-9]{1,19}")
"""The most records in one call. A chunk of empty lines has a million records, each with an
acknowledgement."""


class NotVacant(LedgerLogError):
    """A writer may use the log, and the command was told not to depose it. Nothing was appended."""


_Cut = Sequence[bytes] | Sequence[InputRecord]


class _Cutter(Protocol):
    """Cuts the input into records."""

    failure: Any
    """The failure that has stopped the cutter. None: no failure yet."""

    @property
    def holds_a_line(self) -> bool: ...

    def cut(self, chunk: bytes) -> _Cut: ...

    def finish(self) -> _Cut: ...


_CUTTERS: dict[str, Callable[[], _Cutter]] = {"lines": LineCutter, "json": JsonCutter, "framed": FrameCutter}


class AppendStopped(LedgerLogError):
    """An append of many records ended before all were written. The message says how many were."""


@attrs.define(eq=False)
class Appended:
    """The progress of an append of many records."""

    key: bytes | None = None
    """The key of all records, if the command gives one."""
    headers: Headers = ()
    """The headers of all records."""
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    epoch: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the progress as a JSON object."""
        return {
            "records": self.records,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "epoch": self.epoch,
        }

    def __str__(self) -> str:
        if not self.records:
            return "no record was appended"
        if self.records == 1:
            return f"1 record is in the log, at offset {self.first_offset}"
        return f"{self.records} records are in the log, at offsets {self.first_offset} to {self.last_offset}"


def _key(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def _headers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Headers:
    found = []
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found.append((name, os.fsencode(value)))
    return tuple(found)


@click.command("append")
@log_name_argument
@click.option(
    "--input",
    "file",
    type=click.File("rb"),
    default="-",
    help="A file with one record per line; '-' is standard input.  [default: -]",
)
@click.option(
    "--format",
    "record_format",
    type=click.Choice(list(_CUTTERS)),
    default="lines",
    show_default=True,
    help="The format of the input: one record per line; the objects of 'log read --json'; or the frames of "
    "'log read --framed' (before each record its length, four bytes, little endian).",
)
@click.option("--key", type=click.UNPROCESSED, callback=_key, help="The key of every record of the input.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers,
    help="A header of every record of the input. Repeat it for more headers.",
)
@click.option(
    "--if-vacant",
    is_flag=True,
    help="Fail instead of taking the log over from a writer that may still use it.",
)
@uri_option
@json_option
def log_append(
    name: str,
    file: BinaryIO,
    record_format: str,
    key: bytes | None,
    headers: Headers,
    if_vacant: bool,
    uri: str,
    as_json: bool,
) -> None:
    """Append the lines of a file to the log NAME, one record per line.

    The command takes over the log from its present writer, unless you give --if-vacant. It returns when every
    record is durable.

    --key and --header give all records the same key and headers. With '--format json' each record has its
    own."""
    if record_format == "json" and (key is not None or headers):
        raise click.UsageError("--key and --header exclude --format json, where each record has its own")
    done = Appended(key=key, headers=headers)

    async def body() -> None:
        attributes_of(0, key, headers)
        source = Source(file)
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            epoch = await _vacant_epoch(cluster, log) if if_vacant else None
            with progress_bar(f"appending to {name}", source.size, is_bytes=True) as bar:
                await _append(log, source, _CUTTERS[record_format](), done, bar, epoch)

    try:
        run(body)
    except Interrupted as interrupted:
        interrupted.args = (f"{interrupted}; {done}",)
        raise
    except LedgerLogError as error:
        if not done.records:
            raise
        raise AppendStopped(f"{complaint(error)}; before that, {done}") from error
    if as_json:
        print_json(done.fields())
    else:
        print_line(f"{name}: {done} (epoch {done.epoch})")


async def _vacant_epoch(cluster: Cluster, log: Log) -> int:
    """Return the epoch of a log that no writer uses.

    Raises:
        NotVacant: The log's last ledger is open: a writer uses it, or died a moment ago.
    """
    info = await log.counted_info()
    for segment in info.segments[-1:]:
        with suppress(LedgerNotFound):  # Only the archive has the ledger, so the ledger is closed.
            if not (await cluster.ledgers.metadata(segment.ledger_id)).is_closed:
                raise NotVacant(
                    f"log {log.name!r} may have a writer: its ledger {segment.ledger_id} is open, in epoch "
                    f"{info.epoch}. Nothing was appended; to depose the writer, leave out --if-vacant"
                )
    return info.epoch


async def _append(
    log: Log, source: Source, cutter: _Cutter, done: Appended, bar: Bar, vacant_epoch: int | None
) -> None:
    is_unterminated = False
    send, receive = trio.open_memory_channel[tuple[_Cut, int]](0)

    async def read() -> None:
        nonlocal is_unterminated
        position = 0
        async with send:
            while cutter.failure is None and (chunk := await source.read()):
                position += len(chunk)
                if lines := cutter.cut(chunk):
                    await send.send((lines, position))
            is_unterminated = cutter.holds_a_line
            if rest := cutter.finish():
                await send.send((rest, position))

    async with log.writer() as writer:
        done.epoch = writer.epoch
        if vacant_epoch is not None and writer.epoch != vacant_epoch + 1:
            raise NotVacant(
                f"another writer took log {log.name!r} over at the same moment, and lost it again to this "
                "command; nothing was appended"
            )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            async for lines, position in receive:
                await _append_lines(writer, lines, done)
                bar.move_to(position)
    if is_unterminated:
        await log.update_properties({UNTERMINATED: str(done.last_offset)})
    if cutter.failure is not None:
        # Lines before the long one are written. The long line and all later lines are not.
        raise cutter.failure


async def _append_lines(writer: LogWriter, lines: _Cut, done: Appended) -> None:
    for at in range(0, len(lines), _AT_ONCE):
        datas: list[bytes] = []
        keys: list[bytes | None] | None = None
        headers: list[Headers] | None = None
        for line in lines[at : at + _AT_ONCE]:
            datas.append(line if isinstance(line, bytes) else line.data)
        own = [line for line in lines[at : at + _AT_ONCE] if isinstance(line, InputRecord)]
        if any(line.key is not None or line.headers for line in own):
            keys, headers = [line.key for line in own], [line.headers for line in own]
        elif done.key is not None or done.headers:
            keys, headers = [done.key] * len(datas), [done.headers] * len(datas)
        acks = await writer.append_many(datas, keys=keys, headers=headers)
        if done.first_offset is None:
            done.first_offset = acks[0].offset
        done.last_offset = acks[-1].offset
        done.records += len(acks)


@click.command("read")
@log_name_argument
@click.option(
    "--start",
    callback=parsed(parse_start),
    default="earliest",
    show_default=True,
    help="Where to begin: an offset, a position (ledger:entry:slot), a time in ISO 8601 (UTC if it names no "
    "zone), 'earliest' or 'latest'.",
)
@click.option(
    "--from-time",
    callback=parsed(parse_time),
    help="Begin at the first record written at this time or later, in ISO 8601. Use it instead of --start.",
)
@click.option("--until", type=OFFSET, help="Stop before this offset.")
@click.option(
    "--follow",
    is_flag=True,
    help="Wait for new records and print them, until you interrupt the command or the log is sealed.",
)
@click.option("--raw", is_flag=True, help="Print only the bytes of the records, one record per line.")
@click.option(
    "--framed", is_flag=True, help="Before each record, print its length in four bytes, little endian."
)
@uri_option
@json_option
def log_read(
    name: str,
    start: Start,
    from_time: datetime | None,
    until: int | None,
    follow: bool,
    raw: bool,
    framed: bool,
    uri: str,
    as_json: bool,
) -> None:
    """Print the records of the log NAME.

    If 'log append --input FILE' wrote to an empty log, --raw prints the same bytes. --json and --framed keep
    every record intact, even one that contains newlines. 'log append --format' reads both.

    If an operator accepted the loss of records ('log recover'), the command reports the gap on standard
    error, continues after it, and exits with 1 at the end."""
    if raw + framed + as_json > 1:
        raise click.UsageError("--raw, --framed and --json exclude each other")
    if from_time is not None:
        source = click.get_current_context().get_parameter_source("start")
        if source is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError("--start and --from-time exclude each other")
        start = from_time

    has_gaps = False

    async def body() -> None:
        nonlocal has_gaps
        async with connect(uri) as cluster, open_sink(raw_output()) as sink:
            log = await cluster.open_log(name)
            mark = (await log.properties()).get(UNTERMINATED) if raw else None
            joiner = LineJoiner(int(mark) if mark is not None and _OFFSET.fullmatch(mark) else None)

            async def copy(batches: AsyncIterable[RecordBatch]) -> None:
                async for batch in batches:
                    if framed:
                        if batch.has_attributes:
                            raise InvalidArgument(
                                f"a record of entry {batch.ledger_id}:{batch.entry_id} (from offset "
                                f"{batch.first_offset} on) has a key or headers, for which frames have no "
                                "place: use --json"
                            )
                        await sink.put(record_formats.framed(batch.payloads))
                    elif raw:
                        await sink.put(joiner.join(batch.first_offset, batch.payloads))
                    else:
                        await sink.put(_text_of(batch, as_json).encode("utf-8", "surrogateescape"))

            async with log.read(start, until=until, follow=follow) as records:
                while True:
                    try:
                        await copy(records.batches())
                    except RecordsLost as gap:
                        has_gaps = True
                        click.echo(f"ledgerlog: {gap}", err=True)
                    else:
                        break

    if follow:
        run_until_interrupted(body)
    else:
        run(body)
    if has_gaps:
        click.get_current_context().exit(1)


def _text_of(batch: RecordBatch, as_json: bool) -> str:
    lines = []
    for record in batch:
        if as_json:
            fields = {
                "offset": record.offset,
                "position": str(record.position),
                "timestamp": record.timestamp.isoformat(timespec="milliseconds"),
                "epoch": record.epoch,
                **record_fields(record),
            }
            lines.append(to_json(fields))
        else:
            lines.append(f"{record.offset:>10}  {printable(record.data)}")
    return "".join(f"{line}\n" for line in lines)
