"""What a frame costs between a writer and a bookie: connection, numbering, sockets, acknowledgement.

A bookie that stores nothing acknowledges what it receives, once for each piece that arrives, over TCP on
the loopback and in the same process; so the CPU time of the process is that of both ends. Beside it, in
the same run, the floor: the same bytes and answers through bare sockets.

    python tests/bench/bench_connection.py [--frames N] [--window N] [--entries N] [--bytes N] [--ledgers N]
"""

from __future__ import annotations

import argparse
import random
import time

import trio

from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.pool import open_pool
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Network, Stream
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import NO_KEY, REPLY, FrameBuffer, Kind, Status, encode_head
from ledgerlog.wire.hello import Hello, encode_hello_reply

ME = Hello(bookie_id="bookie-1", instance="only")


async def serve(listener: Listener) -> None:
    while True:
        try:
            stream = await listener.accept()
        except ConnectionLost:
            return
        try:
            await serve_one(stream)
        except ConnectionLost:
            pass
        finally:
            stream.close()


async def serve_one(stream: Stream) -> None:
    buffer = FrameBuffer()
    adds = 0
    while received := await stream.receive_into(buffer.writable()):
        buffer.received(received)
        frames = buffer.take_frames()
        before = adds
        for frame in frames:
            if frame.header.kind == Kind.ADD:
                adds += 1
            else:
                await stream.send_all([encode_hello_reply(Status.OK, ME)])
        if adds != before:
            await stream.send_all([encode_head(Kind.ADD | REPLY, request=adds)])


class BenchSink:
    """Keeps ``window`` frames under way until ``frames`` have been acknowledged."""

    def __init__(
        self, connection: BookieConnection, frame: list[Buffer], *, frames: int, window: int, entries: int
    ) -> None:
        self.connection = connection
        self.frame = frame
        self.frames = frames
        self.window = window
        self.entries = entries
        self.sent = self.acknowledged = self.calls = 0
        self.done = trio.Event()

    def on_add_ok(self, bookie_id: BookieId, first: int, last: int) -> None:
        self.acknowledged += (last - first + 1) // self.entries
        self.calls += 1

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status) -> None:
        raise AssertionError(status)

    def on_bookie_lost(self, bookie_id: BookieId, why: str) -> None:
        raise AssertionError(why)

    def on_bookie_connected(self, bookie_id: BookieId) -> None:
        pass

    def on_batch_end(self) -> None:
        send_add, frame, entries = self.connection.send_add, self.frame, self.entries
        while self.sent < self.frames and self.sent - self.acknowledged < self.window:
            first = self.sent * entries
            send_add(frame, self, first, first + entries - 1)
            self.sent += 1
        if self.acknowledged == self.frames:
            self.done.set()


async def through_connection(
    network: Network,
    address: str,
    frame: list[Buffer],
    *,
    frames: int,
    window: int,
    entries: int,
    ledgers: int,
) -> None:
    async def resolve(bookie_id: BookieId) -> BookieInfo:
        return BookieInfo(bookie_id=bookie_id, address=address, instance="only")

    async with open_pool(network, resolve, rng=random.Random(1)) as pool:
        connection = pool.connection("bookie-1")
        each = frames // ledgers
        sinks = [
            BenchSink(connection, frame, frames=each, window=window, entries=entries) for _ in range(ledgers)
        ]
        for sink in sinks:
            connection.attach(sink)
        wall, cpu = time.perf_counter(), time.process_time()
        for sink in sinks:
            await sink.done.wait()
        report(
            f"connection, {ledgers} ledgers",
            each * ledgers,
            wall,
            cpu,
            f"{sum(s.calls for s in sinks)} calls",
        )


async def through_sockets(
    network: Network, address: str, frame: list[Buffer], *, frames: int, window: int
) -> None:
    stream = await network.connect(address)
    buffer = FrameBuffer()
    sent = acknowledged = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while acknowledged < frames:
        while sent < frames and sent - acknowledged < window:
            await stream.send_all(frame)
            sent += 1
        buffer.received(await stream.receive_into(buffer.writable()))
        for answer in buffer.take_frames():
            acknowledged = answer.header.request
    report("bare streams", frames, wall, cpu, "")
    stream.close()


def report(what: str, frames: int, wall: float, cpu: float, more: str) -> None:
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{what:24} {frames / wall:10,.0f} frames/s {wall / frames * 1e6:8.1f} us wall"
        f" {cpu / frames * 1e6:8.1f} us CPU a frame (both ends)  {more}"
    )


async def run(arguments: argparse.Namespace) -> None:
    payloads = [bytes(arguments.bytes)] * arguments.entries
    frame = list(encode_add(Entries.build(1, 0, payloads), lac=-1, lafr=-1, key=NO_KEY, recovery=False))
    print(f"a frame: {sum(map(len, frame)):,} bytes, {arguments.entries} entries; window {arguments.window}")
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, listener)
        for _ in range(3):
            await through_sockets(
                network, listener.address, frame, frames=arguments.frames, window=arguments.window
            )
            for ledgers in sorted({1, arguments.ledgers}):
                await through_connection(
                    network,
                    listener.address,
                    frame,
                    frames=arguments.frames,
                    window=arguments.window,
                    entries=arguments.entries,
                    ledgers=ledgers,
                )
        listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=3, help="frames of a ledger under way")
    parser.add_argument("--entries", type=int, default=1, help="entries of a frame")
    parser.add_argument("--bytes", type=int, default=100, help="bytes of an entry")
    parser.add_argument("--ledgers", type=int, default=50, help="ledgers that share the connection")
    trio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
