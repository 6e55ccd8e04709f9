"""Runs programs that fork, each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S


def run_forking(program: str, folder: Path) -> tuple[str, str, int]:
    """Run a program; return its standard output, its standard error and its exit code."""
    path = folder / "forks.py"
    path.write_text(program)
    ran = subprocess.run(
        # Python 3.12 and later warn about a fork in a process with threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return ran.stdout, ran.stderr, ran.returncode
