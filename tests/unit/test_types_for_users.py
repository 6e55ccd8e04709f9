"""Type checkers find the mistakes in a program that uses the library, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "typed_program.py"


def planted() -> list[int]:
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, start=1) if "# error:" in line]


def test_mypy_finds_the_planted_errors_and_no_others() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(PROGRAM)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    found = re.findall(r"typed_program\.py:(\d+): error: ", ran.stdout)
    assert sorted({int(line) for line in found}) == planted(), ran.stdout + ran.stderr


def test_pyright_finds_the_planted_errors_and_no_others() -> None:
    """basedpyright is pyright with its own runtime, so it needs no network."""
    ran = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error", str(PROGRAM)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    diagnostics = json.loads(ran.stdout)["generalDiagnostics"]
    found = {each["range"]["start"]["line"] + 1 for each in diagnostics}
    assert sorted(found) == planted(), ran.stdout
