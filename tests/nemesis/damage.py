"""Damage to the files of a bookie that is down: bits that flip, files that lose their end.

What is damaged is what a bookie is promised to notice: pages that were written, and are not at the end of the
newest segment of the journal. Damage to its very last block cannot be told from a write that a
crash tore, there or with any other journal; ``TAIL_BYTES`` before the end of what was written there
are left alone. A file is cut only where a newer one of its kind says that it must have been longer.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import attrs

__all__ = ["Damage", "damage_files"]

PAGE_BYTES = 4096
TAIL_BYTES = 64 * 1024


@attrs.frozen
class Damage:
    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}: {self.what}"


def damage_files(directory: Path, dice: Random, *, flips: int, cut: bool) -> list[Damage]:
    """Flip so many bits, or cut one file, in the directory of a stopped bookie; where there is nothing that
    may be damaged, nothing."""
    journal, entries = (
        sorted((directory / "journal").glob("*.journal")),
        sorted((directory / "entries").glob("*")),
    )
    if cut:
        whole = [(path, _written_end(path)) for path in [*journal[:-1], *entries[:-1]]]
        whole = [(path, end) for path, end in whole if end > 2 * PAGE_BYTES]
        if not whole:
            return []
        path, end = dice.choice(whole)
        at = dice.randrange(PAGE_BYTES, end - PAGE_BYTES)
        with path.open("r+b") as file:
            file.truncate(at)
        return [Damage(path, f"cut at byte {at} of {end}")]
    ranges = [(path, _written_end(path)) for path in journal[:-1]]
    ranges += [(path, _written_end(path) - TAIL_BYTES) for path in journal[-1:]]
    ranges += [(path, _written_end(path) - PAGE_BYTES) for path in entries]
    ranges = [(path, end) for path, end in ranges if end > 0]
    done: list[Damage] = []
    for _ in range(flips if ranges else 0):
        path, end = dice.choice(ranges)
        at, bit = dice.randrange(end), dice.randrange(8)
        with path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))
        done.append(Damage(path, f"bit {bit} of byte {at} flipped"))
    return done


def _written_end(path: Path) -> int:
    """Behind the last byte of a file that is not zero, rounded up to a page as far as there is one: a file
    that was cut ends anywhere."""
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    return min(-(-end // PAGE_BYTES) * PAGE_BYTES, len(data))
