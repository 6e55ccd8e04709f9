"""A contender of the demo: a process that leads the log on command, and appends the records that it gets.

    python -m ledgerlog.cli.demo_contender URI LOG

Standard input carries frames. Standard output carries one JSON object a line.

    frame     kind (u8), batch number (u64), count (u32), all little endian; for RECORDS then ``count``
              lengths (u32) and the records' bytes, one after the other
    LEAD      take the log over -> {"event": "leading", "epoch", "next_offset", "takeover_ms"}
    RECORDS   append -> {"event": "appended", "batch", "first_offset", "count", "digest"}, once all of
              them are durable, or {"event": "refused", "batch", "error", "message", "epoch"}
    end       of the input: give the lead up and end

``digest`` covers the bytes that this process appended, so the sender can check that they arrived unchanged. A
refusal repeats the error of the log layer. The contender does not retry: if a batch was on its way when the
lead was lost, the driver reads the log to find out whether the batch is there.

Batches that arrive during an append go together into the next append, as in a real service.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import sys
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import attrs
import trio

import ledgerlog
from ledgerlog.errors import LedgerLogError, LostLeadership
from ledgerlog.log.writer import LogWriter

__all__ = ["LEAD", "RECORDS", "ContenderFrame", "digest_of", "encode_frame", "read_frames"]

LEAD = 1
RECORDS = 2

_HEAD = struct.Struct("<BQI")
_BATCHES_AHEAD = 64
"""Frames that are read ahead of an append. The sender's own limit on unanswered batches is lower."""


@attrs.frozen
class ContenderFrame:
    """One frame of standard input."""

    kind: int
    batch: int
    records: Sequence[bytes]


def encode_frame(kind: int, batch: int = 0, records: Sequence[bytes] = ()) -> bytes:
    lengths = array("I", map(len, records))
    return b"".join([_HEAD.pack(kind, batch, len(records)), lengths.tobytes(), *records])


def digest_of(records: Sequence[bytes]) -> str:
    """Return a digest of the records' bytes and of the end of each record."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(array("I", map(len, records)).tobytes())
    digest.update(b"".join(records))
    return digest.hexdigest()


async def read_frames(stream: trio.abc.ReceiveStream, send: trio.MemorySendChannel[ContenderFrame]) -> None:
    """Decode the frames of a stream into ``send`` until the stream ends."""
    buffer = bytearray()

    async def fill(count: int) -> bool:
        while len(buffer) < count:
            data = await stream.receive_some(256 * 1024)
            if not data:
                return False
            buffer.extend(data)
        return True

    def take(count: int) -> bytes:
        data = bytes(buffer[:count])
        del buffer[:count]
        return data

    async with send:
        while await fill(_HEAD.size):
            kind, batch, count = _HEAD.unpack(take(_HEAD.size))
            if not await fill(4 * count):
                return
            lengths = array("I", take(4 * count))
            total = sum(lengths)
            if not await fill(total):
                return
            joined = take(total)
            records, at = [], 0
            for length in lengths:
                records.append(joined[at : at + length])
                at += length
            await send.send(ContenderFrame(kind, batch, records))


class Contender:
    """Leads the log and appends, as the frames say."""

    def __init__(self, log: ledgerlog.Log, say: trio.lowlevel.FdStream) -> None:
        self._log = log
        self._say_to = say
        self._writer: LogWriter | None = None

    async def say(self, *events: dict[str, Any]) -> None:
        await self._say_to.send_all("".join(json.dumps(event) + "\n" for event in events).encode())

    async def serve(self, receive: trio.MemoryReceiveChannel[ContenderFrame]) -> None:
        """Carry out the frames until they end, then give the lead up."""
        async with AsyncExitStack() as stack:
            async for frame in receive:
                frames = [frame]
                while True:
                    try:
                        frames.append(receive.receive_nowait())
                    except (trio.WouldBlock, trio.EndOfChannel):
                        break
                while frames:
                    if frames[0].kind == LEAD:
                        await self._lead(stack)
                        frames.pop(0)
                        continue
                    batches = [f for f in frames if f.kind == RECORDS]
                    frames = [f for f in frames if f.kind != RECORDS]
                    await self._append(batches)

    async def _lead(self, stack: AsyncExitStack) -> None:
        began = trio.current_time()
        try:
            self._writer = await stack.enter_async_context(self._log.writer())
        except LedgerLogError as error:
            await self.say({"event": "refused", "batch": None, **_words(error)})
            return
        took_ms = (trio.current_time() - began) * 1000
        writer = self._writer
        await self.say(
            {
                "event": "leading",
                "epoch": writer.epoch,
                "next_offset": writer.next_offset,
                "takeover_ms": took_ms,
            }
        )

    async def _append(self, batches: list[ContenderFrame]) -> None:
        assert self._writer is not None, "records follow LEAD"
        try:
            acks = await self._writer.append_many([record for batch in batches for record in batch.records])
        except LedgerLogError as error:
            await self.say(*({"event": "refused", "batch": b.batch, **_words(error)} for b in batches))
            return
        events = []
        at = 0
        for batch in batches:
            count = len(batch.records)
            first, last = acks[at], acks[at + count - 1]
            assert last.offset - first.offset == count - 1, "no other task appends through this writer"
            events.append(
                {
                    "event": "appended",
                    "batch": batch.batch,
                    "first_offset": first.offset,
                    "count": count,
                    "digest": digest_of(batch.records),
                }
            )
            at += count
        await self.say(*events)


def _words(error: LedgerLogError) -> dict[str, Any]:
    cause = error if isinstance(error, LostLeadership) else error.__cause__
    epoch = cause.epoch if isinstance(cause, LostLeadership) else None
    return {"error": type(error).__name__, "message": str(error), "epoch": epoch}


async def contend(uri: str, name: str) -> None:
    async with ledgerlog.connect(uri) as cluster, trio.open_nursery() as nursery:
        log = await cluster.open_log(name)
        contender = Contender(log, trio.lowlevel.FdStream(os.dup(sys.stdout.fileno())))
        send, receive = trio.open_memory_channel[ContenderFrame](_BATCHES_AHEAD)
        nursery.start_soon(read_frames, trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())), send)
        await contender.say({"event": "ready", "pid": os.getpid()})
        await contender.serve(receive)
        nursery.cancel_scope.cancel()


def main() -> None:
    uri, name = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trio.run(contend, uri, name)


if __name__ == "__main__":
    main()
