"""The options of ``ledgerlog`` and ``ledgeraudit``: text by name into one value, or an error that says what
is wrong.

Where an option means what Kafka's connector means by it, it has Kafka's name. Spark lower-cases the names
that it hands over, so they are compared without case. A name that is not known is an error and not a hint: a
misspelt ``endingOffset`` would otherwise read the whole log for somebody who asked for a part.

Pure: options say nothing of what is in the cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import AUDIT_SETTLE_S, AUDIT_SETTLE_S_MAX, MIB
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
    "parse_audit_options",
    "parse_read_options",
    "parse_write_options",
]

PARTITION_BYTES = 64 * MIB

PARTITION_REPLICAS = 1_000_000

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
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "cursorName")

_WRITE = ("uri", "path", "log", "producerId")
_WRITE_BATCH = ("batchSeq",)
_WRITE_STREAM = ("failOnDataLoss", "checkpointLocation", "queryName")
"""The last two are Spark's own, which it hands over with ours."""

_NUMBER_MAX = 2**63 - 1

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
)

_KAFKA_BOUNDS: dict[int, Literal["earliest", "latest"]] = {-2: EARLIEST, -1: LATEST}


@attrs.frozen(kw_only=True)
class ReadOptions:
    """What to read. See docs/SPARK.md for the words."""

    uri: str
    logs: tuple[str, ...]
    """By name, sorted; empty where ``pattern`` says which."""
    pattern: str | None
    starting: Bound | Mapping[str, Bound]
    """For all logs, or for each; a log that is not named begins at its earliest record."""
    ending: Bound | Mapping[str, Bound]
    starting_ms: int | None
    """Records from this moment on, in place of ``starting``."""
    ending_ms: int | None
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    cursor_name: str | None

    def start_of(self, log: str) -> Bound:
        return self.starting.get(log, EARLIEST) if isinstance(self.starting, Mapping) else self.starting

    def end_of(self, log: str) -> Bound:
        return self.ending.get(log, LATEST) if isinstance(self.ending, Mapping) else self.ending

    def select(self, names: list[str]) -> list[str]:
        """The logs to read, of those that there are. Named ones are read whether they are there or not, which
        is then an error of its own."""
        if self.pattern is None:
            return list(self.logs)
        expression = re.compile(self.pattern)
        return [name for name in names if expression.fullmatch(name)]


def parse_read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """The options of a read. InvalidArgument names the option that is wrong."""
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
        raise InvalidArgument("startingOffsets and startingTimestamp both say where to begin: give one")
    if ending_ms is not None and "endingOffsets" in given:
        raise InvalidArgument("endingOffsets and endingTimestamp both say where to end: give one")
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
        max_offsets_per_trigger=_count(given, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=_count(given, "maxBytesPerTrigger"),
        cursor_name=None if cursor_name is None else check_cursor_name(cursor_name),
    )


@attrs.frozen(kw_only=True)
class WriteOptions:
    """Where to write, and as whom."""

    uri: str
    log: str
    producer_id: str | None
    batch_seq: int | None
    fail_on_data_loss: bool
    """Whether batches that the log lacks are an error."""


def parse_write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """The options of a write. InvalidArgument names the option that is wrong."""
    if is_stream:
        given = _known(options, (*_WRITE, *_WRITE_STREAM), _WRITE_BATCH, "a batch (df.write)")
    else:
        given = _known(options, (*_WRITE, *_WRITE_BATCH), _WRITE_STREAM, "a stream (df.writeStream)")
    said = [name for name in ("path", "log") if name in given]
    if len(said) != 1:
        raise InvalidArgument("which log to write is said by exactly one of the path and the option log")
    producer = given.get("producerId")
    sequence = given.get("batchSeq")
    batch_seq = None if sequence is None else _number(sequence)
    if sequence is not None and batch_seq is None:
        raise InvalidArgument(f"batchSeq is a number from 0 on, of 64 bits, not {sequence!r}")
    if not is_stream and (producer is None) != (sequence is None):
        raise InvalidArgument(
            "producerId and batchSeq go together: they make a job that is run again count once"
        )
    return WriteOptions(
        uri=_uri(given),
        log=check_log_name(given[said[0]]),
        producer_id=None if producer is None else check_splicer(producer),
        batch_seq=batch_seq,
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
    )


