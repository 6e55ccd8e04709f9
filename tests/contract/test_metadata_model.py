"""SQLite and ZooKeeper against the memory tree: the same programs give the same answers, errors and trees.

A program is a list of steps by two clients of one tree. Versions are opaque, so a step names a version by its
age: the node's current one, an older one of the same incarnation, or one that never existed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import LedgerLogError
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.meta.store import Check, Create, Delete, MetadataStore, Operation, Set
from ledgerlog.meta.zookeeper.store import open_zookeeper_store
from tests.zookeepers import new_chroot

NEVER = 2**62

PATHS = ["a", "a/b", "a/b/c", "a/b-c", "a/d", "a-b", "e", "e/é"]


@attrs.frozen
class Step:
    kind: str
    path: str
    value: bytes
    age: str


@attrs.frozen
class Program:
    client: int
    steps: list[Step]


step = st.builds(
    Step,
    kind=st.sampled_from(["create", "create", "ephemeral", "set", "set", "delete", "drop", "check"]),
    path=st.sampled_from(PATHS),
    value=st.sampled_from([b"", b"1", b"22"]),
    age=st.sampled_from(["current", "current", "current", "older", "never"]),
)
programs = st.lists(
    st.builds(Program, client=st.integers(0, 1), steps=st.lists(step, min_size=1, max_size=4)),
    min_size=1,
    max_size=25,
)


class Versions:
    """The versions of each path in both stores, since the path was last created."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[int, int]]] = {}

    def pick(self, path: str, age: str, which: int) -> int:
        known = self._of.get(path, [])
        if age == "current" and known:
            return known[-1][which]
        if age == "older" and len(known) > 1:
            return known[-2][which]
        return NEVER

    def note(self, operations: list[Operation], memory: list[int], other: list[int]) -> None:
        for operation, pair in zip(operations, zip(memory, other, strict=True), strict=True):
            match operation:
                case Create(path=path):
                    self._of[path] = [pair]
                case Set(path=path):
                    self._of[path].append(pair)
                case Delete(path=path):
                    del self._of[path]
                case Check(path=path):
                    assert self._of[path][-1] == pair


def operations_of(steps: list[Step], versions: Versions, which: int) -> list[Operation]:
    operations: list[Operation] = []
    for one in steps:
        version = versions.pick(one.path, one.age, which)
        match one.kind:
            case "create":
                operations.append(Create(one.path, one.value))
            case "ephemeral":
                operations.append(Create(one.path, one.value, ephemeral=True))
            case "set":
                operations.append(Set(one.path, one.value, version))
            case "delete":
                operations.append(Delete(one.path, version))
            case "drop":
                operations.append(Delete(one.path))
            case "check":
                operations.append(Check(one.path, version))
    return operations


async def outcome(
    store: MetadataStore, operations: list[Operation]
) -> tuple[list[int] | None, type[LedgerLogError] | None]:
    try:
        return await store.transaction(operations), None
    except LedgerLogError as error:
        return None, type(error)


async def tree(store: MetadataStore) -> dict[str, tuple[bytes | None, list[str]]]:
    found: dict[str, tuple[bytes | None, list[str]]] = {}
    for path in PATHS:
        node = await store.get(path)
        found[path] = None if node is None else node.value, await store.children(path)
    return found


async def agree(
    program: list[Program],
    open_store: Callable[[], AbstractAsyncContextManager[MetadataStore]],
) -> None:
    """Run two clients of each store: answers, errors and final trees must equal those of the memory tree."""
    memory_tree = MemoryTree()
    versions = Versions()
    async with open_store() as other_first:
        memory_first = memory_tree.open_store()
        async with open_store() as other_second:
            memory_second = memory_tree.open_store()
            for one in program:
                memory = (memory_first, memory_second)[one.client]
                other = (other_first, other_second)[one.client]
                operations = operations_of(one.steps, versions, 0)
                in_memory, memory_error = await outcome(memory, operations)
                in_other, other_error = await outcome(other, operations_of(one.steps, versions, 1))
                assert memory_error == other_error
                if in_memory is not None and in_other is not None:
                    versions.note(operations, in_memory, in_other)
                await other_first.sync()
                assert await tree(memory_first) == await tree(other_first)
            memory_second.close()
        await other_first.sync()
        assert await tree(memory_first) == await tree(other_first)
        memory_first.close()
    async with open_store() as other_later:
        assert await tree(memory_tree.open_store()) == await tree(other_later)


@given(program=programs)
async def test_sqlite_and_memory_answer_every_program_alike(program: list[Program]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        await agree(program, partial(open_sqlite_store, Path(directory) / "meta.db"))


@pytest.mark.processes
@given(program=programs)
async def test_zookeeper_and_memory_answer_every_program_alike(
    zookeeper_hosts: str, program: list[Program]
) -> None:
    await agree(program, partial(open_zookeeper_store, zookeeper_hosts, chroot=new_chroot()))
