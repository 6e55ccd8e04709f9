"""The system calls that ``recording_calls.c`` recorded, and the files that a power cut after one leaves.

A file system promises little about what was not synced. Two degrees of it:

``ordered``    as the usual file systems with a journal do: of the names below the index, the first few
               since the last sync are there, and the sync of a new file makes the names before it durable.
               Of what was appended to a file, a first part is there. LevelDB and RocksDB rely on this
``rough``      names below the index are there or not, in any order; of what was not synced in a file, any
               sectors are there, the others are zeros or garbage, or the file is only as long as it was

Of all other names, which are the bookie's own, any subset is there in both. The first sync of a file makes
its name below the index durable in both, as ext4, XFS and btrfs do. Bytes that were synced stay, even if an
earlier or later write that was not synced shares their sector.

A power cut may also come during a write that is synced when it returns. Then any of its sectors are there
(``Files.begin``).
"""

from __future__ import annotations

import ast
import random
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

import attrs

SECTOR = 512
_HEAD = struct.Struct("<cBHHiqQ")


@attrs.frozen
class Call:
    kind: str
    is_synced: bool
    path: str
    target: str
    file: int
    offset: int
    data: bytes
    size: int


def read_calls(path: Path) -> Iterator[Call]:
    """Read the log."""
    log = path.read_bytes()
    at = 0
    while at < len(log):
        kind, is_synced, path_size, target_size, file, offset, size = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        name = log[at : at + path_size].decode()
        at += path_size
        target = log[at : at + target_size].decode()
        at += target_size
        data = b""
        if kind == b"w":
            data = log[at : at + size]
            at += size
        yield Call(kind.decode(), bool(is_synced), name, target, file, offset, data, size)