@attrs.frozen(kw_only=True)
class AuditOptions:
    """Which copies to check, and how."""

    uri: str
    logs: tuple[str, ...]
    """Names, sorted; the ledgers that they list. With no ``ledgers`` either, every ledger there is."""
    ledgers: tuple[int, ...]
    scrub: bool
    """Whether bookies read what they have, or go by their index."""
    summary: bool
    """Whether there is a row for each ledger and bookie, which says how many copies were checked."""
    min_partitions: int
    replicas_per_partition: int
    settle_s: float
    """What was found is looked at again after so long."""


def parse_audit_options(options: Mapping[str, str]) -> AuditOptions:
    """The options of an audit. InvalidArgument names the option that is wrong."""
    given = _known(options, _AUDIT, (), "")
    said = [name for name in ("path", "log", "logs", "ledgers") if name in given]
    if len(said) > 1:
        raise InvalidArgument(
            "which ledgers to check is said by at most one of load(NAME), log, logs and ledgers; "
            f"{' and '.join(said)} are given"
        )
    logs, ledgers = set[str](), set[int]()
    if said == ["ledgers"]:
        for text in given["ledgers"].split(","):
            number = _number(text.strip())
            if number is None:
                raise InvalidArgument(f"ledgers: {text!r} is no ledger's number")
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
        settle_s=_seconds(given, "settleSeconds", AUDIT_SETTLE_S),
    )


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= AUDIT_SETTLE_S_MAX:  # Not a number is in no range.
        raise InvalidArgument(f"{name} is a number of seconds from 0 to {AUDIT_SETTLE_S_MAX:g}, not {text!r}")
    return value


def _known(
    options: Mapping[str, str], allowed: Sequence[str], others: Sequence[str], whose: str
) -> dict[str, str]:
    spelling = {name.lower(): name for name in allowed}
    elsewhere = {name.lower(): name for name in others}
    given = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None and key.lower() in elsewhere:
            raise InvalidArgument(f"the option {elsewhere[key.lower()]} is for {whose} only")
        if name is None:
            near = get_close_matches(key.lower(), spelling, n=1)
            hint = f"; did you mean {spelling[near[0]]}?" if near else ""
            raise InvalidArgument(f"there is no option {key!r}{hint}")
        given[name] = value
    return given


def _uri(given: Mapping[str, str]) -> str:
    uri = given.get("uri")
    if uri is None:
        raise InvalidArgument("the option uri is missing: it says where the cluster is")
    if isinstance(parse_uri(uri), MemoryUri | FileUri):
        raise InvalidArgument(
            f"{uri!r} is a cluster inside of one process; Spark's tasks are processes of their own and need "
            "one that serves others: sqlite:PATH or zk://..."
        )
    return uri


def _which_logs(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    said = [name for name in ("path", "log", "logs", "logPattern") if name in given]
    if len(said) != 1:
        words = "none is given" if not said else f"{' and '.join(said)} are given"
        raise InvalidArgument(
            f"which log to read is said by exactly one of load(NAME), log, logs and logPattern; {words}"
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
    raise InvalidArgument(f"{name}: {value!r} is no offset of log {log!r}")


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
            f"{name} is milliseconds since 1970 or a moment as 2026-03-01T12:00:00Z (UTC where no zone is "
            f"named), not {text!r}"
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


def _number(text: str) -> int | None:
    """The number that the text spells, by ASCII digits alone and in 64 bits; None where it spells none."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_NUMBER_MAX))):
        return None
    number = int(text)
    return number if number <= _NUMBER_MAX else None
