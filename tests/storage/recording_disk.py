"""A disk and an index in memory that record every effect, and the states that a crash could have left.

``Recorder`` keeps one log for both. Each effect has a beginning and an end in it; between the two it is in
flight. Tests add notes of their own (what was acknowledged). A *crash point* is a place in the log, and
the states it may leave follow from the contract in ``bookie.storage.disk.disk``:

* writes that had ended are there; of one in flight, any of its sectors of 512 bytes, the others reading as
  before. ``_subset`` gives none, all, all but one, only one, some halves, and some random choices;
* changes of names in a directory are there up to the last ``sync_directory`` of it that ended, and any of
  those after, in any order: a cache that loses its power does not keep an order, not even within one
  directory. A file whose creation is lost may still have the name that it was given later;
* truncations that had ended are there; one in flight is there or not;
* of a small file whose write is in flight there is any part; or zeros, or the file that it replaces;
* index batches that had ended are there; one in flight is there or not. The same holds of the removal of an
  index and of its move to another path.

With ``garbage``, a sector of a write in flight may also hold bytes that nobody wrote, and so may sectors of a
segment that were never written. A sector that is written again with the same bytes keeps them.
``CrashState.garbage`` names the files: a bookie may refuse such a file, and loses nothing by it.

What is refused has no effect but for a file that found no room: it had its name for a moment. What others
took of the disk is a note, ("others", bytes) (``leave``): a crash does not give it back.

So one run of a scenario is examined in thousands of places without running it again.
"""

from __future__ import annotations

import functools
import math
import random
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

_TORN = ("write", "index", "index_remove", "index_move", "truncate", "create", "write_file")
_FILES_ENDS = ("empty", "done", "the first half", "as before", "zeros")
"""How a small file may be left whose write is in flight. The write replaces a file of that name in place: the
old content is cut first, and of the new content the size may be there before the bytes."""
_UNTOUCHED = _FILES_ENDS.index("as before")
_RANDOM_WAYS = 16
"""How many random choices of sectors there are for each write in flight; as many again with garbage."""
_GARBAGE_BEHIND_WAYS = 8
_ALL_ORDERS_MAX = 8
"""All subsets of so many names are tried, and random ones of more."""


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
        return self.path.rpartition("/")[0] or "."

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

    async def remove_directory(self, path: str) -> None:
        # Only indexes on real files are directories that go. A recorder would have to leave any part of it.
        raise AssertionError(f"{path}: a recording disk does not remove directories")

    async def truncate(self, path: str, size: int) -> None:
        assert size <= len(self.files[path]), "a truncation makes a file shorter"
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
    garbage: frozenset[str] = frozenset()
    """The files with bytes that nobody wrote."""
    is_torn: bool = False
    """Whether a part of a write is there: neither none of its sectors nor all."""

    def fingerprint(self) -> int:
        """Equal for states that look the same to a bookie."""
        files = tuple((path, bytes(content)) for path, content in sorted(self.files.items()))
        rows = tuple((path, tuple(sorted(rows.items()))) for path, rows in sorted(self.indexes.items()))
        return hash((files, rows, self.directories))


class CrashPoint(Sequence[CrashState]):
    """The states that a crash at one position of the log may leave, as a sequence: each is made when it is
    asked for. There are as many as the ways in which everything in flight can end, multiplied, which may be
    hundreds of thousands of directories, so nobody makes a list of them to draw one from.

    Args:
        recorder: The log.
        position: The position.
        start: The state that the recorded run began with.
        garbage: Whether sectors may hold bytes that nobody wrote.
    """

    def __init__(
        self, recorder: Recorder, position: int, start: CrashState | None = None, *, garbage: bool = False
    ) -> None:
        self.position = position
        self._start = start
        self._garbage = garbage
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
        self._radixes = [len(_orders(len(names))) for names in self._pending.values()]
        self._radixes += [_ways_to_end(effect, garbage=garbage) for effect in self._torn]
        self._radixes.append(1 + _GARBAGE_BEHIND_WAYS if garbage else 1)

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
        *digits, behind = digits
        chosen, ways = digits[: len(self._pending)], digits[len(self._pending) :]
        words = [f"position {self.position}"]
        world = _World(self._start)
        for (path, names), order in zip(self._pending.items(), chosen, strict=True):
            there = _orders(len(names))[order]
            world.lost_names |= {id(effect) for each, effect in enumerate(names) if each not in there}
            words.append(f"{len(there)} of {len(names)} names in {path}: {[*there]}")
        endings: dict[int, int] = {}
        is_torn = False
        for effect, way in zip(self._torn, ways, strict=True):
            words.append(f"{effect.kind} of {effect.path} at {effect.offset}: {_word_of_end(effect, way)}")
            endings[id(effect)] = way
            is_torn = is_torn or (effect.kind == "write" and way > 1)
        happened = {id(e): e for e in (*self._done, *self._names_in_flight, *self._torn)}
        for effect in sorted(happened.values(), key=lambda effect: effect.began):
            world.apply(effect, endings.get(id(effect)))
        if behind:
            words.append(world.litter(behind))
        return attrs.evolve(world.state(", ".join(words)), is_torn=is_torn)


