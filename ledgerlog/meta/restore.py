"""Bring a metadata store back to the state in a backup.

**The order.** If the restore crashes between step 2 and step 7, only another restore can use the store.

    1  check: the backup is sound, and this version can read its records; the store is this cluster's or
       empty, and no process is registered
    2  set the cluster's id to "restoring:", the id, ":" and a random token, and ":empty" behind it if the
       store was empty: every session refuses the store from here on
    3  move the counters past every id that may be in use (``model.restoration.first_new_id``)
    4  write the record of the restore: bookies collect no ledger from before it (``model.restoration``)
    5  write the nodes of the backup, and delete all others
    6  if the store was empty, let ``secure`` close it to other users
    7  set the cluster's id back, with a new mark: no process from before the restore is served
       (``meta.belonging``)

**Two restores.** An operator may run the command again while the first one still runs, or is stopped. The
one that passed step 2 last has its token in the cluster's id, and each later write of a restore checks that
id. So the other one writes nothing more. Otherwise it could set back a cluster that is in use again.

**Ids.** The backup does not know which ids were given out after it, and bookies hold ledgers with these ids.
A bookie may be down now and come back, so asking bookies would not be enough. The counters go past the
backup's ids, the present store's ids, and a number that grows with the clock. No bookie needs to answer for
this. Epochs of logs and terms of elections move in the same way, and ledgers that were open are marked
(``model.restoration.restored_value``).

**Cookies.** The store may know bookies that were added after the backup. So the cookies in the store stay as
they are, and only missing ones come from the backup.

**Access.** How the cluster is closed, and the grants, stay exactly as they are in a store that was not empty.
Otherwise a restore would open a cluster that was closed after the backup, and give revoked rights back. An
empty store gets them from the backup.
"""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import attrs

from ledgerlog.errors import IncompatibleVersion, InvalidArgument, MetadataCorrupt, WrongCluster
from ledgerlog.meta.backup import COUNTERS, walk
from ledgerlog.meta.backup_file import Backup
from ledgerlog.meta.belonging import RESTORING
from ledgerlog.meta.settle import remove, settle
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeHasChildren,
    Operation,
    Set,
    Versioned,
)
from ledgerlog.model.access import Grants
from ledgerlog.model.admission import Admission
from ledgerlog.model.layout import (
    ADMISSION,
    CLUSTER,
    COOKIES,
    ELECTIONS,
    GRANTS,
    LASTING_ROOTS,
    LEDGER_COUNTER,
    LEDGERS,
    LOG_NAMES,
    LOG_RECORDS,
    READ_ONLY_BOOKIES,
    REPAIR_WORKERS,
    RESTORED,
    WRITABLE_BOOKIES,
    is_lasting,
    ledger_id_of,
    log_name_of,
    principal_of,
)
from ledgerlog.model.restoration import Restoration, first_new_id, restored_value

__all__ = ["Restored", "accept_loss", "restore"]

_EMPTY = b":empty"
"""While a store that was empty is being restored, the cluster's id ends with this. So if the restore is done
again, the store still counts as empty."""

_TOKEN_BYTES = 8
_BATCH_NODES = 100
_BATCH_BYTES = 256 * 1024
_NAMED_MAX = 20


@attrs.define
class Restored:
    """The result of a restore."""

    restoration: Restoration
    """The record of the restore in the store."""
    was_empty: bool
    """Whether the store was empty before. If so, the losses are unknown, and the access comes from the
    backup."""
    follows_another: bool = False
    """Whether an earlier restore was interrupted, or its loss was not accepted yet. If so, the losses below
    are only those that this one has seen: what the earlier one deleted or set back is not among them."""
    nodes: int = 0
    """How many nodes the store has now."""
    lost_ledgers: int = 0
    """How many ledgers the store had and the backup lacks."""
    lost_ledger_ids: list[int] = attrs.field(factory=list)
    """The ids of the first ledgers that the store had and the backup lacks."""
    lost_logs: list[str] = attrs.field(factory=list)
    """The names of the logs that the store had and the backup lacks."""
    changed_logs: int = 0
    """How many records of logs were set back to an earlier state."""


