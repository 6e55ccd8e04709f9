"""Ledger metadata in the store: the typed face of the metadata capability for ledgers.

Every write is a compare-and-set. ``attempt`` is how the protocol cores' intents are carried out: it
writes and returns what the store holds afterwards, so that a conflict, an applied write and a lost
answer all look the same to the core, which decides on what is stored (rules 13 and 14)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from ledgerlog.client.environment import Environment
from ledgerlog.core.writer import MetadataIntent
from ledgerlog.errors import LedgerExists, LedgerNotFound, MetadataOutcomeUnknown, MetadataUnavailable
from ledgerlog.meta.store import MetadataStore, NodeExists, NodeMissing, VersionConflict
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import LEDGER_COUNTER, LEDGERS, ledger_id_of, ledger_path
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.quorum import Replication

_ATTEMPTS_MAX = 3
"""How often a write without a version is tried when its answer is lost."""


class LedgerRegistry:
    """All ledgers' metadata. Every method may raise MetadataUnavailable."""

    def __init__(self, store: MetadataStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment

    async def create(
        self,
        replication: Replication,
        ensemble: Sequence[BookieId],
        custom: Mapping[str, bytes],
    ) -> tuple[LedgerMetadata, int]:
        """The metadata and version of a new ledger, under an id that was never used. Where the store's
        answers are lost an id may be passed over."""
        environment = self._environment
        metadata = LedgerMetadata.create(
            ledger_id=await self._next_id(),
            replication=replication,
            ensemble=ensemble,
            key=environment.new_key(),
            token=environment.new_token(),
            created_ms=environment.now_ms(),
            custom=dict(custom),
        )
        path, value = ledger_path(metadata.ledger_id), metadata.encode()
        for _ in range(_ATTEMPTS_MAX):
            try:
                return metadata, await self._store.create(path, value)
            except (MetadataOutcomeUnknown, NodeExists):
                # A node that exists may be our own, of an attempt whose answer was lost (rule 14).
                stored = await self._read_fresh(metadata.ledger_id)
            if stored is not None:
                if stored[0].token == metadata.token:
                    return stored
                raise LedgerExists(metadata.ledger_id)
        raise MetadataUnavailable(
            f"the store lost its answer {_ATTEMPTS_MAX} times; ledger {metadata.ledger_id} may exist, empty"
        )

    async def _next_id(self) -> int:
        for _ in range(_ATTEMPTS_MAX):
            with contextlib.suppress(MetadataOutcomeUnknown):  # That id is passed over.
                return await self._store.next_id(LEDGER_COUNTER)
        raise MetadataUnavailable(f"the store lost its answer {_ATTEMPTS_MAX} times; nothing was created")

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """A ledger's metadata and version. LedgerNotFound; MetadataCorrupt."""
        found = await self.find(ledger_id)
        if found is None:
            raise LedgerNotFound(ledger_id)
        return found

    async def find(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """The same, None where there is no such ledger."""
        node = await self._store.get(ledger_path(ledger_id))
        if node is None:
            return None
        return LedgerMetadata.decode_untrusted(node.value, ledger_id), node.version

    async def _read_fresh(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        await self._store.sync()
        return await self.find(ledger_id)

    async def attempt(self, intent: MetadataIntent) -> tuple[LedgerMetadata | None, int]:
        """Try a compare-and-set; what is stored afterwards (None: the ledger is gone), and its version.

        MetadataUnavailable: nothing was written, or it is not known and could not be read either; the
        intent still stands and may be attempted again."""
        wanted = intent.metadata
        try:
            version = await self._store.set(
                ledger_path(wanted.ledger_id), wanted.encode(), version=intent.version
            )
        except (VersionConflict, NodeMissing, MetadataOutcomeUnknown):
            stored = await self._read_fresh(wanted.ledger_id)
            return (None, 0) if stored is None else stored
        return wanted, version

    async def delete(self, ledger_id: int, *, version: int | None = None) -> None:
        """Forget a ledger, with ``version`` only if it is at that; its bookies collect the space later.
        LedgerNotFound, VersionConflict."""
        path = ledger_path(ledger_id)
        is_sent = False
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._store.delete(path, version=version)
                return
            except NodeMissing:
                if is_sent:
                    return  # By the attempt whose answer was lost.
                raise LedgerNotFound(ledger_id) from None
            except MetadataOutcomeUnknown:
                is_sent = True
        raise MetadataUnavailable(
            f"the store lost its answer {_ATTEMPTS_MAX} times; ledger {ledger_id} may be deleted"
        )

    async def list(self) -> list[int]:
        """The ids of all ledgers, growing; complete, or an error: MetadataCorrupt, with its path, for a node
        below ``ledgers`` that is no ledger's."""
        # A replica of the store that lags behind would leave out what was made last (D27.4).
        await self._store.sync()
        found: list[int] = []
        for high in await self._store.children(LEDGERS):
            for middle in await self._store.children(f"{LEDGERS}/{high}"):
                for low in await self._store.children(f"{LEDGERS}/{high}/{middle}"):
                    try:
                        found.append(ledger_id_of(high, middle, low))
                    except ValueError as cause:
                        raise MetadataCorrupt(f"{LEDGERS}/{high}/{middle}/{low}: {cause}") from cause
        return sorted(found)
