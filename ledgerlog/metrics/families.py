"""The table of all metrics: their names, kinds, labels and meanings. This module is pure.

``docs/METRICS.md`` is the same table for people. A test compares the two.

Names follow Prometheus: they begin with ``ledgerlog_`` and the part that measures, and end in the unit.
Counters end in ``_total``. All durations are in seconds, all sizes in bytes.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping

import attrs

from ledgerlog.counts import BUCKETS_S, Histogram

__all__ = [
    "BOOKIE_FIGURES",
    "FAMILIES",
    "INFO_SUMS",
    "Family",
    "MetricKind",
    "Measurement",
    "MetricSample",
    "samples",
]


class MetricKind(enum.Enum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    """The value only grows, and starts again at 0 when the process starts."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class Family:
    """A metric: one name with one meaning. Its values differ by their labels."""

    name: str
    kind: MetricKind
    meaning: str
    alert: str = ""
    """When to alert an operator. "": this metric alone is no reason for an alert."""
    labels: tuple[str, ...] = ()


@attrs.frozen
class Measurement:
    """One value of a family, as it was read."""

    family: Family
    value: float | Histogram
    labels: tuple[str, ...] = ()
    """The values of the family's labels, in their order."""


@attrs.frozen
class MetricSample:
    """One number, as Prometheus stores it."""

    name: str
    """The name of the metric. A histogram gives samples whose names end in ``_bucket``, ``_count`` and
    ``_sum``."""
    labels: Mapping[str, str]
    """The labels that distinguish this sample from others of the same name, for example
    ``{"log": "orders"}``."""
    value: float
    """The number."""


def samples(measurement: Measurement) -> list[MetricSample]:
    """Return the samples of a measurement."""
    family, value = measurement.family, measurement.value
    labels = dict(zip(family.labels, measurement.labels, strict=True))
    if not isinstance(value, Histogram):
        return [MetricSample(family.name, labels, value)]
    ends = [*map(repr, BUCKETS_S), "+Inf"]
    counts = list(itertools.accumulate(value.buckets))
    return [
        *(
            MetricSample(f"{family.name}_bucket", {**labels, "le": end}, count)
            for end, count in zip(ends, counts, strict=True)
        ),
        MetricSample(f"{family.name}_count", labels, counts[-1]),
        MetricSample(f"{family.name}_sum", labels, value.sum_s),
    ]


_families: list[Family] = []


def _family(
    kind: MetricKind, name: str, meaning: str, alert: str = "", *, labels: tuple[str, ...] = ()
) -> Family:
    family = Family(name, kind, meaning, alert, labels)
    _families.append(family)
    return family


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

# --- a bookie -------------------------------------------------------------------------------------


def _bookie(
    kind: MetricKind, name: str, meaning: str, alert: str = "", *, labels: tuple[str, ...] = ()
) -> Family:
    return _family(kind, f"ledgerlog_bookie_{name}", meaning, alert, labels=labels)


BOOKIE_INFO = _bookie(
    _GAUGE,
    "info",
    "always 1; its labels say which bookie this is, and of which cluster",
    labels=("bookie", "cluster"),
)
BOOKIE_SYNC_SECONDS = _bookie(
    _HISTOGRAM,
    "sync_seconds",
    "how long a sync of the journal takes; one sync is for all adds that have gathered",
    "the 99th percentile is above 100 ms: the disk is slow or overloaded",
)
BOOKIE_REGISTERED = _bookie(
    _GAUGE,
    "registered",
    "1 while the bookie is registered in the metadata store, as far as it knows",
    "0 for a minute: clients do not find the bookie",
)
BOOKIE_DISK_BYTES = _bookie(
    _GAUGE, "disk_bytes", "the size of the file system of a directory", labels=("path",)
)
BOOKIE_DISK_FREE_BYTES = _bookie(
    _GAUGE,
    "disk_free_bytes",
    "the free bytes of the file system of a directory",
    "below 15 % of `ledgerlog_bookie_disk_bytes`: add bookies or space",
    labels=("path",),
)
BOOKIE_REFUSED = _bookie(
    _COUNTER,
    "refused_total",
    "adds and requests that were refused; the reason is a status of the protocol in lower case",
    "`io_error`, `corrupt` or `disk_full` grows",
    labels=("reason",),
)

