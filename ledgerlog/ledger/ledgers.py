"""``cluster.ledgers``: create, open, recover, list and delete ledgers."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from ledgerlog.counts import ClientCounts
from ledgerlog.errors import LedgerLogError
from ledgerlog.ledger.accepted_loss import AcceptedLoss, recover_accepting_loss
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.core import writer as core_writer
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.ledger.recovery import recover_ledger
from ledgerlog.ledger.verify import LedgerVerification, verify_ledger
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import APPEND_DEADLINE_S
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.ids import check_ledger_id
from ledgerlog.model.ledger import LedgerMetadata, check_custom
from ledgerlog.model.quorum import Replication
from ledgerlog.net.pool import ConnectionPool


@attrs.define(eq=False)
class Ledgers:
    """The ledgers of a cluster. Every method may raise MetadataUnavailable."""

    _store: MetadataStore
    _registry: LedgerRegistry
    _directory: BookieDirectory
    _pool: ConnectionPool
    _environment: Environment
    _nursery: trio.Nursery
    _default_replication: Replication
    _append_deadline_s: float = APPEND_DEADLINE_S
    _counts: ClientCounts = attrs.Factory(ClientCounts)

    async def create(
        self,
        replication: Replication | None = None,
        metadata: Mapping[str, bytes] | None = None,
        *,
        full_pinning: bool = False,
    ) -> LedgerWriter:
        """Create a new, empty ledger and return its only writer.

        Args:
            replication: The ledger's quorums; None for the client's default.
            metadata: Bytes by text key. They are stored with the ledger, and its readers can see them.
            full_pinning: If the ledger has a guaranteed write quorum, use the published, stricter pinning
                rule (see ``ledger.core.pending``).

        Returns:
            The writer.

        Raises:
            NotEnoughBookies: Even after a short wait, fewer bookies are writable than the ensemble needs.
            NotEnoughRacks: A kind of NotEnoughBookies: the placement policy is strict, and the writable
                bookies lie in too few racks.
            InvalidArgument: An argument is out of range.
            MetadataUnavailable: The metadata store cannot be reached.
            MetadataOutcomeUnknown: An empty ledger may exist.

        Cancelling: an empty ledger without a writer may remain.
        """
        replication = replication or self._default_replication
        custom = check_custom(metadata or {})
        ensemble = await self._directory.wait_and_choose(
            replication.ensemble, write_quorum=replication.write_quorum
        )
        stored, version = await self._registry.create(replication, ensemble, custom)
        core = core_writer.WriterCore(
            stored, version, new_token=self._environment.new_token, full_pinning=full_pinning
        )
        writer = LedgerWriter(
            core,
            registry=self._registry,
            directory=self._directory,
            pool=self._pool,
            append_deadline_s=self._append_deadline_s,
            counts=self._counts,
        )
        self._counts.ledgers_created += 1
        self._nursery.start_soon(writer._run, name=f"ledger writer {stored.ledger_id}")
        self._environment.mark("ledger: created")
        return writer

    async def open(self, ledger_id: int, recover: bool = False) -> LedgerReader:
        """Open a ledger for reading.

        Args:
            ledger_id: The ledger.
            recover: Recover the ledger first: fence its writer and fix its end. If False, the writer
                continues, and you can read entries up to the LAC (the last add confirmed).

        Returns:
            The reader.

        Raises:
            LedgerNotFound: There is no such ledger.
            MetadataUnavailable: The metadata store cannot be reached.
            RecoveryFailed, MetadataOutcomeUnknown: Only with ``recover``. See the method ``recover``, which
                may raise more.
        """
        check_ledger_id(ledger_id)
        stored = await self.recover(ledger_id) if recover else await self.metadata(ledger_id)
        return LedgerReader(
            stored,
            registry=self._registry,
            pool=self._pool,
            store=self._store,
            prefer=self._environment.random.randrange(stored.replication.ensemble),
        )

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence a ledger, find its end and close it.

        A closed ledger stays as it is. Any number of clients may recover a ledger at the same time; all of
        them get the same end.

        Args:
            ledger_id: The ledger.

        Returns:
            The ledger's CLOSED metadata.

        Raises:
            LedgerNotFound: There is no such ledger.
            RecoveryFailed: Fencing or a read stayed incomplete. You may try again.
            NotEnoughBookies: No bookie stored an entry again within the append deadline. You may try again.
            MetadataUnavailable: The metadata store cannot be reached.
            MetadataOutcomeUnknown: The ledger may or may not be closed. You may try again.

        Cancelling: the ledger stays IN_RECOVERY until another client recovers it.
        """
        began = trio.current_time()
        try:
            recovered = await recover_ledger(
                check_ledger_id(ledger_id),
                registry=self._registry,
                directory=self._directory,
                pool=self._pool,
                environment=self._environment,
                deadline_s=self._append_deadline_s,
            )
        except LedgerLogError:
            self._counts.recoveries_failed += 1
            raise
        self._counts.recovery_s.observe(trio.current_time() - began)
        return recovered

    async def recover_accepting_loss(
        self, ledger_id: int, *, accept_unreachable: bool = False
    ) -> AcceptedLoss:
        """Recover a ledger, and give up its tail if it is unknown whether an entry exists.

        This is like ``recover``, with one difference: if an entry may or may not exist, this ends the ledger
        before that entry. That entry and all later ones are lost. Use it as an operator, after bookies lost
        their data.

        Args:
            ledger_id: The ledger.
            accept_unreachable: End the ledger even if bookies that may hold the entry do not answer. Set this
                only if these bookies are gone for good.

        Returns:
            The accepted loss: see ``AcceptedLoss``.

        Raises:
            RecoveryFailed: Too few bookies could be fenced, or bookies that may hold the entry do not
                answer. The message names them. Wait for them, or pass ``accept_unreachable`` if they are
                gone for good.
            LedgerNotFound, NotEnoughBookies, MetadataUnavailable, MetadataOutcomeUnknown: As for ``recover``.
        """
        return await recover_accepting_loss(
            check_ledger_id(ledger_id),
            registry=self._registry,
            directory=self._directory,
            pool=self._pool,
            environment=self._environment,
            deadline_s=self._append_deadline_s,
            accept_unreachable=accept_unreachable,
        )

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Read the stored metadata of a ledger.

        Args:
            ledger_id: The ledger.

        Returns:
            The metadata.

        Raises:
            LedgerNotFound: There is no such ledger.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        stored, _ = await self._registry.read(check_ledger_id(ledger_id))
        return stored

    async def list(self) -> list[int]:
        """List the ids of all ledgers, in ascending order.

        Raises:
            MetadataUnavailable: The metadata store cannot be reached.
        """
        return await self._registry.list()

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, open or closed.

        Readers can no longer open the ledger, and the bookies free its space later. If the ledger's writer
        is still alive, it notices at its next metadata write.

        Args:
            ledger_id: The ledger.

        Raises:
            LedgerNotFound: There is no such ledger.
            MetadataUnavailable: The metadata store cannot be reached.
            MetadataOutcomeUnknown: The ledger may be deleted.
        """
        await self._registry.delete(check_ledger_id(ledger_id))

    async def verify(self, ledger_id: int) -> LedgerVerification:
        """Read every copy of every entry of a ledger. See ``LedgerVerification``.

        Args:
            ledger_id: The ledger.

        Returns:
            How many entries were checked, and which of them lack sound copies.

        Raises:
            LedgerNotFound: There is no such ledger.
        """
        return await verify_ledger(
            check_ledger_id(ledger_id), registry=self._registry, directory=self._directory, pool=self._pool
        )