async def restore(
    store: MetadataStore,
    backup: Backup,
    *,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
    secure: Callable[[], Awaitable[object]] | None = None,
) -> Restored:
    """Replace the content of a store by a backup.

    Args:
        store: The store, which belongs to no cluster yet; see ``MetadataStore.belong_to``.
        backup: The backup, which ``open_backup`` has checked.
        now_ms: Wall clock, in milliseconds since 1970.
        random_bytes: Returns that many random bytes, as ``os.urandom`` does. They name this restore.
        secure: Called before the store can be used, if it was empty: sets its lists of rights. It may write
            the value of the cluster's node again.

    Returns:
        The result, with the losses.

    Raises:
        WrongCluster: The store belongs to another cluster. Nothing was changed. Or another restore of the
            store has taken over: this one wrote nothing more since then.
        InvalidArgument: The cluster is live, or the store holds nodes but no cluster. Nothing was changed.
        IncompatibleVersion: A newer version wrote a node of the backup or of the store. Nothing was changed.
        MetadataUnavailable, MetadataOutcomeUnknown: The store does not answer. If the restore has begun,
            nothing else can use the store, unless only the answer to its last write was lost. Restore again.
    """
    assert store.cluster is None, "a store that belongs to a cluster refuses to be restored"
    await store.sync()
    checked = await _check(store, backup)
    was_empty = checked is None or checked.value.endswith(_EMPTY)
    is_interrupted = checked is not None and checked.value.startswith(RESTORING)
    follows_another = is_interrupted or await store.get(RESTORED) is not None
    known = max([await store.highest_id(counter) for counter in COUNTERS] + list(backup.counters.values()))
    seen = array("Q")
    for path, value in backup.read():
        seen.append(_hash(path))
        if path.startswith((LOG_RECORDS + "/", ELECTIONS + "/", LEDGERS + "/")):
            node = await store.get(path)
            # This raises if the value cannot be moved.
            restored_value(path, value, None if node is None else node.value, now_ms)
        with contextlib.suppress(ValueError):
            if path.startswith(LEDGERS + "/"):
                known = max(known, ledger_id_of(*path.split("/")[1:]))
    seen = array("Q", sorted(seen))

    turn = await _begin(store, checked, backup.cluster, was_empty, random_bytes(_TOKEN_BYTES).hex())
    # Leave one id out: the floor is the mark of this restore, so it must differ from that of the last one.
    floor = first_new_id(known + 1, now_ms)
    for counter in COUNTERS:
        await turn.skip_ids(counter, floor - 1)
    restored = Restored(
        Restoration(
            floor=await store.highest_id(LEDGER_COUNTER) + 1,
            counter=backup.counters.get(LEDGER_COUNTER, -1),
            backup_ms=backup.made_ms,
            restored_ms=now_ms,
        ),
        was_empty,
        follows_another=follows_another,
    )
    await turn.put(RESTORED, restored.restoration.encode())
    await _write_nodes(store, turn, backup, restored, now_ms)
    await _delete_others(store, turn, seen, restored)
    if was_empty and secure is not None:
        await turn.require()
        await secure()
    await store.sync()
    await turn.end(f"{backup.cluster}:{restored.restoration.floor:x}".encode())
    return restored


async def accept_loss(store: MetadataStore) -> bool:
    """Let bookies collect the ledgers that the last restore has lost.

    Returns:
        Whether there was a restore whose loss was not accepted yet.
    """
    await store.sync()
    return await remove(store, RESTORED)


