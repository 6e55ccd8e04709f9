"""``python -m tests.fuzz``: coverage-guided fuzzing of every decoder, by atheris (``make fuzz``).

    python -m tests.fuzz [TARGET ...] [--seconds N] [--keep] [--list]

Each target runs in a process of its own, for ``--seconds`` of them, starting from its seeds and from the
corpus under ``tests/fuzz/corpus``. An input that makes a target fail is written to
``tests/fuzz/corpus/<target>/failed-...``, from where every later test run tries it; it stays there once the
bug is mended. ``--keep`` merges what the run reached into the corpus, as few and short inputs as cover it.

atheris has wheels for Linux and Python 3.11 to 3.13 only, so it is not among what tests need:
``pip install 'ledgerlog[fuzz]'``. Where it does not install, ``test_fuzz_targets`` changes the same inputs at
random; LEDGERLOG_FUZZ_INPUTS says how many a target gets there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.corpus import CORPUS, INPUT_BYTES_MAX, all_targets, inputs_of


def _fuzz(name: str, arguments: list[str]) -> int:
    command = [sys.executable, str(Path(__file__).with_name("one.py")), *arguments]
    return subprocess.run(command, check=False, env={**os.environ, "LEDGERLOG_FUZZ_TARGET": name}).returncode


def main() -> int:
    targets = {target.name: target for target in all_targets()}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", nargs="*", choices=[[], *targets], help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--keep", action="store_true", help="merge what was reached into the corpus")
    parser.add_argument("--list", action="store_true", help="print the targets' names")
    options = parser.parse_args()
    if options.list:
        print("\n".join(targets))
        return 0
    failed = []
    for name in options.target or targets:
        kept = CORPUS / name
        with tempfile.TemporaryDirectory() as scratch:
            found, merged = Path(scratch, "found"), Path(scratch, "merged")
            found.mkdir()
            for number, data in enumerate(inputs_of(targets[name])):
                (found / f"seed-{number}").write_bytes(data)
            kept.mkdir(parents=True, exist_ok=True)
            limits = [f"-max_len={INPUT_BYTES_MAX}", "-rss_limit_mb=2048", "-timeout=20"]
            print(f"--- {name}", flush=True)
            code = _fuzz(
                name,
                [
                    str(found),
                    *limits,
                    f"-max_total_time={options.seconds}",
                    f"-artifact_prefix={kept}/failed-",
                ],
            )
            if code:
                failed.append(name)
            elif options.keep:
                merged.mkdir()
                _fuzz(name, [str(merged), str(found), *limits, "-merge=1"])
                for old in kept.iterdir():
                    if not old.name.startswith("failed-"):
                        old.unlink()
                for file in sorted(merged.iterdir(), key=lambda file: file.stat().st_size):
                    shutil.copy(file, kept / file.name[:16])
            if not any(kept.iterdir()):
                kept.rmdir()
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
