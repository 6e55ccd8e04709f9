"""A disk and an index in memory that record every effect, and the states that a crash could have left.

``Recorder`` keeps one log for both. Each effect has a beginning and an end in it; between the two it is in
flight. Tests add notes of their own (what was acknowledged). A *crash point* is a place in the log, and
the states it may leave follow from the contract in ``bookie.storage.disk.disk``:

* writes that had ended are there; of one in flight, any of its sectors of 512 bytes, the others reading as
  before. ``_way_to_end`` gives none, all, all but one, only one, and some halves;
* changes of names in a directory are there up to the last ``sync_directory`` of it that ended, and any first
  few of those after;
* of a truncation in flight, that it happened or not;
* index batches that had ended are there; one in flight is there or not. The same holds of the removal of an
  index and of its move to another path.

What is refused has no effect but for a file that found no room: it had its name for a moment. What others
took of the disk is a note, ("others", bytes) (``leave``): a crash does not give it back.

So one run of a scenario is examined in thousands of places without running it again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import overload

import attrs
import trio

from bookie.core.rows import Change
from bookie.storage.disk.disk import File
from bookie.storage.disk.memory import MemoryDisk, MemoryFile
from bookie.storage.index.index import MemoryIndex, MemoryIndexes
from ledgerlog.errors import DiskFull, StorageError

SECTOR = 512
_INDEX_ROOM = 4096
"""With less free room than this, an index takes nothing. The room that it takes is not counted."""


_TORN = ("write", "index", "index_remove", "index_move", "truncate")


@attrs.define(eq=False)
class Effect:
    kind: str
    path: str
    target: str = ""
    offset: int = 0
    data: bytes = b""
    size: int = 0
    rows: tuple[Change, ...] = ()
    began: int = -1
    ended: int | None = None
    dropped: int | None = None
    """The caller was cancelled then, and the effect has not happened."""

    @property
    def directory(self) -> str:
        """The directory of the name that it changes."""
        return self.path.rpartition("/")[0]

    @property
    def is_name(self) -> bool:
        return self.kind in ("create", "rename", "unlink", "mkdir", "write_file")


class Recorder:
    """The log. ``position`` counts its events; a crash point is a position."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.notes: list[tuple[int, object]] = []
        self.disk: RecordingDisk
        self.indexes: RecordingIndexes
        self.position = 0

    def begin(self, effect: Effect) -> None:
        effect.began = self.position
        self.effects.append(effect)
        self.position += 1

    def end(self, effect: Effect) -> None:
        effect.ended = self.position
        self.position += 1

    @contextmanager
    def during(self, effect: Effect) -> Iterator[None]:
        """Around what has that effect; none if it fails."""
        self.begin(effect)
        try:
            yield
        except trio.Cancelled:
            effect.dropped = self.position
            raise
        except StorageError as failure:
            self.end(effect)
            if effect.kind == "create" and isinstance(failure, DiskFull):
                undone = Effect("unlink", effect.path)
                self.begin(undone)
                self.end(undone)
            else:
                self.effects.remove(effect)
            raise
        self.end(effect)

    def note(self, what: object) -> None:
        """A promise that a test must find true of every crash from here on."""
        self.notes.append((self.position, what))

    def notes_before(self, position: int) -> list[object]:
        return [what for at, what in self.notes if at <= position]


