"""A small service with a durable log inside: a key-value store that survives kill -9.

    python examples/embedded_service.py DIRECTORY [PORT]

It speaks lines over TCP (``nc 127.0.0.1 PORT``): SET key value -> OK offset, when it is durable; GET key ->
value, or NONE; KEYS -> the number of keys.

The state is a dict. The service appends every change to the log before it applies and answers it. For each
key, the change with the highest offset counts. At its start it reads the log from the beginning. The log
is in DIRECTORY (``file:``), with its one bookie in this process. To use a cluster, you change only the URI.

A change that is too large gets ERROR. Every other error of an append ends the service.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import partial

import trio

import ledgerlog


class Store:
    def __init__(self, writer: ledgerlog.LogWriter) -> None:
        self._writer = writer
        self._values: dict[str, str] = {}
        self._applied: dict[str, int] = {}  # key -> offset of the change that set its value

    def apply(self, offset: int, data: bytes) -> None:
        key, value = json.loads(data)
        # Two tasks may wake in another order than their records have: the later record wins.
        if offset > self._applied.get(key, -1):
            self._values[key] = value
            self._applied[key] = offset

    async def change(self, key: str, value: str) -> int:
        """Make a change durable, then visible. Return the offset of its record."""
        data = json.dumps([key, value]).encode()
        ack = await self._writer.append(data)
        self.apply(ack.offset, data)
        return ack.offset

    def get(self, key: str) -> str:
        return self._values.get(key, "NONE")

    def __len__(self) -> int:
        return len(self._values)


async def serve_client(store: Store, stream: trio.SocketStream) -> None:
    rest = b""
    with suppress(trio.BrokenResourceError):  # The client has gone. Its changes are still in the log.
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                answer = await answer_to(store, line.decode(errors="replace"))
                await stream.send_all(f"{answer}\n".encode())


async def answer_to(store: Store, line: str) -> str:
    match line.split(maxsplit=2):
        case ["SET", key, value]:
            try:
                return f"OK {await store.change(key, value)}"
            except ledgerlog.InvalidArgument as error:
                return f"ERROR: {error}"
        case ["GET", key]:
            return store.get(key)
        case ["KEYS"]:
            return str(len(store))
        case _:
            return "ERROR: SET key value, GET key, or KEYS"


async def main(where: str, port: int) -> None:
    uri = where if ":" in where else f"file:{where}"
    async with ledgerlog.connect(uri) as cluster:
        log = await cluster.create_log("changes", exist_ok=True)
        async with log.writer() as writer:  # From here on nobody else can append: we read to the end.
            store = Store(writer)
            async with log.read("earliest") as records:
                async for record in records:
                    store.apply(record.offset, record.data)
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
            at = listeners[0].socket.getsockname()[1]
            print(
                f"{len(store)} keys from {writer.next_offset} changes; serving on 127.0.0.1:{at}", flush=True
            )
            await trio.serve_listeners(partial(serve_client, store), listeners)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY [PORT]")
    trio.run(main, sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 0)
