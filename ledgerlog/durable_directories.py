"""Directories whose entries survive a power cut.

If you make, rename or delete a file, the change is durable only after a sync of the directory that holds it.
These functions wait for the disk: call them in a worker thread.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["make_directories", "sync_directory"]


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the entries of a directory durable, so that files stay made, renamed or deleted.

    Raises:
        OSError: The path is not a directory, or the disk failed. Then each of the entries may or may not be
            durable.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Make a directory and its missing parents, for this user only, and make their names durable.

    For example, if ``/var/lib`` exists, making ``/var/lib/a/b`` syncs ``/var/lib`` and ``/var/lib/a``.

    Raises:
        OSError: A directory cannot be made, or the disk failed. Some of the directories may exist now.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for made in reversed(missing):
        made.mkdir(mode=0o700, exist_ok=True)
        sync_directory(made.parent)
