"""From operations on our tree to one ZooKeeper transaction, and from its failure back. Nothing here waits.

Each operation becomes one or more *steps* on znodes (``names``), and all steps of a transaction go to the
server as one multi-request, which does all or none:

    Create     the value; for an ephemeral node also its ephemeral directory
    Set        the value at the version
    Check      the value at the version
    Delete     the value at the version; then the directory is removed, or, where there is none, made and
               removed again, which proves in the same instant that there is none and so no child

**Optimistic first, exact second.** Nearly always the directories above are there and a leaf has none of its
own, so the first attempt assumes that and costs one request. Where the server's answer says that the
assumption was wrong (``Structure``), the caller looks which directories exist and plans again with what
it ``knows``: missing directories are then made inside the transaction, empty ones that stand in the way
are removed inside it. Since the plan plays its own steps through, operations see those before them.
What was looked at may change before the transaction arrives; then it fails once more, and is planned
once more. At no time can it do anything but what its operations say.

**Failures.** The server names the first step that failed. What that means depends on the step's role, and is
one of: an exception of the contract; ``Structure`` (look, and plan again); ``Occupied`` (a directory
that was to be removed is not empty; whether a *node* lies below must be looked at, since empty
directories may be left over).
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
"""A version that no znode has: an opaque version that ZooKeeper could not spell conflicts with all."""


class Role(enum.Enum):
    """What a step is for."""

    VALUE = enum.auto()
    MAKE_DIRECTORY = enum.auto()
    """A directory above a new node."""
    RESERVE_DIRECTORY = enum.auto()
    """The ephemeral directory of an ephemeral node."""
    DROP_DIRECTORY = enum.auto()
    PROVE_NO_DIRECTORY = enum.auto()
    """Made and removed again: it succeeds exactly where there was none."""


@attrs.frozen
class MakeZnode:
    znode: str
    value: bytes = b""
    is_ephemeral: bool = False


@attrs.frozen
class SetZnode:
    znode: str
    value: bytes
    version: int


@attrs.frozen
class DeleteZnode:
    znode: str
    version: int = ANY_VERSION


@attrs.frozen
class CheckZnode:
    znode: str
    version: int


ZnodeOperation = MakeZnode | SetZnode | DeleteZnode | CheckZnode


@attrs.frozen
class Step:
    index: int
    """Of the operation that it is part of."""
    role: Role
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
    """The tree's directories are not as was assumed: look, and plan again."""


@attrs.frozen
class Occupied:
    """``directory`` has znodes below it. ``error`` is right if a node is among them."""

    directory: str
    error: LedgerLogError


def directories_of(operations: Sequence[Operation], names: Names) -> list[str]:
    """The directories that a plan depends on, each once, outermost first."""
    found: dict[str, None] = {}
    for operation in operations:
        if isinstance(operation, Create):
            found.update(dict.fromkeys(names.directories_above(operation.path)))
        if isinstance(operation, Delete) or (isinstance(operation, Create) and operation.ephemeral):
            found[names.directory(operation.path)] = None
    return sorted(found, key=lambda znode: (znode.count("/"), znode))


def plan(operations: Sequence[Operation], names: Names, known: Mapping[str, bool] | None) -> list[Step]:
    """The steps for ``operations``; ``known`` says which directories exist, None assumes the usual."""
    exists: dict[str, bool] = dict(known or {})
    steps: list[Step] = []
    for index, operation in enumerate(operations):
        path = operation.path
        value = names.value(path)

        def step(role: Role, request: ZnodeOperation, index: int = index) -> None:
            steps.append(Step(index, role, request))

        match operation:
            case Create():
                for above in names.directories_above(path):
                    if not exists.get(above, True):
                        step(Role.MAKE_DIRECTORY, MakeZnode(above))
                        exists[above] = True
                step(Role.VALUE, MakeZnode(value, operation.value, operation.ephemeral))
                if operation.ephemeral:
                    directory = names.directory(path)
                    if exists.get(directory, False):
                        step(Role.DROP_DIRECTORY, DeleteZnode(directory))
                    step(Role.RESERVE_DIRECTORY, MakeZnode(directory, is_ephemeral=True))
                    exists[directory] = True
            case Set():
                step(Role.VALUE, SetZnode(value, operation.value, _spellable(operation.version)))
            case Check():
                step(Role.VALUE, CheckZnode(value, _spellable(operation.version)))
            case Delete():
                version = ANY_VERSION if operation.version is None else _spellable(operation.version)
                step(Role.VALUE, DeleteZnode(value, version))
                directory = names.directory(path)
                if exists.get(directory, False):
                    step(Role.DROP_DIRECTORY, DeleteZnode(directory))
                else:
                    step(Role.PROVE_NO_DIRECTORY, MakeZnode(directory))
                    step(Role.PROVE_NO_DIRECTORY, DeleteZnode(directory))
                exists[directory] = False
    return steps


def _spellable(version: int) -> int:
    # ZooKeeper reads a negative version as "any", which would turn a compare-and-set into a plain write.
    return version if 0 <= version < NO_VERSION else NO_VERSION


def meaning(step: Step, refusal: Refusal, operation: Operation) -> LedgerLogError | Structure | Occupied:
    """What it means that the server refused this step, the first one of its transaction that failed."""
    path = operation.path
    if refusal is Refusal.PARENT_IS_EPHEMERAL:
        return InvalidArgument(f"{path!r} would be a child of an ephemeral node")
    if step.role is Role.DROP_DIRECTORY and refusal is Refusal.NOT_EMPTY:
        if isinstance(operation, Delete):
            return Occupied(
                step.request.znode, NodeHasChildren(f"{path!r} has children; nothing was deleted")
            )
        return Occupied(
            step.request.znode, InvalidArgument(f"{path!r} has children, so it cannot be ephemeral")
        )
    if step.role is not Role.VALUE:
        return Structure()
    if refusal is Refusal.NODE_EXISTS:
        return NodeExists(f"{path!r} exists already")
    if refusal is Refusal.BAD_VERSION:
        return VersionConflict(f"{path!r} is not at version {getattr(operation, 'version', None)}")
    if isinstance(operation, Create):
        return Structure()
    return NodeMissing(f"there is no node at {path!r}")
