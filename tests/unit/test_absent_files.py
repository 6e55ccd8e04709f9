"""Which files were replaced, if the record that says so cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from bookie.storage.entrylog.contents import FileContents


async def test_files_that_come_while_the_others_are_listed_do_not_count_as_replaced() -> None:
    """Two flushes: both logs get their names, and the second one gets its row first."""
    named, with_row = [1, 3], [1, 3]

    async def both_come() -> None:
        await trio.lowlevel.checkpoint()
        named[:] = [1, 3, 4, 5]
        with_row[:] = [1, 3, 5]

    async def numbers() -> list[int]:
        now = list(named)
        await both_come()
        return now

    async def rows() -> list[Any]:
        now = [SimpleNamespace(file=-number) for number in with_row]
        await both_come()
        return now

    async def nothing() -> list[Any]:
        await trio.lowlevel.checkpoint()
        return []

    files: Any = SimpleNamespace(
        segments=SimpleNamespace(numbers=nothing), logs=SimpleNamespace(numbers=numbers)
    )
    catalogue: Any = SimpleNamespace(segments=nothing, logs=rows)
    absent = await FileContents(files, catalogue)._absent()
    assert -2 in absent
    assert -4 not in absent
