"""A progress bar on a terminal, for commands that take long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "progress_bar"]


@contextmanager
def progress_bar(description: str, total: float | None, *, is_bytes: bool = False) -> Iterator[Bar]:
    """Show a progress bar on standard error during the body. If standard error is not a terminal, show
    nothing."""
    if not sys.stderr.isatty():
        yield Bar(None, total)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn() if is_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    progress = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8)
    with progress:
        yield Bar(progress, total, description)


class Bar:
    """A progress bar, or nothing if there is no terminal. You may move the bar often: it is redrawn only a
    few times a second."""

    def __init__(self, progress: Progress | None, total: float | None, description: str = "") -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(description, total=total)

    @property
    def is_shown(self) -> bool:
        return self._progress is not None

    def move_to(self, done: float) -> None:
        """Set the work that is done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done)

    def resize(self, total: float) -> None:
        """Set the total."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total or None)

    def describe(self, description: str) -> None:
        """Set the text in front of the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=description)

    def say(self, line: str) -> None:
        """Print a line above the bar, if there is a bar."""
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False)
