"""Comparing the metadata with the ledgers that bookies list. No I/O.

**Forgotten and deleted ledgers.** Bookies may hold a ledger that the metadata do not have. The ledger is
*forgotten* if its id was given out before a restore whose loss is not accepted yet: the backup may be older
than the ledger. Otherwise the ledger was *deleted*, and bookies will collect it. A ledger with such an old id
that was really deleted, and that bookies had not collected yet, looks forgotten too: the difference cannot be
seen.

While the loss of the restore is not accepted, a ledger from before the restore also counts as forgotten
although the metadata have it, if it was made for a log, bookies hold entries of it, and no log's list names
it. The log may have listed it after the backup was made: its leader rolled, or it was staged and spliced. Or
its metadata were made again, but that work was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.layout import ledger_path, log_name_path, log_record_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.log_key import INCARNATION_LABEL, is_key_of_log
from ledgerlog.model.restoration import Restoration
from ledgerlog.wire.ledgers import LedgerOnBookie

__all__ = ["BrokenLog", "HeldOnly", "MetadataCheck", "NotHeld", "check_metadata"]


@attrs.frozen(kw_only=True)
class HeldOnly:
    """A ledger that bookies hold and that is forgotten or deleted."""

    ledger_id: int
    log: str | None
    """The log for which the ledger was made; None if the ledger's key is not the key of any known log."""
    incarnation: int | None
    """The incarnation of that log."""
    last_entry: int
    """The highest entry that a bookie holds."""
    bookies: tuple[BookieId, ...]
    """The bookies that hold entries of the ledger."""
    key: bytes = attrs.field(repr=False)


@attrs.frozen
class NotHeld:
    """A CLOSED ledger that has entries, although no bookie that its metadata names holds any entry of it.

    Ledgers in an archive are not counted.
    """

    ledger_id: int
    elsewhere: tuple[BookieId, ...]
    """Other bookies, which hold entries of the ledger."""


@attrs.frozen
class BrokenLog:
    """A log that has a name and no record, or a record to which its name does not lead.

    A log is made and deleted with both nodes in one transaction. So the store has lost one of them.
    """

    name: str
    incarnation: int
    why: str
    """Which node is there and which is not, in words."""


@attrs.frozen(kw_only=True)
class MetadataCheck:
    """The differences between the metadata and the bookies."""

    ledgers: int
    """Ledgers in the metadata."""
    bookies: int
    """Bookies that listed their ledgers."""
    forgotten: tuple[HeldOnly, ...]
    deleted: tuple[HeldOnly, ...]
    """Bookies will collect these ledgers, so they do not count as a difference."""
    not_held: tuple[NotHeld, ...]
    missing: Mapping[str, tuple[int, ...]]
    """By log, the ledgers of the log's list that are missing from the metadata and from the archive."""
    broken_logs: tuple[BrokenLog, ...]
    above_counter: tuple[int, ...]
    """Ids of ledgers above the store's counter. The store would give out these ids again."""
    unregistered: tuple[BookieId, ...]
    silent: tuple[BookieId, ...]
    """Registered bookies that did not list their ledgers."""
    in_limbo: tuple[BookieId, ...]
    unreadable: tuple[str, ...]
    """Paths of nodes that cannot be decoded."""
    restoration: Restoration | None

    @property
    def is_sound(self) -> bool:
        """Whether deleted ledgers are the only difference."""
        return not (
            self.forgotten
            or self.not_held
            or self.missing
            or self.broken_logs
            or self.above_counter
            or self.unregistered
            or self.silent
            or self.unreadable
        )