BOOKIE_FIGURES: dict[str, Family] = {
    # name in INFO: the metric
    "entries": _bookie(_COUNTER, "entries_added_total", "entries that were added"),
    "bytes": _bookie(_COUNTER, "added_bytes_total", "bytes of these entries"),
    "frames": _bookie(
        _COUNTER, "adds_total", "frames that contained these entries; one frame holds many entries"
    ),
    "syncs": _bookie(_COUNTER, "syncs_total", "syncs of the journal"),
    "journal_bytes_written": _bookie(_COUNTER, "journal_written_bytes_total", "bytes written to the journal"),
    "fences": _bookie(_COUNTER, "fences_total", "fences: each takeover of an open ledger makes one"),
    "reads": _bookie(_COUNTER, "reads_total", "read requests that were answered from stored entries"),
    "runs_read_from_memory": _bookie(
        _COUNTER, "runs_read_from_memory_total", "runs of entries read from memory"
    ),
    "runs_read_from_disk": _bookie(
        _COUNTER, "runs_read_from_disk_total", "runs of entries read from the disk"
    ),
    "runs_read_from_cache": _bookie(
        _COUNTER, "runs_read_from_cache_total", "runs of entries read from the cache"
    ),
    "checkpoints": _bookie(_COUNTER, "checkpoints_total", "checkpoints of the index"),
    "segments_flushed": _bookie(
        _COUNTER, "segments_indexed_total", "segments of the journal that were indexed"
    ),
    "log_bytes_written": _bookie(_COUNTER, "entry_log_written_bytes_total", "bytes written to entry logs"),
    "compactions": _bookie(_COUNTER, "compactions_total", "files, or groups of files, that were rewritten"),
    "compaction_bytes_freed": _bookie(
        _COUNTER, "compaction_freed_bytes_total", "bytes that compaction has freed"
    ),
    "collections": _bookie(_COUNTER, "collections_total", "finished passes of garbage collection"),
    "ledgers_deleted": _bookie(_COUNTER, "ledgers_deleted_total", "ledgers that collection has deleted here"),
    "scrub_passes": _bookie(
        _COUNTER,
        "scrub_passes_total",
        "finished passes of scrubbing",
        "does not grow for two intervals (`scrub_interval_s`, a week)",
    ),
    "scrubbed_bytes": _bookie(_COUNTER, "scrubbed_bytes_total", "bytes that scrubbing has read"),
    "rotten_runs": _bookie(
        _GAUGE,
        "rotten_runs",
        "damaged runs of entries that were not copied again yet",
        "above 0 for an hour: they cannot be copied from other bookies; check the log",
    ),
    "runs_restored": _bookie(
        _COUNTER,
        "runs_restored_total",
        "damaged runs that were copied again",
        "grows: the disk returns wrong bytes",
    ),
    "files_damaged": _bookie(_GAUGE, "damaged_files", "files that compaction keeps because they are damaged"),
    "ledgers_in_memory": _bookie(_GAUGE, "ledgers_in_memory", "ledgers whose state is in memory"),
    "runs_in_memory": _bookie(_GAUGE, "runs_in_memory", "runs of entries in memory"),
    "cache_bytes": _bookie(_GAUGE, "segment_memory_bytes", "memory of the segments of the journal"),
    "read_cache_bytes": _bookie(_GAUGE, "read_cache_bytes", "memory of the cache for reads"),
    "pending_bytes": _bookie(
        _GAUGE, "pending_bytes", "the queue of the journal: bytes that were added but are not synced yet"
    ),
    "unflushed_bytes": _bookie(
        _GAUGE, "unflushed_bytes", "without the journal's copy: acknowledged bytes that are only in memory"
    ),
    "caches_flushed": _bookie(
        _COUNTER, "write_cache_flushes_total", "without the journal's copy: flushes of memory"
    ),
    "segment": _bookie(_GAUGE, "journal_segment", "the number of the current segment of the journal"),
    "segments_in_memory": _bookie(_GAUGE, "segments_in_memory", "segments of the journal in memory"),
    "segments_unindexed": _bookie(
        _GAUGE,
        "segments_unindexed",
        "the queue of the index: full segments that are not indexed yet",
        "as high as the setting `arenas` for minutes: the index or its disk is too slow, and adds wait",
    ),
    "segments": _bookie(
        _GAUGE, "segments", "segments that hold indexed entries, at the last look of compaction"
    ),
    "segment_bytes": _bookie(_GAUGE, "segment_bytes", "bytes of entries in these segments"),
    "entry_logs": _bookie(_GAUGE, "entry_logs", "entry logs, at the last look of compaction"),
    "entry_log_bytes": _bookie(_GAUGE, "entry_log_bytes", "bytes of entries in these entry logs"),
    "live_bytes": _bookie(_GAUGE, "live_bytes", "bytes in all these files that belong to ledgers that exist"),
    "is_disk_full": _bookie(
        _GAUGE, "disk_full", "1 while there is no room for another segment or for the index", "1"
    ),
    "is_read_only": _bookie(
        _GAUGE,
        "read_only",
        "1 while ordinary adds are refused: the disk is nearly full, the bookie is being emptied, or an "
        "operator made it read-only",
        "1, unless you empty the bookie",
    ),
    "fenced_through": _bookie(
        _GAUGE, "fenced_through", "after a loss: writers of ledgers up to this id are refused; -1: none"
    ),
    "ledgers_in_limbo": _bookie(
        _GAUGE,
        "ledgers_in_limbo",
        "ledgers that may lack entries here after a loss",
        "above 0 and does not fall for 30 minutes; the log says what the ledgers wait for",
    ),
    "connections": _bookie(_GAUGE, "connections", "clients that are connected"),
    "connections_accepted": _bookie(_COUNTER, "connections_accepted_total", "connections that were accepted"),
    "connections_refused": _bookie(
        _COUNTER,
        "connections_refused_total",
        "connections that were refused, because too many are open",
        "grows",
    ),
    "peers_cut_off": _bookie(
        _COUNTER,
        "peers_cut_off_total",
        "connections that the bookie cut off: the peer sent nonsense, was "
        "too slow, or failed to prove who it is",
    ),
    "adds_refused": _bookie(_COUNTER, "adds_refused_total", "adds that were refused, for any reason"),
    "requests_denied": _bookie(
        _COUNTER,
        "requests_denied_total",
        "requests for which the client does not have the right",
        "grows: check the grants",
    ),
    "unknown_ledgers_refused": _bookie(
        _COUNTER,
        "unknown_ledgers_refused_total",
        "requests for ledgers that the metadata store does not have",
    ),
    "requests_under_way": _bookie(
        _GAUGE,
        "requests_under_way",
        "the queue of requests: requests that are not answered yet, including long polls",
    ),
    "reply_bytes": _bookie(
        _GAUGE, "reply_bytes", "the queue of replies: bytes that clients have not received yet"
    ),
}
"""The figures in a bookie's INFO reply, each with its metric. All figures of refusals share one metric, whose
label is the reason."""

