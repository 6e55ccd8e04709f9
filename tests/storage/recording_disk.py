"""A disk and an index in memory that remember every effect, and the states a crash could have left.

``Recorder`` keeps one log for both. Each effect has a beginning and an end in it; between the two it is in
flight. Tests add notes of their own (what was acknowledged). A *crash point* is a place in the log, and
the states it may leave follow from the contract in ``bookie.storage.disk``:

* writes that had ended are there; of one in flight, any of its sectors of 512 bytes, the others reading as
  before. ``_torn`` gives none, all, all but one, only one, and some halves;
* changes of names in a directory are there up to the last ``sync_directory`` of it that ended, and any first
  few of those after;
* of a truncation in flight, that it happened or not;
* index batches that had ended are there; one in flight is there or not.

So one run of a scenario is examined in thousands of places without running it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
import trio

from bookie.core.rows import Change
from bookie.storage.disk import File
from bookie.storage.index import MemoryIndex, MemoryIndexes
from bookie.storage.memory_disk import MemoryDisk, MemoryFile

SECTOR = 512


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

    @property
    def directory(self) -> str:
        """Where the name is that it changes."""
        return self.path.rpartition("/")[0]

    @property
    def is_name(self) -> bool:
        return self.kind in ("create", "rename", "unlink", "mkdir", "write_file")


class Recorder:
    """The log. ``position`` counts its events; a crash point is a position."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.notes: list[tuple[int, object]] = []
        self.position = 0

    def begin(self, effect: Effect) -> None:
        effect.began = self.position
        self.effects.append(effect)
        self.position += 1

    def end(self, effect: Effect) -> None:
        effect.ended = self.position
        self.position += 1

    def note(self, what: object) -> None:
        """Something that a test must find true of every crash from here on."""
        self.notes.append((self.position, what))

    def notes_before(self, position: int) -> list[object]:
        return [what for at, what in self.notes if at <= position]


class RecordingDisk(MemoryDisk):
    def __init__(self, recorder: Recorder, image: CrashState | None = None) -> None:
        super().__init__()
        self.recorder = recorder
        if image is not None:
            self.files = {path: bytearray(content) for path, content in image.files.items()}
            self.directories = set(image.directories)

    async def make_directory(self, path: str) -> None:
        effect = Effect("mkdir", path)
        self.recorder.begin(effect)
        await super().make_directory(path)
        self.recorder.end(effect)

    async def sync_directory(self, path: str) -> None:
        effect = Effect("sync_directory", path)
        self.recorder.begin(effect)
        await super().sync_directory(path)
        self.recorder.end(effect)

    async def rename(self, source: str, target: str) -> None:
        effect = Effect("rename", source, target=target)
        self.recorder.begin(effect)
        await super().rename(source, target)
        self.recorder.end(effect)

    async def unlink(self, path: str) -> None:
        effect = Effect("unlink", path)
        self.recorder.begin(effect)
        await super().unlink(path)
        self.recorder.end(effect)

    async def truncate(self, path: str, size: int) -> None:
        effect = Effect("truncate", path, size=size)
        self.recorder.begin(effect)
        await super().truncate(path, size)
        self.recorder.end(effect)

    async def write_file(self, path: str, data: bytes) -> None:
        effect = Effect("write_file", path, data=data)
        self.recorder.begin(effect)
        await super().write_file(path, data)
        self.recorder.end(effect)

    async def create(self, path: str, size: int) -> MemoryFile:
        effect = Effect("create", path, size=size)
        self.recorder.begin(effect)
        file = await super().create(path, size)
        self.recorder.end(effect)
        return file

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        effect = Effect("write", file.path, offset=offset, data=bytes(view))
        self.recorder.begin(effect)
        await super().write_sync(file, offset, view)
        assert bytes(view) == effect.data, "the bytes of a write changed while it was in flight"
        self.recorder.end(effect)


class RecordingIndex(MemoryIndex):
    def __init__(self, path: str, recorder: Recorder, rows: dict[bytes, bytes]) -> None:
        super().__init__(path)
        self._recorder = recorder
        self.apply(list(rows.items()))

    async def write(self, rows: Sequence[Change]) -> None:
        effect = Effect("index", self.path, rows=tuple(rows))
        self._recorder.begin(effect)
        await super().write(rows)
        self._recorder.end(effect)


class RecordingIndexes(MemoryIndexes):
    def __init__(self, recorder: Recorder, image: CrashState | None = None) -> None:
        super().__init__()
        self._recorder = recorder
        for path, rows in (image.indexes if image else {}).items():
            self.indexes[path] = RecordingIndex(path, recorder, rows)

    async def create(self, path: str) -> MemoryIndex:
        await trio.lowlevel.checkpoint()
        assert path not in self.indexes
        self.indexes[path] = RecordingIndex(path, self._recorder, {})
        return self.indexes[path]


