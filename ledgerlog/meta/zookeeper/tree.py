"""The tree of the metadata capability as requests to ZooKeeper: nodes, listings, counters.

``names`` maps the tree to znodes, and ``plan`` turns a transaction of ours into one of ZooKeeper's.

**Leftovers.** When a node is deleted, the empty directories above it are removed in the background. Such a
directory may be left over, for example after a crash. A listing looks into directories, so it shows no empty
ones.

**Ids.** Generation G of a counter is a znode whose version counts its writes. An unconditional write gives a
number that no other caller gets. It takes one request and never conflicts: the id is G *
``IDS_PER_GENERATION`` + version - 1. ZooKeeper's versions have 31 bits. A generation ends long before the
versions run out, and the next generation begins. If an answer is lost, an id is skipped.

**sync** is a transaction that changes nothing, because a transaction needs a majority. ZooKeeper's own sync
needs no majority: the leader answers it alone. A leader that was deposed and does not know this yet would
confirm an old state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from ledgerlog.errors import LedgerLogError, MetadataUnavailable
from ledgerlog.meta.store import Check, Operation, Set, Versioned
from ledgerlog.meta.zookeeper.calls import (
    AnswerLost,
    Denied,
    Exists,
    Get,
    GetChildren,
    NotSent,
    Refused,
    Stat,
    Transaction,
    UnknownIdentity,
    Unsupported,
    WrongSession,
    ZookeeperCall,
)
from ledgerlog.meta.zookeeper.conversation import Attempt, Conversation
from ledgerlog.meta.zookeeper.names import Names, beside, parse_child
from ledgerlog.meta.zookeeper.plan import (
    ANY_VERSION,
    CheckZnode,
    DeleteZnode,
    MakeZnode,
    Occupied,
    PlanStep,
    SetZnode,
    StepRole,
    Structure,
    directories_of,
    meaning,
    plan,
)
from ledgerlog.meta.zookeeper.session import ZooKeeperSession

IDS_PER_GENERATION = 2**30

_GENERATION = re.compile("[0-9a-f]{8,16}")

_PLANS_MAX = 16
"""How often one transaction is planned if the directories around it keep changing."""

_LEFTOVERS_MAX = 64
"""We assume that a directory with more children than this holds nodes.

