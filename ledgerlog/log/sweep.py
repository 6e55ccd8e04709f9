"""Sweeping: finding the ledgers that were made for a log and that its list does not name.

A crash leaves them: between making a ledger and listing it, and between taking one off the list and
deleting it. Each says in its own metadata which incarnation of which log it was made for and in which epoch
(``registry.ledger_labels``), which is all that it takes to know that it can never be listed again:

    the log's record is gone                  a log that is made anew has another incarnation
    the record's epoch is beyond the ledger's only the leader of that epoch could list it, by a
                                              compare-and-set on a record of that epoch or the one before
    the log is sealed                         nobody lists anything any more
    it is staged, and a day old               nobody made it part of the log (``log.splice``); whoever would
                                              do so now is told that it is gone
    it is closed with entries, same epoch     its leader has used it, so it was listed; truncation took it off

A ledger of the present epoch that is open or empty is kept: it may be the one that the leader made for his
next roll. He lists it, or a successor's epoch gives it away.

**Nothing is deleted on a guess.** The ledger's metadata is read first, then, after a sync of the store, the
record of its log; both must be there to be read and decode, or the record be missing of a number that was
given out. Each of the reasons stays true once it is true. The ledger is deleted at the version at which it
was read. And it must be old, by the wall clock, as a margin against what nobody thought of.
"""

from __future__ import annotations

import contextlib
import logging

import attrs

from ledgerlog.client.client import LedgerClient
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.errors import InvalidArgument, LedgerNotFound
from ledgerlog.limits import LOG_STAGED_SWEEP_AGE_S, LOG_SWEEP_AGE_S
from ledgerlog.log.cursors import delete_cursors
from ledgerlog.log.registry import (
    EPOCH_LABEL,
    INCARNATION_LABEL,
    NAME_LABEL,
    STAGED_LABEL,
    LogRegistry,
)
from ledgerlog.log.splice import delete_marks
from ledgerlog.meta.store import VersionConflict
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.layout import CURSORS, LOG_COUNTER, SPLICES, incarnation_of
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata

__all__ = ["Orphan", "sweep"]

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Orphan:
    """A ledger that no log can list any more."""

    ledger_id: int
    log: str
    """The name of the log that it was made for."""
    age_s: float
    why: str
    is_deleted: bool


async def sweep(
    client: LedgerClient, *, min_age_s: float = LOG_SWEEP_AGE_S, delete: bool = True
) -> list[Orphan]:
    """Find the orphans that are at least so old, and unless told otherwise delete them; cursors of logs that
    are gone, and what producers left of them, are deleted as well. InvalidArgument; MetadataUnavailable,
    which leaves what was not looked at."""
    if min_age_s < 0:
        raise InvalidArgument(f"min_age_s must not be negative, not {min_age_s!r}")
    logs = LogRegistry(client.store, client.environment)
    ledgers = LedgerRegistry(client.store, client.environment)
    listed: dict[int, frozenset[int]] = {}
    orphans = []
    for ledger_id in await ledgers.list():
        found = await ledgers.find(ledger_id)
        if found is None:
            continue
        metadata, version = found
        made_for = _made_for(metadata)
        age_s = (client.environment.now_ms() - metadata.created_ms) / 1000
        if made_for is None or age_s < min_age_s:
            continue
        incarnation, epoch = made_for
        if ledger_id in listed.get(incarnation, ()):
            continue  # It was when we looked last; if it is not now, the next sweep finds it.
        record, _ = await logs.read(incarnation)
        if record is None and await client.store.highest_id(LOG_COUNTER) < incarnation:
            continue  # A number that was never given out: this is not the store that the ledger belongs to.
        if record is not None:
            listed[incarnation] = frozenset(segment.ledger_id for segment in record.segments)
        if STAGED_LABEL in metadata.custom and age_s < LOG_STAGED_SWEEP_AGE_S:
            continue
        why = _why_orphan(metadata, epoch, record)
        if why is None:
            continue
        is_deleted = False
        if delete:
            with contextlib.suppress(VersionConflict, LedgerNotFound):
                await ledgers.delete(ledger_id, version=version)
                is_deleted = True
            logger.info("ledger=%d belongs to no log any more: %s; deleted=%s", ledger_id, why, is_deleted)
        orphans.append(
            Orphan(
                ledger_id=ledger_id,
                log=metadata.custom.get(NAME_LABEL, b"").decode(errors="replace"),
                age_s=age_s,
                why=why,
                is_deleted=is_deleted,
            )
        )
    if delete:
        await _sweep_cursors(client, logs)
    return orphans


def _made_for(metadata: LedgerMetadata) -> tuple[int, int | None] | None:
    """The incarnation of the log that a ledger was made for, and the epoch; None where it does not say."""
    incarnation = _number(metadata.custom.get(INCARNATION_LABEL))
    return None if incarnation is None else (incarnation, _number(metadata.custom.get(EPOCH_LABEL)))


def _number(label: bytes | None) -> int | None:
    return int(label) if label is not None and len(label) <= 19 and label.isdigit() else None


def _why_orphan(ledger: LedgerMetadata, epoch: int | None, record: LogMetadata | None) -> str | None:
    """Why no list will ever name the ledger again; None where one does or may."""
    if record is None:
        return "its log is gone"
    if record.index_of(ledger.ledger_id) is not None:
        return None
    if STAGED_LABEL in ledger.custom:
        return "it was staged and never became part of its log"
    if epoch is None:
        return None
    if epoch < record.epoch:
        return f"its leader of epoch {epoch} is gone, the log is at epoch {record.epoch}"
    if record.sealed:
        return "its log is sealed without it"
    if epoch == record.epoch and ledger.last_entry not in (None, NO_ENTRY):
        return "it was taken off the list"
    return None


async def _sweep_cursors(client: LedgerClient, logs: LogRegistry) -> None:
    components = {*await client.store.children(CURSORS), *await client.store.children(SPLICES)}
    for component in sorted(components):
        try:
            incarnation = incarnation_of(component)
        except ValueError:
            continue
        record, _ = await logs.read(incarnation)
        if record is None and await client.store.highest_id(LOG_COUNTER) >= incarnation:
            await delete_cursors(client, incarnation)
            await delete_marks(client, incarnation)
