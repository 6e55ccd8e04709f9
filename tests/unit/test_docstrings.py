"""Every public object has a docstring, and its sections name the parameters that there are.

Public is everything in ``__all__`` of the packages below, and the public methods of these classes. A
docstring has Google sections: if a callable has parameters, "Args:" names each of them, in their order, and
no other.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import attrs
import pytest

PACKAGES = ("ledgerlog", "ledgerlog.testing", "ledgerlog.blocking", "ledgerlog.spark")

GIVEN_OUT = {
    "ledgerlog": {
        *("Campaign", "Cluster", "Cursor", "Election", "LedgerReader", "LedgerWriter", "Ledgers", "Log"),
        *("LogReader", "LogWriter", "RecordBatch", "Submission", "Term"),
    },
    "ledgerlog.testing": {"SimulatedCluster", "Simulation"},
    "ledgerlog.blocking": {
        *("Campaign", "Cluster", "Cursor", "Election", "LedgerReader", "LedgerWriter", "Ledgers", "Log"),
        *("LogReader", "LogWriter", "Submission"),
    },
    "ledgerlog.aio": {
        *("Campaign", "Cluster", "Cursor", "Election", "LedgerReader", "LedgerWriter", "Ledgers", "Log"),
        *("LogReader", "LogWriter", "Submission", "Term"),
    },
    "ledgerlog.spark": set[str](),
}
"""Classes whose objects the library makes. Their constructors are not public."""

_ENTRY = re.compile(r" {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: ?")


def section(docstring: str, heading: str) -> list[str] | None:
    """The names of a Google section in their order; None if the docstring has no such section."""
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{heading}:" not in lines:
        return None
    names: list[str] = []
    for line in lines[lines.index(f"{heading}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        if match := _ENTRY.match(line):
            names += [name.strip().lstrip("*") for name in match[1].split(",")]
    return names


def parameters(function: Any) -> list[str]:
    """The names of the public parameters of a function, without self and cls."""
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in {"self", "cls"} and not name.startswith("_")]


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that our code defines, inherited ones included."""
    for name in dir(cls):
        homes = [base for base in cls.__mro__ if name in vars(base)]
        if name.startswith("_") or not homes or not homes[0].__module__.startswith("ledgerlog"):
            continue
        found = vars(homes[0])[name]
        if isinstance(found, property | cached_property | classmethod | staticmethod) or inspect.isfunction(
            found
        ):
            yield name, found


def wanting(name: str, docstring: str | None, names: list[str]) -> list[str]:
    """What a docstring lacks for a callable with these parameters."""
    if not docstring or not docstring.strip():
        return [f"{name} has no docstring"]
    told = section(docstring, "Args")
    if (told or []) == names:
        return []
    return [f"{name}({', '.join(names)}) has the Args {told}"]


@cache
def told_fields(cls: type) -> dict[str, bool]:
    """For each public field of a class with attrs or a named tuple: whether a docstring follows it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    told: dict[str, bool] = {}
    for statement, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            is_told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if not statement.target.id.startswith("_"):
                told[statement.target.id] = is_told
    return told


def set_attributes(cls: type) -> set[str]:
    """The public attributes that the ``__init__`` of a class sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(vars(cls)["__init__"])))
    stored = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    return {node.attr for node in stored if not node.attr.startswith("_")}


def faults_of_class(name: str, cls: type, *, is_given_out: bool) -> list[str]:
    faults = [] if vars(cls).get("__doc__") else [f"{name} has no docstring"]
    if attrs.has(cls) or hasattr(cls, "_fields"):
        listed = section(cls.__doc__ or "", "Attributes") or []
        fields = told_fields(cls)
        faults += [
            f"{name}.{field} has no docstring"
            for field in fields
            if not fields[field] and field not in listed
        ]
        faults += [f"{name} has no attribute {field}" for field in listed if field not in fields]
    elif not (
        is_given_out
        or getattr(cls, "_is_protocol", False)
        or issubclass(cls, BaseException | enum.Enum | tuple)
    ) and "__init__" in vars(cls):
        both = f"{inspect.getdoc(cls)}\n\n{inspect.cleandoc(vars(cls)['__init__'].__doc__ or '')}"
        faults += wanting(name, both, parameters(vars(cls)["__init__"]))
    if issubclass(cls, BaseException) and "__init__" in vars(cls):
        told = section(cls.__doc__ or "", "Attributes") or []
        if set(told) != set_attributes(cls):
            faults.append(f"{name} sets {sorted(set_attributes(cls))} and has the Attributes {told}")
    for method, found in methods(cls):
        if isinstance(found, property | cached_property):
            faults += wanting(f"{name}.{method}", inspect.getdoc(found), [])
        else:
            function = inspect.unwrap(
                found.__func__ if isinstance(found, classmethod | staticmethod) else found
            )
            faults += wanting(f"{name}.{method}", inspect.getdoc(getattr(cls, method)), parameters(function))
    return faults


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_object_has_a_docstring_with_exactly_its_parameters(package: str) -> None:
    module = import_module(package)
    faults: list[str] = []
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found):
            faults += faults_of_class(name, found, is_given_out=name in GIVEN_OUT[package])
        elif inspect.isroutine(found):
            faults += wanting(name, inspect.getdoc(found), parameters(inspect.unwrap(found)))
    assert not faults, "\n".join(faults)
    assert GIVEN_OUT[package] <= set(module.__all__)


def test_the_sections_are_read_as_they_are_written() -> None:
    docstring = """Do it.

        Args:
            first: The first. A line may end with a colon:
                and go on.
            *rest: All others.
            left, right: Two at once.

        Returns:
            The result: a number.
        """
    assert section(docstring, "Args") == ["first", "rest", "left", "right"]
    assert section(docstring, "Raises") is None
    assert wanting("do", docstring, ["first", "rest", "left", "right"]) == []
    assert wanting("do", docstring, ["first"]) != []
    assert wanting("do", "Do it.", ["first"]) != []
    assert wanting("do", "", []) != []
