"""Ledger metadata in the metadata store: typed reads and writes.

Every write is a compare-and-set. A protocol core (``ledger.core``) says by an intent which write it wants.
Its shell carries the intent out with ``attempt``, which tries the write and returns the metadata stored
afterwards. So a conflict, an applied write and a lost answer look the same to the core: the core decides by
the stored metadata (rules 13 and 14)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from ledgerlog.errors import LedgerExists, LedgerNotFound
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.repair_tasks import drop_task, file_for_repair, filing
from ledgerlog.meta.settle import new_number, settle
from ledgerlog.meta.store import (
    Check,
    MetadataStore,
    NodeExists,
    NodeMissing,
    Operation,
    Set,
    VersionConflict,
)
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import (
    COOKIES,
    LEDGER_COUNTER,
    LEDGERS,
    READ_ONLY_BOOKIES,
    WRITABLE_BOOKIES,
    ledger_id_of,
    ledger_path,
)
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log_key import key_for
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import FoundBookies


class LedgerRegistry:
    """The metadata of all ledgers.

    Every method may raise MetadataUnavailable. Methods that write may raise MetadataOutcomeUnknown
    (``meta.settle``)."""

    def __init__(self, store: MetadataStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment

    async def file_for_repair(self, ledger_id: int, incomplete: Collection[BookieId]) -> None:
        """Make a task for a ledger that may lack copies. See ``ledger.repair_tasks.file_for_repair``."""
        await file_for_repair(self._store, self._environment, ledger_id, incomplete)

    async def create(
        self,
        replication: Replication,
        ensemble: Sequence[BookieId],
        custom: Mapping[str, bytes],
    ) -> tuple[LedgerMetadata, int]:
        """Create the metadata of a new ledger, under an id that was never used.

        The id is drawn from a counter in the store. If the store's answer is lost, that id stays unused.

        Args:
            replication: The quorums of the ledger.
            ensemble: The bookies of its first fragment.
            custom: Bytes by text key, kept for the ledger's readers.

        Returns:
            The stored metadata and their version.

        Raises:
            LedgerExists: Another client's ledger already has the new id.
            MetadataUnavailable: The store cannot be reached.
            MetadataOutcomeUnknown: An empty ledger may exist.
        """
        environment = self._environment
        metadata = LedgerMetadata.create(
            ledger_id=await new_number(self._store, LEDGER_COUNTER),
            replication=replication,
            ensemble=ensemble,
            key=key_for(environment.new_key(), custom),
            token=environment.new_token(),
            created_ms=environment.now_ms(),
            custom=dict(custom),
        )
        metadata = attrs.evolve(metadata, unknown=environment.version.new_keys)
        path, value = ledger_path(metadata.ledger_id), metadata.encode()

        async def write(_: bool) -> tuple[LedgerMetadata, int]:
            try:
                return metadata, await self._store.create(path, value)
            except NodeExists:
                # The node may be ours, from an earlier attempt whose answer was lost (rule 14).
                stored = await self._read_fresh(metadata.ledger_id)
                if stored is None or stored[0].token != metadata.token:
                    raise LedgerExists(metadata.ledger_id) from None
                return stored

        return await settle(self._store, write, what=f"the creation of ledger {metadata.ledger_id}")

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Read a ledger's metadata and their version.

        Raises:
            LedgerNotFound: The store has no such ledger.
            MetadataCorrupt: The stored bytes are not the metadata of this ledger.
            MetadataUnavailable: The store cannot be reached.
        """
        found = await self.find(ledger_id)
        if found is None:
            raise LedgerNotFound(ledger_id)
        return found

    async def find(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """Like ``read``, but return None if there is no such ledger."""
        node = await self._store.get(ledger_path(ledger_id))
        if node is None:
            return None
        return LedgerMetadata.decode_untrusted(node.value, ledger_id), node.version

    async def _read_fresh(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        await self._store.sync()
        return await self.find(ledger_id)

    async def attempt(
        self, intent: MetadataIntent, checks: Sequence[Check] = (), *, files: FoundBookies | None = None
    ) -> tuple[LedgerMetadata | None, int]:
        """Try a compare-and-set of a ledger's metadata, and return the metadata stored afterwards.

        Args:
            intent: The wanted metadata, and the version that they replace.
            checks: Conditions on other nodes. The write happens only if all conditions hold.
            files: The same transaction files the ledger for repair with these findings
                (``ledger.repair_tasks.filing``). If the ledger's repair task changes meanwhile, the write
                does not happen. None: it does not file the ledger.

        Returns:
            The stored metadata and their version; ``(None, 0)`` if the ledger is gone.

        Raises:
            MetadataUnavailable: The write did not happen; you may attempt the intent again.
            MetadataOutcomeUnknown: The write may have happened; you may attempt the intent again.
        """
        wanted = intent.metadata
        write_it = Set(ledger_path(wanted.ledger_id), wanted.encode(), intent.version)

        async def write(is_unsure: bool) -> tuple[LedgerMetadata | None, int]:
            if is_unsure:
                stored = await self.find(wanted.ledger_id)
                if stored is None or stored[1] != intent.version:
                    return stored or (None, 0)
            operations: list[Operation] = [write_it, *checks]
            if files is not None:
                file_it = await filing(self._store, self._environment, wanted.ledger_id, **files)
                operations += [] if file_it is None else [file_it]
            try:
                version, *_ = await self._store.transaction(operations)
            except (VersionConflict, NodeMissing, NodeExists):
                return await self._read_fresh(wanted.ledger_id) or (None, 0)
            return wanted, version

        return await settle(self._store, write, what=f"a change of the metadata of ledger {wanted.ledger_id}")

    async def delete(self, ledger_id: int, *, version: int | None = None) -> None:
        """Delete a ledger's metadata, and its task for repair. The bookies free the ledger's space later.

        Args:
            ledger_id: The ledger.
            version: Delete only if the metadata are at this version.

        Raises:
            LedgerNotFound: The store has no such ledger.
            VersionConflict: The metadata are at another version than ``version``.
            MetadataUnavailable: The store cannot be reached.
            MetadataOutcomeUnknown: The ledger may be deleted.
        """

        async def write(is_unsure: bool) -> None:
            try:
                await self._store.delete(ledger_path(ledger_id), version=version)
            except NodeMissing:
                if not is_unsure:  # If unsure, our own attempt with the lost answer may have deleted it.
                    raise LedgerNotFound(ledger_id) from None

        await settle(self._store, write, what=f"the deletion of ledger {ledger_id}", conflicts=())
        await drop_task(self._store, ledger_id)

    async def bookies(self) -> Sequence[BookieId]:
        """Return every bookie that has a cookie or is registered, sorted: any of them may hold entries."""
        await self._store.sync()
        known: set[BookieId] = set()
        for place in (COOKIES, WRITABLE_BOOKIES, READ_ONLY_BOOKIES):
            known.update(await self._store.children(place))
        return sorted(known)

    async def list(self) -> list[int]:
        """List the ids of all ledgers, in ascending order.

        The list is always complete: otherwise this raises.

        Raises:
            MetadataCorrupt: A node below ``ledgers`` is not a ledger's. The error names its path.
            MetadataUnavailable: The store cannot be reached.
        """
        found, strays = await self.survey()
        if strays:
            raise MetadataCorrupt(strays[0])
        return [*found]

    async def survey(self) -> tuple[Sequence[int], Sequence[str]]:
        """List all ledgers, in ascending order, and the fault of each node that is not a ledger's.

        The list is always complete: otherwise this raises.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        # Without the sync, a lagging replica of the store could leave out the newest ledgers (D27.4).
        await self._store.sync()
        found, strays = list[int](), list[str]()
        for high in await self._store.children(LEDGERS):
            for middle in await self._store.children(f"{LEDGERS}/{high}"):
                for low in await self._store.children(f"{LEDGERS}/{high}/{middle}"):
                    try:
                        found.append(ledger_id_of(high, middle, low))
                    except ValueError as cause:
                        strays.append(f"{LEDGERS}/{high}/{middle}/{low}: {cause}")
        return sorted(found), strays

    async def newest(self, count: int, *, below: int | None = None) -> tuple[int, ...]:
        """List the highest ids of ledgers, highest first.

        This reads only the nodes that it needs, often three lists of names, however many ledgers there are.
        If a replica of the store lags, the newest ledgers may be missing.

        Args:
            count: How many ids to list at most.
            below: List only ids below this one.

        Raises:
            MetadataCorrupt: A node below ``ledgers`` is not a ledger's. The error names its path.
            MetadataUnavailable: The store cannot be reached.
        """
        found: list[int] = []
        bound = "" if below is None else ledger_path(below).removeprefix(f"{LEDGERS}/")
        for high in reversed(await self._store.children(LEDGERS)):
            if bound and high > bound[:8]:
                continue
            for middle in reversed(await self._store.children(f"{LEDGERS}/{high}")):
                if bound and f"{high}/{middle}" > bound[:13]:
                    continue
                for low in reversed(await self._store.children(f"{LEDGERS}/{high}/{middle}")):
                    try:
                        ledger_id = ledger_id_of(high, middle, low)
                    except ValueError as cause:
                        raise MetadataCorrupt(f"{LEDGERS}/{high}/{middle}/{low}: {cause}") from cause
                    if below is None or ledger_id < below:
                        found.append(ledger_id)
                        if len(found) >= count:
                            return tuple(found)
        return tuple(found)
