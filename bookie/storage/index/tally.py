"""The tally of an index: its batches are numbered, so a start notices if some of them are lost.

A key-value store may mistake damage for the normal end of a file. Suppose that a record near the end of its
log or manifest has a damaged *length*. Such a record looks like one that was being written when the power
failed, and the store silently drops the record and everything after it. In the log, this loses the newest
batches. The index then has an older replay mark, and the journal is replayed from there. In the manifest,
this can lose a whole table from the middle of the history.

The tally detects this. Batches are numbered, and each contains its own row (0x00, "tally", number). On
opening, the numbers found must have no gap up to the newest. If a table is missing, the tally rows of its
batches are missing too.

Old tally rows are removed, because a start must not read a row for each batch of the bookie's life. A damaged
end of a manifest can hide only the newest table, and a table holds at most ``KEPT`` batches: each batch takes
about ninety bytes, and a table is made from four megabytes. So older tally rows are not needed.
The row (0x00, "since") holds the number of the last batch whose tally row is gone. The batch that removes the
tally rows up to this number also writes this row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import attrs

from bookie.core.rows import Change, Row
from bookie.storage.index.index import remedy
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.checksum import checksum

PREFIX = b"\0tally"
"""The keys of all tally rows begin with this prefix. It sorts before the keys of ``bookie.core.rows``."""
SINCE_KEY = b"\0since"
KEPT = 2**17
STEP = 1024
"""How many tally rows are removed at once; up to four times as many if there are more to remove."""

_KEY = struct.Struct(">6sQ")
_VALUE = struct.Struct("<I")
_SINCE = struct.Struct("<QI")


@attrs.frozen
class Tally:
    """The tally rows of an index: it has the rows of the batches after ``since``, up to ``newest``."""

    since: int = 0
    """The number of the last batch whose tally row was removed."""
    newest: int = 0
    """The number of the newest batch."""

    def next_batch(self, rows: int) -> tuple[Tally, Sequence[Change]]:
        """Count the next batch.

        Args:
            rows: How many rows the batch has.

        Returns:
            The tally after the batch, and the rows that must be added to the batch.
        """
        number, since = self.newest + 1, self.since
        changes: list[Change] = [_tally_row(number, rows)]
        if number - since >= KEPT + STEP:
            since = min(since + 4 * STEP, number - KEPT)
            changes += [(tally_key(gone), None) for gone in range(self.since + 1, since + 1)]
            changes.append(_since_row(since))
        return Tally(since, number), changes


def read_tally(path: str, since_value: bytes | None, rows: Iterator[Row]) -> Tally:
    """Check the tally of an index that was opened.

    Args:
        path: The path of the index, for messages.
        since_value: The value of ``SINCE_KEY``; None if there is none.
        rows: The rows from ``PREFIX`` on.

    Raises:
        StorageCorrupt: The tally has a gap: a batch is missing.
    """
    since = 0
    if since_value is not None:
        since = int.from_bytes(since_value[:8], "little")
        if (SINCE_KEY, since_value) != _since_row(since):
            raise StorageCorrupt(path, None, f"the beginning of the index's tally is damaged; {remedy(path)}")
    newest = since
    for key, value in rows:
        if not key.startswith(PREFIX):
            break
        newest += 1
        if (key, value) != _tally_row(newest, int.from_bytes(value[4:], "little")):
            raise StorageCorrupt(path, None, f"batch {newest} of the index is missing; {remedy(path)}")
    if newest < since + KEPT and since:
        raise StorageCorrupt(path, None, f"batch {newest + 1} of the index is missing; {remedy(path)}")
    return Tally(since, newest)


def tally_key(number: int) -> bytes:
    """Return the key of the tally row of a batch."""
    return _KEY.pack(PREFIX, number)


def _tally_row(number: int, rows: int) -> Row:
    key, count = tally_key(number), rows.to_bytes(4, "little")
    return key, _VALUE.pack(checksum(key + count)) + count


def _since_row(number: int) -> Row:
    return SINCE_KEY, _SINCE.pack(number, checksum(SINCE_KEY + number.to_bytes(8, "little")))
