"""Lines in the log that machines can rely on: each has a stable name, its *event*, and fields.

A program or an alert should look for the name and the fields, never for the words, which may change. All
names are in ``EVENTS``; docs/OPERATIONS.md lists them, and a test compares the two. A line without an event
is for people only.

    people      2026-01-31 12:00:00,123 WARNING ledgerlog.ledger.member_watch: ledger=7 bookie=b2 failed: ...
                event=bookie_failed
    machines    {"time": "...", "level": "WARNING", "logger": "ledgerlog.ledger.member_watch", "event":
                "bookie_failed", "message": "...", "ledger": 7, "bookie": "b2", "why": "..."}

If something outside of the process can cause a line, the line is logged through
``ledgerlog.concurrency.complaints``, which bounds the number of such lines. Each of the other lines tells of
a change of state, so their number is bounded by the number of changes.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

__all__ = ["EVENTS", "Event", "log_to_stderr", "tell"]

_RESERVED = frozenset(("time", "level", "logger", "event", "message", "exception"))
_PEOPLE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@attrs.frozen
class Event:
    """A kind of event: its name, its level, its fields and its meaning."""

    name: str
    level: int
    fields: tuple[str, ...]
    meaning: str


EVENTS: dict[str, Event] = {}


def _event(name: str, level: int, fields: str, meaning: str) -> Event:
    event = EVENTS[name] = Event(name, level, tuple(fields.split()), meaning)
    assert not _RESERVED & {*event.fields}
    return event


BOOKIE_SERVING = _event("bookie_serving", logging.INFO, "bookie address", "a bookie began to serve")
BOOKIE_STOPPING = _event("bookie_stopping", logging.INFO, "bookie clients", "a bookie is stopping")
BOOKIE_REGISTERED = _event(
    "bookie_registered",
    logging.INFO,
    "bookie state address",
    "a bookie registered, as writable or read-only; again because that changed or its session was lost",
)
BOOKIE_DISPLACED = _event(
    "bookie_displaced",
    logging.ERROR,
    "bookie address",
    "another process has registered with the bookie's id",
)
DISK_SHORT = _event(
    "disk_short", logging.WARNING, "bookie spaces", "a disk of the bookie is fuller than `disk_warning_ratio`"
)
DISK_READ_ONLY = _event(
    "disk_read_only", logging.WARNING, "bookie spaces", "a disk is nearly full, and the bookie takes no adds"
)
DISK_ROOMY = _event("disk_roomy", logging.INFO, "bookie spaces", "the disks have room again")
LIMBO_WAITS = _event("limbo_waits", logging.WARNING, "bookie why", "some ledgers stay in limbo, and why")
LIMBO_OVER = _event("limbo_over", logging.INFO, "bookie copied", "nothing is in limbo now")
INDEX_HEALS = _event(
    "index_heals", logging.ERROR, "bookie", "the index is damaged, and the bookie rebuilds it"
)
ADMIN_CHANGE = _event(
    "admin_change",
    logging.WARNING,
    "process what by client",
    "a client used the administration port to change something",
)
LEDGER_BOOKIE_FAILED = _event(
    "bookie_failed", logging.WARNING, "ledger bookie why", "a writer gave up a bookie of its ensemble"
)
ENSEMBLE_CHANGED = _event(
    "ensemble_changed", logging.INFO, "ledger before after", "a writer continues with another ensemble"
)
OUT_OF_REACH = _event(
    "out_of_reach",
    logging.WARNING,
    "ledger bookies",
    "a writer reaches no ack quorum; it needs these bookies",
)
LOG_TAKEN_OVER = _event(
    "log_taken_over", logging.INFO, "log epoch ledger seconds", "this process now leads the log"
)
LOG_LEADERSHIP_LOST = _event(
    "log_leadership_lost",
    logging.WARNING,
    "log epoch why",
    "a leadership ended although its leader did not leave it",
)
ELECTION_WON = _event(
    "election_won", logging.INFO, "election candidate term", "this process leads in this term"
)
ROTTEN = _event(
    "rotten", logging.ERROR, "ledger first last why", "scrubbing found damaged entries, from first to last"
)
LEDGERS_GONE = _event(
    "ledgers_gone",
    logging.WARNING,
    "gone held first last",
    "many of the ledgers held are gone from the metadata store; the next pass of collection deletes them",
)
ELECTION_OVER = _event("election_over", logging.INFO, "election term why", "the term of this process is over")
BOOKIES_GONE = _event(
    "bookies_gone",
    logging.INFO,
    "auditor lost drained affected made ledgers",
    "the auditor's pass over all metadata found bookies that are lost or to be emptied, this many affected "
    "ledgers, and made this many new tasks",
)
COPIES_MISSING = _event(
    "copies_missing",
    logging.WARNING,
    "auditor ledger incomplete damaged",
    "the check of entries found bookies that lack entries of a ledger, or hold damaged ones",
)
REPAIR_PAUSED = _event("repair_paused", logging.INFO, "worker paused", "repair was paused, or resumed")


def tell(logger: logging.Logger, event: Event, text: str, **fields: object) -> None:
    """Log an event.

    Args:
        logger: The logger of the module.
        event: The event.
        text: The line for people. It may name fields, as in ``ledger=%(ledger)d``.
        **fields: The event's fields, all of them.
    """
    assert fields.keys() == {*event.fields}, event
    if logger.isEnabledFor(event.level):
        logger.log(event.level, text, fields, extra={"event": event.name}, stacklevel=2)


class _People(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        line = super().format(record)
        return line if event is None else f"{line} event={event}"


class _Machines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        event = getattr(record, "event", None)
        if event is not None:
            said["event"] = event
        said["message"] = record.getMessage()
        if event is not None and isinstance(record.args, Mapping):
            said |= record.args
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


def log_to_stderr(level: int | str, log_format: str) -> None:
    """Write the log of this process to standard error. A second call replaces the first.

    Args:
        level: The lowest level.
        log_format: "text" for people, or "json": one object a line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Machines() if log_format == "json" else _People(_PEOPLE))
    root = logging.getLogger()
    for before in root.handlers[:]:
        if type(before) is logging.NullHandler or isinstance(before.formatter, _Machines | _People):
            root.removeHandler(before)
    logging.basicConfig(level=level, handlers=[handler])