class _Content:
    """A file, whatever its names are."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []
        """Writes at an offset, or changes of the size."""
        self.in_flight: tuple[int, bytes] | None = None
        """The write under way that will be synced when it returns."""
        self._synced: list[tuple[int, int, bytes]] = []
        """Synced writes, each behind so many of ``unsynced``: no write before it takes its bytes away."""

    def write(self, offset: int, data: bytes, *, is_synced: bool) -> None:
        _put(self.now, offset, data)
        self.in_flight = None
        if not is_synced:
            self.unsynced.append((offset, data))
            return
        _put(self.durable, offset, data)
        if self.unsynced:
            self._synced.append((len(self.unsynced), offset, data))

    def resize(self, size: int) -> None:
        _resize(self.now, size)
        self.unsynced.append((size, None))

    def sync(self) -> None:
        self.durable = bytearray(self.now)
        self.unsynced.clear()
        self._synced.clear()

    def after_power_cut(self, dice: random.Random, *, is_rough: bool) -> bytes:
        found = bytearray(self._of_ended(dice, is_rough=is_rough))
        if self.in_flight is not None:
            offset, data = self.in_flight
            for at in range(0, len(data), SECTOR):
                if dice.random() < 0.5:
                    _put(found, offset + at, data[at : at + SECTOR])
        return bytes(found)

    def _of_ended(self, dice: random.Random, *, is_rough: bool) -> bytes:
        if not self.unsynced:
            return bytes(self.durable)
        ways = ["lost", "done", "cut"]
        if is_rough:
            ways += ["sectors", "zeros", "garbage"]
        way = dice.choice(ways)
        found = bytearray(self.durable)
        if way == "lost":
            return bytes(found)
        count = len(self.unsynced) if way != "cut" else dice.randint(1, len(self.unsynced))
        for number, (offset, data) in enumerate(self.unsynced[:count]):
            if data is None:
                _resize(found, offset)
            elif way == "cut" and number == count - 1:
                _put(found, offset, data[: dice.randrange(len(data) + 1)])
            elif way in ("done", "cut"):
                _put(found, offset, data)
            else:
                self._put_roughly(found, offset, data, way, dice)
            for behind, synced_offset, synced in self._synced:
                if behind == number + 1:
                    _put(found, synced_offset, synced)
        for behind, synced_offset, synced in self._synced:
            if behind > count:
                _put(found, synced_offset, synced)
        return bytes(found)

    def _put_roughly(self, found: bytearray, offset: int, data: bytes, way: str, dice: random.Random) -> None:
        if len(found) < offset + len(data):
            _resize(found, offset + len(data))
        at = offset
        while at < offset + len(data):
            stop = min(offset + len(data), at // SECTOR * SECTOR + SECTOR)
            piece = data[at - offset : stop - offset]
            if dice.random() < 0.5:
                found[at:stop] = piece
            elif way == "garbage":
                found[at:stop] = dice.randbytes(len(piece))
            at = stop


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


_Names = dict[str, "_Content | None"]
"""Names that change together: each gets a content, or goes."""


class Files:
    """The files below a directory while calls are made, and after a power cut.

    Args:
        below: The directory.
        notes: The file there with the promises.
        ordered: The directory whose names the file system keeps in order.
        unseen: Files that are written through the C library's buffers, which the recorder does not see. The
            stores keep texts for their developers in such files.
    """

    def __init__(self, below: str, notes: str, ordered: str, unseen: Collection[str] = ()) -> None:
        self.notes: list[object] = []
        self._below = below
        self._notes_path = notes
        self._ordered = ordered
        self._unseen = unseen
        self._open: dict[int, str | _Content] = {}
        self._live: dict[str, _Content] = {}
        self._directories = {below}
        self._durable: dict[str, _Content] = {}
        self._pending: dict[str, list[_Names]] = {}

    def begin(self, call: Call) -> None:
        """A call is under way: a power cut may leave a part of a write that is synced when it returns."""
        if call.kind == "w" and call.is_synced:
            content = self._open[call.file]
            assert isinstance(content, _Content)
            content.in_flight = (call.offset, call.data)

    def take(self, call: Call) -> None:
        """Make a call."""
        match call.kind:
            case "o":
                self._on_open(call)
            case "c":
                self._open.pop(call.file, None)
            case "w":
                content = self._open[call.file]
                assert isinstance(content, _Content)
                content.write(call.offset, call.data, is_synced=call.is_synced)
                if content is self._live.get(self._notes_path):
                    self.notes.append(ast.literal_eval(call.data.decode()))
            case "t" | "a":
                content = self._live[call.path] if call.path else self._open[call.file]
                assert isinstance(content, _Content)
                if call.kind == "t" or call.offset > len(content.now):
                    content.resize(call.offset)
            case "s":
                self._on_sync(self._open[call.file])
            case "m":
                self._directories.add(call.path)
            case "d":
                self._directories.discard(call.path)
            case "u":
                self._change({call.path: None})
            case "r" if call.path in self._live:
                self._change({call.path: None, call.target: self._live[call.path]})
            case "r":
                assert call.path in self._unseen, f"{call.path} was never made"

    def now(self) -> dict[str, bytes]:
        """Return the files as a process finds them now, by path."""
        return {path: bytes(content.now) for path, content in self._live.items()}

    def _on_open(self, call: Call) -> None:
        if call.path in self._directories:
            self._open[call.file] = call.path
            return
        if call.path not in self._live:
            if not call.offset & 1:
                return  # It was there before, or failed.
            self._change({call.path: _Content()})
        content = self._live[call.path]
        if call.offset & 2 and content.now:
            content.resize(0)
        self._open[call.file] = content

    def _change(self, names: _Names) -> None:
        for path, content in names.items():
            if content is None:
                self._live.pop(path, None)
            else:
                self._live[path] = content
        directory = next(iter(names)).rpartition("/")[0]
        self._pending.setdefault(directory, []).append(names)

    def _on_sync(self, file: str | _Content) -> None:
        if isinstance(file, str):
            self._settle(file)
            return
        file.sync()
        pending = self._pending.get(self._ordered, [])
        if any(file in names.values() for names in pending):
            self._settle(self._ordered)

    def _settle(self, directory: str) -> None:
        for names in self._pending.pop(directory, []):
            _rename(self._durable, names)

    def after_power_cut(self, dice: random.Random, *, is_rough: bool) -> dict[str, bytes]:
        """Return the files that a power cut may leave, by path."""
        found = dict(self._durable)
        for directory, pending in self._pending.items():
            if directory == self._ordered and not is_rough:
                there = pending[: dice.randint(0, len(pending))]
            else:
                share = dice.choice((0, 0.5, 1))
                there = [names for names in pending if dice.random() < share]
            for names in there:
                _rename(found, names)
        found.pop(self._notes_path, None)
        return {
            path: content.after_power_cut(dice, is_rough=is_rough)
            for path, content in sorted(found.items(), key=lambda item: item[0])
        }


def _rename(names: dict[str, _Content], changes: _Names) -> None:
    for path, content in changes.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content
