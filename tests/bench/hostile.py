"""What a hostile peer of bookies does to a normal writer beside it.

    python -m tests.bench.hostile [--bookies 1,3] [--seconds S] [--only NAME,...] [--identity] [--json]

A neighbour makes a ledger, connects and appends a first record. Then it appends records of 1 KiB, 200 a
second, each due at its time whatever became of the others. Its latency counts from then. It is measured
alone, then beside each attack, and then alone again, each time on a new cluster: the two figures alone show
the noise of the machine. The attacker is a process of its own on the same machine, so a part of what the
neighbour loses is the attacker's use of the processors, not the bookie's answer to it. The attacker's address
is 127.0.0.2, and the neighbour's 127.0.0.1.

For each attack: how long the first append takes, connecting included; the neighbour's p50 and p99, the p99 as
a multiple of the p99 alone, what failed of its appends (and of the one ledger that it makes after the attack
has begun), and the memory of the largest bookie.

If the machine is busy, the latencies say more about the other work than about the bookie. So the neighbour
also notes how much time of a processor the busiest bookie used between each append and its answer: ``cpu``.
That is what the attacker made the neighbour wait for. It still grows when the neighbour itself waits for a
processor, because the bookie goes on with the attacker meanwhile.

Each bookie that is attacked uses up to a processor, and so does the attacker. If the machine has fewer, the
neighbour waits for them as well. ``busy_processors`` shows that part: it lets as many processes compute,
without any attack.

**Strangers** say no HELLO, or nothing that makes sense. **Clients** say HELLO and go on as they like; they
add to ledgers of their own, which exist. In an open cluster both are whoever reaches the bookies. With
``--identity`` the cluster is closed by a secret. Then strangers are all that is left to those who know none,
and the clients' attacks are those of a program that was taken over: it has a principal of its own, and may
write. The neighbour has another principal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

import ledgerlog
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.limits import FRAME_BYTES_MAX
from ledgerlog.meta.grants import change_grants
from ledgerlog.meta.uri import SqliteUri, parse_uri
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets
from ledgerlog.net.secret_file import make_secret_file, read_secret_file
from ledgerlog.proving import secret_beside
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import NO_KEY, RECOVERY, Frame, FrameBuffer, Kind, encode_head
from ledgerlog.wire.hello import NONCE_BYTES, Hello, decode_hello_untrusted, encode_hello
from ledgerlog.wire.proof import ClientProof, encode_proof

RATE = 200
RECORD = bytes(1024)
BAR = 5.0
"""The p99 beside an attack may be this many times the p99 alone."""

HOSTILE_ADDRESS = "127.0.0.2"

_BUILT = 4096
_UNKNOWN_LEDGER = 1 << 40
"""No cluster of this bench gives such ids out."""

_OWN_LEDGERS = 64

_COMPUTE = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
"""A program that computes as long as the process lives that started it."""


# --- the neighbour --------------------------------------------------------------------------------


def _processor_s(pid: int) -> float:
    """The time of a processor that another process has used."""
    return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of the process, as clock_getcpuclockid gives it


async def _neighbour(uri: str, seconds: float, bookies: list[int]) -> None:
    """Append at a fixed rate, and print the latencies."""
    taken: list[float] = []
    cpu: list[float] = []
    failed: list[str] = []
    async with ledgerlog.connect(uri) as cluster:
        there = len(cluster.client.bookies.registered())
        quorum = ledgerlog.Replication(there, there, there // 2 + 1)
        try:
            writer = await cluster.ledgers.create(replication=quorum)
        except LedgerLogError as cause:
            print(json.dumps({"first": [], "taken": [], "cpu": [], "failed": [repr(cause)]}))
            return
        began = trio.current_time()
        try:
            await writer.append(RECORD)
        except LedgerLogError as cause:
            failed.append(repr(cause))
        first_s = trio.current_time() - began
        async with trio.open_nursery() as nursery:
            began = trio.current_time()

            async def append(due: float) -> None:
                before = list(map(_processor_s, bookies))
                try:
                    await writer.append(RECORD)
                except LedgerLogError as cause:
                    failed.append(repr(cause))
                else:
                    taken.append(trio.current_time() - due)
                    cpu.append(max(map(float.__sub__, map(_processor_s, bookies), before)))

            for number in range(int(seconds * RATE)):
                due = began + number / RATE
                await trio.sleep_until(due)
                nursery.start_soon(append, due)
        with suppress(LedgerLogError):  # Each append has said so.
            await writer.close()
    print(json.dumps({"first": [first_s], "taken": taken, "cpu": cpu, "failed": failed}))


# --- the attacks ----------------------------------------------------------------------------------


@attrs.frozen
class Target:
    """What an attack knows: any client can find it out."""

    bookies: list[tuple[str, int, str]]
    """Host, port and id."""
    ledger: int
    """A ledger of somebody else, with entries."""
    own: list[tuple[int, str]]
    """Ledgers of the attacker, with their keys in hexadecimal digits."""
    secret: str
    """The file with the attacker's secret. "": the cluster is open."""

    def next_own(self) -> tuple[int, bytes]:
        """Take turns over the attacker's ledgers."""
        ledger, key = self.own[next(_turns) % len(self.own)]
        return ledger, bytes.fromhex(key)


_turns = itertools.count()
_streams = itertools.count(1)
_begins_with: list[int] = [1]
"""The number of the connection with which this attack begins."""
_secrets: list[Secrets] = []
"""The attacker's, if the cluster is closed."""


@attrs.frozen
class Attack:
    name: str
    is_stranger: bool
    connections: int
    """The attack has begun when it has opened so many."""
    bookies: int
    """It needs so many bookies; with fewer it runs only if it is named."""
    run: Callable[[Target], Awaitable[None]]


ATTACKS: list[Attack] = []


def attack(
    *, is_stranger: bool = False, connections: int = 1, bookies: int = 1
) -> Callable[[Callable[[Target], Awaitable[None]]], None]:
    """Register an attack under the name of its function."""

    def add(function: Callable[[Target], Awaitable[None]]) -> None:
        ATTACKS.append(Attack(function.__name__, is_stranger, connections, bookies, function))

    return add


async def _stream(where: tuple[str, int, str]) -> trio.SocketStream:
    host, port, _ = where
    stream = await trio.open_tcp_stream(host, port, local_address=HOSTILE_ADDRESS)
    if next(_streams) == _begins_with[0]:
        print("the attack has begun", flush=True)
    return stream


async def _greeted(where: tuple[str, int, str]) -> trio.SocketStream:
    stream = await _stream(where)
    hello = Hello(where[2], None)
    if not _secrets:
        await stream.send_all(encode_hello(hello))
        await stream.receive_some(65536)
        return stream
    principal = _secrets[0].principal
    proof = ClientProof(principal, _secrets[0].of(principal), os.urandom(NONCE_BYTES))
    raw = encode_hello(attrs.evolve(hello, claim=proof.claim))
    await stream.send_all(raw)
    answer = await _frame(stream)
    challenge = decode_hello_untrusted(answer).challenge
    if challenge is None:
        raise OSError("the bookie does not ask for the proof")
    await stream.send_all(encode_proof(proof.on_challenge(challenge, raw, bytes(answer.raw))))
    await _frame(stream)
    return stream


async def _frame(stream: trio.SocketStream) -> Frame:
    buffer = FrameBuffer()
    while not (frames := buffer.take_frames()):
        received = await stream.receive_some(len(buffer.writable()))
        if not received:
            raise OSError("the bookie closed the connection")
        buffer.writable()[: len(received)] = received
        buffer.received(len(received))
    return frames[0]


async def _for_ever(
    target: Target, count: int, attempt: Callable[[tuple[str, int, str]], Awaitable[None]]
) -> None:
    """Run ``count`` attempts at each bookie at the same time, each again when it has ended."""

    async def again(where: tuple[str, int, str]) -> None:
        while True:
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await attempt(where)
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        for where in target.bookies:
            for _ in range(count):
                nursery.start_soon(again, where)


async def _pour(stream: trio.SocketStream, pieces: Callable[[], Iterator[bytes]]) -> None:
    """Send without end, and read away what comes back."""
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            while await stream.receive_some(1 << 20):
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(drain)
        while True:
            for piece in pieces():
                await stream.send_all(piece)


def _joined(frames: Iterator[bytes], size: int = 1 << 18) -> list[bytes]:
    """Frames in large pieces, so that sending costs the attacker little."""
    pieces, held = [], bytearray()
    for frame in frames:
        held += frame
        if len(held) >= size:
            pieces.append(bytes(held))
            held.clear()
    return [*pieces, bytes(held)] if held else pieces


def _adds(own: tuple[int, bytes], entries: int, payload: bytes) -> Iterator[bytes]:
    ledger, key = own
    for entry in range(entries):
        built = Entries.build(ledger, entry, [payload])
        yield b"".join(encode_add(built, lac=entry - 1, lafr=-1, key=key, recovery=False))


@attack(is_stranger=True)
async def busy_processors(target: Target) -> None:
    """No attack, but what one costs on a small machine: one process for the attacker and one for each bookie
    that it keeps busy compute without end, and leave the bookies alone."""
    async with await _stream(target.bookies[0]), trio.open_nursery() as nursery:
        for _ in range(1 + len(target.bookies)):
            nursery.start_soon(trio.run_process, [sys.executable, "-c", _COMPUTE])


@attack(is_stranger=True)
async def announced_frames(target: Target) -> None:
    """Each of 64 connections announces the largest frame before HELLO, and says no more."""

    async def one(where: tuple[str, int, str]) -> None:
        async with await _stream(where) as stream:
            await stream.send_all((FRAME_BYTES_MAX - 4).to_bytes(4, "little"))
            while await stream.receive_some(65536):
                pass

    await _for_ever(target, 64, one)


@attack(is_stranger=True)
async def garbage(target: Target) -> None:
    """Connect, send noise, and again."""

    async def one(where: tuple[str, int, str]) -> None:
        async with await _stream(where) as stream:
            await stream.send_all(os.urandom(4096))

    await _for_ever(target, 16, one)


@attack(is_stranger=True)
async def connections(target: Target) -> None:
    """Connect and leave."""

    async def one(where: tuple[str, int, str]) -> None:
        async with await _stream(where):
            pass

    await _for_ever(target, 32, one)


@attack(is_stranger=True)
async def silent_connections(target: Target) -> None:
    """Hold a thousand connections, and open each again that is closed."""

    async def one(where: tuple[str, int, str]) -> None:
        async with await _stream(where) as stream:
            await stream.receive_some(1)

    await _for_ever(target, 1000 // len(target.bookies), one)


@attack()
async def greeted_connections(target: Target) -> None:
    """Say HELLO, leave, and again."""

    async def one(where: tuple[str, int, str]) -> None:
        async with await _greeted(where):
            pass

    await _for_ever(target, 16, one)


_CLIENTS = 5000


@attack(connections=_CLIENTS, bookies=4)
async def quiet_clients(target: Target) -> None:
    """No attack: 5,000 clients that are connected, as many at each bookie, and ask for nothing.

    They are one party, and a bookie gives a party three quarters of its 2,048 connections. So this needs
    ``--bookies 4``: a smaller cluster refuses some of them, and they try again without end.
    """
    at_once = trio.CapacityLimiter(64)

    async def one(where: tuple[str, int, str]) -> None:
        async with at_once:
            stream = await _greeted(where)
        async with stream:
            await stream.receive_some(1)

    await _for_ever(target, -(-_CLIENTS // len(target.bookies)), one)


@attack()
async def slow_large_frames(target: Target) -> None:
    """Begin 64 frames of the largest size, and send a few bytes of each a second."""
    ledger, key = target.next_own()
    head = encode_head(Kind.ADD, count=1, ledger_id=ledger, first=0, last=0, index=bytes(8), key=key)

    async def one(where: tuple[str, int, str]) -> None:
        async with await _greeted(where) as stream:
            await stream.send_all((FRAME_BYTES_MAX - 4).to_bytes(4, "little") + head[4:] + bytes(300_000))
            while True:
                await stream.send_all(bytes(16))
                await trio.sleep(1.0)

    await _for_ever(target, 64, one)


@attack()
async def small_frames(target: Target) -> None:
    """Adds of one byte, as many as go."""
    pieces = _joined(_adds(target.next_own(), 20 * _BUILT, b"x"))

    async def one(where: tuple[str, int, str]) -> None:
        async with await _greeted(where) as stream:
            await _pour(stream, lambda: iter(pieces))

    await _for_ever(target, 1, one)


@attack()
async def small_frames_of_many(target: Target) -> None:
    """The same on 64 connections."""
    pieces = [_joined(_adds(target.next_own(), _BUILT, b"x"), 1 << 16) for _ in range(20)]

    async def one(where: tuple[str, int, str]) -> None:
        async with await _greeted(where) as stream:
            await _pour(stream, lambda: iter(random.choice(pieces)))

    await _for_ever(target, 64, one)


async def _bulk(target: Target, count: int, each: int) -> None:
    payload = bytes(each)

    async def one(where: tuple[str, int, str]) -> None:
        async with await _greeted(where) as stream:
            await _pour(stream, lambda: _adds(target.next_own(), 100_000, payload))

    await _for_ever(target, count, one)


@attack()
async def bulk(target: Target) -> None:
    """Adds of a quarter MiB, as many as go."""
    await _bulk(target, 1, 1 << 18)


@attack()
async def bulk_of_many(target: Target) -> None:
    """The same on 16 connections."""
    await _bulk(target, 16, 1 << 18)


@attack()
async def unknown_ledgers(target: Target) -> None:
    """One add to each of ever new ledgers that do not exist."""

    async def one(where: tuple[str, int, str]) -> None:
        first = _UNKNOWN_LEDGER + random.getrandbits(30)
        async with await _greeted(where) as stream:
            await _pour(
                stream,
                lambda: iter(
                    _joined(add for n in range(20_000) for add in _adds((first + n, NO_KEY), 1, b"x"))
                ),
            )

    await _for_ever(target, 1, one)


async def _requests(
    target: Target, count: int, make: Callable[[int], bytes], *, is_read: bool = True
) -> None:
    pieces = _joined(map(make, range(20_000)), 1 << 16)

    async def one(where: tuple[str, int, str]) -> None:
        async with await _greeted(where) as stream:
            if is_read:
                await _pour(stream, lambda: iter(pieces))
            else:
                while True:
                    for piece in pieces:
                        await stream.send_all(piece)

    await _for_ever(target, count, one)


def _read(number: int, ledger: int) -> bytes:
    return encode_head(
        Kind.READ, count=1, request=number, ledger_id=ledger, first=0, last=1 << 30, argument=1 << 20
    )


@attack()
async def unread_replies(target: Target) -> None:
    """READs on 32 connections whose replies are never read."""
    await _requests(target, 32, lambda number: _read(number, target.ledger), is_read=False)


@attack()
async def reads(target: Target) -> None:
    """READs of a ledger of somebody else, on 4 connections."""
    await _requests(target, 4, lambda number: _read(number, target.ledger))


@attack()
async def fences(target: Target) -> None:
    """FENCE of ever new ledgers that do not exist."""
    await _requests(
        target, 4, lambda n: encode_head(Kind.FENCE, request=n, ledger_id=_UNKNOWN_LEDGER * 2 + n)
    )


@attack()
async def recovery_reads(target: Target) -> None:
    """READs that fence, of ever new ledgers that do not exist."""
    await _requests(
        target,
        4,
        lambda n: encode_head(
            Kind.READ,
            flags=RECOVERY,
            count=1,
            request=n,
            ledger_id=_UNKNOWN_LEDGER * 3 + n,
            last=1,
            argument=1,
        ),
    )


@attack()
async def own_fences(target: Target) -> None:
    """FENCE of ledgers of the attacker's own, again and again."""
    ledger, key = target.next_own()
    await _requests(target, 4, lambda n: encode_head(Kind.FENCE, request=n, ledger_id=ledger, key=key))


@attack()
async def poisoned_ids(target: Target) -> None:
    """FENCE of the ids that the cluster gives out next."""
    await _requests(
        target,
        1,
        lambda n: encode_head(Kind.FENCE, request=n, ledger_id=target.ledger + 1 + n % 400, key=b"k" * 16),
    )


@attack()
async def lists(target: Target) -> None:
    """LIST of a ledger of somebody else."""
    await _requests(target, 4, lambda n: encode_head(Kind.LIST, request=n, ledger_id=target.ledger))


@attack()
async def scrubs(target: Target) -> None:
    """SCRUB of a ledger of somebody else."""
    await _requests(
        target,
        4,
        lambda n: encode_head(
            Kind.SCRUB,
            count=1,
            request=n,
            ledger_id=target.ledger,
            first=0,
            last=1 << 30,
            argument=1 << 20,
        ),
    )


@attack()
async def long_polls(target: Target) -> None:
    """READ_LAC that waits, on 64 connections."""
    await _requests(
        target,
        64,
        lambda n: encode_head(
            Kind.READ_LAC, request=n, ledger_id=target.ledger, first=1 << 40, wait_ms=10_000
        ),
    )


@attack()
async def questions(target: Target) -> None:
    """INFO."""
    await _requests(target, 4, lambda n: encode_head(Kind.INFO, request=n))


# --- the bench ------------------------------------------------------------------------------------


@attrs.frozen
class Seen:
    """What the neighbour saw."""

    first_ms: float
    """Until the first append was acknowledged: connecting, saying who it is, and the append."""
    p50_ms: float
    p99_ms: float
    cpu_p50_ms: float
    cpu_p99_ms: float
    appended: int
    failed: list[str]


def _seen(said: dict[str, Any]) -> Seen:
    def at(name: str, share: float) -> float:
        values = sorted(said[name])
        return values[min(len(values) - 1, int(len(values) * share))] * 1000 if values else math.inf

    return Seen(
        at("first", 0),
        at("taken", 0.5),
        at("taken", 0.99),
        at("cpu", 0.5),
        at("cpu", 0.99),
        len(said["taken"]),
        said["failed"],
    )


async def _see(cluster: LocalCluster, seconds: float) -> Seen:
    ran = await trio.run_process(
        [
            sys.executable,
            "-m",
            "tests.bench.hostile",
            "--neighbour",
            cluster.uri,
            "--seconds",
            str(seconds),
            "--pids",
            ",".join(str(child.pid) for child in cluster.bookies.values()),
        ],
        capture_stdout=True,
        env=_environment_of(cluster, "neighbour"),
    )
    return _seen(json.loads(ran.stdout))


def _secret_of(cluster: LocalCluster, name: str) -> Path:
    return cluster.path / f"{name}.secret"


def _environment_of(cluster: LocalCluster, name: str) -> dict[str, str]:
    secret = _secret_of(cluster, name)
    given = Credentials(secret_file=str(secret)) if secret.exists() else cluster.credentials
    return given.environment_of_child(os.environ)


async def _identify(cluster: LocalCluster) -> None:
    """Give the neighbour and the attacker principals of their own, which may write everything."""
    uri = parse_uri(cluster.uri)
    assert isinstance(uri, SqliteUri)
    secrets = read_secret_file(secret_beside(uri))
    for name in ("neighbour", "attacker"):
        principal = Principal("client", name)
        make_secret_file(str(_secret_of(cluster, name)), secrets.derived(principal))
        await change_grants(cluster.cluster.store, principal, lambda now: now.granted(Grant(Role.WRITER)))


@contextmanager
def _under(name: str, target: Target) -> Iterator[subprocess.Popen[bytes]]:
    """The attack, running, for the body of the ``with``. It says a line when its preparations are over."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.bench.hostile",
            "--attack",
            name,
            "--target",
            json.dumps(attrs.asdict(target)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
        assert process.poll() is None, f"the attack {name} ended by itself"
    finally:
        process.kill()
        process.wait()


def _memory_mib(cluster: LocalCluster) -> float:
    """The most that a bookie has used; NaN if one has ended."""
    found = []
    for child in cluster.bookies.values():
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
            found.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
        except (OSError, IndexError):
            return math.nan
    return max(found)


async def _target(cluster: LocalCluster) -> Target:
    client = cluster.cluster.client
    await client.bookies.refresh()
    there = client.bookies.registered()
    count = len(there)
    async with await cluster.cluster.ledgers.create(
        replication=ledgerlog.Replication(count, count, count // 2 + 1)
    ) as writer:
        await writer.append_many([RECORD] * 4096)
        ledger = writer.ledger_id
    own = []
    async with ledgerlog.connect(cluster.uri) as owner:  # Its ledgers stay open when it leaves.
        for _ in range(_OWN_LEDGERS):
            mine = await owner.ledgers.create(replication=ledgerlog.Replication(count, count, count // 2 + 1))
            own.append((mine.ledger_id, (await owner.ledgers.metadata(mine.ledger_id)).key.hex()))
    addresses = [(*info.address.rpartition(":")[::2], info.bookie_id) for info in there]
    secret = _secret_of(cluster, "attacker")
    return Target(
        [(host, int(port), bookie_id) for host, port, bookie_id in addresses],
        ledger,
        own,
        str(secret) if secret.exists() else "",
    )


async def _bench(bookies: int, seconds: float, only: list[str], with_identity: bool, as_json: bool) -> None:
    alone = await _one(bookies, seconds, None, None, with_identity, as_json)
    for each in ATTACKS:
        if each.name in only or (not only and each.bookies <= bookies):
            await _one(bookies, seconds, each, alone, with_identity, as_json)
    await _one(bookies, seconds, None, alone, with_identity, as_json)


async def _one(
    bookies: int,
    seconds: float,
    attack: Attack | None,
    alone: Seen | None,
    with_identity: bool,
    as_json: bool,
) -> Seen:
    """Measure the neighbour on a new cluster, alone or beside an attack."""
    with tempfile.TemporaryDirectory(prefix="ledgerlog-hostile-") as place:
        async with local_cluster(
            Path(place) / "cluster", bookies=bookies, is_closed=with_identity
        ) as cluster:
            if with_identity:
                await _identify(cluster)
            target = await _target(cluster)
            if attack is None:
                seen = await _see(cluster, seconds)
            else:
                with _under(attack.name, target) as process:
                    assert process.stdout is not None
                    await trio.to_thread.run_sync(process.stdout.readline)
                    await trio.sleep(2.0)
                    seen = await _see(cluster, seconds)
            _tell(as_json, bookies, attack, seen, alone or seen, _memory_mib(cluster))
            return seen


def _tell(
    as_json: bool, bookies: int, attack: Attack | None, seen: Seen, alone: Seen, memory_mib: float
) -> None:
    name = "alone" if attack is None else attack.name
    times = seen.p99_ms / alone.p99_ms
    cpu_times = seen.cpu_p99_ms / alone.cpu_p99_ms
    if as_json:
        row = {
            "bookies": bookies,
            "attack": name,
            "times": times,
            "cpu_times": cpu_times,
            "memory_mib": memory_mib,
        }
        print(json.dumps({**row, **attrs.asdict(seen), "failed": len(seen.failed)}), flush=True)
        return
    verdict = "" if times <= BAR and not seen.failed else "  <-- over the bar"
    why = f"  {seen.failed[0][:100]}" if seen.failed else ""
    print(
        f"{bookies} {name:22} first {seen.first_ms:7.1f} ms  "
        f"p50 {seen.p50_ms:8.1f} ms  p99 {seen.p99_ms:8.1f} ms  {times:6.1f}x  "
        f"cpu p50 {seen.cpu_p50_ms:6.1f} ms  p99 {seen.cpu_p99_ms:6.1f} ms  {cpu_times:5.1f}x  "
        f"failed {len(seen.failed):4}  {memory_mib:6.0f} MiB{verdict}{why}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bookies", default="1,3")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--identity", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--neighbour", help=argparse.SUPPRESS)
    parser.add_argument("--pids", help=argparse.SUPPRESS)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.neighbour:
        trio.run(_neighbour, given.neighbour, given.seconds, list(map(int, given.pids.split(","))))
    elif given.attack:
        raw = json.loads(given.target)
        target = Target(
            [tuple(each) for each in raw["bookies"]],
            raw["ledger"],
            [tuple(each) for each in raw["own"]],
            raw["secret"],
        )
        if target.secret:
            _secrets.append(read_secret_file(target.secret))
        chosen = next(each for each in ATTACKS if each.name == given.attack)
        _begins_with[0] = chosen.connections
        trio.run(chosen.run, target)
    else:
        began = time.monotonic()
        for bookies in map(int, given.bookies.split(",")):
            only = [name for name in given.only.split(",") if name]
            trio.run(_bench, bookies, given.seconds, only, given.identity, given.json)
        if not given.json:
            print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