@attrs.frozen
class CrashState:
    """What a crash left: the contents of files, directories, and the rows of indexes."""

    files: dict[str, bytes]
    directories: frozenset[str]
    indexes: dict[str, dict[bytes, bytes]]
    story: str
    """Which point, and what became of what was in flight."""


def crash_states(recorder: Recorder, position: int, start: CrashState | None = None) -> Iterator[CrashState]:
    """The states that a crash at this position of the log may leave. ``start`` is the state that the recorded
    run began with."""
    done = [e for e in recorder.effects if e.ended is not None and e.ended < position]
    in_flight = [
        e for e in recorder.effects if e.began < position and (e.ended is None or e.ended >= position)
    ]
    synced: dict[str, int] = {}
    for effect in done:
        if effect.kind == "sync_directory":
            # What was begun before the sync began is durable; what ran beside it may be or not.
            synced[effect.path] = max(synced.get(effect.path, -1), effect.began)
    pending: dict[str, list[Effect]] = {}
    for effect in sorted((*done, *in_flight), key=lambda effect: effect.began):
        ended = effect.ended if effect in done else None
        if effect.is_name and (ended is None or ended > synced.get(effect.directory, -1)):
            pending.setdefault(effect.directory, []).append(effect)
    variants = [list(_variants(e)) for e in in_flight if e.kind in ("write", "index", "truncate")]
    for survivors in itertools.product(*(range(len(names) + 1) for names in pending.values())):
        lost = {
            id(e) for names, count in zip(pending.values(), survivors, strict=True) for e in names[count:]
        }
        kept = [e for e in (*done, *(e for e in in_flight if e.is_name)) if id(e) not in lost]
        for chosen in itertools.product(*variants):
            applied = kept + [variant for _, variant in chosen if variant is not None]
            words = ", ".join(word for word, _ in chosen)
            names = ", ".join(
                f"{count} of {len(each)} names in {path}"
                for (path, each), count in zip(pending.items(), survivors, strict=True)
            )
            yield _apply(start, applied, f"position {position}, {names}, {words}")


def _variants(effect: Effect) -> Iterator[tuple[str, Effect | None]]:
    yield f"{effect.kind} of {effect.path} lost", None
    yield f"{effect.kind} of {effect.path} done", effect
    if effect.kind == "write":
        for word, data in _torn(effect.data):
            yield (
                f"write of {effect.path} at {effect.offset} with {word}",
                Effect("torn", effect.path, offset=effect.offset, data=data, rows=()),
            )


def _torn(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Contents in which unwritten sectors are marked by being absent (see ``_apply``): a map byte per sector
    and the data."""
    count = len(data) // SECTOR

    def of(word: str, written: set[int]) -> tuple[str, bytes]:
        return word, bytes(sector in written for sector in range(count)) + data

    everything = set(range(count))
    yield from (of(f"all but sector {sector}", everything - {sector}) for sector in range(count))
    yield from (of(f"only sector {sector}", {sector}) for sector in range(count))
    yield of("the first half", set(range(count // 2)))
    yield of("the second half", set(range(count // 2, count)))
    yield of("every other sector", set(range(0, count, 2)))


def _apply(start: CrashState | None, effects: Sequence[Effect], story: str) -> CrashState:
    files: dict[str, bytearray] = {}
    directories: set[str] = set()
    indexes: dict[str, dict[bytes, bytes]] = {}
    if start is not None:
        files = {path: bytearray(content) for path, content in start.files.items()}
        directories = set(start.directories)
        indexes = {path: dict(rows) for path, rows in start.indexes.items()}
    aliases: dict[str, str] = {}
    for effect in effects:
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
                aliases[path] = effect.target
            case "truncate" if path in files:
                del files[path][effect.size :]
            case "unlink":
                files.pop(path, None)
            case "write" if path in files:
                files[path][effect.offset : effect.offset + len(effect.data)] = effect.data
            case "torn" if path in files:
                count = len(effect.data) // (SECTOR + 1)
                for sector in range(count):
                    if effect.data[sector]:
                        begin = count + sector * SECTOR
                        at = effect.offset + sector * SECTOR
                        files[path][at : at + SECTOR] = effect.data[begin : begin + SECTOR]
            case "index":
                kept = indexes.setdefault(path, {})
                for key, value in effect.rows:
                    if value is None:
                        kept.pop(key, None)
                    else:
                        kept[key] = value
    return CrashState(
        {path: bytes(content) for path, content in files.items()}, frozenset(directories), indexes, story
    )
