"""Turn operations on our tree into one ZooKeeper transaction, and its failure into our errors.

Nothing here waits.

Each operation becomes one or more *steps* on znodes (``names``). All steps of a transaction go to the server
as one multi-request, which does all of them or none:

    Create     the value; for an ephemeral node also its ephemeral directory
    Set        the value at the version
    Check      the value at the version
    Delete     the value at the version; then the directory is removed. If there is none, it is made and
               removed again. That proves, in the same transaction, that it did not exist, and so that
               the node has no child

**Optimistic first, exact second.** The directories above a node nearly always exist, and a leaf nearly always
has no directory of its own. The first attempt assumes this and costs one request. If the server's answer
shows that the assumption was wrong (``Structure``), the caller looks which directories exist and plans again
with what it ``knows``. The new plan makes missing directories inside the transaction, and removes empty
directories that are in the way. The plan keeps track of its own steps, so operations see the effects of
earlier ones. If the directories change again before the transaction arrives, the transaction fails once more
and is planned once more. The transaction never does anything except its operations.

**Failures.** The server names the first step that failed. The step's role decides what the failure means:

* an exception of the contract;
* ``Structure``: look which directories exist, and plan again;
* ``Occupied``: a directory that should be removed is not empty. The caller must check whether a *node* lies
  below it, because empty directories may be left over.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    NodeExists,
    NodeHasChildren,
    NodeMissing,
    Operation,
    Set,
    VersionConflict,
)
from ledgerlog.meta.zookeeper.names import Names

ANY_VERSION = -1
NO_VERSION = 2**31 - 1
"""A version that no znode has. It replaces a version that ZooKeeper cannot encode."""


class StepRole(enum.Enum):
    """The purpose of a step in a transaction."""

    VALUE = enum.auto()
    MAKE_DIRECTORY = enum.auto()
    """Make a directory above a new node."""
    RESERVE_DIRECTORY = enum.auto()
    """Make the ephemeral directory of an ephemeral node."""
    DROP_DIRECTORY = enum.auto()
    PROVE_NO_DIRECTORY = enum.auto()
    """Make the directory and remove it again: this succeeds only if there was none."""


@attrs.frozen
class MakeZnode:
    """Make a znode."""

    znode: str
    value: bytes = b""
    is_ephemeral: bool = False


@attrs.frozen
class SetZnode:
    """Replace a znode's value if the znode is at ``version``."""

    znode: str
    value: bytes
    version: int


@attrs.frozen
class DeleteZnode:
    """Remove a znode if it is at ``version`` and has no children."""

    znode: str
    version: int = ANY_VERSION


@attrs.frozen
class CheckZnode:
    """Change nothing, but fail unless the znode is at ``version``."""

    znode: str
    version: int


ZnodeOperation = MakeZnode | SetZnode | DeleteZnode | CheckZnode


@attrs.frozen
class PlanStep:
    """One request of a transaction, and its purpose."""

    index: int
    """The index of the operation that this step is part of."""
    role: StepRole
    request: ZnodeOperation


class Refusal(enum.Enum):
    """Why the server refused a step."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    PARENT_IS_EPHEMERAL = "no children for ephemerals"


@attrs.frozen
class Structure:
    """The tree's directories differ from the plan's assumption: look, and plan again."""


@attrs.frozen
class Occupied:
    """``directory`` has znodes below it. If one of them belongs to a node, raise ``error``."""

    directory: str
    error: LedgerLogError


def directories_of(operations: Sequence[Operation], names: Names) -> list[str]:
    """Return the directories that a plan depends on, each once, outermost first."""
    found: dict[str, None] = {}
    for operation in operations:
        if isinstance(operation, Create):
            found.update(dict.fromkeys(names.directories_above(operation.path)))
        if isinstance(operation, Delete) or (isinstance(operation, Create) and operation.ephemeral):
            found[names.directory(operation.path)] = None
    return sorted(found, key=lambda znode: (znode.count("/"), znode))


def plan(operations: Sequence[Operation], names: Names, known: Mapping[str, bool] | None) -> list[PlanStep]:
    """Return the steps for ``operations``.

    Args:
        operations: The operations of one transaction, in order.
        names: The names of the tree.
        known: Which directories exist; None to assume the usual case.
    """
    exists: dict[str, bool] = dict(known or {})
    steps: list[PlanStep] = []
    for index, operation in enumerate(operations):
        path = operation.path
        value = names.value(path)

        def step(role: StepRole, request: ZnodeOperation, index: int = index) -> None:
            steps.append(PlanStep(index, role, request))

        match operation:
            case Create():
                for above in names.directories_above(path):
                    if not exists.get(above, True):
                        step(StepRole.MAKE_DIRECTORY, MakeZnode(above))
                        exists[above] = True
                step(StepRole.VALUE, MakeZnode(value, operation.value, operation.ephemeral))
                if operation.ephemeral:
                    directory = names.directory(path)
                    if exists.get(directory, False):
                        step(StepRole.DROP_DIRECTORY, DeleteZnode(directory))
                    step(StepRole.RESERVE_DIRECTORY, MakeZnode(directory, is_ephemeral=True))
                    exists[directory] = True
            case Set():
                step(StepRole.VALUE, SetZnode(value, operation.value, _spellable(operation.version)))
            case Check():
                step(StepRole.VALUE, CheckZnode(value, _spellable(operation.version)))
            case Delete():
                version = ANY_VERSION if operation.version is None else _spellable(operation.version)
                step(StepRole.VALUE, DeleteZnode(value, version))
                directory = names.directory(path)
                if exists.get(directory, False):
                    step(StepRole.DROP_DIRECTORY, DeleteZnode(directory))
                else:
                    step(StepRole.PROVE_NO_DIRECTORY, MakeZnode(directory))
                    step(StepRole.PROVE_NO_DIRECTORY, DeleteZnode(directory))
                exists[directory] = False
    return steps


def _spellable(version: int) -> int:
    # ZooKeeper reads a negative version as "any". A compare-and-set would become an unconditional write.
    return version if 0 <= version < NO_VERSION else NO_VERSION


def meaning(step: PlanStep, refusal: Refusal, operation: Operation) -> LedgerLogError | Structure | Occupied:
    """Return the meaning of the server's refusal for the caller.

    Args:
        step: The first step of its transaction that failed.
        refusal: Why the server refused it.
        operation: The operation that the step is part of.
    """
    path = operation.path
    if refusal is Refusal.PARENT_IS_EPHEMERAL:
        return InvalidArgument(f"{path!r} would be a child of an ephemeral node")
    if step.role is StepRole.DROP_DIRECTORY and refusal is Refusal.NOT_EMPTY:
        if isinstance(operation, Delete):
            return Occupied(
                step.request.znode, NodeHasChildren(f"{path!r} has children; nothing was deleted")
            )
        return Occupied(
            step.request.znode, InvalidArgument(f"{path!r} has children, so it cannot be ephemeral")
        )
    if step.role is not StepRole.VALUE:
        return Structure()
    if refusal is Refusal.NODE_EXISTS:
        return NodeExists(f"{path!r} exists already")
    if refusal is Refusal.BAD_VERSION:
        return VersionConflict(f"{path!r} is not at version {getattr(operation, 'version', None)}")
    if isinstance(operation, Create):
        return Structure()
    return NodeMissing(f"there is no node at {path!r}")
