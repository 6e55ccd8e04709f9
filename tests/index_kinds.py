"""The kinds of index that this Python can open."""

from __future__ import annotations

from pathlib import Path

from bookie.storage.engine.directory import open_directory
from bookie.storage.index.kinds import KINDS, IndexKind, default_kind, kind_of
from bookie.storage.upkeep.rebuild import rebuild_index


def _is_importable(kind: IndexKind) -> bool:
    try:
        kind.load()
    except ImportError:
        return False
    return True


KINDS_HERE = {kind.name: kind for kind in KINDS if _is_importable(kind)}
"""By name. plyvel has no wheels for the newest Pythons, so there it is RocksDB alone."""


async def convert_index(path: Path) -> None:
    """Convert the index of a bookie's directory, as an operator would, if this Python cannot open it."""
    kind = kind_of(str(path / "index"))
    if kind is not None and kind.name not in KINDS_HERE:
        async with open_directory(str(path), index=default_kind().name) as directory:
            await rebuild_index(directory)
