"""A consumer that follows a log and remembers its position.

    python examples/tail.py URI LOG PLACE

This prints every record of LOG and waits for more. PLACE is a file with the offset of the next record to
consume. If you start the program again, it continues at this offset. The program writes the offset after it
consumed the record. So after a crash it may consume a record again, but it never skips one. A consumer must
accept this; this one prints the record twice.

Any number of consumers may follow a log. The writer does not know them, and a slow consumer does not delay
others. If records are truncated before the consumer has read them, it gets an error (``Truncated``) and never
skips them silently. This program reports the error and continues at the first record that is left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

import ledgerlog


class Place:
    """The offset of the next record to consume, in a file that is complete at any moment."""

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
