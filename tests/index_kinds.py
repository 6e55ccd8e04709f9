"""The kinds of index that this Python can open."""

from __future__ import annotations

from bookie.storage.index.kinds import KINDS, IndexKind


def _is_importable(kind: IndexKind) -> bool:
    try:
        kind.load()
    except ImportError:
        return False
    return True


KINDS_HERE = {kind.name: kind for kind in KINDS if _is_importable(kind)}
"""By name. plyvel has no wheels for the newest Pythons, so there it is RocksDB alone."""
