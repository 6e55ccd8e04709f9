"""Messages about missing packages name exactly what the user can install."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ledgerlog import errors, optional_packages
from ledgerlog.archive.reader import pyarrow_needed
from ledgerlog.optional_packages import EXTRAS, how_to_install

ROOT = Path(__file__).resolve().parents[2]
OWNER = ROOT / "ledgerlog" / "optional_packages.py"
PACKAGES = ("ledgerlog", "bookie", "pyspark_ledgerlog", "pyspark_ledgeraudit")
DISTRIBUTION = importlib.metadata.distribution("ledgerlog")
EXTRAS_THERE = set(DISTRIBUTION.metadata.get_all("Provides-Extra") or ())


SAID = re.compile(r"pip[^a-z]*[fru]*[^a-z]*install|ledgerlog[^a-z]*[fru]*[^a-z]*\[")
"""A module's source matches this if one of its texts says so, even if the text is split into literals."""


def texts(path: Path) -> Iterator[str]:
    """Yield every text in a module that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_one_module_says_how_something_is_installed() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path != OWNER and SAID.search(path.read_text(encoding="utf-8")):
                said = [text for text in texts(path) if "pip install" in text or "ledgerlog[" in text]
                assert not said, path


@pytest.mark.parametrize("package", EXTRAS)
def test_a_message_names_an_extra_that_the_installed_distribution_has(package: str) -> None:
    message = how_to_install(package)
    (extra,) = re.findall(r"ledgerlog\[(\w+)\]", message)
    assert extra in EXTRAS_THERE
    command, _, _ = message.partition(" (")
    requirements = [Requirement(word) for word in shlex.split(command)[2:]]
    assert package in [requirement.name for requirement in requirements]
    for requirement in requirements:
        # The tests run with all extras, so the installed versions must satisfy the command.
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name))
    pulled = [Requirement(line) for line in DISTRIBUTION.requires or ()]
    of_extras = [p for p in pulled if p.marker is not None and "extra" in str(p.marker)]
    of_extra = {p.name for p in of_extras if p.marker is not None and p.marker.evaluate({"extra": extra})}
    assert {requirement.name for requirement in requirements} == of_extra


def test_every_extra_that_is_written_anywhere_is_there() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in (*pages, *modules):
        for extras in re.findall(r"(?:ledgerlog|\.whl|\'\.)\[([\w,]+)\]", path.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= EXTRAS_THERE, path


def test_where_nothing_is_known_of_the_distribution_the_package_itself_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optional_packages, "_DISTRIBUTION", "ledgerlog-that-is-not-installed")
    assert how_to_install("pyarrow") == "pip install pyarrow"


def test_an_archive_that_cannot_be_read_says_which_import_failed_and_what_to_install() -> None:
    with pytest.raises(errors.ArchiveSupportMissing) as caught, pyarrow_needed("/archive/x.parquet"):
        raise ImportError("libarrow.so.21: cannot open shared object file")
    assert "libarrow.so.21" in str(caught.value)
    assert "pip install 'pyarrow" in str(caught.value)
