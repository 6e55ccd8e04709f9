"""A transaction of ours as one of ZooKeeper's: its steps, and the meaning of a refused step."""

from __future__ import annotations

import pytest

from ledgerlog.errors import InvalidArgument
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
from ledgerlog.meta.zookeeper.plan import (
    NO_VERSION,
    CheckZnode,
    DeleteZnode,
    MakeZnode,
    Occupied,
    Refusal,
    SetZnode,
    StepRole,
    Structure,
    ZnodeOperation,
    directories_of,
    meaning,
    plan,
)

NAMES = Names("/c")


def requests(operations: list[Operation], known: dict[str, bool] | None = None) -> list[ZnodeOperation]:
    return [step.request for step in plan(operations, NAMES, known)]


def test_the_usual_case_is_as_few_steps_as_can_be() -> None:
    assert requests([Create("a/b", b"1")]) == [MakeZnode("/c/a/=b", b"1")]
    assert requests([Set("a/b", b"1", 3)]) == [SetZnode("/c/a/=b", b"1", 3)]
    assert requests([Check("a/b", 0)]) == [CheckZnode("/c/a/=b", 0)]


def test_a_delete_proves_in_the_same_instant_that_nothing_lies_below() -> None:
    proof = [MakeZnode("/c/a/b"), DeleteZnode("/c/a/b")]
    assert requests([Delete("a/b", 2)]) == [DeleteZnode("/c/a/=b", 2), *proof]
    # If the directory exists, it must be empty to be removed.
    assert requests([Delete("a/b")], {"/c/a/b": True}) == [DeleteZnode("/c/a/=b"), DeleteZnode("/c/a/b")]


def test_an_ephemeral_node_takes_the_place_where_children_would_be() -> None:
    made = [MakeZnode("/c/a/=b", b"", True), MakeZnode("/c/a/b", b"", True)]
    assert requests([Create("a/b", b"", ephemeral=True)]) == made
    assert requests([Create("a/b", b"", ephemeral=True)], {"/c": True, "/c/a": True, "/c/a/b": True}) == [
        made[0],
        DeleteZnode("/c/a/b"),
        made[1],
    ]


@pytest.mark.parametrize("version", [-1, -7, NO_VERSION, 2**31, 2**62])
def test_a_version_that_zookeeper_would_read_as_any_or_not_at_all_matches_none(version: int) -> None:
    for operation in (Set("a", b"", version), Check("a", version), Delete("a", version)):
        request = requests([operation])[0]
        assert getattr(request, "version", None) == NO_VERSION


def test_missing_directories_are_made_once_inside_the_transaction_and_outermost_first() -> None:
    operations: list[Operation] = [Create("a/b/c", b""), Create("a/b/d", b""), Create("a/e", b"")]
    assert directories_of(operations, NAMES) == ["/c", "/c/a", "/c/a/b"]
    assert requests(operations, {"/c": True, "/c/a": False, "/c/a/b": False}) == [
        MakeZnode("/c/a"),
        MakeZnode("/c/a/b"),
        MakeZnode("/c/a/b/=c"),
        MakeZnode("/c/a/b/=d"),
        MakeZnode("/c/a/=e"),
    ]


def test_operations_are_planned_after_those_before_them() -> None:
    known = {"/c": True, "/c/b": False}
    operations: list[Operation] = [Delete("b"), Create("b/child", b""), Create("b", b"")]
    assert requests(operations, known) == [
        DeleteZnode("/c/=b"),
        MakeZnode("/c/b"),
        DeleteZnode("/c/b"),
        MakeZnode("/c/b"),
        MakeZnode("/c/b/=child"),
        MakeZnode("/c/=b"),
    ]
    # The node that the transaction has just made below blocks the transaction's own delete.
    assert requests([Create("b/child", b""), Delete("b")], known)[-1] == DeleteZnode("/c/b")


@pytest.mark.parametrize(
    ("operation", "role", "refusal", "expected"),
    [
        (Create("a", b""), StepRole.VALUE, Refusal.NODE_EXISTS, NodeExists),
        (Create("a/b", b""), StepRole.VALUE, Refusal.NO_NODE, Structure),
        (Create("a/b", b""), StepRole.VALUE, Refusal.PARENT_IS_EPHEMERAL, InvalidArgument),
        (Create("a/b", b"", True), StepRole.RESERVE_DIRECTORY, Refusal.NODE_EXISTS, Structure),
        (Set("a", b"", 0), StepRole.VALUE, Refusal.NO_NODE, NodeMissing),
        (Set("a", b"", 0), StepRole.VALUE, Refusal.BAD_VERSION, VersionConflict),
        (Check("a", 0), StepRole.VALUE, Refusal.NO_NODE, NodeMissing),
        (Check("a", 0), StepRole.VALUE, Refusal.BAD_VERSION, VersionConflict),
        (Delete("a", 0), StepRole.VALUE, Refusal.NO_NODE, NodeMissing),
        (Delete("a", 0), StepRole.VALUE, Refusal.BAD_VERSION, VersionConflict),
        (Delete("a"), StepRole.PROVE_NO_DIRECTORY, Refusal.NODE_EXISTS, Structure),
    ],
)
def test_what_a_refusal_means(
    operation: Operation, role: StepRole, refusal: Refusal, expected: type[object]
) -> None:
    step = next(step for step in plan([operation], NAMES, None) if step.role is role)
    assert isinstance(meaning(step, refusal, operation), expected)


def test_a_directory_that_cannot_be_removed_is_looked_into() -> None:
    known = {"/c": True, "/c/a": True, "/c/a/b": True}
    for operation, error in (
        (Delete("a/b"), NodeHasChildren),
        (Create("a/b", b"", ephemeral=True), InvalidArgument),
    ):
        (step,) = [s for s in plan([operation], NAMES, known) if s.role is StepRole.DROP_DIRECTORY]
        found = meaning(step, Refusal.NOT_EMPTY, operation)
        assert isinstance(found, Occupied)
        assert found.directory == "/c/a/b"
        assert isinstance(found.error, error)
        assert isinstance(meaning(step, Refusal.NO_NODE, operation), Structure)
