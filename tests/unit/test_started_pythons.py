"""Every Python that we start runs our modules, never a file of the same name in the working directory."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerlog.cli.processes import python_command

REPOSITORY = Path(__file__).resolve().parents[2]
SAFE = ("-I", "-P")


def commands() -> Iterator[tuple[str, ast.List | ast.Tuple]]:
    """Yield each list or tuple that begins with ``sys.executable``, with its file and line."""
    for package in ("ledgerlog", "bookie", "pyspark_ledgerlog", "pyspark_ledgeraudit"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "executable" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                is_command = isinstance(node, ast.List | ast.Tuple) and node.elts
                if is_command and ast.unparse(node.elts[0]) == "sys.executable":
                    yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", node


def test_whoever_starts_a_python_says_that_the_working_directory_is_no_place_for_modules() -> None:
    found = dict(commands())
    assert len(found) >= 3
    for place, node in found.items():
        second = node.elts[1]
        assert isinstance(second, ast.Constant), place
        assert second.value in SAFE, f"{place}: a module of the working directory would be run"


@pytest.mark.parametrize("module", ["bookie", "ledgerlog"])
def test_a_file_in_the_working_directory_is_not_taken_for_our_module(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise SystemExit('a stranger ran')")
    said = subprocess.run(
        python_command(module, "--help"), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Usage:" in said.stdout
    unsafe = [part for part in python_command(module, "--help") if part != "-P"]
    assert sys.executable in unsafe
    ran = subprocess.run(unsafe, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "a stranger ran" in ran.stderr, "without -P it is"
