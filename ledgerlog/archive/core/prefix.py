"""The archived beginning of a log: the files that hold its first offsets without a hole. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ledgerlog.model.archive import ArchivedFile

__all__ = ["leading_files"]


def leading_files(start: int, records: Iterable[ArchivedFile]) -> tuple[list[ArchivedFile], int]:
    """Return the files that hold a log's offsets from ``start`` on, up to the first offset that is in none.

    Args:
        start: The first offset of the log. The first file may begin before it.
        records: The records of the log's files, in any order.

    Returns:
        The records of these files, in order, and the offset after them. No offset is in two of them.
    """
    found: list[ArchivedFile] = []
    at = start
    for record in sorted(records, key=lambda each: (each.first_offset, -each.end_offset)):
        if record.first_offset == at or (not found and record.holds(at)):
            found.append(record)
            at = record.end_offset
    return found, at
