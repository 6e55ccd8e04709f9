"""``python -m tools.release``: the wheels, the source distribution and their checksums, in dist/.

The version is ``ledgerlog.__version__``; pyproject.toml takes it from there. A release is made of a commit,
so a tree with changes is refused. So is a version of which CHANGELOG.md has no section, and a changelog with
changes that are in no version yet. The pure wheel is built from the source distribution, which shows that it
is complete.

There is one more wheel for each of ``PLATFORMS`` whose C compiler is installed: it has the compiled part. pip
prefers it there, and takes the pure wheel everywhere else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import click

import ledgerlog

ROOT = Path(__file__).resolve().parents[1]

GLIBC_MINOR_MAX = 17
PLATFORMS = {
    f"manylinux_2_{GLIBC_MINOR_MAX}-x86_64": "x86_64-linux-gnu-gcc",
    f"manylinux_2_{GLIBC_MINOR_MAX}-aarch64": "aarch64-linux-gnu-gcc",
}
"""The platforms with a compiled part, and the compilers, as Debian names them. The platform promises that the
part runs with glibc 2.17, which ``newest_glibc`` checks."""


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


def newest_glibc(library: bytes) -> int:
    """Return the minor version of the newest glibc 2 that a shared library needs; 0 if it needs none."""
    return max(map(int, re.findall(rb"GLIBC_2\.(\d+)", library)), default=0)


def build(dist: Path, *options: str, **environment: str) -> None:
    """Build with these options of ``python -m build``, and these variables of the environment."""
    command = [sys.executable, "-m", "build", *options, "--outdir", str(dist), str(ROOT)]
    subprocess.run(command, env=os.environ | environment, check=True)


def build_compiled(dist: Path, platform: str, compiler: str, **environment: str) -> None:
    """Build the wheel for one of ``PLATFORMS``, or say that there is no compiler for it.

    Raises:
        SystemExit: The compiled part is not in the wheel, or needs a newer glibc than the platform promises.
    """
    if shutil.which(compiler) is None:
        click.echo(f"no wheel for {platform}, where the pure wheel will serve: there is no {compiler} here")
        return
    build(dist, "--wheel", CC=compiler, _PYTHON_HOST_PLATFORM=platform, **environment)
    for wheel in dist.glob(f"*{platform.replace('-', '_')}.whl"):
        with zipfile.ZipFile(wheel) as files:
            if newest_glibc(files.read("ledgerlog/wire/_pieces.abi3.so")) > GLIBC_MINOR_MAX:
                raise SystemExit(f"{wheel.name} needs a newer glibc than it says")
        return
    raise SystemExit(f"compiling for {platform} with {compiler} failed")


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
    environment = {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip()}
    build(dist, LEDGERLOG_PURE="1", **environment)
    for platform, compiler in PLATFORMS.items():
        build_compiled(dist, platform, compiler, **environment)
    made = checksums(path for path in dist.iterdir() if path.name.startswith("ledgerlog-"))
    (dist / "SHA256SUMS").write_text(made, encoding="ascii")
    click.echo(made, nl=False)


if __name__ == "__main__":
    main()
