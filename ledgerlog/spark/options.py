"""The options of the formats ``ledgerlog`` and ``ledgeraudit``, parsed from text into one value.

A wrong option is refused with the reason. If Kafka's connector has an option too, it has the same name there.
Spark passes option names in lower case, so they are compared without case. An unknown name is an error. For
example, if ``endingOffset`` (misspelt) were ignored, the query would read the whole log although you asked
for a part.

Pure: parsing does not ask the cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import AUDIT_SETTLE_S, AUDIT_SETTLE_S_MAX, AUDIT_SHARE, AUDIT_SHARE_MIN, MIB
from ledgerlog.meta.uri import FileUri, MemoryUri, parse_uri
from ledgerlog.model.attach import check_splicer
from ledgerlog.model.cursor import check_cursor_name
from ledgerlog.model.ids import check_ledger_id, check_log_name
from ledgerlog.model.record import milliseconds, parse_moment

__all__ = [
    "PARTITION_BYTES",
    "PARTITION_REPLICAS",
    "AuditOptions",
    "Bound",
    "ReadOptions",
    "WriteOptions",
    "includes_headers",
    "parse_audit_options",
    "parse_read_options",
    "parse_write_options",
]

PARTITION_BYTES = 64 * MIB
"""About the most bytes that one task of a read gets, if no option says otherwise."""

PARTITION_REPLICAS = 1_000_000
"""About the most copies that one task of an audit gets, if no option says otherwise."""

INDEX = "index"
SCRUB = "scrub"

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

Bound = int | Literal["earliest", "latest"]
"""An offset, or one of the two ends of a log."""

_EVERYWHERE = (
    "uri",
    "path",
    "log",
    "logs",
    "logPattern",
    "startingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
)
_PATHS = "paths"
"""The option that Spark makes of the list in ``load([...])``."""
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "cursorName",
)
_TRIGGER_DELAY_S = 15 * 60.0
"""The default of ``maxTriggerDelay``, the same as in Kafka's source."""

_WRITE = ("uri", "path", "log", "producerId", "createLog")
_WRITE_BATCH = ("batchSeq",)
_WRITE_STREAM = ("failOnDataLoss", "checkpointLocation", "queryName")
"""The last two are Spark's own options, which it passes together with ours."""

_NUMBER_MAX = 2**63 - 1
_UNITS_S = {"s": 1, "m": 60, "h": 3600}

_AUDIT = (
    "uri",
    "path",
    "log",
    "logs",
    "ledgers",
    "mode",
    "summary",
    "minPartitions",
    "replicasPerPartition",
    "settleSeconds",
    "bookieShare",
)

_KAFKA_BOUNDS: dict[int, Literal["earliest", "latest"]] = {-2: EARLIEST, -1: LATEST}


@attrs.frozen(kw_only=True)
class ReadOptions:
    """The options of a read. docs/SPARK.md explains each option."""

    uri: str
    """The URI of the cluster."""
    logs: tuple[str, ...]
    """The names of the logs, sorted; empty if ``pattern`` is set."""
    pattern: str | None
    """A regular expression; the whole name of a log must match."""
    starting: Bound | Mapping[str, Bound]
    """Where to begin, for all logs or for each by name.

    If a log is not named, begin at its earliest record.
    """
    ending: Bound | Mapping[str, Bound]
    """The offset to stop before, for all logs or for each by name.

    If a log is not named, stop at its end.
    """
    starting_ms: int | None
    """Begin at the first record from this time on (milliseconds since the epoch), instead of ``starting``."""
    ending_ms: int | None
    """End before the first record from this time on (milliseconds since the epoch), instead of ``ending``."""
    fail_on_data_loss: bool
    """Whether missing records are an error."""
    min_partitions: int
    """The smallest number of tasks, if there are enough records."""
    max_records_per_partition: int | None
    """The most records that a task reads; None: any number."""
    max_bytes_per_partition: int
    """About the most bytes that a task reads."""
    max_offsets_per_trigger: int | None
    """The most records that a micro-batch reads; None: any number."""
    max_bytes_per_trigger: int | None
    """About the most bytes that a micro-batch reads; None: any number."""
    min_offsets_per_trigger: int | None
    """How many records a micro-batch waits for; None: it takes the records that are there."""
    max_trigger_delay_s: float
    """How long a micro-batch waits for these records at most, in seconds."""
    cursor_name: str | None
    """The cursor that the stream moves in each log; None: no cursor."""

    @property
    def is_unbounded(self) -> bool:
        """Whether a batch reads all records of its logs."""
        moments = (self.starting_ms, self.ending_ms)
        return (self.starting, self.ending, *moments) == (EARLIEST, LATEST, None, None)

    def start_of(self, log: str) -> Bound:
        """Return where to begin in a log."""
        return self.starting.get(log, EARLIEST) if isinstance(self.starting, Mapping) else self.starting

    def end_of(self, log: str) -> Bound:
        """Return where to end in a log."""
        return self.ending.get(log, LATEST) if isinstance(self.ending, Mapping) else self.ending

    def select(self, names: list[str]) -> list[str]:
        """Return the names of the logs to read.

        Args:
            names: The logs that exist; ``pattern`` selects among them. Logs that the options name are
                returned even if they do not exist; reading such a log fails later.
        """
        if self.pattern is None:
            return list(self.logs)
        expression = re.compile(self.pattern)
        return [name for name in names if expression.fullmatch(name)]


