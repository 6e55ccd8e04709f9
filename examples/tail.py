"""A consumer that follows a log and remembers its place.

    python examples/tail.py URI LOG PLACE

This prints every record of LOG and waits for more. The file PLACE holds the offset of the next record to
consume. If you start the program again, it continues there. The program writes the place after it has
consumed a record. So after a crash in between, it consumes a record again, but it never skips one. Your
consumer must tolerate a repeated record (here: it is printed twice).

Any number of consumers may follow a log. The writer does not know them, and a slow consumer delays neither
the writer nor other consumers. Records that it has not read yet may be truncated. The reader never skips them
silently: it raises ``Truncated``. This program then prints a line and continues at the first record that is
left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

import ledgerlog


class Place:
    """The offset of the next record to consume, in a file that is replaced atomically."""

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
    """Consume until the log is sealed. Write the place once per batch of records."""
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
