"""Typed access to the records of logs in the metadata store.

A log is two nodes. ``logs/NAME`` holds the number of the log's *incarnation*: each creation of a log gets a
new number. ``log/NUMBER`` holds the log's record. One transaction creates both nodes, and one removes both.
Every user of a log remembers the incarnation. So if a log was deleted and created again under the same name,
no user mistakes the new log for the old one.

**Created once, though an answer may be lost.** Each attempt of ``create`` has an incarnation of its own. The
node of the name lets only one attempt take effect. If the node exists, its incarnation shows whether an
attempt of this call made the node. The attempts must not share an incarnation: the first one may have made
the log, and other clients may have used and deleted it before the second one.

**A name without a record is damage.** The store has lost the record: no operation removes one node and keeps
the other. The log's ledgers and archived files may still be there, and a backup may have the record. So
nothing that belongs to the log may be deleted until an operator deletes the log. ``why_missing`` tells the
two cases apart.

Creating a log makes no ledger. Removing a log removes the list before its ledgers. A crash in between leaves
ledgers that no list names. A sweep finds them, because each ledger's labels name the incarnation that it was
made for (``ledger_labels``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ledgerlog.errors import (
    EntryNotFound,
    IncompatibleVersion,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LogExists,
    LogNotFound,
    MetadataOutcomeUnknown,
)
from ledgerlog.ledger.environment import Environment
from ledgerlog.meta.settle import AWAY, new_number, settle
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
from ledgerlog.model.log_key import INCARNATION_LABEL as INCARNATION_LABEL
from ledgerlog.model.log_key import NAME_LABEL as NAME_LABEL
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication

_FORMAT = 1

EPOCH_LABEL = "log-epoch"
"""On a ledger: the epoch of the leader that made it."""

STAGED_LABEL = "log-staged"
"""On a ledger that was written apart from its log and is not part of the log yet (``log.attach``)."""

GONE = (LedgerNotFound, EntryNotFound)
"""If reading a ledger that a log's record lists fails with one of these errors, the record may have changed
since it was read, and the ledger may have been dropped (``LogRegistry.has_dropped``)."""

T = TypeVar("T")


def ledger_labels(metadata: LogMetadata, epoch: int) -> dict[str, bytes]:
    """Return the labels for the metadata of a ledger: the log that it is made for, and the epoch of its
    leader.

    Only that leader can list the ledger, and only while ``epoch`` is the log's epoch (``log.sweep``).
    """
    return {
        NAME_LABEL: metadata.name.encode(),
        INCARNATION_LABEL: str(metadata.incarnation).encode(),
        EPOCH_LABEL: str(epoch).encode(),
    }


class LogRegistry:
    """All logs' records. Every method may raise MetadataUnavailable. Methods that write may raise
    MetadataOutcomeUnknown (``meta.settle``)."""

    def __init__(self, store: MetadataStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment

    async def find(self, name: str) -> int | None:
        """Return the incarnation of the log of this name; None if there is none."""
        path = log_name_path(check_log_name(name))
        node = await self._store.get(path)
        if node is None:
            # A read may be older than the log, if another client has just created it.
            await self._store.sync()
            node = await self._store.get(path)
        return None if node is None else decode_name_untrusted(node.value, name)

    async def read(
        self, incarnation: int, *, fresh: bool = True, known: tuple[LogMetadata, int] | None = None
    ) -> tuple[LogMetadata | None, int]:
        """Read a log's record and its version; (None, -1) if the log is gone.

        Args:
            incarnation: The incarnation of the log.
            fresh: Return a record at least as new as every write that ended before the call. That costs a
                sync of the store.
            known: A record that you have, and its version. If that version is still stored, the call returns
                ``known`` without decoding. A long list takes some milliseconds to decode.

        Raises:
            MetadataCorrupt: The record does not decode.
        """
        if fresh:
            await self._store.sync()
        node = await self._store.get(log_record_path(incarnation))
        if node is None:
            return None, -1
        if known is not None and known[1] == node.version:
            return known
        return LogMetadata.decode_untrusted(node.value, incarnation), node.version

    async def existing(
        self,
        name: str,
        incarnation: int,
        *,
        fresh: bool = True,
        known: tuple[LogMetadata, int] | None = None,
    ) -> tuple[LogMetadata, int]:
        """Read the record of a log that must exist, and its version. Arguments as for ``read``.

        Raises:
            LogNotFound: The log was deleted.
            MetadataCorrupt: The record does not decode, or it is lost: the log's name still leads to it.
        """
        metadata, version = await self.read(incarnation, fresh=fresh, known=known)
        if metadata is None:
            raise await self.why_missing(name, incarnation)
        return metadata, version

    async def look(
        self,
        name: str,
        incarnation: int,
        look: Callable[[LogMetadata, int], Awaitable[T]],
        *,
        known: tuple[LogMetadata, int] | None = None,
    ) -> T:
        """Read the record of a log that must exist, look at the ledgers that it lists, and return what was
        found.

        Another process may drop a ledger after the record was read. If a ledger or an entry is gone, read
        the record again. If it does not list the ledger any more, or not as before, look again.

        Args:
            name: The name of the log.
            incarnation: The incarnation of the log.
            look: Takes the record and its version. It may be called several times. If it raises an error,
                this method raises the same error, unless it looks again.
            known: As for ``read``.

        Raises:
            LogNotFound, MetadataCorrupt: As for ``existing``.
        """
        metadata, version = await self.existing(name, incarnation, known=known)
        while True:
            try:
                return await look(metadata, version)
            except GONE as failure:
                before = metadata
                metadata, version = await self.existing(name, incarnation, known=(metadata, version))
                if _lists_as_before(metadata, before, failure.ledger_id):
                    raise

    async def has_dropped(self, before: LogMetadata, ledger_id: int) -> bool:
        """Return whether a log is gone, or its record does not list a ledger any more, or not as ``before``.

        Call this if a ledger of the log's list is gone. If the record lists it as before, the ledger is lost.
        Errors as for ``read``.
        """
        metadata, _ = await self.read(before.incarnation)
        return metadata is None or not _lists_as_before(metadata, before, ledger_id)

    async def why_missing(self, name: str, incarnation: int) -> LogNotFound | MetadataCorrupt:
        """Return the error for a log whose record was just not found.

        Args:
            name: The name of the log.
            incarnation: The incarnation of the log.

        Returns:
            LogNotFound: The log was deleted. MetadataCorrupt: The record is lost, or the name cannot be read.
        """
        try:
            found = await self.find(name)
        except MetadataCorrupt as damage:
            return damage
        if found != incarnation:
            return LogNotFound(name)
        return MetadataCorrupt(
            f"the metadata store has lost the record of log {name!r}: {log_name_path(name)} leads to "
            f"{log_record_path(incarnation)}, which is not there"
        )

    async def explained(self, failure: LedgerLogError, incarnation: int) -> LedgerLogError:
        """Return the failure of a core that found no record: the error of ``why_missing``. Return any other
        failure as it is."""
        if not isinstance(failure, LogNotFound):
            return failure
        return await self.why_missing(failure.name, incarnation)

    async def named(self) -> tuple[set[int], bool]:
        """Return the incarnations to which names lead, and whether every name could be read."""
        found, is_whole = set[int](), True
        for name in await self.list(""):
            try:
                incarnation = await self.find(name)
            except (MetadataCorrupt, InvalidArgument):
                is_whole = False
            else:
                found.update(() if incarnation is None else (incarnation,))
        return found, is_whole

    async def write(self, metadata: LogMetadata, version: int) -> int:
        """Replace the record if it is at ``version``; return the new version.

        Raises:
            VersionConflict: The record has another version.
            NodeMissing: The log is gone.
            LogListFull: The record is too large. Nothing was written.
            MetadataOutcomeUnknown: The answer was lost; see ``log.core.chain`` for how to continue.
        """
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
        """Change a log's record by compare-and-set, again and again until it takes effect.

        If the answer to a write was lost, the token in the record shows whether the write took effect. If
        another process has written the record since, the token is gone and the outcome stays unknown.
        ``once`` says what happens then.

        Args:
            name: The name of the log, for errors.
            incarnation: The incarnation of the log.
            change: Takes the current record and a new token. Returns the new record, or None if there is
                nothing to do. ``change`` may read other nodes; what it reads is at least as new as the
                record. It may be called several times. If it raises an error, this method raises the same
                error, or MetadataOutcomeUnknown if an earlier write may have taken effect.
            once: If the outcome of the write stays unknown, raise MetadataOutcomeUnknown. Without ``once``,
                make the change again on the record that is stored now.

        Returns:
            The record that was written; None if there was nothing to do.

        Raises:
            LogNotFound, MetadataCorrupt: As for ``existing``.
            MetadataOutcomeUnknown: The change may or may not have happened.
        """
        sent: LogMetadata | None = None  # The last record that was sent, which may be stored.
        sent_at = -1
        is_overtaken = False
        refused: LedgerLogError | None = None

        async def write(is_unsure: bool) -> LogMetadata | None:
            nonlocal sent, sent_at, is_overtaken, refused
            metadata, version = await self.existing(name, incarnation, fresh=not is_unsure)
            changed: LogMetadata | None
            if is_unsure and sent is not None and metadata.token == sent.token:
                return sent
            if is_unsure and version == sent_at:
                changed = sent  # The same value again, so it does not matter which write arrives.
            elif is_unsure and once:
                is_overtaken = True
                return None
            else:
                try:
                    changed = await change(metadata, self._environment.new_token())
                except LedgerLogError as cause:
                    if not is_unsure or isinstance(cause, AWAY):
                        raise
                    # The error may say that nothing was changed, but the earlier write may have taken effect.
                    is_overtaken, refused = True, cause
                    return None
            if changed is not None:
                sent, sent_at = changed, version
                await self.write(changed, version)
            return changed

        changed = await settle(self._store, write, what=f"a change of log {name!r}")
        if is_overtaken:
            raise MetadataOutcomeUnknown(
                f"a change of log {name!r} may have happened or not: its answer was lost, and another "
                f"process has written since"
            ) from refused
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
        """Create an empty log and return its record.

        Args:
            name: The name of the log.
            replication: How the log's ledgers are replicated.
            roll: When the log continues in a new ledger. None: the default policy.
            retention: Which old ledgers may go. None: no ledger may go.
            properties: The log's properties. None: no properties.

        Raises:
            LogExists: A log has this name already.
            InvalidArgument: The name or the properties are malformed.
        """
        path = log_name_path(check_log_name(name))
        tried: dict[int, LogMetadata] = {}

        async def write(_: bool) -> LogMetadata:
            # Each attempt has an incarnation of its own. The previous attempt may have made the log, and
            # other clients may have used and deleted that log. The node of the name lets only one attempt
            # take effect.
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
            tried[metadata.incarnation] = metadata
            nodes = [
                Create(path, _encode_name(name, metadata.incarnation)),
                Create(log_record_path(metadata.incarnation), metadata.encode()),
            ]
            try:
                await self._store.transaction(nodes)
            except NodeExists:
                # The node may be our own, from an attempt whose answer was lost.
                found = await self.find(name)
                if found not in tried:
                    raise LogExists(name) from None
                return tried[found]
            return metadata

        return await settle(self._store, write, what=f"the creation of log {name!r}")

    async def find_damaged(self, name: str) -> int | None:
        """Return the incarnation of the log of this name, even if the node of the name cannot be read.

        In that case, search the records for one with this name. Return None if there is no log of this name,
        or if its record cannot be read either.
        """
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
        """Remove a log's two nodes. The caller then deletes the ledgers that the returned record lists.

        Args:
            name: The name of the log.
            incarnation: The incarnation of the log. None: remove only the node of the name, which must be
                unreadable.
            damaged: Also remove nodes that cannot be read, and a name that has no record.

        Returns:
            The last record; None if it is missing or cannot be read.

        Raises:
            LogNotFound: The name has no log, or a log of another incarnation.
            MetadataCorrupt: A node cannot be read, and ``damaged`` is not set.
            IncompatibleVersion: A newer version wrote a node. Nothing was removed, even with ``damaged``.
        """
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
                return last  # The attempt whose answer was lost removed both nodes.
            if name_node is None or not is_there:
                raise LogNotFound(name)
            if node is None and not damaged:
                assert incarnation is not None
                raise await self.why_missing(name, incarnation)
            operations = [Delete(path, name_node.version)]
            last = None
            if node is not None and incarnation is not None:
                operations.insert(0, Delete(log_record_path(incarnation), node.version))
                try:
                    last = LogMetadata.decode_untrusted(node.value, incarnation)
                except IncompatibleVersion:
                    raise  # The record is not damaged: the version that wrote it can delete the log.
                except MetadataCorrupt:
                    if not damaged:
                        raise
            await self._store.transaction(operations)
            return last

        return await settle(self._store, write, what=f"the deletion of log {name!r}")

    async def list(self, prefix: str) -> list[str]:
        """Return the names of all logs that start with ``prefix``, sorted. The list is complete, or this
        raises."""
        await self._store.sync()  # A replica of the store that lags behind would leave out the newest logs.
        names = (log_name_of(component) for component in await self._store.children(LOG_NAMES))
        return sorted(name for name in names if name.startswith(prefix))

    async def records(self) -> tuple[Sequence[int], Sequence[str]]:
        """Return the incarnations of all logs that have a record, sorted, and what is wrong with each node
        below ``log`` that is no log's. If a replica of the store lags, the newest logs may be missing."""
        found, strays = list[int](), list[str]()
        for component in await self._store.children(LOG_RECORDS):
            try:
                found.append(log_record_of(component))
            except ValueError as cause:
                strays.append(f"{LOG_RECORDS}/{component}: {cause}")
        return sorted(found), strays


def _lists_as_before(metadata: LogMetadata, before: LogMetadata, ledger_id: int) -> bool:
    return all(each in metadata.segments for each in before.segments if each.ledger_id == ledger_id)


def _encode_name(name: str, incarnation: int) -> bytes:
    return encode_record(
        {"v": _FORMAT, "name": name, "incarnation": incarnation},
        lambda data: decode_name_untrusted(data, name),
    )


def _names(data: bytes, name: str, incarnation: int | None, *, damaged: bool) -> bool:
    """Whether the node of a name belongs to this incarnation. With ``damaged``, also if the node cannot be
    read."""
    try:
        return decode_name_untrusted(data, name) == incarnation
    except IncompatibleVersion:
        raise
    except MetadataCorrupt:
        if not damaged:
            raise
        return True


def decode_name_untrusted(data: bytes, name: str) -> int:
    """Return the incarnation to which the node of a name leads.

    Raises:
        MetadataCorrupt: The node does not decode, or belongs to another name.
    """
    fields = decode_record_untrusted(data, f"name of log {name}", MetadataCorrupt)
    fields.format(_FORMAT)
    if fields.get("name", str) != name:
        fields.fail("it names another log")
    return fields.integer("incarnation")
