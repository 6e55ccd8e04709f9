"""Hostile peers in a simulated cluster that is closed by a secret: their requests, which must be refused.

In about one run in six the cluster is closed: its bookies and clients prove who they are, and hostile
processes try forbidden requests. The hostile processes know more than a stranger could know. They read the
metadata store, so they know the ledgers with their keys and entries. They also know each HELLO and PROOF that
any process sent. Only the proof of identity protects the ledgers from them.

    stranger    knows no secret: claims an identity with a guessed secret, claims nothing, or replays the
                HELLO and the PROOF of another process
    nobody      proves who it is, but has no grant
    elsewhere   may write logs that no other process uses
    reader      may read everything
    revoked     an administrator whose role was taken away

Each peer sends adds, recovery adds, fences, recovery reads, reads, lists and questions, and also bytes that
do not form a frame.

**What must hold** (``HostileRefused``): no add of a hostile peer is acknowledged, and no request of it is
answered with OK, except reads of the reader. The judges of the run check the rest: hostile peers change no
entry, no fence and no end of a ledger, and the cluster continues working.

The hostile peers are drawn from a random stream of their own. So the rest of the run is the same with and
without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError, WireError
from ledgerlog.meta.grants import change_grants
from ledgerlog.model.access import Grant, Grants, Role
from ledgerlog.model.admission import Admission, ProvenBy
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import ADMIN, FINGERPRINT_BYTES, SECRET_BYTES, Secrets
from ledgerlog.net.prover import Prover
from ledgerlog.net.session import handshake
from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.invariants import GodView
from ledgerlog.testing.wiretap import Observer, TappedConnection
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import RECOVERY, REPLY, Frame, FrameBuffer, Kind, Status, encode_head
from ledgerlog.wire.hello import NONCE_BYTES, Claim, Hello, decode_hello_untrusted, encode_hello
from ledgerlog.wire.proof import PROOF_BYTES, encode_proof

__all__ = ["HOSTILE_SHARE", "ROLES", "Hostility", "HostilePeers", "Overheard"]

HOSTILE_SHARE = 1 / 6
"""The share of runs in a closed cluster with hostile peers."""

_READS = frozenset((Kind.READ.value, Kind.READ_LAC.value, Kind.LIST.value, Kind.SCRUB.value))
_PAYLOAD = b"written by nobody who may"
_PATIENCE_S = 2.0
_ATTACKS_MAX = 80
"""About the most attacks of one peer in a run."""
_WAYS = ("nothing", "guess", "replay", "noise")
"""How strangers try to get in."""
_KINDS: tuple[Kind | None, ...] = (
    Kind.ADD,
    Kind.ADD,
    Kind.FENCE,
    Kind.READ,
    Kind.READ_LAC,
    Kind.LIST,
    Kind.SCRUB,
    Kind.INFO,
    Kind.LEDGERS,
    None,
)
"""The kinds of frames that peers send. None: bytes that do not form a frame."""

ROLES: dict[str, Principal | None] = {
    "stranger": None,
    "nobody": Principal.parse("client/nobody"),
    "elsewhere": Principal.parse("client/elsewhere"),
    "reader": Principal.parse("client/reader"),
    "revoked": Principal.parse("admin/revoked"),
}


@attrs.frozen(kw_only=True)
class Hostility:
    """The hostile peers of one run."""

    roles: tuple[str, ...]
    """The roles of the peers, one peer for each role. Empty: the cluster is open and has no hostile peers."""
    gap_s: float
    """The mean time between two connections of a peer, in seconds."""

    @classmethod
    def draw(cls, random: Random, trouble_s: float, *, wanted: bool | None = None) -> Hostility:
        """Draw the hostile peers.

        Args:
            random: The generator to draw from.
            trouble_s: How long the faults of the run last, in seconds.
            wanted: Whether there are hostile peers. None: this is drawn, too.
        """
        is_drawn = random.random() < HOSTILE_SHARE
        roles = random.sample(sorted(ROLES), random.choice((1, 2, len(ROLES))))
        gap_s = max(min(0.5, trouble_s / random.choice((10, 30))), trouble_s / _ATTACKS_MAX)
        if not (is_drawn if wanted is None else wanted):
            roles = []
        return cls(roles=tuple(sorted(roles)), gap_s=gap_s)


class Overheard:
    """An observer that keeps the last HELLO and PROOF that each bookie got, and passes all frames on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._hellos: dict[int, bytes] = {}
        self.exchanges: dict[str, tuple[bytes, bytes]] = {}
        """For each bookie: the HELLO and the PROOF of one connection."""

    def on_sent(self, conversation: TappedConnection, frame: Frame, *, is_reply: bool) -> None:
        if frame.header.kind == Kind.HELLO:
            self._hellos[conversation.number] = bytes(frame.raw)
        elif frame.header.kind == Kind.PROOF:
            hello = self._hellos.pop(conversation.number)
            self.exchanges[conversation.server.process] = (hello, bytes(frame.raw))
        self._observer.on_sent(conversation, frame, is_reply=is_reply)

    def on_received(self, conversation: TappedConnection, frame: Frame, *, is_reply: bool) -> None:
        self._observer.on_received(conversation, frame, is_reply=is_reply)


@attrs.frozen
class _Held:
    """Secrets that never change."""

    secrets: Secrets
    where: str = "the simulated secret file"

    def current(self) -> Secrets:
        return self.secrets

    def reload(self) -> None:
        pass


class HostilePeers:
    """The hostile processes of one run, and the identity of all others."""

    def __init__(self, hostility: Hostility, random: Random, god: GodView, counts: Counter[str]) -> None:
        self.hostility = hostility
        self.god = god
        self.counts = counts
        self._random = random
        self._secrets = Secrets(None, (random.randbytes(SECRET_BYTES),))
        self.overheard: Overheard | None = None

    def overhear(self, observer: Observer) -> Observer:
        """Return the observer to use for the run. Hostile peers learn the frames that it hears."""
        if not self.hostility.roles:
            return observer
        self.overheard = Overheard(observer)
        return self.overheard

    @property
    def names(self) -> list[str]:
        """The names of the hostile processes."""
        return [f"hostile-{role}" for role in self.hostility.roles]

    def prover_of(self, process: str, random: Random) -> Prover | None:
        """Return the identity of a process. None: the cluster is open."""
        if not self.hostility.roles:
            return None
        secrets, role = self._secrets, process.removeprefix("hostile-")
        if role != process:
            principal = ROLES[role]
            secrets = secrets.derived(principal) if principal else Secrets(None, (bytes(SECRET_BYTES),))
        prover = Prover(_Held(secrets), random_bytes=random.randbytes)
        prover.admit(Admission(ProvenBy.SECRET))
        return prover

    async def start(self, cluster: SimulatedCluster) -> None:
        """Write the grants, and start the processes."""
        if not self.hostility.roles:
            return
        async with cluster.client("granting") as client:
            changes: dict[str, Callable[[Grants], Grants]] = {
                "elsewhere": lambda now: now.granted(Grant(Role.WRITER, "elsewhere/")),
                "reader": lambda now: now.granted(Grant(Role.READER)),
                "revoked": lambda now: now.revoked(None),
            }
            for role, change in changes.items():
                principal = ROLES[role]
                assert principal is not None
                await change_grants(client.store, principal, change)
        for role, name in zip(self.hostility.roles, self.names, strict=True):
            cluster.network.untapped[name] = None
            cluster.start(name, _Peer(self, role, cluster, self._random).main)

    def stop(self, cluster: SimulatedCluster) -> None:
        """End the processes."""
        for name in self.names:
            cluster.process(name).crash()


class _Peer:
    """One hostile process."""

    def __init__(self, peers: HostilePeers, role: str, cluster: SimulatedCluster, random: Random) -> None:
        self._peers = peers
        self._role = role
        self._cluster = cluster
        self._random = Random(random.getrandbits(64))
        self._principal = ROLES[role]

    async def main(self, client: Cluster) -> None:
        """Attack until the process ends."""
        while True:
            await trio.sleep(self._random.expovariate(1 / self._peers.hostility.gap_s))
            with trio.move_on_after(_PATIENCE_S):
                try:
                    await self._attack(client)
                except (LedgerLogError, ConnectionLost, WireError):
                    self._peers.counts["hostile connections cut off"] += 1

    async def _attack(self, client: Cluster) -> None:
        bookie = self._random.choice(self._cluster.bookies)
        stream = await client.client.network.connect(bookie)
        try:
            if self._principal is None:
                await self._pretend(stream, bookie)
                return
            _, buffer = await handshake(stream, Hello(bookie, None), client.client.prover)
            self._peers.counts["hostile peers greeted"] += 1
            ledger = await self._some_ledger(client)
            if ledger is not None:
                await self._ask(_Line(stream, buffer), ledger)
        finally:
            stream.close()

    async def _some_ledger(self, client: Cluster) -> LedgerMetadata | None:
        ids = await client.ledgers.list()
        return await client.ledgers.metadata(self._random.choice(ids)) if ids else None

    # --- a stranger -------------------------------------------------------------------------------

    async def _pretend(self, stream: Stream, bookie: str) -> None:
        """Claim an identity without knowing its secret."""
        random, counts = self._random, self._peers.counts
        line = _Line(stream, FrameBuffer())
        assert self._peers.overheard is not None
        heard = self._peers.overheard.exchanges.get(bookie)
        way = random.choice(_WAYS)
        if way == "noise":
            await stream.send_all([random.randbytes(random.choice((3, 80, 5000)))])
        elif way == "nothing":
            await stream.send_all([encode_hello(Hello(bookie, None))])
        elif way == "replay" and heard is not None:
            counts["hostile replays"] += 1
            await stream.send_all([heard[0]])
            await line.receive()
            await stream.send_all([heard[1]])
        else:
            who = random.choice((Principal.parse(f"bookie/{bookie}"), ADMIN))
            # The peer overheard a fingerprint, but it does not know the secret.
            keys: tuple[bytes, ...] = (random.randbytes(FINGERPRINT_BYTES),)
            if heard is not None:
                claim = decode_hello_untrusted(_only_frame(heard[0])).claim
                assert claim is not None
                who, keys = claim.principal, claim.fingerprints
            counts["hostile guesses"] += 1
            await stream.send_all(
                [encode_hello(Hello(bookie, None, claim=Claim(who, keys, random.randbytes(NONCE_BYTES))))]
            )
            await line.receive()
            await stream.send_all([encode_proof(random.randbytes(PROOF_BYTES))])
        # After any answer, the bookie must serve nothing more.
        await stream.send_all([encode_head(Kind.INFO, request=1)])
        while True:
            header = (await line.receive()).header
            is_proof = header.kind == Kind.PROOF | REPLY and header.status == Status.OK
            if is_proof or header.kind == Kind.INFO | REPLY:
                self._violate(bookie, f"a {way} is answered with {Kind(header.kind & ~REPLY).name}")

    # --- a peer with an identity ------------------------------------------------------------------

    async def _ask(self, line: _Line, ledger: LedgerMetadata) -> None:
        """Send requests that are not allowed, and check that each of them is refused."""
        random = self._random
        adds, refused = 0, set[int]()
        asked: dict[int, int] = {}
        for request in range(1, random.choice((2, 6))):
            kind = random.choice(_KINDS)
            flags = RECOVERY if random.random() < 0.5 else 0
            entry = (
                random.randrange(20)
                if ledger.last_entry is None
                else max(0, ledger.last_entry + random.choice((0, 1)))
            )
            if kind is None:
                await line.stream.send_all([random.randbytes(random.choice((5, 100)))])
                break
            if kind is Kind.ADD:
                adds += 1
                self._peers.counts["hostile adds"] += 1
                built = Entries.build(ledger.ledger_id, entry, [_PAYLOAD])
                await line.stream.send_all(
                    encode_add(built, lac=entry - 1, lafr=-1, key=ledger.key, recovery=bool(flags))
                )
                continue
            is_read = kind in (Kind.READ, Kind.SCRUB)
            asked[request] = kind if kind is not Kind.READ or not flags else Kind.FENCE
            self._peers.counts["hostile requests"] += 1
            await line.stream.send_all(
                [
                    encode_head(
                        kind,
                        flags=flags if kind is Kind.READ else 0,
                        count=1 if is_read else 0,
                        request=request,
                        ledger_id=ledger.ledger_id,
                        first=0 if is_read else -1 if kind is Kind.READ_LAC else 0,
                        last=entry,
                        argument=1000 if is_read else 0,
                        key=ledger.key,
                    )
                ]
            )
        while adds > len(refused) or asked:
            header = (await line.receive()).header
            if header.kind == Kind.REFUSED:
                refused.add(header.request)
            elif header.kind == Kind.ADD | REPLY:
                if missing := {*range(1, header.request + 1)} - refused:
                    self._violate(
                        self._role, f"its adds {missing} to ledger {ledger.ledger_id} are acknowledged"
                    )
            else:
                what = asked.pop(header.request)
                may = self._role == "reader" and what in _READS
                if header.status == Status.OK and not may:
                    self._violate(
                        self._role, f"its {Kind(what).name} of ledger {ledger.ledger_id} is answered with OK"
                    )
        self._peers.god.checks["HostileRefused"] += 1

    def _violate(self, who: str, what: str) -> None:
        self._peers.god.violate("HostileRefused", f"{who}: {what}")


class _Line:
    """A connection to a bookie, and the frames that the bookie sends."""

    def __init__(self, stream: Stream, buffer: FrameBuffer) -> None:
        self.stream = stream
        self._buffer = buffer
        self._frames: list[Frame] = []

    async def receive(self) -> Frame:
        """Return the next frame. Raise ConnectionLost if the bookie has closed the connection."""
        while not self._frames:
            count = await self.stream.receive_into(self._buffer.writable())
            if not count:
                raise ConnectionLost("it was closed")
            self._buffer.received(count)
            self._frames = [
                Frame(frame.header, memoryview(bytes(frame.raw))) for frame in self._buffer.take_frames()
            ]
        return self._frames.pop(0)


def _only_frame(raw: bytes) -> Frame:
    buffer = FrameBuffer()
    buffer.writable()[: len(raw)] = raw
    buffer.received(len(raw))
    return buffer.take_frames()[0]
