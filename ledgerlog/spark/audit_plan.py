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

**A plan reads little.** It lists the ids of all ledgers, but it reads the metadata of ``_WEIGHED`` of them at
most. If there are more, each of these represents its neighbours: ledgers with close ids were often written at
the same time. Reading is the work of the tasks, which are many processes. A wrong weight only makes a task
longer or shorter than others. Archived files are weighed in the same way.

**Damage** does not end a plan. If a node is among the records but its name is not the name of a record, the
plan has a ``Stray``, and a task reports it. The name of each log leads to the log's record. If no name leads
to a record, a task looks for the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import attrs

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import InvalidArgument, LedgerNotFound, LogNotFound, PermissionDenied
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.copies import replicas_of
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import KIB
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.layout import ARCHIVES, LEDGERS, LOG_RECORDS
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.spark.options import AuditOptions

__all__ = [
    "AuditPart",
    "ListedFile",
    "ListedLedger",
    "ListedLog",
    "Stray",
    "pack_ledgers",
    "plan_audit",
]

T = TypeVar("T")
V = TypeVar("V")

_READS_AT_ONCE = 32
"""How many requests the planner sends to the metadata store at once."""

_WEIGHED = 4096
"""At most this many ledgers, and this many files, are read to weigh all of them."""

_GOLDEN_RATIO = (1 + 5**0.5) / 2

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


@attrs.frozen
class Stray:
    """A node among the records of the metadata tree that is not a record, or cannot be read."""

    root: str
    """The root of these records: a constant of ``model.layout``."""
    why: str
    """The path, and what is wrong with its name, or why this client may not read it."""
    is_denied: bool = False
    """Whether this client may not read the node: the parent of the records of a log's files."""