@functools.cache
def _orders(count: int) -> tuple[tuple[int, ...], ...]:
    """Which of ``count`` names are there: the first few, then any others. Of many names there are also all
    but one, and only one."""
    firsts = [tuple(range(each)) for each in range(count + 1)]
    if count <= _ALL_ORDERS_MAX:
        others = [tuple(i for i in range(count) if mask >> i & 1) for mask in range(1 << count)]
    else:
        dice = random.Random(count)
        others = [tuple(i for i in range(count) if i != lost) for lost in range(count)]
        others += [(alone,) for alone in range(count)]
        others += [tuple(i for i in range(count) if dice.random() < 0.5) for _ in range(1 << _ALL_ORDERS_MAX)]
    return tuple(dict.fromkeys((*firsts, *others)))


def _subset(count: int, way: int) -> tuple[Collection[int], str]:
    """Some of ``count`` things that may each have happened, and words for them."""
    match way:
        case 0:
            return (), "lost"
        case 1:
            return range(count), "done"
        case 2:
            return range(count // 2), "the first half"
        case 3:
            return range(count // 2, count), "the second half"
        case 4:
            return range(0, count, 2), "every other sector"
    if way >= 5 + 2 * count:
        dice = random.Random(way)
        return [each for each in range(count) if dice.random() < 0.5], f"random sectors, choice {way}"
    sector, is_alone = divmod(way - 5, 2)
    if is_alone:
        return (sector,), f"only sector {sector}"
    return [each for each in range(count) if each != sector], f"all but sector {sector}"


def _ways_to_end(effect: Effect, *, garbage: bool) -> int:
    match effect.kind:
        case "write":
            return 5 + 2 * (len(effect.data) // SECTOR) + (2 if garbage else 1) * _RANDOM_WAYS
        case "create" | "write_file":
            return len(_FILES_ENDS) + garbage
    return 2


def _first_garbage_way(effect: Effect) -> int:
    return _ways_to_end(effect, garbage=False)


def _word_of_end(effect: Effect, way: int) -> str:
    if way >= _first_garbage_way(effect):
        return f"sectors of garbage, choice {way}"
    if effect.kind in ("create", "write_file"):
        return _FILES_ENDS[way]
    return _subset(len(effect.data) // SECTOR, way)[1]


def _garbage(dice: random.Random, wanted: bytes) -> bytes:
    """What a sector may hold that should have become ``wanted``."""
    match dice.randrange(4):
        case 0:
            return dice.randbytes(len(wanted))
        case 1:
            return b"\xff" * len(wanted)
        case 2:  # The power failed within the sector.
            cut = dice.randrange(len(wanted))
            return wanted[:cut] + dice.randbytes(len(wanted) - cut)
    return bytes([wanted[0] ^ 1]) + wanted[1:]


def _put(content: bytearray, at: int, data: bytes) -> None:
    """Write into a file, which is longer afterwards if it ended before."""
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + len(data)] = data


class _World:
    """Files as a crash leaves them. A file and its names are two things: either may be lost alone."""

    def __init__(self, start: CrashState | None) -> None:
        self.lost_names: set[int] = set()
        self._live: dict[str, bytearray] = {}
        """What a process without a crash would have found."""
        self._names: dict[str, bytearray] = {}
        self._directories: set[str] = set()
        self._indexes: dict[str, dict[bytes, bytes]] = {}
        self._littered: list[bytearray] = []
        if start is not None:
            self._live = {path: bytearray(content) for path, content in start.files.items()}
            self._names = dict(self._live)
            self._directories = set(start.directories)
            self._indexes = {path: dict(rows) for path, rows in start.indexes.items()}

    def apply(self, effect: Effect, way: int | None) -> None:
        """Let an effect happen; one in flight in this way."""
        path = effect.path
        match effect.kind:
            case "mkdir":
                parts = path.split("/")
                if id(effect) not in self.lost_names:
                    self._directories.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
            case "create":
                content = bytearray(effect.size)
                self._cut(content, way)
                self._name(effect, {path: content})
            case "write_file":
                content = self._live.get(path, bytearray())
                if way != _UNTOUCHED:
                    content[:] = effect.data
                    self._cut(content, way)
                self._name(effect, {path: content})
            case "rename" if path in self._live:
                self._name(effect, {path: None, effect.target: self._live[path]})
            case "unlink":
                self._name(effect, {path: None})
            case "truncate" if path in self._live and way != 0:
                del self._live[path][effect.size :]
            case "write" if path in self._live:
                self._write(effect, self._live[path], way)
            case "index_remove" if way != 0:
                self._indexes.pop(path, None)
            case "index_move" if path in self._indexes and way != 0:
                self._indexes[effect.target] = self._indexes.pop(path)
            case "index" if way != 0:
                kept = self._indexes.setdefault(path, {})
                for key, value in effect.rows:
                    if value is None:
                        kept.pop(key, None)
                    else:
                        kept[key] = value
            case "write" | "rename" | "truncate" if path not in self._live:
                raise AssertionError(f"{effect.kind} of {path}, which is not there")

    def _name(self, effect: Effect, changes: Mapping[str, bytearray | None]) -> None:
        for names in (self._live,) if id(effect) in self.lost_names else (self._live, self._names):
            for path, content in changes.items():
                if content is None:
                    names.pop(path, None)
                else:
                    names[path] = content

    def _cut(self, content: bytearray, way: int | None) -> None:
        match way:
            case 0:
                content.clear()
            case 2:
                del content[len(content) // 2 :]
            case 4:
                content[:] = bytes(len(content))
            case 5:
                content[:] = random.Random(len(content)).randbytes(len(content))
                self._littered.append(content)

    def _write(self, effect: Effect, content: bytearray, way: int | None) -> None:
        if way is None or way == 1:
            _put(content, effect.offset, effect.data)
            return
        count = len(effect.data) // SECTOR
        is_garbage = way >= _first_garbage_way(effect)
        dice = random.Random(way)
        for sector in range(count) if is_garbage else _subset(count, way)[0]:
            at = effect.offset + sector * SECTOR
            data = effect.data[sector * SECTOR : (sector + 1) * SECTOR]
            if is_garbage:
                match dice.randrange(3):
                    case 0:
                        continue
                    case 1 if content[at : at + SECTOR] != data:
                        data = _garbage(dice, data)
                        self._littered.append(content)
            _put(content, at, data)

    def litter(self, number: int) -> str:
        """Put garbage in sectors of a segment behind all that was written."""
        dice = random.Random(number)
        segments = sorted(path for path in self._names if path.endswith(".journal"))
        if not segments:
            return "no segments"
        path = segments[-1 - dice.randrange(min(2, len(segments)))]
        content = self._names[path]
        end = len(bytes(content).rstrip(b"\0"))
        sectors = range(-(-end // SECTOR), len(content) // SECTOR)
        if not sectors:
            return f"{path} is full"
        for sector in {dice.choice(sectors), dice.choice(sectors)}:
            content[sector * SECTOR : (sector + 1) * SECTOR] = _garbage(dice, bytes(SECTOR))
        self._littered.append(content)
        return f"garbage behind the end of {path}"

    def state(self, story: str) -> CrashState:
        # A directory whose own name is lost takes its files along.
        files = {
            path: content
            for path, content in self._names.items()
            if path.rpartition("/")[0] in self._directories
        }
        garbage = {path for path, content in files.items() if any(content is each for each in self._littered)}
        # These are not copied. A start from a state copies what it changes.
        return CrashState(
            files, frozenset(self._directories), self._indexes, story, garbage=frozenset(garbage)
        )
