"""Which ledgers, logs and archived files an audit checks, and how tasks share them.

Each ledger, log and file is checked by one task, which reports the faults. An unreadable record is reported
too, and does not stop the other checks. If a log lists a ledger that has no metadata, the audit looks at this
ledger too: the ledger is archived, or lost.

A task takes whole ledgers, because a ledger's copies are compared with each other. Together they have about
``replicasPerPartition`` copies. A plan holds only the ids of ledgers. The task itself reads the metadata, so
that the task's report fits the metadata at that time. Plans therefore contain no secrets.

**The weight of a ledger** is the number of copies to check, plus a fixed cost for each ledger. With
``scrub``, bookies have to read their entries. Then the ledger's bytes count too, if the log's list says how
many bytes the ledger has.
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
"""How many requests the planner sends to the metadata store at once."""

_LEDGER_WEIGHT = 1000
"""The fixed weight of a ledger, besides its copies. A copy has weight 1."""

_REPLICA_BYTES = KIB
"""Reading this many bytes costs a bookie as much as naming one copy."""


@attrs.frozen
class ListedLedger:
    """A ledger to check."""

    ledger_id: int
    """The ledger."""
    logs: str | None
    """The logs that list the ledger, separated by commas; None if no log lists it."""
    incarnations: tuple[int, ...] = ()
    """The incarnations of these logs."""


@attrs.frozen
class ListedLog:
    """A log to check."""

    name: str
    """The name of the log."""


@attrs.frozen
class ListedFile:
    """An archived file to check, by the record that names it."""

    incarnation: int
    """The incarnation of the file's log."""
    ledger_id: int
    """The ledger under which the record is stored."""
    log: str | None
    """The name of the log; None if it is not known."""


@attrs.frozen(kw_only=True)
class AuditPart:
    """What one task checks. All of it can be sent to another process."""

    uri: str
    """The URI of the cluster."""
    cluster: str | None
    """The id of the cluster of the plan."""
    ledgers: tuple[ListedLedger, ...] = ()
    """The ledgers."""
    logs: tuple[ListedLog, ...] = ()
    """The logs."""
    files: tuple[ListedFile, ...] = ()
    """The archived files."""
    scrub: bool
    """Whether bookies read their entries, and whole files are read."""
    summary: bool
    """Whether to add rows about sound copies, logs and files."""
    settle_s: float
    """Check each finding again after this many seconds."""


async def plan_audit(client: LedgerClient, options: AuditOptions) -> list[AuditPart]:
    """Plan an audit.

    Args:
        client: The cluster.
        options: Which copies to check, and how.

    Raises:
        LogNotFound: A log that the options name does not exist.
        LedgerNotFound: A ledger that the options name does not exist and is in no archive.
        MetadataUnavailable: The metadata store did not answer.
    """
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
            weights[ledger_id] = _LEDGER_WEIGHT  # The task reports the damage in a row.
            return
        if found is not None:
            read = byte_lengths.get(ledger_id, 0) * found[0].replication.write_quorum if options.scrub else 0
            weights[ledger_id] = _LEDGER_WEIGHT + max(replicas_of(found[0]), read // _REPLICA_BYTES)
        elif ledger_id in listed:
            weights[ledger_id] = _LEDGER_WEIGHT  # Archived, or lost; the task finds out which.
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
    """The ledgers that some logs list, if the logs' records can be read."""

    listed: dict[int, list[str]] = attrs.Factory(dict)
    """The names of the logs that list a ledger, by ledger."""
    byte_lengths: dict[int, int] = attrs.Factory(dict)
    """How many bytes of records a ledger holds, by ledger; 0 if the list does not say."""
    incarnations: dict[str, int] = attrs.Factory(dict)
    """The incarnations of the logs, by name."""


async def _listed(client: LedgerClient, names: Sequence[str], *, must_exist: bool) -> _Logs:
    """Read the lists of some logs.

    Raises:
        LogNotFound: A log does not exist, and ``must_exist`` is set.
    """
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
            return  # The task that looks at the log reports it in a row.
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
    """Return archived files, the weight of each, and the ledgers that it holds.

    If the options name logs or ledgers, return only the files of these logs or ledgers.
    """
    registry = ArchiveRegistry(client.store)
    names = {incarnation: name for name, incarnation in incarnations.items()}
    found: list[tuple[ListedFile, int, tuple[int, ...]]] = []

    async def look(incarnation: int) -> None:
        for ledger_id in await registry.ledgers(incarnation):
            weight, holds = _LEDGER_WEIGHT, tuple[int, ...]((ledger_id,))
            try:
                read = await registry.find(incarnation, ledger_id)
            except MetadataCorrupt:
                pass  # The task reports it in a row.
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
    """Divide ledgers among parts, in their order.

    Args:
        weighed: Each ledger with its weight.
        weight_max: The largest weight of a part. A single ledger may exceed it.
        min_parts: The smallest number of parts, if there are enough ledgers.
    """
    if not weighed:
        return []
    wanted = min(min_parts, len(weighed))
    total = sum(weight for _, weight in weighed)
    limit = min(weight_max, -(-total // wanted))
    parts: list[list[int]] = []
    load = limit
    for place, (ledger_id, weight) in enumerate(weighed):
        # If only as many ledgers are left as parts are missing, make one part for each of these ledgers.
        is_needed = len(weighed) - place <= wanted - len(parts)
        if load + weight > limit or is_needed:
            parts.append([])
            load = 0
        parts[-1].append(ledger_id)
        load += weight
    return [tuple(part) for part in parts]