@attrs.frozen(kw_only=True)
class AuditPart:
    """The work of one task. All of it can be sent to another process."""

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
    log_records: tuple[int, ...] = ()
    """Incarnations of logs that have a record, but no name that can be read."""
    strays: tuple[Stray, ...] = ()
    """Nodes to report."""
    scrub: bool
    """Whether bookies read their entries, and whole files are read."""
    summary: bool
    """Whether to add rows about sound copies, logs and files."""
    settle_s: float
    """Check each finding again after this many seconds."""
    bookie_share: float
    """A task uses at most this part of the time of each bookie; see ``concurrency.pace.TimeShare``."""


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
    logs_registry = LogRegistry(client.store, client.environment)
    names = options.logs or await logs_registry.list("")
    logs = await _listed(client, names, must_exist=bool(options.logs))
    everything = not options.logs and not options.ledgers
    files, strays = await _files(client, options, logs.incarnations)
    log_records: list[int] = []
    if everything:
        records, others = await logs_registry.records()
        log_records = sorted(set(records).difference(logs.incarnations.values()))
        strays += [Stray(LOG_RECORDS, why) for why in others]
    archived = {ledger_id for _, _, holds in files for ledger_id in holds}
    registry = LedgerRegistry(client.store, client.environment)
    wanted: Collection[int] = options.ledgers or sorted(logs.listed)
    if everything:
        ledger_ids, others = await registry.survey()
        wanted = sorted({*ledger_ids, *logs.listed})
        strays += [Stray(LEDGERS, why) for why in others]

    async def look(ledger_id: int) -> tuple[int, int]:
        """Return the number of copies of the ledger, and of each entry."""
        try:
            found = await registry.find(ledger_id)
        except (MetadataCorrupt, PermissionDenied):
            return 0, 1  # The task reports it in a row.
        if found is not None:
            return replicas_of(found[0]), found[0].replication.write_quorum
        if ledger_id in options.ledgers and ledger_id not in logs.listed and ledger_id not in archived:
            raise LedgerNotFound(ledger_id)
        return 0, 1  # Archived, lost or deleted; the task finds out which.

    def weight(ledger_id: int, copies: int, write_quorum: int) -> int:
        read = logs.byte_lengths.get(ledger_id, 0) * write_quorum if options.scrub else 0
        return _LEDGER_WEIGHT + max(copies, read // _REPLICA_BYTES)

    def ledger(ledger_id: int) -> ListedLedger:
        names = logs.listed.get(ledger_id)
        if names is None:
            return ListedLedger(ledger_id, None)
        return ListedLedger(ledger_id, ",".join(names), tuple(logs.incarnations[name] for name in names))

    looks = await _look_at_some(wanted, look, at_most=len(wanted) if options.ledgers else _WEIGHED)
    empty = AuditPart(
        uri=options.uri,
        cluster=client.store.cluster,
        scrub=options.scrub,
        summary=options.summary,
        settle_s=options.settle_s,
        bookie_share=options.bookie_share,
    )
    parts = [
        attrs.evolve(empty, ledgers=tuple(map(ledger, part)))
        for part in pack_ledgers(
            [(ledger_id, weight(ledger_id, *seen)) for ledger_id, seen in zip(wanted, looks, strict=True)],
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
    if not options.ledgers and names:
        parts = parts or [empty]
        parts = [
            attrs.evolve(part, logs=tuple(map(ListedLog, names[at :: len(parts)])))
            for at, part in enumerate(parts)
        ]
    if strays or log_records:
        first, *others_parts = parts or [empty]
        parts = [
            attrs.evolve(first, strays=tuple(strays), log_records=tuple(log_records)),
            *others_parts,
        ]
    return parts


async def _look_at_some(
    items: Collection[T], look: Callable[[T], Awaitable[V]], *, at_most: int = _WEIGHED
) -> list[V]:
    """Look at ``at_most`` items, spread over all of them. Return, for each item, the result for the item
    itself or for one of its neighbours."""
    if not items:
        return []
    width = -(-len(items) // at_most)
    in_order = list(items)
    groups = [in_order[start : start + width] for start in range(0, len(in_order), width)]
    # The item that is looked at has no fixed place in its group. Otherwise, if several logs get ledgers in
    # turn, all items that are looked at could be ledgers of the same log. Multiples of the golden ratio
    # repeat no pattern.
    chosen = [int(number * _GOLDEN_RATIO % 1 * len(group)) for number, group in enumerate(groups)]
    seen: dict[int, V] = {}

    async def look_at(number: int) -> None:
        seen[number] = await look(groups[number][chosen[number]])

    await gather_each(range(len(groups)), look_at, at_once=_READS_AT_ONCE)
    return [seen[number] for number, group in enumerate(groups) for _ in group]


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
        except (MetadataCorrupt, InvalidArgument, PermissionDenied):
            return  # The task that looks at the log reports it in a row.
        if metadata is not None:
            for segment in metadata.segments:
                logs.listed.setdefault(segment.ledger_id, []).append(name)
                logs.byte_lengths[segment.ledger_id] = segment.byte_length or 0
        elif must_exist:
            why = LogNotFound(name) if incarnation is None else await registry.why_missing(name, incarnation)
            if isinstance(why, LogNotFound):
                raise why

    await client.store.sync()
    await gather_each(names, look, at_once=_READS_AT_ONCE)
    for each in logs.listed.values():
        each.sort()
    return logs


async def _files(
    client: LedgerClient, options: AuditOptions, incarnations: Mapping[str, int]
) -> tuple[list[tuple[ListedFile, int, tuple[int, ...]]], list[Stray]]:
    """Return archived files, the weight of each, and, if the options name ledgers, the ledgers that it holds;
    and strays among the records of files.

    If the options name logs or ledgers, return only the files of these logs or ledgers.
    """
    registry = ArchiveRegistry(client.store)
    names = {incarnation: name for name, incarnation in incarnations.items()}
    denied: list[str] = []
    wanted = sorted(names) if options.logs else None
    records, others = await registry.survey(wanted, on_denied=denied.append)
    strays = [Stray(ARCHIVES, why) for why in others]
    strays += [Stray(ARCHIVES, why, is_denied=True) for why in denied]

    async def look(at: tuple[int, int]) -> tuple[int, tuple[int, ...]]:
        """Return the weight of a file, and the ledgers that it holds; none if it is gone."""
        if not options.scrub and not options.ledgers:
            return _LEDGER_WEIGHT, ()
        try:
            read = await registry.find(*at)
        except (MetadataCorrupt, PermissionDenied):
            return _LEDGER_WEIGHT, at[1:]  # The task reports it in a row.
        if read is None:
            return _LEDGER_WEIGHT, ()
        weight = _LEDGER_WEIGHT + (read[0].file_bytes // _REPLICA_BYTES if options.scrub else 0)
        return weight, tuple(ledger.ledger_id for ledger in read[0].ledgers)

    looks = await _look_at_some(records, look, at_most=len(records) if options.ledgers else _WEIGHED)
    files = [
        (ListedFile(*at, names.get(at[0])), weight, holds)
        for at, (weight, holds) in zip(records, looks, strict=True)
        if not options.ledgers or not set(holds).isdisjoint(options.ledgers)
    ]
    return files, [] if options.ledgers else strays


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
        # If the number of ledgers left equals the number of parts still needed, make one part for each of
        # these ledgers.
        is_needed = len(weighed) - place <= wanted - len(parts)
        if load + weight > limit or is_needed:
            parts.append([])
            load = 0
        parts[-1].append(ledger_id)
        load += weight
    return [tuple(part) for part in parts]
