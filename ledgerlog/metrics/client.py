"""Reads the counts of a client, and of the jobs in its process.

You may call these functions in any thread. Each of them copies a collection in one step before it iterates.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledgerlog.counts import LedLog
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.meta.session_counts import SessionCounts
from ledgerlog.meta.store import SessionState
from ledgerlog.metrics import families as f
from ledgerlog.metrics.families import Measurement

__all__ = ["client_measurements", "session_measurements"]


def client_measurements(client: LedgerClient) -> Iterator[Measurement]:
    """Yield the measurements of a client: appends, takeovers, cursors, connections, and the logs that it
    leads."""
    counts = client.counts
    led = [describe() for describe in list(counts.led.values())]
    yield Measurement(f.CLIENT_APPEND_SECONDS, counts.append_s)
    for family, ended, attribute in (
        (f.CLIENT_RECORDS, counts.records_appended, "records_appended"),
        (f.CLIENT_RECORD_BYTES, counts.bytes_appended, "bytes_appended"),
        (f.CLIENT_ENTRIES, counts.entries_appended, "entries_appended"),
        (f.CLIENT_ROLLS, counts.rolls, "rolls"),
    ):
        yield Measurement(family, ended + sum(getattr(log, attribute) for log in led))
    yield Measurement(f.CLIENT_UNKNOWN, counts.unknown_records)
    yield Measurement(f.CLIENT_ENSEMBLE_CHANGES, counts.ensemble_changes)
    yield Measurement(f.CLIENT_BOOKIES_FAILED, counts.bookies_failed)
    yield Measurement(f.CLIENT_RETRIES, counts.metadata_retries)
    yield Measurement(f.CLIENT_LEDGERS, counts.ledgers_created)
    yield Measurement(f.CLIENT_RECOVERY_SECONDS, counts.recovery_s)
    yield Measurement(f.CLIENT_RECOVERIES_FAILED, counts.recoveries_failed)
    for part, durations in sorted(counts.takeover_s.items()):
        yield Measurement(f.CLIENT_TAKEOVER_SECONDS, durations, (part,))
    yield Measurement(f.CLIENT_TAKEOVERS_FAILED, counts.takeovers_failed)
    yield Measurement(f.CLIENT_LEADERSHIPS_LOST, counts.leaderships_lost)
    for cursor, offset in list(counts.cursors.items()):
        yield Measurement(f.CLIENT_CURSOR_OFFSET, offset, cursor)
    for connection in client.pool.statistics().connections:
        labels = (connection.bookie_id,)
        yield Measurement(f.CLIENT_CONNECTED, int(connection.is_connected), labels)
        yield Measurement(f.CLIENT_QUEUED_BYTES, connection.queued_bytes, labels)
        yield Measurement(f.CLIENT_UNANSWERED, connection.unanswered_adds, labels)
        yield Measurement(f.CLIENT_ADDS, connection.adds_sent, labels)
        yield Measurement(f.CLIENT_ADDS_REFUSED, connection.adds_refused, labels)
        yield Measurement(f.CLIENT_LOSSES, connection.losses, labels)
        yield Measurement(f.CLIENT_FAILED_ATTEMPTS, connection.failed_attempts, labels)
    # If this process leaves a log and takes the log over again, both leaderships may list it for a moment.
    for log in {log.name: log for log in sorted(led, key=lambda log: log.epoch)}.values():
        yield from _log_measurements(log)


def _log_measurements(log: LedLog) -> Iterator[Measurement]:
    for family, value in (
        (f.LOG_EPOCH, log.epoch),
        (f.LOG_FIRST_OFFSET, log.first_offset),
        (f.LOG_NEXT_OFFSET, log.durable_offset),
        (f.LOG_SEGMENTS, log.segments),
        (f.LOG_OUTSTANDING, log.records_outstanding),
        (f.LOG_OUTSTANDING_BYTES, log.bytes_outstanding),
        (f.LOG_WINDOW, log.window_records),
        (f.LOG_WINDOW_BYTES, log.window_bytes),
    ):
        yield Measurement(family, value, (log.name,))


def session_measurements(sessions: SessionCounts) -> Iterator[Measurement]:
    """Yield whether the session with the metadata store is connected, and how many were lost or suspended."""
    yield Measurement(f.METADATA_CONNECTED, int(sessions.state is SessionState.CONNECTED))
    yield Measurement(f.METADATA_SESSIONS_LOST, sessions.lost)
    yield Measurement(f.METADATA_SUSPENSIONS, sessions.suspensions)