INFO_SUMS: dict[str, str] = {
    "sync_us": "the duration of all syncs of the journal together, in microseconds",
    "disk_bytes": "the size of the file system that has the least share of free bytes; -1: not known",
    "disk_free_bytes": "the free bytes of that file system; -1: not known",
}
"""Figures in a bookie's INFO reply that sum up a metric of several values (``BOOKIE_SYNC_SECONDS``,
``BOOKIE_DISK_BYTES``, ``BOOKIE_DISK_FREE_BYTES``), each with its meaning."""

# --- a client -------------------------------------------------------------------------------------


def _client(
    kind: MetricKind, name: str, meaning: str, alert: str = "", *, labels: tuple[str, ...] = ()
) -> Family:
    return _family(kind, f"ledgerlog_client_{name}", meaning, alert, labels=labels)


CLIENT_APPEND_SECONDS = _client(
    _HISTOGRAM,
    "append_seconds",
    "the time until an ack quorum has synced an entry, from the moment when the ledger got it; each ledger "
    "times one entry at a time",
    "the 99th percentile is above 1 s",
)
CLIENT_RECORDS = _client(_COUNTER, "records_appended_total", "records that were sent to logs")
CLIENT_RECORD_BYTES = _client(_COUNTER, "record_bytes_appended_total", "bytes of these records")
CLIENT_ENTRIES = _client(_COUNTER, "entries_appended_total", "entries that these records were packed into")
CLIENT_UNKNOWN = _client(
    _COUNTER,
    "unknown_records_total",
    "records whose append ended in AppendUnknown: they may or may not be in the log",
    "grows",
)
CLIENT_ENSEMBLE_CHANGES = _client(
    _COUNTER,
    "ensemble_changes_total",
    "how often a writer continued with another bookie",
    "more than 10 in an hour",
)
CLIENT_BOOKIES_FAILED = _client(_COUNTER, "bookies_failed_total", "how often a writer gave up a bookie")
CLIENT_RETRIES = _client(
    _COUNTER,
    "metadata_retries_total",
    "writes to the metadata store that a writer repeated, because it did not answer",
)
CLIENT_LEDGERS = _client(_COUNTER, "ledgers_created_total", "ledgers that were made")
CLIENT_RECOVERY_SECONDS = _client(
    _HISTOGRAM, "recovery_seconds", "how long it took to fence a ledger and find its end"
)
CLIENT_RECOVERIES_FAILED = _client(
    _COUNTER,
    "recoveries_failed_total",
    "recoveries that failed; a later attempt may succeed",
    "grows for 10 minutes",
)
CLIENT_TAKEOVER_SECONDS = _client(
    _HISTOGRAM,
    "takeover_seconds",
    "how long a takeover of a log took, and each part of it: `read` and `write` of the record, `recover` and "
    "`create` of ledgers, `producers`; `all` is the whole",
    labels=("part",),
)
CLIENT_TAKEOVERS_FAILED = _client(
    _COUNTER, "takeovers_failed_total", "takeovers that failed", "grows, and no process leads the log"
)
CLIENT_LEADERSHIPS_LOST = _client(
    _COUNTER,
    "leaderships_lost_total",
    "leaderships of logs that ended although their holder had not left them",
    "grows without a failover that you intended",
)
CLIENT_CONNECTED = _client(
    _GAUGE, "bookie_connected", "1 while the client is connected to the bookie", labels=("bookie",)
)
CLIENT_QUEUED_BYTES = _client(
    _GAUGE, "bookie_queued_bytes", "bytes that wait to be sent to the bookie", labels=("bookie",)
)
CLIENT_UNANSWERED = _client(
    _GAUGE, "bookie_unanswered_adds", "adds that the bookie has not answered", labels=("bookie",)
)
CLIENT_ADDS = _client(_COUNTER, "bookie_adds_total", "adds that were sent to the bookie", labels=("bookie",))
CLIENT_ADDS_REFUSED = _client(
    _COUNTER, "bookie_adds_refused_total", "adds that the bookie refused", labels=("bookie",)
)
CLIENT_LOSSES = _client(
    _COUNTER, "bookie_connections_lost_total", "connections to the bookie that broke", labels=("bookie",)
)
CLIENT_FAILED_ATTEMPTS = _client(
    _COUNTER,
    "bookie_connects_failed_total",
    "attempts to connect to the bookie that failed",
    labels=("bookie",),
)

