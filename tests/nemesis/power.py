"""Real power cuts: an ext4 file system in a file, which instantly loses all unwritten data.

``shut_down`` calls ext4's own ``EXT4_IOC_SHUTDOWN`` with NOLOGFLUSH. From then on, nothing reaches the file:
neither data in the page cache nor pending writes of the file system's journal. If you mount it again, you see
the state that a machine finds when its power comes back. You need root and a loop device; ``why_not`` says
what is missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import attrs

__all__ = ["Volume", "open_volume", "why_not"]

EXT4_IOC_SHUTDOWN = 0x8004587D
NOLOGFLUSH = 2


@attrs.define(eq=False)
class Volume:
    """A file system made by ``open_volume``. Methods block for some tens of milliseconds."""

    image: Path
    path: Path
    """The mount point."""
    _is_mounted: bool = False

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))
        self._is_mounted = True

    def shut_down(self) -> None:
        """Cut the power. From now on, all open files of this file system give EIO."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(directory)

    def unmount(self) -> None:
        """Unmount. No process may have a file open there."""
        if self._is_mounted:
            _run("umount", str(self.path))
            self._is_mounted = False


@contextmanager
def open_volume(directory: Path, *, size_bytes: int) -> Iterator[Volume]:
    """Make ``directory``, and mount a new file system in it for the body of the ``with``."""
    directory.mkdir(parents=True)
    volume = Volume(directory / "image", directory / "mounted")
    volume.path.mkdir()
    with volume.image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", str(volume.image))
    volume.mount()
    try:
        yield volume
    finally:
        volume.unmount()


@cache
def why_not() -> str | None:
    """Return why this machine cannot cut power; None if it can."""
    if os.geteuid() != 0:
        return "mounting takes root"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with open_volume(Path(directory) / "trial", size_bytes=8 * 1024 * 1024) as volume:
                volume.shut_down()
        except (OSError, subprocess.CalledProcessError) as cause:
            said = getattr(cause, "stderr", None)
            return f"ext4 in a file cannot be mounted: {said.decode().strip() if said else cause}"
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
