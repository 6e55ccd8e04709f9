"""``cluster.ledgers``: create, open, recover, list and delete ledgers."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

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

    async def create(
        self,
        replication: Replication | None = None,
        metadata: Mapping[str, bytes] | None = None,
        *,
        full_pinning: bool = False,
    ) -> LedgerWriter:
        """A new, empty ledger and its only writer. ``metadata``, bytes by text, are kept for its readers.

        ``full_pinning`` asks a guaranteed ledger for the published, stricter pinning rule. Raises
        NotEnoughBookies where fewer bookies than the ensemble are writable within a short wait, and
        InvalidArgument. If cancelled, an empty ledger that nobody writes may remain."""
        replication = replication or self._default_replication
        custom = check_custom(metadata or {})
        await self._directory.wait_writable(replication.ensemble)
        ensemble = self._directory.choose(replication.ensemble)
        stored, version = await self._registry.create(replication, ensemble, custom)
        core = core_writer.LedgerWriter(
            stored, version, new_token=self._environment.new_token, full_pinning=full_pinning
        )
        writer = LedgerWriter(
            core,
            registry=self._registry,
            directory=self._directory,
            pool=self._pool,
            append_deadline_s=self._append_deadline_s,
        )
        self._nursery.start_soon(writer.run, name=f"ledger writer {stored.ledger_id}")
        self._environment.mark("ledger: created")
        return writer

    async def open(self, ledger_id: int, recover: bool = False) -> LedgerReader:
        """A reader. With ``recover`` the ledger is recovered first (its writer is fenced and its end fixed);
        without, nobody is disturbed and entries are readable up to the LAC.

        LedgerNotFound; with ``recover`` also what ``recover()`` raises."""
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
        """Fence a ledger, find its end and close it; its CLOSED metadata. See ``recover_ledger``."""
        return await recover_ledger(
            check_ledger_id(ledger_id),
            registry=self._registry,
            directory=self._directory,
            pool=self._pool,
            environment=self._environment,
            deadline_s=self._append_deadline_s,
        )

    async def recover_accepting_loss(
        self, ledger_id: int, *, accept_unreachable: bool = False
    ) -> AcceptedLoss:
        """As ``recover``, but where nobody can say whether an entry exists the ledger is ended before it:
        what is behind it is lost. For an operator who knows that bookies lost what they had; see
        ``AcceptedLoss`` for what it cost.

        RecoveryFailed where even fencing is incomplete, and, naming them, where bookies do not answer that
        may hold the entry: wait for them, or, if they are gone for good, say so (``accept_unreachable``)."""
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
        """A ledger's metadata as stored now. LedgerNotFound."""
        stored, _ = await self._registry.read(check_ledger_id(ledger_id))
        return stored

    async def list(self) -> list[int]:
        """The ids of all ledgers, growing."""
        return await self._registry.list()

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, closed or not. Its entries stay unreachable from now on and its bookies collect
        them later. A writer that is still alive notices at its next metadata write. LedgerNotFound."""
        await self._registry.delete(check_ledger_id(ledger_id))

    async def verify(self, ledger_id: int) -> LedgerVerification:
        """Read every copy of every entry; see ``LedgerVerification``. LedgerNotFound."""
        return await verify_ledger(
            check_ledger_id(ledger_id), registry=self._registry, directory=self._directory, pool=self._pool
        )