CLIENT_CURSOR_OFFSET = _client(
    _GAUGE,
    "cursor_offset",
    "the offset to which this process moved the cursor; the leader's `ledgerlog_log_next_offset` minus this "
    "value is the cursor's lag. A process shows the 1,000 cursors that it moved last",
    "the lag is larger than you allow for your consumer",
    labels=("log", "cursor"),
)

# --- the logs that a process leads ----------------------------------------------------------------


def _log(name: str, meaning: str, alert: str = "") -> Family:
    return _family(_GAUGE, f"ledgerlog_log_{name}", meaning, alert, labels=("log",))


LOG_EPOCH = _log(
    "epoch",
    "the number of this leadership; only the process that leads the log has the metrics `ledgerlog_log_...`",
    "no process has it for two minutes, but one had it in the last hour: no process leads the log",
)
LOG_FIRST_OFFSET = _log("first_offset", "the offset of the first record that can still be read")
LOG_NEXT_OFFSET = _log("next_offset", "the offset after the last acknowledged record")
LOG_SEGMENTS = _log(
    "segments",
    "the ledgers in the log's list",
    "above 8,000: the list is bounded (`LogListFull`); set a retention, or larger ledgers",
)
LOG_OUTSTANDING = _log("records_outstanding", "records that the writer has taken and not acknowledged")
LOG_OUTSTANDING_BYTES = _log("outstanding_bytes", "bytes of these records")
LOG_WINDOW = _log(
    "window_records",
    "how many records may be outstanding",
    "`ledgerlog_log_records_outstanding` stays at it: appends wait for the bookies",
)
LOG_WINDOW_BYTES = _log("window_bytes", "how many bytes may be outstanding")
CLIENT_ROLLS = _client(_COUNTER, "rolls_total", "how often a log continued in a new ledger")

