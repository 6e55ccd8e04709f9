"""Disks that run full: a tmpfs under the directory of a bookie, and a file beside that directory that takes
the remaining space. You need the right to mount (``why_not``)."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import attrs

from ledgerlog.limits import MIB

__all__ = ["SmallDisk", "open_small_disk", "why_not"]

DISK_BYTES = 320 * MIB
"""Room for the 64 MiB that the driver's bookies reserve, and for the data that a bookie stores in hours."""


@attrs.frozen
class SmallDisk:
    """A disk made by ``open_small_disk``."""

    path: Path
    """The mount point."""

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self, left_bytes: int) -> None:
        """Take all space but ``left_bytes``. If a bookie takes some of it first, try again."""
        with self._filler.open("wb") as file:
            while (space := os.statvfs(self.path)).f_bavail * space.f_frsize > left_bytes:
                size = os.fstat(file.fileno()).st_size
                try:
                    os.posix_fallocate(file.fileno(), size, space.f_bavail * space.f_frsize - left_bytes)
                except OSError as full:
                    if full.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give back the space that ``fill`` took. Idempotent."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def open_small_disk(path: Path) -> Iterator[SmallDisk]:
    """Make ``path``, and mount a tmpfs there for the body. Everything on it is lost afterwards."""
    path.mkdir(mode=0o700, parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(path))
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", str(path))


@cache
def why_not() -> str | None:
    """Return why this machine cannot make small disks; None if it can."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with open_small_disk(Path(directory) / "disk"):
                return None
        except (OSError, subprocess.CalledProcessError) as failure:
            said = failure.stderr.strip() if isinstance(failure, subprocess.CalledProcessError) else failure
            return f"a tmpfs cannot be mounted: {said}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