def check_metadata(
    *,
    ledgers: Sequence[LedgerMetadata],
    logs: Sequence[LogMetadata],
    names: Mapping[str, int],
    archived: Mapping[int, frozenset[int]],
    highest: int,
    restoration: Restoration | None,
    cookies: Sequence[BookieId],
    registered: Sequence[BookieId],
    held: Mapping[BookieId, Sequence[LedgerOnBookie]],
    in_limbo: Sequence[BookieId],
    unreadable: Sequence[str],
) -> MetadataCheck:
    """Compare the metadata with the bookies' lists.

    Args:
        ledgers: The metadata of all ledgers, read before the bookies' lists.
        logs: The records of all logs.
        names: By name, the incarnation of each log, as far as the nodes of the names can be read.
        archived: By incarnation, the ledgers that are in an archive.
        highest: The highest ledger id that was given out.
        restoration: The restore whose loss is not accepted yet; None if there is none.
        cookies: The bookies that have a cookie.
        registered: The bookies that are registered.
        held: The lists of the bookies that answered.
        in_limbo: The bookies in ``held`` that may have lost ledgers.
        unreadable: Paths of nodes that cannot be decoded.
    """
    in_lists = {segment.ledger_id for log in logs for segment in log.segments}
    holders: dict[int, dict[BookieId, LedgerOnBookie]] = {}
    for bookie, listed in held.items():
        for row in listed:
            holders.setdefault(row.ledger_id, {})[bookie] = row
    floor = 0 if restoration is None else restoration.floor
    known = {
        x.ledger_id
        for x in ledgers
        if x.ledger_id >= floor
        or x.ledger_id in in_lists
        or INCARNATION_LABEL not in x.custom
        or all(row.last_entry == NO_ENTRY for row in holders.get(x.ledger_id, {}).values())
    }
    unreadable_paths = {*unreadable}
    forgotten: list[HeldOnly] = []
    deleted: list[HeldOnly] = []
    for ledger_id in sorted(holders.keys() - known):
        if ledger_path(ledger_id) not in unreadable_paths:
            only = _held_only(ledger_id, holders[ledger_id], logs)
            (forgotten if ledger_id < floor else deleted).append(only)
    in_archives = frozenset().union(*archived.values())
    not_held = []
    for ledger in ledgers:
        on = holders.get(ledger.ledger_id, {})
        named = {bookie for fragment in ledger.fragments for bookie in fragment.ensemble}
        has_entries = ledger.last_entry is not None and ledger.last_entry >= 0
        if has_entries and not named & on.keys() and ledger.ledger_id not in in_archives:
            not_held.append(NotHeld(ledger.ledger_id, tuple(sorted(on))))
    stored = {ledger.ledger_id for ledger in ledgers}
    missing: dict[str, tuple[int, ...]] = {}
    for log in logs:
        there = stored | archived.get(log.incarnation, frozenset())
        lacking = tuple(s.ledger_id for s in log.segments if s.ledger_id not in there)
        if lacking:
            missing[log.name] = lacking
    broken_logs: list[BrokenLog] = []
    recorded = {log.incarnation for log in logs}
    for name, incarnation in sorted(names.items()):
        record = log_record_path(incarnation)
        if incarnation not in recorded and record not in unreadable_paths:
            why = f"{log_name_path(name)} leads to {record}, which is not there"
            broken_logs.append(BrokenLog(name, incarnation, why))
    for log in logs:
        name = log_name_path(log.name)
        if names.get(log.name) != log.incarnation and name not in unreadable_paths:
            why = f"{log_record_path(log.incarnation)} is there, and {name} does not lead to it"
            broken_logs.append(BrokenLog(log.name, log.incarnation, why))
    needed = {*cookies, *(b for x in ledgers for fragment in x.fragments for b in fragment.ensemble)}
    return MetadataCheck(
        ledgers=len(ledgers),
        bookies=len(held),
        forgotten=tuple(forgotten),
        deleted=tuple(deleted),
        not_held=tuple(not_held),
        missing=missing,
        broken_logs=tuple(broken_logs),
        above_counter=tuple(sorted(x for x in stored | holders.keys() if x > highest)),
        unregistered=tuple(sorted(needed - {*registered})),
        silent=tuple(sorted({*registered} - held.keys())),
        in_limbo=tuple(sorted(in_limbo)),
        unreadable=tuple(unreadable),
        restoration=restoration,
    )


def _held_only(
    ledger_id: int, on: Mapping[BookieId, LedgerOnBookie], logs: Sequence[LogMetadata]
) -> HeldOnly:
    key = next(iter(on.values())).key
    log = next((log for log in logs if is_key_of_log(key, log.incarnation)), None)
    return HeldOnly(
        ledger_id=ledger_id,
        log=None if log is None else log.name,
        incarnation=None if log is None else log.incarnation,
        last_entry=max(row.last_entry for row in on.values()),
        bookies=tuple(sorted(on)),
        key=key,
    )
