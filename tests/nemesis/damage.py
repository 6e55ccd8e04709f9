"""Damage the files of a stopped bookie: flip bits, or cut the end off a file.

Only damage that a bookie promises to notice is done: to written pages that are not at the end of the newest
segment of the journal. No journal can tell damage to its very last block from a write that a crash tore, so
the last ``TAIL_BYTES`` written there are left alone. A file is cut only if a newer file of its kind proves
that it was longer.
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
    """Flip ``flips`` bits, or cut one file if ``cut``, in the directory of a stopped bookie.

    Returns:
        The damage done: empty if no file may be damaged.
    """
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
    """Return the offset behind the last nonzero byte, rounded up to a page.

    If a file was cut within that page, return its size.
    """
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    return min(-(-end // PAGE_BYTES) * PAGE_BYTES, len(data))
