"""A replicated key-value store: a state machine on a log, any number of replicas, and a small command line.

    python examples/kv.py serve URI HOST:PORT               a replica that serves clients at HOST:PORT
    python examples/kv.py ask HOST:PORT,HOST:PORT GET key
    python examples/kv.py ask HOST:PORT,HOST:PORT SET key value
    python examples/kv.py ask HOST:PORT,HOST:PORT CAS key old new

Start three replicas on one URI and kill them as you like. Every answer stays true, and each command is
executed once, even if a client must ask several times. Requests and answers are JSON, one a line.

What to look at: ``Store`` is the whole state and does not know that it is replicated. ``answer``
proposes changes and reads linearly, both at the leader. A replica that does not lead answers with the
address of the leader, because a candidate's name is its address. ``Client`` asks again until it has an
answer, always with the same request id."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

import ledgerlog


class Store(ledgerlog.StateMachine):
    """Text by keys. Commands: ["SET", key, value] and ["CAS", key, old, new]. CAS answers whether it
    changed the value."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def apply(self, command: ledgerlog.Command) -> bytes | None:
        match json.loads(command.data):
            case ["SET", str(key), str(value)]:
                self.values[key] = value
                return b'"OK"'
            case ["CAS", str(key), old, str(new)]:
                if self.values.get(key) != old:
                    return b"false"
                self.values[key] = new
                return b"true"
            case other:
                raise ValueError(f"not a command: {other!r}")

    def snapshot(self) -> Iterable[bytes]:
        for item in sorted(self.values.items()):
            yield json.dumps(item).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.values = dict(json.loads(chunk) for chunk in chunks)


async def answer(replica: ledgerlog.Replica[Store], request: dict[str, Any]) -> dict[str, Any]:
    try:
        match request["do"]:
            case ["GET", str(key)]:
                return {"ok": await replica.read(lambda store: store.values.get(key), consistency="linear")}
            case ["STATE"]:  # The state of this replica, even if it does not lead.
                at, digest = replica.digest()
                return {"ok": {"at": at, "digest": digest, "leads": replica.is_leading}}
            case command:
                result = await replica.propose(json.dumps(command).encode(), request_id=request["id"])
                return {"ok": json.loads(result)}
    except ledgerlog.NotLeader as error:
        return {"leader": error.leader}
    except ledgerlog.AppendUnknown:
        return {"leader": None}  # Ask again, with the same id: it is executed once.
    except (ledgerlog.CommandFailed, ledgerlog.RequestExpired, ledgerlog.InvalidArgument) as error:
        return {"error": str(error)}


async def serve_client(replica: ledgerlog.Replica[Store], stream: trio.SocketStream) -> None:
    rest = b""
    with suppress(trio.BrokenResourceError):  # The client has gone. It will ask again.
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                answered = await answer(replica, json.loads(line))
                await stream.send_all(json.dumps(answered).encode() + b"\n")


async def serve(uri: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    async with ledgerlog.connect(uri) as cluster:
        log = await cluster.create_log("kv", exist_ok=True)
        election = cluster.election("kv", candidate=address)
        snapshots = ledgerlog.LedgerSnapshots(cluster)
        replica = ledgerlog.Replica(log, Store(), election=election, snapshots=snapshots, snapshot_every=100)
        async with replica:
            print(f"serving at {address} from record {replica.next_offset} on", flush=True)
            await trio.serve_tcp(partial(serve_client, replica), int(port), host=host)


class Client:
    """Sends each request to the present leader, and tries again until it is answered."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._at = addresses[0]

    async def ask(self, *do: str | None) -> Any:
        """Return the answer to one request, which is executed once. ValueError: the store refuses it."""
        line = json.dumps({"id": uuid.uuid4().hex, "do": do}).encode() + b"\n"
        while True:
            answered = await ask_at(self._at, line)
            if "ok" in answered:
                return answered["ok"]
            if "error" in answered:
                raise ValueError(answered["error"])
            if answered["leader"] in self._addresses and answered["leader"] != self._at:
                self._at = answered["leader"]
            else:
                self._at = self._addresses[(self._addresses.index(self._at) + 1) % len(self._addresses)]
                await trio.sleep(0.05)


async def ask_at(address: str, line: bytes) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(5):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(line)
            data = b""
            while not data.endswith(b"\n") and (more := await stream.receive_some()):
                data += more
            if data.endswith(b"\n"):
                answered: dict[str, Any] = json.loads(data)
                return answered
    return {"leader": None}


async def main(*arguments: str) -> None:
    match arguments:
        case "serve", uri, address:
            await serve(uri, address)
        case "ask", addresses, *words:
            print(json.dumps(await Client(addresses.split(",")).ask(*words)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