async def _check(store: MetadataStore, backup: Backup) -> Versioned | None:
    """Return the cluster's node; None if the store is empty. Raise an error if it must not be restored."""
    node = await store.get(CLUSTER)
    if node is None:
        async with aclosing(walk(store, *LASTING_ROOTS)) as there:
            found = await anext(there, None)
        if found is not None:
            raise InvalidArgument(
                f"the store has no cluster in it, but a node {found[0]!r}: is the path or chroot right? You "
                f"can restore into an empty store"
            )
        return None
    theirs = node.value.removeprefix(RESTORING).partition(b":")[0]
    if theirs != backup.cluster.encode():
        raise WrongCluster(
            f"the store belongs to cluster {theirs[:128].decode('ascii', 'replace')}, but {backup.path} is "
            f"a backup of cluster {backup.cluster}: restore into an empty store, or take the right backup. "
            "Nothing was changed"
        )
    alive = []
    for place in (WRITABLE_BOOKIES, READ_ONLY_BOOKIES, REPAIR_WORKERS):
        alive += [f"{place}/{name}" for name in await store.children(place)]
    for name in await store.children(ELECTIONS):
        place = f"{ELECTIONS}/{name}/candidates"
        alive += [f"{place}/{candidate}" for candidate in await store.children(place)]
    if alive:
        more = f" and {len(alive) - 3} more" if len(alive) > 3 else ""
        raise InvalidArgument(
            f"the cluster is live: {', '.join(alive[:3])}{more}. Stop its bookies, repair and clients first, "
            "and wait until their sessions have ended. Nothing was changed"
        )
    return node


@attrs.frozen
class _Turn:
    """The writes of a restore. They are done while no other restore has begun after it."""

    _store: MetadataStore
    _mine: bytes
    """The value at ``layout.CLUSTER`` during this restore, with its token."""

    async def require(self) -> int:
        """Return the version of the cluster's node, for a write to check.

        The version may change during a restore: securing the tree writes the same value again.

        Raises:
            WrongCluster: Another restore has begun.
        """
        node = await self._store.get(CLUSTER)
        if node is None or node.value != self._mine:
            raise WrongCluster("another restore of the store has taken over; nothing more was written")
        return node.version

    async def write(self, decide: Callable[[bool], Awaitable[list[Operation]]], *, what: str) -> None:
        """Do what ``decide`` returns, in one transaction.

        Args:
            decide: Reads, and returns the operations. Its argument is as in ``settle``.
            what: The change, for messages.
        """

        async def attempt(is_unsure: bool) -> None:
            version = await self.require()
            operations = await decide(is_unsure)
            if operations:
                await self._store.transaction([Check(CLUSTER, version), *operations])

        await settle(self._store, attempt, what=what)

    async def put(self, path: str, value: bytes) -> None:
        """Write a node."""

        async def decide(_: bool) -> list[Operation]:
            node = await self._store.get(path)
            return [Create(path, value) if node is None else Set(path, value, node.version)]

        await self.write(decide, what=f"the write of {path}")

    async def skip_ids(self, counter: str, through: int) -> None:
        """Give out no number of ``counter`` up to ``through`` from now on."""

        async def attempt(_: bool) -> None:
            await self.require()
            await self._store.skip_ids(counter, through)

        await settle(self._store, attempt, what=f"the move of {counter}")

    async def end(self, value: bytes) -> None:
        """Set the cluster's id, so that the store can be used."""

        async def attempt(is_unsure: bool) -> None:
            node = await self._store.get(CLUSTER)
            if is_unsure and node is not None and node.value == value:
                return  # The attempt with the lost answer wrote it.
            await self._store.set(CLUSTER, value, version=await self.require())

        await settle(self._store, attempt, what="the end of the restore")


async def _begin(
    store: MetadataStore, checked: Versioned | None, cluster: str, was_empty: bool, token: str
) -> _Turn:
    """Make every session refuse the store, and take over from an earlier restore.

    Args:
        store: The store.
        checked: The cluster's node, as ``_check`` found it.
        cluster: The cluster's id.
        was_empty: Whether the store was empty before.
        token: The token of this restore.

    Raises:
        WrongCluster: Another restore has begun since the check, and the cluster may be live.
    """
    mine = RESTORING + f"{cluster}:{token}".encode() + (_EMPTY if was_empty else b"")

    async def attempt(is_unsure: bool) -> None:
        node = await store.get(CLUSTER)
        if is_unsure and node is not None and node.value == mine:
            return  # The attempt with the lost answer wrote it.
        if node != checked:
            raise WrongCluster("the store was changed while this restore checked it; nothing was changed")
        if node is None:
            await store.create(CLUSTER, mine)
        else:
            await store.set(CLUSTER, mine, version=node.version)

    await settle(store, attempt, what="the beginning of the restore")
    return _Turn(store, mine)


