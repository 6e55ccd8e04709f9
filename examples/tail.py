"""A consumer that follows a log and remembers how far it came.

    python examples/tail.py URI LOG PLACE

prints every record of LOG and waits for more. PLACE is a file that holds the offset of the next record to be
consumed; start the program again and it goes on there. The place is written after the record was consumed, so
that a crash in between consumes the record again and never skips one: what a consumer does with a record has
to bear that (here: printing it twice).

Any number of consumers may follow a log; none of them is known to its writer, and a consumer that is slow
slows nobody down. What it has not read may be truncated away meanwhile: that is told (``Truncated``) and
never silently skipped; this one says so and goes on at the first record that is left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

import ledgerlog


class Place:
    """The offset of the next record to consume, in a file that is whole at any moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = int(path.read_text()) if path.exists() else 0

    def move(self, offset: int) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(f"{offset}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self.offset = offset


def consume(batch: ledgerlog.RecordBatch) -> None:
    for record in batch:
        print(
            f"{record.timestamp:%H:%M:%S} {record.offset} {record.data.decode(errors='replace')}", flush=True
        )


async def follow(log: ledgerlog.Log, place: Place) -> None:
    """Consume until the log is sealed; one write of the place for a batch of records."""
    while True:
        try:
            async with log.read(place.offset, follow=True) as records:
                async for batch in records.batches():
                    consume(batch)
                    await trio.to_thread.run_sync(place.move, batch.end_offset)
                return
        except ledgerlog.Truncated as gap:
            print(f"records {place.offset} to {gap.first_offset - 1} are gone", file=sys.stderr)
            place.move(gap.first_offset)
        except (ledgerlog.MetadataUnavailable, ledgerlog.EntryUnavailable) as trouble:
            print(f"trying again: {trouble}", file=sys.stderr)
            await trio.sleep(1)


async def main(uri: str, name: str, place: str) -> None:
    async with ledgerlog.connect(uri) as cluster:
        await follow(await cluster.open_log(name), Place(Path(place)))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} URI LOG PLACE")
    try:
        trio.run(main, *sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