Leftovers are removed as they arise, so they are few.
"""


class Tree:
    """The nodes and counters of one store.

    Every method may raise the capability's errors for lost contact (``conversation``).
    """

    def __init__(self, names: Names, conversation: Conversation) -> None:
        self._names = names
        self._conversation = conversation
        self._generations: dict[str, int] = {}
        """For each counter, the generation in which the last id was found."""

    async def get(self, path: str) -> Versioned | None:
        """Return the node's value and version; None if there is no node."""
        answer = await self._conversation.read(partial(Get, self._names.value(path)))
        if isinstance(answer, Refused):
            return None
        value, stat = answer
        return Versioned(value, stat.version)

    async def transact(
        self, operations: Sequence[Operation], session: ZooKeeperSession | None, attempt: Attempt
    ) -> list[int]:
        """Do all operations or none, and return the version for each.

        Args:
            operations: What to do, in order; at least one.
            session: The session that the transaction must be sent in; None for any.
            attempt: The caller's attempt, which records whether the write is in doubt.

        Raises:
            NodeExists, NodeMissing, NodeHasChildren, VersionConflict, InvalidArgument: As in the contract.
                Nothing was changed.
            SessionOver: ``session`` is over. Nothing was changed.
            MetadataUnavailable: The directories changed again and again. Nothing was changed.
            MetadataOutcomeUnknown: The answer was lost.
        """
        known: dict[str, bool] | None = None
        cleared: set[str] = set()
        for _ in range(_PLANS_MAX):
            steps = plan(operations, self._names, known)
            result = await self._conversation.write(
                [step.request for step in steps], attempt, session=session
            )
            if not isinstance(result, Refused):
                return _versions(operations, steps, result)
            step = steps[result.index]
            found = meaning(step, result.refusal, operations[step.index])
            if isinstance(found, Occupied):
                # If it is occupied although it was cleared, this same transaction makes a child in it. A new
                # plan would do the same.
                if found.directory in cleared or await self._holds_node(found.directory):
                    raise found.error
                cleared.add(found.directory)
                await self._clear(found.directory, attempt)
            elif not isinstance(found, Structure):
                raise found
            directories = directories_of(operations, self._names)
            stats = await self._conversation.read_all(
                [partial(Exists, directory) for directory in directories]
            )
            known = {directory: stat is not None for directory, stat in zip(directories, stats, strict=True)}
        raise MetadataUnavailable(
            f"the directories around {operations[0].path!r} changed {_PLANS_MAX} times while a transaction "
            "was planned; nothing was written"
        )

    async def _holds_node(self, directory: str) -> bool:
        """Return whether a node lies below a directory. Leftover directories do not count."""
        names = await self._conversation.read(partial(GetChildren, directory))
        if isinstance(names, Refused):
            return False
        below = []
        for name in names:
            child = parse_child(name)
            if child is None or child[1]:
                return True
            below.append(f"{directory}/{name}")
        return bool(await self._holding(below))

    async def _holding(self, directories: Sequence[str]) -> list[str]:
        """Return the directories of ``directories`` that have a node below them."""
        stats = await self._conversation.read_all([partial(Exists, directory) for directory in directories])
        found = []
        for directory, stat in zip(directories, stats, strict=True):
            count = 0 if stat is None else stat.child_count
            if count > _LEFTOVERS_MAX or (count and await self._holds_node(directory)):
                found.append(directory)
        return found

    async def children(self, path: str) -> list[str]:
        """Return the names directly below a path, sorted."""
        directory = self._names.directory(path)
        names = await self._conversation.read(partial(GetChildren, directory))
        if isinstance(names, Refused):
            return []
        found = set()
        below = {}
        for name in names:
            child = parse_child(name)
            if child is not None:
                component, is_value = child
                if is_value:
                    found.add(component)
                else:
                    below[f"{directory}/{name}"] = component
        # If a value lies beside a directory, the node exists anyway. There is no need to look into the
        # directory.
        unsure = [znode for znode, component in below.items() if component not in found]
        found.update(below[znode] for znode in await self._holding(unsure))
        return sorted(found)

    async def _clear(self, directory: str, attempt: Attempt) -> None:
        """Remove all empty directories below a directory. A node that another client makes there stays."""
        names = await self._conversation.read(partial(GetChildren, directory))
        for name in [] if isinstance(names, Refused) else names:
            child = parse_child(name)
            if child is None or child[1]:
                continue
            below = f"{directory}/{name}"
            await self._clear(below, attempt)
            value = beside(below)
            no_node = (MakeZnode(value), DeleteZnode(value))  # This succeeds only if there is none.
            await self._conversation.write([*no_node, DeleteZnode(below)], attempt, is_repeatable=True)

    def prune_above(self, znode: str) -> None:
        """Remove the directories above a znode that are empty now, in the background."""
        directory = self._names.parent_directory(znode)
        session_id = self._conversation.session_id
        if directory is None or session_id is None:
            return

        def looked(call: ZookeeperCall) -> None:
            stat = _quietly(call)
            if isinstance(stat, Stat) and not stat.child_count and not stat.is_ephemeral:
                removal = Transaction([DeleteZnode(directory)], session_id=session_id)
                removal.deliver = removed
                self._conversation.link.submit(removal)

        def removed(call: ZookeeperCall) -> None:
            if isinstance(_quietly(call), list):
                self.prune_above(directory)

        look = Exists(directory)
        look.session_id = session_id
        look.deliver = looked
        self._conversation.link.submit(look)

    # --- counters, sync --------------------------------------------------------------------------

    async def next_id(self, counter: str, attempt: Attempt) -> int:
        """Return a number that the counter has not given out before."""
        generation = self._generations.get(counter)
        if generation is None:
            generation = max(await self._list_generations(counter), default=0)
        while True:
            znode = self._generation_znode(counter, generation)
            result = await self._conversation.write(
                [SetZnode(znode, b"", ANY_VERSION)], attempt, is_repeatable=True
            )
            if isinstance(result, Refused):
                await self._make(_and_above(znode), attempt)
            elif result[0] > IDS_PER_GENERATION:
                generation += 1
            else:
                self._generations[counter] = generation
                return generation * IDS_PER_GENERATION + result[0] - 1

    def forget_generations(self) -> None:
        """Look for the counters' generations again, because a restore may have begun others."""
        self._generations.clear()

    async def skip_ids(self, counter: str, through: int, attempt: Attempt) -> None:
        """Give out no number up to ``through`` from now on, by beginning a later generation."""
        if await self.highest_id(counter, attempt) >= through:
            return
        znode = self._generation_znode(counter, through // IDS_PER_GENERATION + 1)
        await self._make(_and_above(znode), attempt)
        self._generations.pop(counter, None)

    async def _make(self, znodes: Sequence[str], attempt: Attempt) -> None:
        """Make the znodes that do not exist, outermost first."""
        # ZooKeeper checks the right to create before it looks whether the znode is there. So do not try it
        # for a znode above ours, in which others may not create.
        stats = await self._conversation.read_all([partial(Exists, znode) for znode in znodes])
        for znode, stat in zip(znodes, stats, strict=True):
            if stat is None:
                await self._conversation.write([MakeZnode(znode)], attempt, is_repeatable=True)

    async def highest_id(self, counter: str, attempt: Attempt) -> int:
        """Return the highest number that the counter has given out; -1 if none."""
        await self.sync(attempt)
        generations = await self._list_generations(counter)
        if not generations:
            return -1
        last = max(generations)
        stat = await self._conversation.read(partial(Exists, self._generation_znode(counter, last)))
        used = 0 if stat is None else min(stat.version, IDS_PER_GENERATION)
        return last * IDS_PER_GENERATION + used - 1

    def _generation_znode(self, counter: str, generation: int) -> str:
        return f"{self._names.counter(counter)}/{generation:08x}"

    async def _list_generations(self, counter: str) -> list[int]:
        names = await self._conversation.read(partial(GetChildren, self._names.counter(counter)))
        listed = [] if isinstance(names, Refused) else names
        return [int(name, 16) for name in listed if _GENERATION.fullmatch(name)]

    async def sync(self, attempt: Attempt) -> None:
        """Bring later reads up to date with all writes that finished before this call."""
        # It does not matter whether the root of the tree exists: a majority has agreed on the answer. The
        # request changes nothing, so a lost answer leaves nothing in doubt. So use a new Attempt.
        del attempt
        await self._conversation.write(
            [CheckZnode(self._names.root, ANY_VERSION)], Attempt(), is_repeatable=True
        )


def _versions(
    operations: Sequence[Operation], steps: Sequence[PlanStep], results: Sequence[int]
) -> list[int]:
    """Turn the server's answer for each step into the contract's answer for each operation."""
    versions = [operation.version if isinstance(operation, Check) else 0 for operation in operations]
    for step, version in zip(steps, results, strict=True):
        if isinstance(operations[step.index], Set) and step.role is StepRole.VALUE:
            versions[step.index] = version
    return versions


def _and_above(znode: str) -> list[str]:
    """Return a znode and all znodes above it, outermost first."""
    parts = znode.split("/")[1:]
    return ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _quietly(call: ZookeeperCall) -> Any:
    """Return the answer of a call; None if it failed. Failures do not matter here."""
    try:
        return call.result()
    except (
        NotSent,
        AnswerLost,
        WrongSession,
        Unsupported,
        Denied,
        UnknownIdentity,
        LedgerLogError,
    ):
        return None
