"""The inputs that are kept, and how more are made of them where there is no fuzzer with guidance.

``corpus/<target>`` holds what a coverage-guided run reached, merged to few and short inputs, and every input
that ever made a target fail (``failed-...``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.access_targets import ACCESS_TARGETS
from tests.fuzz.file_targets import FILE_TARGETS
from tests.fuzz.machine_targets import MACHINE_TARGETS
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"

INPUT_BYTES_MAX = 16 * 1024
"""Longer inputs find nothing in these formats that shorter ones do not."""

_EDGES = tuple(
    edge.to_bytes(size, "little", signed=edge < 0)
    for size, edges in (
        (1, (0, 1, 0x7F, 0x80, 0xFF)),
        (4, (0, 1, 2**31 - 1, 2**31, 2**32 - 1)),
        (8, (0, -1, 2**53, 2**63 - 1, -(2**63))),
    )
    for edge in edges
)


def all_targets() -> tuple[Target, ...]:
    return (*TARGETS, *MACHINE_TARGETS, *FILE_TARGETS, *ACCESS_TARGETS)


def inputs_of(target: Target) -> list[bytes]:
    """Seeds and corpus of a target; not those inputs that once failed and are longer than the bound."""
    folder = CORPUS / target.name
    kept = [file.read_bytes() for file in sorted(folder.iterdir())] if folder.is_dir() else []
    return [*target.seeds(), *kept]


def mutations(target: Target, count: int, seed: int) -> Iterator[bytes]:
    """Inputs that are made of the kept ones by a few random changes each; the same ones for the same seed."""
    random = Random(f"{target.name}/{seed}")
    kept = inputs_of(target)
    for _ in range(count):
        data = bytearray(random.choice(kept))
        for _ in range(random.choice((1, 1, 2, 4, 16))):
            _change(data, random, kept)
        yield bytes(data[:INPUT_BYTES_MAX])


def _change(data: bytearray, random: Random, kept: list[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    match random.randrange(6):
        case 0 if data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        case 1:
            edge = random.choice(_EDGES)
            data[at : at + len(edge)] = edge
        case 2:
            del data[at : at + random.choice((1, 4, 8, 64))]
        case 3:
            data[at:at] = random.randbytes(random.choice((1, 4, 8, 64)))
        case 4:
            other = random.choice(kept)
            start = random.randrange(len(other) + 1)
            data[at:] = other[start : start + INPUT_BYTES_MAX]
        case _:
            del data[at:]
