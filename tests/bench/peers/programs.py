"""Gets the programs of the peers: Maven fetches BookKeeper, Go NATS and etcd. Redis must be installed.

The programs and our clients for them (``bookkeeper/``, ``go/``) are built in a separate directory. A second
run builds nothing, unless our sources have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["NotHere", "bookkeeper_classes", "go_programs", "program"]

_SOURCES = Path(__file__).parent
_BUILD_S = 1800.0


class NotHere(Exception):
    """A peer cannot run on this machine. The message has the reason."""


def program(name: str, package: str) -> str:
    """Return the path of an installed program. NotHere: the program is not installed."""
    found = shutil.which(name)
    if found is None:
        raise NotHere(f"the program {name} is not installed (Debian's package {package} has it)")
    return found


def bookkeeper_classes(directory: Path) -> str:
    """Build our client for BookKeeper. Return the class path with the client and BookKeeper's server."""
    maven, place = program("mvn", "maven"), directory / "bookkeeper"
    if _needs_build(_SOURCES / "bookkeeper", place):
        _build(place, maven, "--quiet", "--batch-mode", "package", "dependency:copy-dependencies")
        _remember(_SOURCES / "bookkeeper", place)
    return os.pathsep.join([str(place / "target/classes"), str(place / "target/dependency/*")])


def go_programs(directory: Path) -> Path:
    """Build the servers of NATS and etcd, and our client for NATS, etcd and Redis. Return their directory.

    The programs are ``nats-server``, ``etcd`` and ``load`` (the client)."""
    go, place = program("go", "golang-go"), directory / "go"
    if _needs_build(_SOURCES / "go", place):
        for name, package in (
            ("nats-server", "github.com/nats-io/nats-server/v2"),
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("load", "."),
        ):
            _build(place, go, "build", "-o", f"bin/{name}", package)
        _remember(_SOURCES / "go", place)
    return place / "bin"


def _needs_build(sources: Path, place: Path) -> bool:
    """Whether our sources have changed since the last build. If so, copy them to ``place``."""
    stamp = place / "built"
    if stamp.exists() and stamp.read_text() == _digest(sources):
        return False
    stamp.unlink(missing_ok=True)
    shutil.copytree(sources, place, dirs_exist_ok=True)
    return True


def _remember(sources: Path, place: Path) -> None:
    (place / "built").write_text(_digest(sources))


def _digest(sources: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(sources)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _build(place: Path, *command: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotHere(f"{' '.join(command)} took longer than {_BUILD_S:.0f} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        why = next((line for line in said if "rror" in line), f"exit code {done.returncode}")
        raise NotHere(f"{' '.join(command)} failed: {why}")