class RecordingDisk(MemoryDisk):
    def __init__(self, recorder: Recorder, image: CrashState | None = None) -> None:
        super().__init__()
        self.recorder = recorder
        self.others_bytes = 0
        """What others have on it."""
        recorder.disk = self
        if image is not None:
            self.files = {path: bytearray(content) for path, content in image.files.items()}
            self.directories = set(image.directories)

    @property
    def free_bytes(self) -> int:
        """Of a disk that has a capacity."""
        assert self.capacity_bytes is not None
        return max(0, self.capacity_bytes - self._bytes_used)

    @property
    def _bytes_used(self) -> int:
        return self.others_bytes + sum(map(len, self.files.values()))

    def leave(self, free: int) -> None:
        """Let others take all free room but ``left`` bytes, or give room back."""
        assert self.capacity_bytes is not None
        self.others_bytes = max(0, self.others_bytes + self.capacity_bytes - self._bytes_used - free)
        self.recorder.note(("others", self.others_bytes))

    def unlock(self) -> None:
        """Let go of what a killed process had locked."""
        self._locks.clear()

    async def make_directory(self, path: str) -> None:
        with self.recorder.during(Effect("mkdir", path)):
            await super().make_directory(path)

    async def sync_directory(self, path: str) -> None:
        with self.recorder.during(Effect("sync_directory", path)):
            await super().sync_directory(path)

    async def rename(self, source: str, target: str) -> None:
        with self.recorder.during(Effect("rename", source, target=target)):
            await super().rename(source, target)

    async def unlink(self, path: str) -> None:
        with self.recorder.during(Effect("unlink", path)):
            await super().unlink(path)

    async def truncate(self, path: str, size: int) -> None:
        with self.recorder.during(Effect("truncate", path, size=size)):
            await super().truncate(path, size)

    async def write_file(self, path: str, data: bytes) -> None:
        with self.recorder.during(Effect("write_file", path, data=data)):
            await super().write_file(path, data)

    async def create(self, path: str, size: int) -> MemoryFile:
        with self.recorder.during(Effect("create", path, size=size)):
            return await super().create(path, size)

    def rot(self, path: str, at: int) -> None:
        """Change a byte from now on, as rot on a disk does."""
        effect = Effect("write", path, offset=at, data=bytes([self.files[path][at] ^ 0xFF]))
        self.recorder.begin(effect)
        self.files[path][at : at + 1] = effect.data
        self.recorder.end(effect)

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        effect = Effect("write", file.path, offset=offset, data=bytes(view))
        with self.recorder.during(effect):
            await super().write_sync(file, offset, view)
            assert bytes(view) == effect.data, "the bytes of a write changed while it was in flight"


class RecordingIndex(MemoryIndex):
    def __init__(self, path: str, recorder: Recorder, rows: dict[bytes, bytes]) -> None:
        super().__init__(path)
        self._recorder = recorder
        self.apply(list(rows.items()))

    async def write(self, rows: Sequence[Change]) -> None:
        disk = self._recorder.disk
        if disk.capacity_bytes is not None and disk.free_bytes < _INDEX_ROOM:
            await trio.lowlevel.checkpoint()
            raise DiskFull("no room for a batch")
        with self._recorder.during(Effect("index", self.path, rows=tuple(rows))):
            await super().write(rows)


class RecordingIndexes(MemoryIndexes):
    def __init__(self, recorder: Recorder, image: CrashState | None = None) -> None:
        super().__init__()
        self._recorder = recorder
        recorder.indexes = self
        for path, rows in (image.indexes if image else {}).items():
            self.indexes[path] = RecordingIndex(path, recorder, rows)

    async def create(self, path: str) -> MemoryIndex:
        await trio.lowlevel.checkpoint()
        assert path not in self.indexes
        self.indexes[path] = RecordingIndex(path, self._recorder, {})
        return self.indexes[path]

    async def remove(self, path: str) -> None:
        if path in self.indexes:
            with self._recorder.during(Effect("index_remove", path)):
                await super().remove(path)

    async def replace(self, source: str, target: str) -> None:
        await self.remove(target)
        with self._recorder.during(Effect("index_move", source, target=target)):
            await super().replace(source, target)


@attrs.frozen
class CrashState:
    """What a crash left: the contents of files, directories, and the rows of indexes."""

    files: Mapping[str, bytes | bytearray]
    directories: frozenset[str]
    indexes: dict[str, dict[bytes, bytes]]
    story: str
    """The crash point, and what happened to the effects in flight."""

    def fingerprint(self) -> int:
        """Equal for states that look the same to a bookie."""
        files = tuple((path, bytes(content)) for path, content in sorted(self.files.items()))
        rows = tuple((path, tuple(sorted(rows.items()))) for path, rows in sorted(self.indexes.items()))
        return hash((files, rows, self.directories))