def parse_read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of a read.

    Args:
        options: The options, by name without case.
        is_stream: Whether the read is a stream.

    Raises:
        InvalidArgument: An option is wrong; the message names it.
    """
    if is_stream:
        given = _known(options, (*_EVERYWHERE, *_STREAM_ONLY), _BATCH_ONLY, "a batch (spark.read)")
    else:
        given = _known(options, (*_EVERYWHERE, *_BATCH_ONLY), _STREAM_ONLY, "a stream (spark.readStream)")
    logs, pattern = _which_logs(given)
    starting = _bounds(given, "startingOffsets", LATEST if is_stream else EARLIEST)
    starting_ms = _moment(given, "startingTimestamp")
    ending = _bounds(given, "endingOffsets", LATEST)
    ending_ms = _moment(given, "endingTimestamp")
    if starting_ms is not None and "startingOffsets" in given:
        raise InvalidArgument("startingOffsets and startingTimestamp both say where to begin: give only one")
    if ending_ms is not None and "endingOffsets" in given:
        raise InvalidArgument("endingOffsets and endingTimestamp both say where to end: give only one")
    for name, bounds, wrong in (
        ("startingOffsets", starting, None if is_stream else LATEST),
        ("endingOffsets", ending, EARLIEST),
    ):
        values = bounds.values() if isinstance(bounds, Mapping) else (bounds,)
        if wrong is not None and wrong in values:
            raise InvalidArgument(f"{name}: a batch from or to {wrong!r} would be empty")
        unknown = set(bounds) - set(logs) if isinstance(bounds, Mapping) and pattern is None else set()
        if unknown:
            raise InvalidArgument(f"{name} names {sorted(unknown)}, which are not among the logs to read")
    includes_headers(options)
    least, most = _count(given, "minOffsetsPerTrigger"), _count(given, "maxOffsetsPerTrigger")
    if least is None and "maxTriggerDelay" in given:
        raise InvalidArgument("maxTriggerDelay says how long minOffsetsPerTrigger waits: give that, too")
    if least is not None and most is not None and least > most:
        raise InvalidArgument(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}")
    cursor_name = given.get("cursorName")
    return ReadOptions(
        uri=_uri(given),
        logs=logs,
        pattern=pattern,
        starting=starting,
        ending=ending,
        starting_ms=starting_ms,
        ending_ms=ending_ms,
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        min_partitions=_count(given, "minPartitions") or 1,
        max_records_per_partition=_count(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=_count(given, "maxBytesPerPartition") or PARTITION_BYTES,
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=_count(given, "maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_s=_duration_s(given, "maxTriggerDelay", _TRIGGER_DELAY_S),
        cursor_name=None if cursor_name is None else check_cursor_name(cursor_name),
    )


def includes_headers(options: Mapping[str, str]) -> bool:
    """Return whether a table without a declared schema has the column ``headers``.

    Args:
        options: The options of a read, by name without case. Only ``includeHeaders`` is looked at.

    Raises:
        InvalidArgument: The option is neither true nor false.
    """
    return _flag({name.lower(): text for name, text in options.items()}, "includeheaders", False)


@attrs.frozen(kw_only=True)
class WriteOptions:
    """The log to write, and the producer."""

    uri: str
    """The URI of the cluster."""
    log: str | None
    """The name of the log. None: each row names its log in the column ``log``."""
    producer_id: str | None
    """The producer of the batches. None: a stream uses its query's id, and a batch job has no producer."""
    batch_seq: int | None
    """The number of the batch of a batch job."""
    fail_on_data_loss: bool
    """Whether it is an error if the log lacks batches before this one."""
    create_log: bool
    """Whether to make the log if there is no log of this name."""


