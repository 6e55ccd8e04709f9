"""Who may open a nursery around another's code, and who may start tasks in another's nursery.

Two rules of docs/ARCHITECTURE.md, "Tasks", read from the source:

1. *Around a caller's body.* trio wraps an exception that leaves a nursery in a group. So an ``async with``
   that yields to its caller opens its nursery with ``ledgerlog.concurrency.nurseries``, never with
   ``trio.open_nursery``.
2. *Handed on.* A nursery is used in the module that opened it. ``BORROWERS`` lists the modules that use the
   nursery of another module, with the reason why it outlives the tasks that they start in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OPENERS = ("open_nursery", "open_serving_nursery")

AROUND_A_BODY = {
    "ledgerlog.concurrency.nurseries": "it is the owner",
    "bookie.storage.engine.opening": "a storage that fails tells of the disk first, whatever the body raised",
    "ledgerlog.testing.memory_cluster": "a test that fails shows with it what failed beside it",
}

BORROWERS = {
    "ledgerlog.ledger.ledgers": "writers of ledgers live as long as the client, whoever opened them",
    "ledgerlog.election.election": "a candidate is withdrawn after it was left, while the client lives",
    "ledgerlog.log.lane": "appends from outside of the loop are answered while their writer lives",
    "ledgerlog.aio.base": "a lane of appends lives as long as the connection",
    "ledgerlog.aio.bridge": "calls from asyncio run while the connection lives",
    "ledgerlog.machine.replica": "the replica lends its own to its keeper, for as long as it runs",
    "ledgerlog.machine.snapshot_manager": "snapshots are written while the replica runs",
    "bookie.server.requests": "requests are answered while their connection lives",
    "ledgerlog.testing.cluster": "processes run in the nursery of their run, which `testing.runs` opens",
    "ledgerlog.testing.counters": "users run in the nursery of their world",
    "ledgerlog.testing.drills": "a drill ends with the nursery that it was made with",
    "ledgerlog.testing.memory_cluster": "a session of the metadata expires while the cluster lives",
    "ledgerlog.testing.producers": "producers run in the nursery of their world",
    "ledgerlog.testing.replicated": "a replica is cut off in the nursery of its world, which ends after it",
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for package in ("ledgerlog", "bookie"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            yield (
                ".".join(path.relative_to(REPOSITORY).with_suffix("").parts),
                ast.parse(path.read_text("utf-8")),
            )


def _yields(node: ast.AST) -> bool:
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return any(_yields(child) for child in ast.iter_child_nodes(node))


def has_a_bare_nursery_around_a_body(tree: ast.AST) -> bool:
    """Return whether an ``async with trio.open_nursery()`` yields to a caller."""
    return any(
        any(ast.unparse(item.context_expr) == "trio.open_nursery()" for item in node.items)
        and any(_yields(statement) for statement in node.body)
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
    )


def borrows_a_nursery(tree: ast.AST) -> bool:
    """Return whether a module starts tasks but opens no nursery, or names a nursery of another object."""
    opens = starts = reaches = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in OPENERS:
            opens = True
        elif isinstance(node, ast.Attribute):
            starts = starts or node.attr == "start_soon"
            reaches = reaches or (node.attr == "nursery" and ast.unparse(node.value) != "self")
    return reaches or (starts and not opens)


def test_a_nursery_around_a_callers_body_keeps_its_groups_to_itself() -> None:
    assert {name for name, tree in _modules() if has_a_bare_nursery_around_a_body(tree)} == set(AROUND_A_BODY)


def test_a_nursery_is_used_where_it_was_opened_or_with_a_reason() -> None:
    assert {name for name, tree in _modules() if borrows_a_nursery(tree)} == set(BORROWERS)


@pytest.mark.parametrize(
    ("body", "is_bare"),
    [
        ("async with trio.open_nursery() as n:\n        yield n", True),
        ("async with connect(), trio.open_nursery() as n:\n        if n:\n            yield", True),
        ("async with open_nursery() as n:\n        yield n", False),
        ("async with trio.open_nursery() as n:\n        await n\n    yield", False),
        ("async with trio.open_nursery() as n:\n        def g():\n            yield", False),
    ],
)
def test_the_first_rule_bites(body: str, is_bare: bool) -> None:
    assert has_a_bare_nursery_around_a_body(ast.parse(f"async def f():\n    {body}\n")) == is_bare


@pytest.mark.parametrize(
    ("source", "is_borrower"),
    [
        ("def f(nursery):\n    nursery.start_soon(g)", True),
        (
            "async def f(self):\n    async with open_nursery() as n:\n        self._a.nursery.start_soon(g)",
            True,
        ),
        (
            "async def f():\n    async with trio.open_nursery() as nursery:\n        nursery.start_soon(g)",
            False,
        ),
    ],
)
def test_the_second_rule_bites(source: str, is_borrower: bool) -> None:
    assert borrows_a_nursery(ast.parse(source)) == is_borrower