class CrashPoint(Sequence[CrashState]):
    """The states that a crash at one position of the log may leave, as a sequence: each is made when it is
    asked for. There are as many as the ways in which everything in flight can end, multiplied, which may be
    hundreds of thousands of directories, so nobody makes a list of them to draw one from.

    ``start`` is the state that the recorded run began with."""

    def __init__(self, recorder: Recorder, position: int, start: CrashState | None = None) -> None:
        self.position = position
        self._start = start
        self._done = [e for e in recorder.effects if e.ended is not None and e.ended < position]
        in_flight = [
            e
            for e in recorder.effects
            if e.began < position
            and (e.ended is None or e.ended >= position)
            and (e.dropped is None or e.dropped >= position)
        ]
        self._names_in_flight = [e for e in in_flight if e.is_name]
        synced: dict[str, int] = {}
        for effect in self._done:
            if effect.kind == "sync_directory":
                # Effects that began before the sync are durable. Effects that ran beside it may be durable or
                # not.
                synced[effect.path] = max(synced.get(effect.path, -1), effect.began)
        self._pending: dict[str, list[Effect]] = {}
        for effect in sorted((*self._done, *self._names_in_flight), key=lambda effect: effect.began):
            is_done = effect.ended is not None and effect.ended < position
            if effect.is_name and (not is_done or effect.ended > synced.get(effect.directory, -1)):
                self._pending.setdefault(effect.directory, []).append(effect)
        self._torn = [e for e in in_flight if e.kind in _TORN]
        self._radixes = [len(names) + 1 for names in self._pending.values()]
        self._radixes += [_ways_to_end(effect) for effect in self._torn]

    def __len__(self) -> int:
        return math.prod(self._radixes)

    @overload
    def __getitem__(self, number: int) -> CrashState: ...
    @overload
    def __getitem__(self, number: slice) -> list[CrashState]: ...

    def __getitem__(self, number: int | slice) -> CrashState | list[CrashState]:
        """The first states are those in which everything in flight is lost or done, and names are lost."""
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        rest = range(len(self))[number]
        digits: list[int] = []
        for radix in reversed(self._radixes):
            rest, digit = divmod(rest, radix)
            digits.insert(0, digit)
        survivors, ways = digits[: len(self._pending)], digits[len(self._pending) :]
        lost = {
            id(effect)
            for names, count in zip(self._pending.values(), survivors, strict=True)
            for effect in names[count:]
        }
        applied = [
            (effect, None) for effect in (*self._done, *self._names_in_flight) if id(effect) not in lost
        ]
        words = [f"position {self.position}"]
        for (path, names), count in zip(self._pending.items(), survivors, strict=True):
            words.append(f"{count} of {len(names)} names in {path}")
        for effect, way in zip(self._torn, ways, strict=True):
            word, sectors = _way_to_end(effect, way)
            words.append(f"{effect.kind} of {effect.path} at {effect.offset}: {word}")
            if way:
                applied.append((effect, sectors))
        applied.sort(key=lambda pair: pair[0].began)
        return _apply(self._start, applied, ", ".join(words))


def _ways_to_end(effect: Effect) -> int:
    return 5 + 2 * (len(effect.data) // SECTOR) if effect.kind == "write" else 2


def _way_to_end(effect: Effect, way: int) -> tuple[str, Collection[int] | None]:
    """One of the ways in which an effect in flight may end, and which sectors of it are there; None: all."""
    count = len(effect.data) // SECTOR
    match way:
        case 0:
            return "lost", None
        case 1:
            return "done", None
        case 2:
            return "the first half", range(count // 2)
        case 3:
            return "the second half", range(count // 2, count)
        case 4:
            return "every other sector", range(0, count, 2)
    sector, is_alone = divmod(way - 5, 2)
    if is_alone:
        return f"only sector {sector}", (sector,)
    return f"all but sector {sector}", [each for each in range(count) if each != sector]


def _apply(
    start: CrashState | None, effects: Sequence[tuple[Effect, Collection[int] | None]], story: str
) -> CrashState:
    """``effects``, each whole or with those of its sectors that are there."""
    files: dict[str, bytearray] = {}
    directories: set[str] = set()
    indexes: dict[str, dict[bytes, bytes]] = {}
    if start is not None:
        files = {path: bytearray(content) for path, content in start.files.items()}
        directories = set(start.directories)
        indexes = {path: dict(rows) for path, rows in start.indexes.items()}
    for effect, sectors in effects:
        path = effect.path
        match effect.kind:
            case "mkdir":
                parts = path.split("/")
                directories.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
            case "create":
                files[path] = bytearray(effect.size)
            case "write_file":
                files[path] = bytearray(effect.data)
            case "rename":
                if path in files:
                    files[effect.target] = files.pop(path)
            case "truncate" if path in files:
                del files[path][effect.size :]
            case "unlink":
                files.pop(path, None)
            case "write" if path in files:
                if sectors is None:
                    files[path][effect.offset : effect.offset + len(effect.data)] = effect.data
                for sector in sectors or ():
                    at = effect.offset + sector * SECTOR
                    files[path][at : at + SECTOR] = effect.data[sector * SECTOR : (sector + 1) * SECTOR]
            case "index_remove":
                indexes.pop(path, None)
            case "index_move" if path in indexes:
                indexes[effect.target] = indexes.pop(path)
            case "index":
                kept = indexes.setdefault(path, {})
                for key, value in effect.rows:
                    if value is None:
                        kept.pop(key, None)
                    else:
                        kept[key] = value
    # A directory whose own name is lost takes its files along.
    files = {path: content for path, content in files.items() if path.rpartition("/")[0] in directories}
    # These are not copied. A start from a state copies what it changes.
    return CrashState(files, frozenset(directories), indexes, story)
