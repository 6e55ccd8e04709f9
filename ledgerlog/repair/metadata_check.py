"""Reading the metadata and the ledger lists of all bookies; ``repair.core.metadata_check`` compares them.

The metadata are read before the lists, and the counter of ledger ids after the lists. So a ledger that is
made meanwhile does not look like a ledger without copies, and its id does not seem to be above the counter.
But a ledger that is deleted meanwhile looks like a ledger without copies. So the metadata of such ledgers are
read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import attrs

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import IncompatibleVersion, MetadataCorrupt
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.ranges import list_ledgers
from ledgerlog.log.registry import LogRegistry, decode_name_untrusted
from ledgerlog.meta.backup import walk
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import (
    ARCHIVES,
    COOKIES,
    LEDGER_COUNTER,
    LEDGERS,
    LOG_NAMES,
    LOG_RECORDS,
    RESTORED,
    archived_ledger_of,
    incarnation_of,
    ledger_id_of,
    ledger_path,
    log_name_of,
    log_record_of,
)
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.restoration import Restoration
from ledgerlog.repair.core.metadata_check import BrokenLog, MetadataCheck, check_metadata
from ledgerlog.wire.ledgers import LedgerOnBookie

__all__ = ["look_at_metadata"]

_ASKED_AT_ONCE = 32

T = TypeVar("T")


async def look_at_metadata(client: LedgerClient) -> MetadataCheck:
    """Compare the metadata with the ledgers that the bookies hold. This changes nothing. The cluster may be
    in use.

    Args:
        client: The client of the cluster.

    Returns:
        The differences.

    Raises:
        MetadataUnavailable: The metadata store does not answer.
    """
    store = client.store
    await store.sync()
    ledgers: list[LedgerMetadata] = []
    logs: list[LogMetadata] = []
    names: dict[str, int] = {}
    archived: dict[int, frozenset[int]] = {}
    unreadable: list[str] = []

    def decode(path: str, decoded: Callable[[], T]) -> list[T]:
        try:
            return [decoded()]
        except (ValueError, MetadataCorrupt, IncompatibleVersion):
            unreadable.append(path)
            return []

    async with aclosing(walk(store, LEDGERS, LOG_RECORDS, LOG_NAMES, ARCHIVES)) as nodes:
        async for path, node in nodes:
            root, *rest = path.split("/")
            if root == LEDGERS:
                ledgers += decode(path, partial(_ledger, rest, node.value))
            elif root == LOG_RECORDS:
                logs += decode(path, partial(_log, rest, node.value))
            elif root == LOG_NAMES:
                names.update(decode(path, partial(_name, rest, node.value)))
            else:
                for incarnation, ids in decode(path, partial(_archived, rest, node.value)):
                    archived[incarnation] = archived.get(incarnation, frozenset()) | ids
    restored = await store.get(RESTORED)
    restoration: list[Restoration] = []
    if restored is not None:
        restoration = decode(RESTORED, partial(Restoration.decode_untrusted, restored.value))
    await client.bookies.refresh()
    registered = client.bookies.registered()
    held, in_limbo = await _lists(client, registered)
    check = check_metadata(
        ledgers=ledgers,
        logs=logs,
        names=names,
        archived=archived,
        highest=await store.highest_id(LEDGER_COUNTER),
        restoration=restoration[0] if restoration else None,
        cookies=await store.children(COOKIES),
        registered=[info.bookie_id for info in registered],
        held=held,
        in_limbo=in_limbo,
        unreadable=unreadable,
    )
    tokens = {ledger.ledger_id: ledger.token for ledger in ledgers}
    still = []
    for ledger in check.not_held:
        found = await store.get(ledger_path(ledger.ledger_id))
        if found is not None:
            now = LedgerMetadata.decode_untrusted(found.value, ledger.ledger_id)
            if now.token == tokens[ledger.ledger_id]:
                still.append(ledger)
    missing = {}
    for name, ledger_ids in check.missing.items():
        # Logs are read after ledgers, so a ledger may have been made and listed in between.
        gone = [number for number in ledger_ids if await store.get(ledger_path(number)) is None]
        if gone:
            missing[name] = tuple(gone)
    registry = LogRegistry(store, client.environment)
    broken_logs = tuple([log for log in check.broken_logs if await _is_broken(registry, log)])
    return attrs.evolve(check, not_held=tuple(still), missing=missing, broken_logs=broken_logs)


async def _is_broken(registry: LogRegistry, log: BrokenLog) -> bool:
    """Whether one of the two nodes of a log is still missing: the log may just have been made or deleted."""
    try:
        is_named = await registry.find(log.name) == log.incarnation
        has_record = (await registry.read(log.incarnation))[0] is not None
        return is_named != has_record and is_named == (await registry.find(log.name) == log.incarnation)
    except MetadataCorrupt:
        return False  # It was damaged just now. The next check reports it.


def _ledger(rest: Sequence[str], value: bytes) -> LedgerMetadata:
    high, middle, low = rest
    return LedgerMetadata.decode_untrusted(value, ledger_id_of(high, middle, low))


def _log(rest: Sequence[str], value: bytes) -> LogMetadata:
    (component,) = rest
    return LogMetadata.decode_untrusted(value, log_record_of(component))


def _name(rest: Sequence[str], value: bytes) -> tuple[str, int]:
    (component,) = rest
    name = log_name_of(component)
    return name, decode_name_untrusted(value, name)


def _archived(rest: Sequence[str], value: bytes) -> tuple[int, frozenset[int]]:
    """Return the incarnation and the ledgers of one archived file."""
    component, ledger = rest
    incarnation = incarnation_of(component)
    file = ArchivedFile.decode_untrusted(value, incarnation, archived_ledger_of(incarnation, ledger))
    return incarnation, frozenset(part.ledger_id for part in file.ledgers)


async def _lists(
    client: LedgerClient, registered: Sequence[BookieInfo]
) -> tuple[dict[BookieId, list[LedgerOnBookie]], list[BookieId]]:
    held: dict[BookieId, list[LedgerOnBookie]] = {}
    in_limbo: list[BookieId] = []

    async def ask(info: BookieInfo) -> None:
        if not info.listing_key:
            return  # This bookie runs an older version, which ends the connection if it gets this request.
        answer = await list_ledgers(client.pool.connection(info.bookie_id), info.listing_key)
        if answer is not None:
            held[info.bookie_id], negative = answer
            if negative is Negative.UNKNOWN:
                in_limbo.append(info.bookie_id)

    await gather_each(registered, ask, at_once=_ASKED_AT_ONCE)
    return held, in_limbo
