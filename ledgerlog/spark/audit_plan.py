"""Which ledgers, logs and archived files an audit checks, and how they are shared out to tasks.

Each of them is looked at by one task, which gives it a verdict; one whose record cannot be read gets that,
and keeps no other from being looked at. A ledger that a log lists and that has no metadata is looked at as
well: it is in an archive, or lost.

A task takes whole ledgers, about ``replicasPerPartition`` copies, since faults of a ledger are counted
against each other. What a plan says of a ledger is no more than its number: a task reads the metadata itself,
because what it reports must be true of them as they are then. So a plan has no secrets in it.

**What a ledger weighs** is the copies there are to check and what asking about a ledger costs however small
it is. Where bookies are to read what they have, its bytes weigh as well, as far as the list of its log says
how many they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import attrs

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import LedgerNotFound, LogNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.copies import replicas_of
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import KIB
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.spark.options import AuditOptions

__all__ = ["AuditPart", "ListedFile", "ListedLedger", "ListedLog", "pack_ledgers", "plan_audit"]

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
    incarnations: tuple[int, ...] = ()
    """Of these logs."""


@attrs.frozen
class ListedLog:
    name: str


@attrs.frozen
class ListedFile:
    """An archived file, by the record that names it."""

    incarnation: int
    ledger_id: int
    log: str | None
    """None where it is not known."""


@attrs.frozen(kw_only=True)
class AuditPart:
    """What one task checks. Everything in it can be sent to another process."""

    uri: str
    cluster: str | None
    """The id of the cluster that it was planned in."""
    ledgers: tuple[ListedLedger, ...] = ()
    logs: tuple[ListedLog, ...] = ()
    files: tuple[ListedFile, ...] = ()
    scrub: bool
    summary: bool
    settle_s: float


async def plan_audit(client: LedgerClient, options: AuditOptions) -> list[AuditPart]:
    """The parts of an audit. LogNotFound, LedgerNotFound for what the options name; MetadataUnavailable."""
    names = options.logs or await LogRegistry(client.store, client.environment).list("")
    logs = await _listed(client, names, must_exist=bool(options.logs))
    listed, byte_lengths = logs.listed, logs.byte_lengths
    files = await _files(client, options, logs.incarnations)
    archived = {ledger_id for _, _, holds in files for ledger_id in holds}
    registry = LedgerRegistry(client.store, client.environment)
    if options.logs:
        wanted: Collection[int] = sorted(listed)
    else:
        wanted = options.ledgers or sorted({*await registry.list(), *listed})
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
        elif ledger_id in listed:
            weights[ledger_id] = _LEDGER_WEIGHT  # In an archive alone, or lost: the task says which.
        elif ledger_id in options.ledgers and ledger_id not in archived:
            raise LedgerNotFound(ledger_id)

    def ledger(ledger_id: int) -> ListedLedger:
        names = listed.get(ledger_id)
        if names is None:
            return ListedLedger(ledger_id, None)
        return ListedLedger(ledger_id, ",".join(names), tuple(logs.incarnations[name] for name in names))

    await gather_each(wanted, weigh, at_once=_READS_AT_ONCE)
    empty = AuditPart(
        uri=options.uri,
        cluster=client.store.cluster,
        scrub=options.scrub,
        summary=options.summary,
        settle_s=options.settle_s,
    )
    parts = [
        attrs.evolve(empty, ledgers=tuple(map(ledger, part)))
        for part in pack_ledgers(
            [(ledger_id, weights[ledger_id]) for ledger_id in wanted if ledger_id in weights],
            weight_max=options.replicas_per_partition,
            min_parts=options.min_partitions,
        )
    ]
    parts += [
        attrs.evolve(empty, files=tuple(files[at][0] for at in part))
        for part in pack_ledgers(
            [(at, weight) for at, (_, weight, _) in enumerate(files)],
            weight_max=options.replicas_per_partition,
        )
    ]
    if options.ledgers or not names:
        return parts
    parts = parts or [empty]
    return [
        attrs.evolve(part, logs=tuple(map(ListedLog, names[at :: len(parts)])))
        for at, part in enumerate(parts)
    ]


@attrs.frozen
class _Logs:
    """What some logs list, as far as it can be read."""

    listed: dict[int, list[str]] = attrs.Factory(dict)
    """The logs of each ledger, by name."""
    byte_lengths: dict[int, int] = attrs.Factory(dict)
    """How many bytes of records each ledger holds, where a list says so."""
    incarnations: dict[str, int] = attrs.Factory(dict)


async def _listed(client: LedgerClient, names: Sequence[str], *, must_exist: bool) -> _Logs:
    """What these logs list. LogNotFound where one ``must_exist`` and does not."""
    registry = LogRegistry(client.store, client.environment)
    logs = _Logs()

    async def look(name: str) -> None:
        metadata = None
        try:
            incarnation = await registry.find(name)
            if incarnation is not None:
                logs.incarnations[name] = incarnation
                metadata, _ = await registry.read(incarnation, fresh=False)
        except MetadataCorrupt:
            return  # The task that looks at it says so, in a row.
        if metadata is not None:
            for segment in metadata.segments:
                logs.listed.setdefault(segment.ledger_id, []).append(name)
                logs.byte_lengths[segment.ledger_id] = segment.byte_length or 0
        elif must_exist:
            raise LogNotFound(name)

    await client.store.sync()
    await gather_each(names, look, at_once=_READS_AT_ONCE)
    for each in logs.listed.values():
        each.sort()
    return logs


async def _files(
    client: LedgerClient, options: AuditOptions, incarnations: Mapping[str, int]
) -> list[tuple[ListedFile, int, tuple[int, ...]]]:
    """Archived files, what each weighs and the ledgers that it holds: of the logs or ledgers that the options
    name, else all."""
    registry = ArchiveRegistry(client.store)
    names = {incarnation: name for name, incarnation in incarnations.items()}
    found: list[tuple[ListedFile, int, tuple[int, ...]]] = []

    async def look(incarnation: int) -> None:
        for ledger_id in await registry.ledgers(incarnation):
            weight, holds = _LEDGER_WEIGHT, tuple[int, ...]((ledger_id,))
            try:
                read = await registry.find(incarnation, ledger_id)
            except MetadataCorrupt:
                pass  # The task says so, in a row.
            else:
                if read is None:
                    continue
                holds = tuple(ledger.ledger_id for ledger in read[0].ledgers)
                if options.scrub:
                    weight += read[0].file_bytes // _REPLICA_BYTES
            if not options.ledgers or not set(holds).isdisjoint(options.ledgers):
                found.append((ListedFile(incarnation, ledger_id, names.get(incarnation)), weight, holds))

    await gather_each(
        sorted(names) if options.logs else await registry.incarnations(), look, at_once=_READS_AT_ONCE
    )
    return sorted(found, key=lambda each: (each[0].incarnation, each[0].ledger_id))


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
