"""The smallest program: append records to a log, and read them back.

    python examples/quickstart.py

If you run it again, the offsets continue after the last one. To use a cluster, set its URI in LEDGERLOG_URI;
the program stays the same.
"""

import os

import trio

import ledgerlog


async def main() -> None:
    async with ledgerlog.connect(os.environ.get("LEDGERLOG_URI", "file:./data")) as cluster:
        log = await cluster.create_log("orders", exist_ok=True)
        async with log.writer() as writer:  # takes over: fences, recovers, rolls by CAS
            ack = await writer.append(b"first")  # Ack(offset=0, position=..., epoch=1, duplicate=False)
            acks = await writer.append_many([b"a", b"b"])
            print(f"appended at {ack.offset}, {acks[0].offset} and {acks[1].offset}, in epoch {ack.epoch}")
        async with log.read(start=0) as records:  # ends at the tail unless follow=True
            async for record in records:
                print(record.offset, record.data.decode())


trio.run(main)