def _is_access(path: str) -> bool:
    return path == ADMISSION or path.startswith(GRANTS + "/")


def _has_lost(path: str, node: Versioned | None) -> bool:
    """Whether the store has lost a record about access that the backup has.

    It has lost the record of how the cluster is closed, if that is missing: opening a cluster writes it. It
    may have no grants of a principal, because they were revoked. A damaged record counts as lost.
    """
    if node is None:
        return path == ADMISSION
    try:
        if path == ADMISSION:
            Admission.decode_untrusted(node.value)
        else:
            Grants.decode_untrusted(node.value, principal_of(path.rpartition("/")[2]))
    except IncompatibleVersion:
        return False  # A newer version wrote it.
    except MetadataCorrupt:
        return True
    return False


async def _write_nodes(
    store: MetadataStore, turn: _Turn, backup: Backup, restored: Restored, now_ms: int
) -> None:
    batch: dict[str, bytes] = {}
    size = 0
    changed_logs = set()

    async def decide(is_unsure: bool) -> list[Operation]:
        operations: list[Operation] = []
        for path, value in batch.items():
            node = await store.get(path)
            if not restored.was_empty and _is_access(path) and not _has_lost(path, node):
                continue
            written = restored_value(path, value, None if node is None else node.value, now_ms)
            if node is None:
                operations.append(Create(path, written))
            elif node.value != written and not path.startswith(COOKIES + "/"):
                operations.append(Set(path, written, node.version))
                if path.startswith(LOG_RECORDS + "/") and node.value != value and not is_unsure:
                    changed_logs.add(path)
        return operations

    async def flush() -> None:
        nonlocal size
        await turn.write(decide, what="the write of nodes of the backup")
        batch.clear()
        size = 0

    for path, value in backup.read():
        if path == CLUSTER or not is_lasting(path):
            continue
        if path in batch or len(batch) >= _BATCH_NODES or size + len(value) > _BATCH_BYTES:
            await flush()
        restored.nodes += 1
        batch[path] = value
        size += len(value)
    await flush()
    restored.changed_logs = len(changed_logs)


async def _delete_others(store: MetadataStore, turn: _Turn, seen: array[int], restored: Restored) -> None:
    """Delete the lasting nodes that the backup lacks, children first."""
    others = [
        path
        async for path, _ in walk(store, *LASTING_ROOTS)
        if path != CLUSTER
        and not path.startswith(COOKIES + "/")
        and (restored.was_empty or not _is_access(path))
        and not _is_in(seen, _hash(path))
    ]
    for path in reversed(others):

        async def decide(_: bool, path: str = path) -> list[Operation]:
            node = await store.get(path)
            return [] if node is None else [Delete(path, node.version)]

        if path.startswith(LOG_NAMES + "/"):
            restored.lost_logs.append(log_name_of(path.split("/")[1]))
        with contextlib.suppress(NodeHasChildren):  # Nodes of ending sessions. The parent may stay.
            await turn.write(decide, what=f"the deletion of {path}")
    for path in others:
        if path.startswith(LEDGERS + "/"):
            restored.lost_ledgers += 1
            if len(restored.lost_ledger_ids) < _NAMED_MAX:
                with contextlib.suppress(ValueError):
                    restored.lost_ledger_ids.append(ledger_id_of(*path.split("/")[1:]))
    restored.lost_logs.sort()


def _hash(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "little")


def _is_in(seen: array[int], number: int) -> bool:
    at = bisect_left(seen, number)
    return at < len(seen) and seen[at] == number
