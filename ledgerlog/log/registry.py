"""Log records in the store: the typed face of the metadata capability for logs.

A log is two nodes. ``logs/NAME`` holds the number of the log's incarnation, ``log/NUMBER`` its record. They
are made and removed in one transaction each. Whoever works with a log remembers the incarnation, so
that one that was deleted and made again under its name is never mistaken for it.

Making a log makes no ledger, and removing one removes the list before its ledgers: a crash in between
leaves ledgers that no list names, and each of them carries the incarnation it was made for
(``ledger_labels``), which is how a sweep knows them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from ledgerlog.errors import LogExists, LogNotFound, MetadataOutcomeUnknown
from ledgerlog.ledger.environment import Environment
from ledgerlog.meta.settle import new_number, settle
from ledgerlog.meta.store import Create, Delete, MetadataStore, NodeExists
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.ids import check_log_name
from ledgerlog.model.layout import (
    LOG_COUNTER,
    LOG_NAMES,
    LOG_RECORDS,
    log_name_of,
    log_name_path,
    log_record_of,
    log_record_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication

_FORMAT = 1

INCARNATION_LABEL = "log-incarnation"
NAME_LABEL = "log-name"


EPOCH_LABEL = "log-epoch"

STAGED_LABEL = "log-staged"
"""On a ledger that was written apart from its log and is no part of it yet (``log.attach``)."""


def ledger_labels(metadata: LogMetadata, epoch: int) -> dict[str, bytes]:
    """What a ledger's own metadata says of the log that it was made for, and of the leader who made it. Only
    that leader can list it, and only while ``epoch`` is his (``log.sweep``)."""
    return {
        NAME_LABEL: metadata.name.encode(),
        INCARNATION_LABEL: str(metadata.incarnation).encode(),
        EPOCH_LABEL: str(epoch).encode(),
    }


class LogRegistry:
    """All logs' records. Every method may raise MetadataUnavailable; those that write may raise
    MetadataOutcomeUnknown (``meta.settle``)."""

    def __init__(self, store: MetadataStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment

    async def find(self, name: str) -> int | None:
        """The incarnation of the log of that name, None where there is none."""
        path = log_name_path(check_log_name(name))
        node = await self._store.get(path)
        if node is None:
            # A read may be older than what another client has just made.
            await self._store.sync()
            node = await self._store.get(path)
        return None if node is None else _decode_name(node.value, name)

    async def read(
        self, incarnation: int, *, fresh: bool = True, known: tuple[LogMetadata, int] | None = None
    ) -> tuple[LogMetadata | None, int]:
        """A log's record and version; None where it is gone. Unless ``fresh`` is waived, at least as new as
        every write that ended before the call. ``known`` is a record and its version, which is given back
        where it is still the one that is stored: a long list takes some milliseconds to decode.
        MetadataCorrupt."""
        if fresh:
            await self._store.sync()
        node = await self._store.get(log_record_path(incarnation))
        if node is None:
            return None, -1
        if known is not None and known[1] == node.version:
            return known
        return LogMetadata.decode_untrusted(node.value, incarnation), node.version

    async def write(self, metadata: LogMetadata, version: int) -> int:
        """Replace the record if it is at ``version``; the new version. VersionConflict, NodeMissing,
        MetadataOutcomeUnknown: see ``log.core.chain`` for how to go on."""
        return await self._store.set(
            log_record_path(metadata.incarnation), metadata.encode(), version=version
        )

    async def change(
        self,
        name: str,
        incarnation: int,
        change: Callable[[LogMetadata, bytes], Awaitable[LogMetadata | None]],
        *,
        once: bool = False,
    ) -> LogMetadata | None:
        """Compare-and-set until it takes effect, or ``change`` finds that there is nothing to do; what was
        written, None where nothing was. ``change`` is given the record as it is and a new token, and may
        look at other nodes: what it sees is at least as new as the record. LogNotFound.

        A write whose answer was lost is settled by its token. If somebody has written since, it is not known
        whether ours took effect: with ``once`` that is MetadataOutcomeUnknown, without, the change is made
        again on what is there now."""
        sent: LogMetadata | None = None  # What was written last, perhaps.
        sent_at = -1
        is_overtaken = False

        async def write(is_unsure: bool) -> LogMetadata | None:
            nonlocal sent, sent_at, is_overtaken
            metadata, version = await self.read(incarnation, fresh=not is_unsure)
            if metadata is None:
                raise LogNotFound(name)
            changed: LogMetadata | None
            if is_unsure and sent is not None and metadata.token == sent.token:
                return sent
            if is_unsure and version == sent_at:
                changed = sent  # The same again: whichever of the two arrives, it is one and the same.
            elif is_unsure and once:
                is_overtaken = True
                return None
            else:
                changed = await change(metadata, self._environment.new_token())
            if changed is not None:
                sent, sent_at = changed, version
                await self.write(changed, version)
            return changed

        changed = await settle(self._store, write, what=f"a change of log {name!r}")
        if is_overtaken:
            raise MetadataOutcomeUnknown(
                f"a change of log {name!r} may have happened or not: its answer was lost, and others have "
                "written since"
            )
        return changed

    async def create(
        self,
        name: str,
        *,
        replication: Replication,
        roll: RollPolicy | None = None,
        retention: RetentionPolicy | None = None,
        properties: dict[str, str] | None = None,
    ) -> LogMetadata:
        """A new, empty log. LogExists; InvalidArgument."""
        path = log_name_path(check_log_name(name))
        metadata = LogMetadata.create(
            name=name,
            incarnation=await new_number(self._store, LOG_COUNTER),
            created_ms=self._environment.now_ms(),
            token=self._environment.new_token(),
            replication=replication,
            roll=roll,
            retention=retention,
            properties=properties,
        )
        nodes = [
            Create(path, _encode_name(name, metadata.incarnation)),
            Create(log_record_path(metadata.incarnation), metadata.encode()),
        ]

        async def write(_: bool) -> LogMetadata:
            try:
                await self._store.transaction(nodes)
            except NodeExists:
                # It may be our own, of an attempt whose answer was lost.
                if await self.find(name) != metadata.incarnation:
                    raise LogExists(name) from None
            return metadata

        return await settle(self._store, write, what=f"the creation of log {name!r}")

    async def find_damaged(self, name: str) -> int | None:
        """The incarnation of the log of that name. Where the node that should tell it cannot be read, that of
        the record which has the name. None where there is none, or its record cannot be read either."""
        try:
            return await self.find(name)
        except MetadataCorrupt:
            for component in await self._store.children(LOG_RECORDS):
                with contextlib.suppress(MetadataCorrupt, ValueError):
                    metadata, _ = await self.read(log_record_of(component), fresh=False)
                    if metadata is not None and metadata.name == name:
                        return metadata.incarnation
        return None

    async def delete(
        self, name: str, incarnation: int | None, *, damaged: bool = False
    ) -> LogMetadata | None:
        """Remove a log's two nodes; its last record, whose ledgers are to be deleted now. LogNotFound where
        the log is not, or no longer, of that incarnation. MetadataCorrupt for a node that cannot be read.

        With ``damaged`` such nodes are removed as well, and a name without a record; None then instead of a
        record. Without an ``incarnation`` the name alone is removed, and it must be unreadable."""
        path = log_name_path(name)
        last: LogMetadata | None = None

        async def write(is_unsure: bool) -> LogMetadata | None:
            nonlocal last
            if not is_unsure:
                await self._store.sync()
            name_node = await self._store.get(path)
            node = None if incarnation is None else await self._store.get(log_record_path(incarnation))
            is_there = name_node is not None and _names(name_node.value, name, incarnation, damaged=damaged)
            if is_unsure and not is_there:
                return last  # By the attempt whose answer was lost: both nodes go at once.
            if name_node is None or not is_there or (node is None and not damaged):
                raise LogNotFound(name)
            operations = [Delete(path, name_node.version)]
            last = None
            if node is not None and incarnation is not None:
                operations.insert(0, Delete(log_record_path(incarnation), node.version))
                try:
                    last = LogMetadata.decode_untrusted(node.value, incarnation)
                except MetadataCorrupt:
                    if not damaged:
                        raise
            await self._store.transaction(operations)
            return last

        return await settle(self._store, write, what=f"the deletion of log {name!r}")

    async def list(self, prefix: str) -> list[str]:
        """The names of all logs that start with ``prefix``, sorted; complete, or an error."""
        await self._store.sync()  # A replica of the store that lags behind would leave out the newest.
        names = (log_name_of(component) for component in await self._store.children(LOG_NAMES))
        return sorted(name for name in names if name.startswith(prefix))


def _encode_name(name: str, incarnation: int) -> bytes:
    return encode_record(
        {"v": _FORMAT, "name": name, "incarnation": incarnation}, lambda data: _decode_name(data, name)
    )


def _names(data: bytes, name: str, incarnation: int | None, *, damaged: bool) -> bool:
    """Whether the node of a name is that of this incarnation; with ``damaged`` also if it cannot be read."""
    try:
        return _decode_name(data, name) == incarnation
    except MetadataCorrupt:
        if not damaged:
            raise
        return True


def _decode_name(data: bytes, name: str) -> int:
    fields = decode_record_untrusted(data, f"name of log {name}", MetadataCorrupt)
    if fields.integer("v") != _FORMAT:
        fields.fail(f"this version reads format {_FORMAT}")
    if fields.get("name", str) != name:
        fields.fail("it names another log")
    return fields.integer("incarnation")
