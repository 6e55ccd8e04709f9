"""The parts of the storage engine are made in order: each part gets only parts that were made before it."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from bookie.storage.engine import opening


def functions(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if inspect.iscode(each):
            yield each
            yield from functions(each)


def names_used_too_early(code: CodeType) -> set[str]:
    """Return names that an inner function uses before this function gives them a value."""
    parameters = code.co_argcount + code.co_kwonlyargcount
    known = {*code.co_varnames[:parameters], *code.co_freevars}
    early: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_DEREF":
            known.add(step.argval)
        elif inspect.iscode(step.argval):
            early |= set(step.argval.co_freevars) - known
    return early


def test_no_part_of_the_engine_is_handed_a_function_that_uses_a_part_made_after_it() -> None:
    """If two parts reach each other like this, you can neither understand nor test one without the other."""
    module = compile(inspect.getsource(opening), "opening.py", "exec", dont_inherit=True)
    for code in functions(module):
        assert not names_used_too_early(code), code.co_name


def test_a_function_that_uses_what_is_made_after_it_is_found() -> None:
    def early() -> Any:
        def use() -> Any:
            return made

        made = 1
        return use

    def late() -> Any:
        made = 1
        return lambda: made

    assert names_used_too_early(early.__code__) == {"made"}
    assert not names_used_too_early(late.__code__)
