"""``python -m tools.release``: the wheel, the source distribution and their checksums, in dist/.

The version is ``ledgerlog.__version__``; pyproject.toml takes it from there. A release is made of a commit,
so a tree with changes is refused. So is a version of which CHANGELOG.md has no section, and a changelog with
changes that are in no version yet. The wheel is built from the source distribution, which shows that it is
complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import click

import ledgerlog

ROOT = Path(__file__).resolve().parents[1]


def why_not(version: str, changelog: str, changes: str) -> str | None:
    """Return why there can be no release, or None.

    Args:
        version: The version to release.
        changelog: CHANGELOG.md.
        changes: What ``git status --porcelain`` prints.
    """
    if changes:
        return f"the tree has changes that are in no commit:\n{changes.rstrip()}"
    sections = [line.split("]")[0] for line in changelog.splitlines() if line.startswith("## [")]
    if f"## [{version}" not in sections:
        return f"CHANGELOG.md has no section '## [{version}] - DATE' for the version in ledgerlog/__init__.py"
    if _unreleased(changelog):
        return (
            "CHANGELOG.md has changes under '## [Unreleased]': give that section a new version and the date, "
            "and set the version in ledgerlog/__init__.py"
        )
    return None


def _unreleased(changelog: str) -> str:
    """Return what the section Unreleased says, without the blank lines around it."""
    _, _, rest = changelog.partition("\n## [Unreleased]\n")
    return rest.partition("\n## [")[0].strip()


def checksums(files: Iterable[Path]) -> str:
    """Return the lines that ``sha256sum --check`` takes, one for each file.

    Args:
        files: The files.
    """
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)
    )


def git(*arguments: str) -> str:
    """Return what a command of git prints about this tree."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, encoding="utf-8"
    ).stdout


def main() -> None:
    """Make the release, or end with 1 and say why not."""
    version = ledgerlog.__version__
    reason = why_not(
        version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), git("status", "--porcelain")
    )
    if reason is not None:
        raise SystemExit(f"no release of {version}: {reason}")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    # The time of the commit, so that the same commit makes the same files.
    environment = os.environ | {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip()}
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)], env=environment, check=True
    )
    made = checksums(path for path in dist.iterdir() if path.name.startswith("ledgerlog-"))
    (dist / "SHA256SUMS").write_text(made, encoding="ascii")
    click.echo(made, nl=False)


if __name__ == "__main__":
    main()
