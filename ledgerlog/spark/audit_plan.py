"""Which ledgers an audit checks, which logs list them, and how they are shared out to tasks.

A task takes whole ledgers, about ``replicasPerPartition`` copies, since faults of a ledger are counted
against each other. What a plan says of a ledger is no more than its number: a task reads the metadata itself,
because what it reports must be true of them as they are then. So a plan has no secrets in it.

**What a ledger weighs** is the copies there are to check and what asking about a ledger costs however small
it is. Where bookies are to read what they have, its bytes weigh as well, as far as the list of its log says
how many they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

import attrs

from ledgerlog.client.client import LedgerClient
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.client.together import together
from ledgerlog.core.copies import replicas_of
from ledgerlog.errors import LedgerNotFound, LogNotFound
from ledgerlog.limits import KIB
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.spark.options import AuditOptions

__all__ = ["AuditPart", "ListedLedger", "pack_ledgers", "plan_audit"]

T = TypeVar("T")

_READS_AT_ONCE = 32
"""Requests to the metadata store that are under way together."""

_LEDGER_WEIGHT = 1000
"""What a ledger weighs beside its copies, in copies."""

_REPLICA_BYTES = KIB
"""So many bytes that a bookie has to read weigh as much as a copy that it has to name."""


@attrs.frozen
class ListedLedger:
    ledger_id: int
    logs: str | None
    """The logs that list it, separated by commas; None where none does."""


@attrs.frozen(kw_only=True)
class AuditPart:
    """What one task checks. Everything in it can be sent to another process."""

    uri: str
    ledgers: tuple[ListedLedger, ...]
    scrub: bool
    summary: bool
    settle_s: float


async def plan_audit(client: LedgerClient, options: AuditOptions) -> list[AuditPart]:
    """The parts of an audit. LogNotFound, LedgerNotFound for what the options name; MetadataUnavailable."""
    listed, byte_lengths = await _listed(client, options.logs)
    registry = LedgerRegistry(client.store, client.environment)
    if options.logs:
        wanted: Collection[int] = sorted(listed)
    else:
        wanted = options.ledgers or await registry.list()
    weights: dict[int, int] = {}

    async def weigh(ledger_id: int) -> None:
        try:
            found = await registry.find(ledger_id)
        except MetadataCorrupt:
            weights[ledger_id] = _LEDGER_WEIGHT  # The task says so, in a row.
            return
        if found is not None:
            read = byte_lengths.get(ledger_id, 0) * found[0].replication.write_quorum if options.scrub else 0
            weights[ledger_id] = _LEDGER_WEIGHT + max(replicas_of(found[0]), read // _REPLICA_BYTES)
        elif ledger_id in options.ledgers:
            raise LedgerNotFound(ledger_id)
        # Else it was deleted: what a log lists may be in an archive alone.

    await _for_each(wanted, weigh)
    return [
        AuditPart(
            uri=options.uri,
            ledgers=tuple(ListedLedger(e, ",".join(listed[e]) if e in listed else None) for e in part),
            scrub=options.scrub,
            summary=options.summary,
            settle_s=options.settle_s,
        )
        for part in pack_ledgers(
            [(ledger_id, weights[ledger_id]) for ledger_id in wanted if ledger_id in weights],
            weight_max=options.replicas_per_partition,
            min_parts=options.min_partitions,
        )
    ]


async def _listed(client: LedgerClient, names: Sequence[str]) -> tuple[dict[int, list[str]], dict[int, int]]:
    """The logs that list each ledger, and how many bytes of records it holds where they say; of these logs
    alone, where any are named."""
    logs = LogRegistry(client.store, client.environment)
    listed: dict[int, list[str]] = {}
    byte_lengths: dict[int, int] = {}

    async def look(name: str) -> None:
        incarnation = await logs.find(name)
        metadata = None if incarnation is None else (await logs.read(incarnation, fresh=False))[0]
        if metadata is not None:
            for segment in metadata.segments:
                listed.setdefault(segment.ledger_id, []).append(name)
                byte_lengths[segment.ledger_id] = segment.byte_length or 0
        elif names:
            raise LogNotFound(name)

    await client.store.sync()
    await _for_each(names or await logs.list(""), look)
    for each in listed.values():
        each.sort()
    return listed, byte_lengths


async def _for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    waiting = iter(items)

    async def some() -> None:
        for item in waiting:
            await work(item)

    await together(*[some] * _READS_AT_ONCE)


def pack_ledgers(
    weighed: Sequence[tuple[int, int]], *, weight_max: int, min_parts: int = 1
) -> list[tuple[int, ...]]:
    """Ledgers and their weights as parts, in their order: each of ``weight_max`` at most, or one ledger. At
    least ``min_parts`` where there are so many ledgers."""
    if not weighed:
        return []
    wanted = min(min_parts, len(weighed))
    total = sum(weight for _, weight in weighed)
    limit = min(weight_max, -(-total // wanted))
    parts: list[list[int]] = []
    load = limit
    for place, (ledger_id, weight) in enumerate(weighed):
        # The last ones are kept apart where there would be too few parts else.
        is_needed = len(weighed) - place <= wanted - len(parts)
        if load + weight > limit or is_needed:
            parts.append([])
            load = 0
        parts[-1].append(ledger_id)
        load += weight
    return [tuple(part) for part in parts]
