"""One target under atheris: ``LEDGERLOG_FUZZ_TARGET=name python tests/fuzz/one.py CORPUS... -option=...``.

A file of its own, and the target's name in the environment, because libFuzzer starts its own command line
again when it merges."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

atheris = importlib.import_module("atheris")  # It has no types, and not every platform has it.

with atheris.instrument_imports(include=["ledgerlog", "bookie"], enable_loader_override=False):
    from tests.fuzz.corpus import all_targets

_NAME = os.environ["LEDGERLOG_FUZZ_TARGET"]
_RUN = next(target.run for target in all_targets() if target.name == _NAME)


def _one_input(data: bytes) -> None:
    _RUN(data)


if __name__ == "__main__":
    # The command line that is started again has this as its first word, and goes through a shell.
    atheris.Setup([shlex.join((sys.executable, *sys.argv[:1])), *sys.argv[1:]], _one_input)
    atheris.Fuzz()