# --- repair ---------------------------------------------------------------------------------------


def _repair(kind: MetricKind, name: str, meaning: str, alert: str = "") -> Family:
    return _family(kind, f"ledgerlog_repair_{name}", meaning, alert)


REPAIR_IS_AUDITOR = _repair(
    _GAUGE,
    "auditor",
    "1 in the process that is the auditor",
    "the sum over all processes is 0 for 5 minutes: no process looks for lost copies",
)
REPAIR_UNDER_REPLICATED = _repair(
    _GAUGE,
    "under_replicated_ledgers",
    "ledgers that named a lost bookie, or one that is being emptied, at the auditor's last pass; only the "
    "auditor has this metric",
    "above 0 for an hour",
)
REPAIR_ABSENT = _repair(
    _GAUGE,
    "absent_bookies",
    "bookies that the auditor counts as absent; only the auditor has this metric",
    "above 0 for 5 minutes",
)
REPAIR_TASKS = _repair(
    _GAUGE, "tasks", "ledgers that wait for a worker, as this worker last listed them", "above 0 for an hour"
)
REPAIR_AT_WORK = _repair(_GAUGE, "ledgers_at_work", "ledgers that this worker works on now")
REPAIR_PAUSED = _repair(
    _GAUGE, "paused", "1 while repair is paused", "1 for longer than your maintenance takes"
)
REPAIR_REPAIRED = _repair(_COUNTER, "ledgers_repaired_total", "tasks that this worker has finished")
REPAIR_ENTRIES = _repair(_COUNTER, "entries_copied_total", "entries that this worker has copied")
REPAIR_BYTES = _repair(
    _COUNTER, "copied_bytes_total", "bytes of these entries; its rate is the rate of copying"
)

# --- the metadata store ---------------------------------------------------------------------------


def _metadata(kind: MetricKind, name: str, meaning: str, alert: str = "") -> Family:
    return _family(kind, f"ledgerlog_metadata_{name}", meaning, alert)


METADATA_CONNECTED = _metadata(
    _GAUGE, "connected", "1 while the session with the metadata store is alive", "0 for a minute"
)
METADATA_SESSIONS_LOST = _metadata(
    _COUNTER,
    "sessions_lost_total",
    "sessions with the metadata store that ended; their registrations and locks ended, too",
    "grows more than twice in an hour",
)
METADATA_SUSPENSIONS = _metadata(
    _COUNTER,
    "suspensions_total",
    "how often contact with the metadata store was lost, for a while or for good",
)

FAMILIES: tuple[Family, ...] = tuple(_families)
"""All families, in the order of the page."""
