"""Real power cuts: an ext4 file system in a file, which forgets in an instant all that was not written to it.

``shut_down`` is ext4's own ``EXT4_IOC_SHUTDOWN`` with NOLOGFLUSH: from then on nothing reaches the file,
neither data that waits in the page cache nor what the file system's journal would still have written. Mounted
again it is what a machine finds when its power comes back. It needs root and a loop device; ``why_not`` says
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
    """Made by ``open_volume``. Its methods block, for some tens of milliseconds."""

    image: Path
    path: Path
    """Where it is mounted."""
    _is_mounted: bool = False

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))
        self._is_mounted = True

    def shut_down(self) -> None:
        """The power is gone. Who has files open there gets EIO from now on."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(directory)

    def unmount(self) -> None:
        """Nobody may have a file open there."""
        if self._is_mounted:
            _run("umount", str(self.path))
            self._is_mounted = False


@contextmanager
def open_volume(directory: Path, *, size_bytes: int) -> Iterator[Volume]:
    """A new file system, mounted, for the body of the ``with``; the directory is made."""
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
    """Why there are no power cuts on this machine; None where there are."""
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