def parse_write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Parse the options of a write.

    Args:
        options: The options, by name without case.
        is_stream: Whether the write is a stream.

    Raises:
        InvalidArgument: An option is wrong; the message names it.
    """
    if is_stream:
        given = _known(options, (*_WRITE, *_WRITE_STREAM), _WRITE_BATCH, "a batch (df.write)")
    else:
        given = _known(options, (*_WRITE, *_WRITE_BATCH), _WRITE_STREAM, "a stream (df.writeStream)")
    said = [name for name in ("path", "log") if name in given]
    if len(said) > 1:
        raise InvalidArgument("name the log to write by the path or by the option log, not by both")
    producer = given.get("producerId")
    sequence = given.get("batchSeq")
    batch_seq = None if sequence is None else _number(sequence)
    if sequence is not None and batch_seq is None:
        raise InvalidArgument(f"batchSeq is a number from 0 on, of 64 bits, not {sequence!r}")
    if not is_stream and (producer is None) != (sequence is None):
        raise InvalidArgument(
            "producerId and batchSeq go together: with both, a job that runs again writes its batch only once"
        )
    return WriteOptions(
        uri=_uri(given),
        log=check_log_name(given[said[0]]) if said else None,
        producer_id=None if producer is None else check_splicer(producer),
        batch_seq=batch_seq,
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        create_log=_flag(given, "createLog", False),
    )


@attrs.frozen(kw_only=True)
class AuditOptions:
    """The copies to check, and how to check them."""

    uri: str
    """The URI of the cluster."""
    logs: tuple[str, ...]
    """Check the ledgers that these logs list; sorted.

    If ``logs`` and ``ledgers`` are empty, check all ledgers.
    """
    ledgers: tuple[int, ...]
    """Check these ledgers; sorted."""
    scrub: bool
    """Whether bookies read their entries. Otherwise they answer from their index."""
    summary: bool
    """Whether to add a row for each ledger and bookie with the number of checked copies."""
    min_partitions: int
    """The smallest number of tasks, if there are enough ledgers."""
    replicas_per_partition: int
    """About the most copies that a task checks."""
    settle_s: float
    """Check each finding again after this many seconds."""
    bookie_share: float
    """A task uses at most this part of the time of each bookie."""


def parse_audit_options(options: Mapping[str, str]) -> AuditOptions:
    """Parse the options of an audit.

    Args:
        options: The options, by name without case.

    Raises:
        InvalidArgument: An option is wrong; the message names it.
    """
    given = _known(options, _AUDIT, (), "")
    said = [name for name in ("path", "log", "logs", "ledgers") if name in given]
    if len(said) > 1:
        raise InvalidArgument(
            "name the ledgers to check by at most one of load(NAME), log, logs and ledgers; "
            f"{' and '.join(said)} are given"
        )
    logs, ledgers = set[str](), set[int]()
    if said == ["ledgers"]:
        for text in given["ledgers"].split(","):
            number = _number(text.strip())
            if number is None:
                raise InvalidArgument(f"ledgers: {text!r} is not the number of a ledger")
            ledgers.add(check_ledger_id(number))
    elif said:
        names = given[said[0]].split(",") if said == ["logs"] else [given[said[0]]]
        logs = {check_log_name(name.strip()) for name in names}
    mode = given.get("mode", INDEX)
    if mode not in (INDEX, SCRUB):
        raise InvalidArgument(f"mode is {INDEX!r} or {SCRUB!r}, not {mode!r}")
    return AuditOptions(
        uri=_uri(given),
        logs=tuple(sorted(logs)),
        ledgers=tuple(sorted(ledgers)),
        scrub=mode == SCRUB,
        summary=_flag(given, "summary", False),
        min_partitions=_count(given, "minPartitions") or 1,
        replicas_per_partition=_count(given, "replicasPerPartition") or PARTITION_REPLICAS,
        settle_s=_decimal(
            given, "settleSeconds", "a number of seconds", AUDIT_SETTLE_S, low=0, high=AUDIT_SETTLE_S_MAX
        ),
        bookie_share=_decimal(given, "bookieShare", "a number", AUDIT_SHARE, low=AUDIT_SHARE_MIN, high=1),
    )


def _decimal(
    given: Mapping[str, str], name: str, what: str, default: float, *, low: float, high: float
) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:  # NaN fails this test too.
        raise InvalidArgument(f"{name} is {what} from {low:g} to {high:g}, not {text!r}")
    return value


def _known(
    options: Mapping[str, str], allowed: Sequence[str], others: Sequence[str], whose: str
) -> dict[str, str]:
    """Return the options by their proper names.

    Args:
        options: The options as Spark passes them.
        allowed: The names that are allowed.
        others: Names that are allowed only for another kind of job.
        whose: The kind of job that allows the names in ``others``, for the message.
    """
    if not options:
        raise InvalidArgument(
            "there are no options. Spark does not pass the OPTIONS of CREATE TABLE to a source in Python: "
            "give them in each query, as in SELECT * FROM orders WITH (uri = '...', log = 'orders'), or make "
            "a temporary view with them"
        )
    spelling = {name.lower(): name for name in allowed}
    elsewhere = {name.lower(): name for name in others}
    given = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None and key.lower() in elsewhere:
            raise InvalidArgument(f"the option {elsewhere[key.lower()]} is for {whose} only")
        if name is None and key.lower() == _PATHS:
            raise InvalidArgument(
                "load takes the name of one log: name several by the option logs, as in logs = 'orders,users'"
            )
        if name is None:
            near = get_close_matches(key.lower(), spelling, n=1)
            hint = f"; did you mean {spelling[near[0]]}?" if near else ""
            raise InvalidArgument(f"there is no option {key!r}{hint}")
        given[name] = value
    return given


def _uri(given: Mapping[str, str]) -> str:
    uri = given.get("uri")
    if uri is None:
        raise InvalidArgument("the option uri is missing: it names the cluster")
    if isinstance(parse_uri(uri), MemoryUri | FileUri):
        raise InvalidArgument(
            f"{uri!r} is a cluster inside one process; Spark's tasks are other processes and need a cluster "
            f"that processes share: sqlite:PATH or zk://..."
        )
    return uri


def _which_logs(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    said = [name for name in ("path", "log", "logs", "logPattern") if name in given]
    if len(said) != 1:
        words = "none is given" if not said else f"{' and '.join(said)} are given"
        raise InvalidArgument(
            f"name the logs to read by exactly one of load(NAME), log, logs and logPattern; {words}"
        )
    text = given[said[0]]
    if said[0] == "logPattern":
        try:
            re.compile(text)
        except re.error as cause:
            raise InvalidArgument(f"logPattern {text!r} is not a regular expression: {cause}") from None
        return (), text
    names = [name.strip() for name in text.split(",")] if said[0] == "logs" else [text]
    return tuple(sorted({check_log_name(name) for name in names})), None


def _bounds(
    given: Mapping[str, str], name: str, default: Literal["earliest", "latest"]
) -> Bound | Mapping[str, Bound]:
    text = given.get(name)
    if text is None:
        return default
    if text in (EARLIEST, LATEST):
        return EARLIEST if text == EARLIEST else LATEST
    offset = _number(text)
    if offset is not None:
        return offset
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidArgument(
            f'{name} is "earliest", "latest", an offset, or JSON as {{"LOG": OFFSET}}, not {text!r}'
        )
    return {log: _bound(name, log, bound) for log, bound in value.items()}


def _bound(name: str, log: str, value: object) -> Bound:
    if value == EARLIEST:
        return EARLIEST
    if value == LATEST:
        return LATEST
    if isinstance(value, int) and not isinstance(value, bool) and -2 <= value <= _NUMBER_MAX:
        kafkas = _KAFKA_BOUNDS.get(value)
        return value if kafkas is None else kafkas
    raise InvalidArgument(f"{name}: {value!r} is not an offset of log {log!r}")


def _moment(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    number = _number(text)
    if number is not None:
        return number
    try:
        return max(0, milliseconds(parse_moment(text)))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name} must be milliseconds since 1970 or a time such as 2026-03-01T12:00:00Z (UTC if it "
            f"names no "
            f"zone), not {text!r}"
        ) from None


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    number = _number(text)
    if not number:
        raise InvalidArgument(f"{name} is a positive number, not {text!r}")
    return number


def _duration_s(given: Mapping[str, str], name: str, default_s: float) -> float:
    """Return a duration such as ``30s``, ``15m`` or ``1h``, in seconds."""
    text = given.get(name)
    if text is None:
        return default_s
    number, unit = _number(text[:-1]), _UNITS_S.get(text[-1:])
    if not number or unit is None:
        raise InvalidArgument(f"{name} is a duration such as 30s, 15m or 1h, not {text!r}")
    return float(number * unit)


def _number(text: str) -> int | None:
    """Parse a number of ASCII digits, at most 64 bits; None if the text is not one."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_NUMBER_MAX))):
        return None
    number = int(text)
    return number if number <= _NUMBER_MAX else None
