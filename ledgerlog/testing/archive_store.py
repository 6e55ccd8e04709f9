"""An object store in memory, for the archives of a simulated run: a file system of ``pyarrow.fs``.

It keeps objects under paths, as S3 does: an object appears when its upload is complete, and moving an object
is a copy and then a deletion. Its clock is the simulated one, so the age of a file depends on the seed alone.

Faults:

    is_out_of_reach     every request fails
    unmount()           another, empty store answers until ``mount``
    failing_share       this share of the requests fails: before, after, or in the middle of their effect
    flipping_share      this share of the uploads has a flipped bit
    damage(path)        an object is lost, cut, or gets a flipped bit

Import this module only if pyarrow is installed, and before the run begins.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import attrs
import pyarrow as pa
from pyarrow import fs

from ledgerlog.archive import destinations
from ledgerlog.archive.marker import MARKER_START

__all__ = ["SCHEME", "ArchiveStore"]

SCHEME = "simulated://"
"""The beginning of the URL of each destination in the store."""


@attrs.frozen
class _Object:
    """An object."""

    data: bytes
    modified_ms: int


class ArchiveStore:
    """The objects, and the faults of the store.

    Args:
        now_ms: Returns the time of the store's clock, in milliseconds since 1970.
        random: The generator of the faults.
    """

    def __init__(self, now_ms: Callable[[], int], random: Random) -> None:
        self.objects: dict[str, _Object] = {}
        """The objects, by path. The path of an object is its URL without ``SCHEME``."""
        self.is_out_of_reach = False
        self.failing_share = 0.0
        self.flipping_share = 0.0
        self.failed = 0
        """How many requests have failed."""
        self.flipped = 0
        """How many uploads had a flipped bit."""
        self.damaged: dict[str, None] = {}
        """The paths of the objects that ``damage`` has hit."""
        self._below: dict[str, _Object] = {}
        self._hidden: dict[str, _Object] | None = None
        self._now_ms = now_ms
        self._random = random

    def heal(self) -> None:
        """End all faults. Objects that are damaged stay damaged."""
        self.is_out_of_reach, self.failing_share, self.flipping_share = False, 0.0, 0.0
        self.mount()

    @property
    def is_unmounted(self) -> bool:
        """Whether another store answers."""
        return self._hidden is not None

    def unmount(self) -> None:
        """Let another store answer, until ``mount`` or ``heal``. It keeps its objects for the next time."""
        if self._hidden is None:
            self._hidden, self.objects = self.objects, self._below

    def mount(self) -> None:
        """Let the right store answer again."""
        if self._hidden is not None:
            self.objects, self._hidden = self._hidden, None

    def copy(self, source: str, target: str, *, with_marker: bool = True) -> int:
        """Copy all objects of a destination to another one, as an operator does. Return their number.

        Args:
            source: The URL of the destination.
            target: The URL of the other one.
            with_marker: Copy the marker, too.
        """
        found = {
            path: each
            for path, each in self.objects.items()
            if path.startswith(f"{path_of(source)}/") and (with_marker or MARKER_START not in path)
        }
        for path, each in found.items():
            self.objects[path_of(target) + path.removeprefix(path_of(source))] = each
        return len(found)

    def drop(self, destination: str) -> None:
        """Delete all objects of a destination."""
        for path in [path for path in self.objects if path.startswith(f"{path_of(destination)}/")]:
            del self.objects[path]

    def damage(self, path: str) -> str:
        """Lose an object, cut it, or flip a bit of it. Return the kind of the damage."""
        random, found = self._random, self.objects[path]
        what = random.choice(("lost", "cut", "flipped"))
        self.damaged[path] = None
        if what == "lost":
            del self.objects[path]
        elif what == "cut":
            self.objects[path] = attrs.evolve(found, data=found.data[: self._place_in(found.data)])
        else:
            self.objects[path] = attrs.evolve(found, data=self._with_flipped_bit(found.data))
        return what

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Let jobs and readers find this store at URLs that begin with ``SCHEME``, during the body."""
        resolve = destinations._resolve
        filesystem = fs.PyFileSystem(_Requests(self))

        def resolve_simulated(url: str) -> tuple[Any, str]:
            return (filesystem, path_of(url)) if url.startswith(SCHEME) else resolve(url)

        destinations._resolve = resolve_simulated
        try:
            yield
        finally:
            destinations._resolve = resolve

    # --- requests -----------------------------------------------------------------------------

    def get(self, path: str) -> _Object:
        """Return an object. FileNotFoundError: there is none."""
        self._answer()
        if path not in self.objects:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", path)
        return self.objects[path]

    def put(self, path: str, data: bytes) -> None:
        """Make an object."""
        if data and self.flipping_share and self._random.random() < self.flipping_share:
            self.flipped += 1
            data = self._with_flipped_bit(data)
        self._change(lambda: self._put(path, data))

    def delete(self, path: str) -> None:
        """Delete an object. FileNotFoundError: there is none."""
        self.get(path)
        self._change(lambda: self.objects.pop(path))

    def move(self, path: str, target: str) -> None:
        """Copy an object, and then delete it. FileNotFoundError: there is none."""
        data = self.get(path).data
        self._change(lambda: self._put(target, data), lambda: self.objects.pop(path))

    def list(self, directory: str) -> list[str]:
        """Return the paths of the objects in a directory."""
        self._answer()
        return sorted(path for path in self.objects if path.rpartition("/")[0] == directory)

    def info(self, path: str) -> Any:
        """Return pyarrow's description of an object. The object need not exist."""
        self._answer()
        found = self.objects.get(path)
        if found is None:
            return fs.FileInfo(path, fs.FileType.NotFound)
        modified = datetime.fromtimestamp(found.modified_ms / 1000, UTC)
        return fs.FileInfo(path, fs.FileType.File, mtime=modified, size=len(found.data))

    def _answer(self) -> None:
        """Raise OSError if the request fails."""
        if self.is_out_of_reach or (self.failing_share and self._random.random() < self.failing_share):
            self._fail()

    def _change(self, *steps: Callable[[], object]) -> None:
        """Take some steps. If the request fails, it fails before one of them or after the last."""
        if self.is_out_of_reach:
            self._fail()
        fails = bool(self.failing_share) and self._random.random() < self.failing_share
        done = self._random.randrange(len(steps) + 1) if fails else len(steps)
        for step in steps[:done]:
            step()
        if fails:
            self._fail()

    def _fail(self) -> None:
        self.failed += 1
        raise OSError(errno.ETIMEDOUT, "the store does not answer")

    def _put(self, path: str, data: bytes) -> None:
        self.objects[path] = _Object(data, self._now_ms())

    def _place_in(self, data: bytes) -> int:
        """Draw a place in an object.

        Always draw one number. The size of the data depends on pyarrow's compression, and the number of draws
        must not.
        """
        return int(self._random.random() * len(data))

    def _with_flipped_bit(self, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[self._place_in(data)] ^= 1 << self._random.randrange(8)
        return bytes(changed)


def path_of(url: str) -> str:
    """Return the path of an object, or of a destination, from its URL."""
    return url.removeprefix(SCHEME)


class _Upload(io.BytesIO):
    """An object that is being written. It appears when it is closed."""

    def __init__(self, store: ArchiveStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        self._store.put(self._path, data)


class _Requests(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The requests of pyarrow to the store."""

    def __init__(self, store: ArchiveStore) -> None:
        self._store = store

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._store.info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        return [self._store.info(path) for path in self._store.list(selector.base_dir)]

    def create_dir(self, path: str, recursive: bool) -> None:
        """An object store has no directories."""

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._store.delete(path)

    def move(self, src: str, dest: str) -> None:
        self._store.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        raise NotImplementedError

    def open_input_file(self, path: str) -> Any:
        return pa.BufferReader(self._store.get(path).data)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Upload(self._store, path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError
