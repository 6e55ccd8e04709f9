"""Every exception that a caller may meet can be copied and sent to another process, and stays the same."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import bookie
import ledgerlog
import ledgerlog.testing
from bookie.core.journal_items import EntryRun
from bookie.storage.index.kinds import NAMES
from ledgerlog import errors
from tests.index_kinds import KINDS_HERE

PUBLIC = [getattr(ledgerlog, name) for name in ledgerlog.__all__]
PUBLIC_EXCEPTIONS = [
    found for found in PUBLIC if isinstance(found, type) and issubclass(found, BaseException)
]
TESTING_EXCEPTIONS = [
    found
    for name in ledgerlog.testing.__all__
    if isinstance(found := getattr(ledgerlog.testing, name), type) and issubclass(found, BaseException)
]


NOT_HERE = {f"bookie.storage.index.{name}" for name in NAMES if name not in KINDS_HERE}
"""Modules whose package this Python does not have."""


def all_exceptions() -> Iterator[type[BaseException]]:
    """Yield all exception classes of all modules, also internal ones: such an exception may escape too."""
    for package in (ledgerlog, bookie):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__") and module.name not in NOT_HERE:
                importlib.import_module(module.name)
    waiting: list[type[BaseException]] = [errors.LedgerLogError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.partition(".")[0] in ("ledgerlog", "bookie"):
            yield kind


ALL_EXCEPTIONS = sorted(
    {*PUBLIC_EXCEPTIONS, *TESTING_EXCEPTIONS, *all_exceptions()}, key=lambda kind: kind.__qualname__
)

VALUES: dict[str, Any] = {
    "str": "some text",
    "int": 7,
    "int | None": 8,
    "str | None": "more text",
    "bool": True,
    "tuple[int, int]": (1, 2),
    "EntryRun | None": EntryRun._make(range(len(EntryRun._fields))),
}
"""A value for each annotation of a constructor's parameters. If one is missing the test fails: add it."""


def made(kind: type[BaseException]) -> BaseException:
    """Make an exception of that class. Give its constructor every argument."""
    if not inspect.isfunction(kind.__init__):
        return kind("some text")
    in_place, named = [], {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            # The base class takes it; the subclass has no constructor of its own.
            in_place.append("some text")
            continue
        value = VALUES[str(parameter.annotation)]
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            in_place.append(value)
    return kind(*in_place, **named)


def assert_same(found: BaseException, error: BaseException) -> None:
    assert type(found) is type(error)
    assert (str(found), repr(found), found.args) == (str(error), repr(error), error.args)
    assert vars(found) == vars(error)


def round_trips() -> list[Callable[[Any], Any]]:
    pickled = [
        lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    return [*pickled, copy.copy, copy.deepcopy]


@pytest.mark.parametrize("kind", ALL_EXCEPTIONS, ids=lambda kind: kind.__qualname__)
def test_an_exception_survives_pickle_and_copy(kind: type[BaseException]) -> None:
    error = made(kind)
    for around in round_trips():
        assert_same(around(error), error)
    error.add_note("a note")
    error.__cause__ = OSError("left behind, as pickle does it with all exceptions")
    for around in round_trips():
        found = around(error)
        assert_same(found, error)
        assert found.__notes__ == ["a note"]
        group = around(ExceptionGroup("several", [error])) if isinstance(error, Exception) else None
        if group is not None:
            assert_same(group.exceptions[0], error)


class _TwoNames(errors.LedgerLogError):
    """Like a future exception: only named parameters, and a text that differs from all of them."""

    def __init__(self, *, first: int, second: str = "x") -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


def test_a_constructor_with_named_parameters_needs_nothing_of_its_own() -> None:
    error = _TwoNames(first=3, second="y")
    for around in round_trips():
        assert_same(around(error), error)
    assert made(_TwoNames).args == ("7 and some text",)


def _raise(name: str) -> None:
    raise made(getattr(ledgerlog, name))


def test_what_a_worker_raises_comes_out_of_a_process_pool_and_the_pool_goes_on() -> None:
    names = [kind.__name__ for kind in PUBLIC_EXCEPTIONS]
    assert "Truncated" in names
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, submitted in [(name, pool.submit(_raise, name)) for name in names]:
            assert_same(submitted.exception(), made(getattr(ledgerlog, name)))
        assert pool.submit(int, "7").result() == 7


def test_every_exception_of_the_tree_is_public() -> None:
    assert {getattr(errors, name) for name in errors.__all__} == set(PUBLIC_EXCEPTIONS)
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    ours = {each for each in classes if each.__module__ == errors.__name__}
    assert ours == set(PUBLIC_EXCEPTIONS)
    assert {"MetadataCorrupt", "LogListFull"} <= set(ledgerlog.__all__)
