"""Elections in one process and in mock time, with a failing network and a failing metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import ledgerlog
from ledgerlog.election.beats import Hearing, candidacy_bytes
from ledgerlog.election.core.candidacy import Candidacy
from ledgerlog.election.election import Election, Term
from ledgerlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LedgerLogError,
    LostLeadership,
    MetadataUnavailable,
)
from ledgerlog.ledger.client import open_client
from ledgerlog.limits import (
    ELECTION_BEAT_S,
    ELECTION_SILENCE_S,
    ELECTION_STANDBYS_MAX,
    ELECTION_STEP_DOWN_S,
    ELECTION_TENURE_S,
    HANDSHAKE_TIMEOUT_S,
    SESSION_TIMEOUT_S,
)
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.model.election import ElectionState
from ledgerlog.model.layout import candidate_path, candidates_path, election_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.quorum import Replication
from ledgerlog.net.certificates import Certificates
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.net.transport import Network
from ledgerlog.testing.faulty_disk import Gate
from ledgerlog.testing.faulty_network import FaultyNetwork
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, before, uninterrupted
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster
from ledgerlog.wire.beats import BEAT_FRAME_BYTES, Beat, BeatKind
from tests import certificates
from tests.waiting import PATIENCE_S


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@attrs.define(eq=False)
class Candidate:
    """A process that stands for election again and again, until it is killed."""

    name: str
    store: FaultyStore
    network: FaultyNetwork
    election: Election
    terms: list[Term] = attrs.field(factory=list)
    leading: Term | None = None
    is_strict: bool = False
    leave: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def address(self) -> str:
        return self.name

    async def run(self) -> None:
        with self.scope:
            while True:
                async with self.election.leadership(strict=self.is_strict) as term:
                    self.terms.append(term)
                    self.leading = term
                    try:
                        await self.leave.wait()
                        self.leave = trio.Event()
                    finally:
                        self.leading = None

    def kill(self) -> None:
        """Kill the process: its connections break at once, its session lives until it times out."""
        self.store.disconnect()
        self.scope.cancel()


@attrs.define(eq=False)
class Stage:
    nursery: trio.Nursery
    tree: MemoryTree = attrs.field(factory=MemoryTree)
    network: FaultyNetwork = attrs.field(factory=FaultyNetwork)
    stack: AsyncExitStack = attrs.field(factory=AsyncExitStack)
    candidates: list[Candidate] = attrs.field(factory=list)
    over_tls: bool = False

    async def join(self, name: str, *, listens: bool = True, strict: bool = False) -> Candidate:
        store = FaultyStore(self.tree)
        network: Network = self.network.at(name)
        if self.over_tls:
            network = TlsNetwork(network, Certificates(certificates.files(f"client/{name}"), None))
        client = await self.stack.enter_async_context(open_client(store, network))
        election = Election(client, "e", candidate=name, listen=name if listens else None)
        candidate = Candidate(name, store, self.network, election, is_strict=strict)
        self.candidates.append(candidate)
        self.nursery.start_soon(candidate.run)
        return candidate

    def tree_candidates(self) -> list[str]:
        """Return the candidates that the store has registered."""
        return self.tree._children(candidates_path("e"))

    @property
    def leaders(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.leading is not None]

    async def one_leads(self, *others_than: Candidate) -> Candidate:
        await eventually(lambda: len(self.leaders) == 1 and self.leaders[0] not in others_than)
        return self.leaders[0]


@asynccontextmanager
async def stage(
    *names: str, listens: bool = True, strict: bool = False, over_tls: bool = False
) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        made = Stage(nursery, over_tls=over_tls)
        async with made.stack:
            for name in names:
                await made.join(name, listens=listens, strict=strict)
            yield made
            nursery.cancel_scope.cancel()


async def claim_as_c(store: MemoryStore) -> None:
    """Take the lead over, as a candidate that is registered under 32 zeros."""
    node = await store.get(election_path("e"))
    assert node is not None
    record = ElectionState.decode_untrusted(node.value, "e")
    taken = record.taken_by("0" * 32, candidate="c", address=None, tenure_ms=1000)
    await store.set(election_path("e"), taken.encode(), version=node.version)


OVER = pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])


async def test_one_of_three_leads_and_the_next_one_when_it_leaves(clock: MockClock) -> None:
    async with stage("a", "b", "c") as s:
        first = await s.one_leads()
        assert first.terms[-1].number == 1
        await trio.sleep(60)
        assert s.leaders == [first]
        assert len(first.terms) == 1
        began = trio.current_time()
        first.scope.cancel()
        second = await s.one_leads(first)
        assert trio.current_time() - began < 0.05
        assert second.terms[-1].number == 2
        assert first.terms[0].is_over
        assert first.terms[0].why is None


@OVER
async def test_a_dead_leader_is_noticed_by_its_connection_long_before_its_session_ends(
    clock: MockClock, over_tls: bool
) -> None:
    async with stage("a", "b", over_tls=over_tls) as s:
        first = await s.one_leads()
        await trio.sleep(2 * ELECTION_TENURE_S)
        began = trio.current_time()
        first.kill()
        await s.one_leads(first)
        assert trio.current_time() - began < 0.05


@OVER
async def test_a_leader_that_hangs_is_noticed_by_its_silence(clock: MockClock, over_tls: bool) -> None:
    async with stage("a", "b", over_tls=over_tls) as s:
        first = await s.one_leads()
        await trio.sleep(2 * ELECTION_TENURE_S)
        began = trio.current_time()
        s.network.stall(first.name, "*")
        await eventually(lambda: len(s.leaders) == 1 and s.leaders[0] is not first)
        assert 0.8 * ELECTION_SILENCE_S < trio.current_time() - began < 1.5 * ELECTION_SILENCE_S


async def test_a_standby_hears_nothing_and_is_kept_until_it_has_said_hello(clock: MockClock) -> None:
    """A stream accepts no data during its TLS handshake. The leader must not drop the standby for that."""
    async with stage("a") as s:
        leader = await s.one_leads()
        stream = await s.network.at("b").connect(leader.address)
        await trio.sleep(10 * ELECTION_BEAT_S)
        [candidacy] = s.tree_candidates()
        await stream.send_all([Beat(BeatKind.HELLO, 1, candidacy_bytes(candidacy)).encode()])
        first = bytearray(2 * BEAT_FRAME_BYTES)
        count = await stream.receive_into(memoryview(first))
        assert count == BEAT_FRAME_BYTES, "no beat was queued before the hello"
        stream.close()


async def test_strangers_hear_nothing_and_take_no_place_of_a_standby(clock: MockClock) -> None:
    """Strangers cannot read the metadata store, so they do not know the candidacy. Silent ones make room."""
    async with stage("a") as s:
        leader = await s.one_leads()
        guessing = await s.network.at("stranger").connect(leader.address)
        await guessing.send_all([Beat(BeatKind.HELLO, 1, bytes(16)).encode()])
        assert not await guessing.receive_into(memoryview(bytearray(BEAT_FRAME_BYTES)))
        silent = [
            await s.network.at("stranger").connect(leader.address) for _ in range(2 * ELECTION_STANDBYS_MAX)
        ]
        [candidacy] = s.tree_candidates()
        standby = await s.network.at("b").connect(leader.address)
        await standby.send_all([Beat(BeatKind.HELLO, 1, candidacy_bytes(candidacy)).encode()])
        began = trio.current_time()
        for _ in range(3):
            assert await standby.receive_into(memoryview(bytearray(BEAT_FRAME_BYTES))) == BEAT_FRAME_BYTES
        assert trio.current_time() - began < HANDSHAKE_TIMEOUT_S, "the standby must not wait for strangers"
        for stream in (*silent[:ELECTION_STANDBYS_MAX], standby):
            stream.close()


async def test_a_leader_that_shakes_no_hands_is_suspected_as_soon_as_a_silent_one(clock: MockClock) -> None:
    plain = LocalNetwork()
    listener = await plain.listen("a:0")
    over_tls = TlsNetwork(plain, Certificates(certificates.files("client/b"), None))
    hearing = Hearing(over_tls, Candidacy(candidate="b"), 1, "0" * 32, listener.address)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hearing.run)
        await hearing.changed.wait()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(ELECTION_SILENCE_S)
    listener.close()


async def test_without_a_line_the_session_tells(clock: MockClock) -> None:
    async with stage("a", "b", listens=False) as s:
        first = await s.one_leads()
        first.kill()
        await trio.sleep(SESSION_TIMEOUT_S)
        assert s.leaders == []
        first.store.inner.expire_session()
        await s.one_leads(first)


async def test_a_strict_leader_that_loses_the_store_ends_at_once_and_its_standby_follows_at_once(
    clock: MockClock,
) -> None:
    async with stage("a", "b", strict=True) as s:
        first = await s.one_leads()
        other = next(candidate for candidate in s.candidates if candidate is not first)
        began = trio.current_time()
        first.store.disconnect()
        await eventually(lambda: other.leading is not None)
        assert trio.current_time() - began < 0.05, "the leader tells its standbys"
        assert first.leading is None
        assert first.terms[-1].why == "the metadata session is not connected"
        first.store.reconnect()
        await trio.sleep(5)
        assert s.leaders == [other], "nobody deposes a live leader"


async def test_a_leader_whose_session_expires_stands_again(clock: MockClock) -> None:
    async with stage("a") as s:
        first = await s.one_leads()
        first.store.inner.expire_session()
        await eventually(lambda: len(first.terms) == 2 and first.leading is not None)
        assert [int(term) for term in first.terms] == [1, 2]


@pytest.mark.parametrize("listens", [True, False])
async def test_a_strict_leader_whose_session_was_away_for_a_moment_and_goes_on_leads_again(
    clock: MockClock, *, listens: bool
) -> None:
    async with stage("a", listens=listens, strict=True) as s:
        first = await s.one_leads()
        for _ in range(3):
            session = first.store.session
            first.store.disconnect()
            await eventually(lambda: not s.leaders)
            await trio.sleep(0.5)
            first.store.reconnect()
            assert first.store.session is session, "its nodes still exist"
            await eventually(lambda: bool(s.leaders), timeout_s=SESSION_TIMEOUT_S)
        assert [term.number for term in first.terms] == [1, 2, 3, 4]


async def test_a_leader_keeps_its_lead_while_the_store_is_away_from_everybody(clock: MockClock) -> None:
    async with stage("a", "b", "c") as s:
        first = await s.one_leads()
        for candidate in s.candidates:
            candidate.store.disconnect()
        await trio.sleep(15)
        assert s.leaders == [first]
        for candidate in s.candidates:
            candidate.store.reconnect()
        await trio.sleep(60)
        assert s.leaders == [first]
        assert [len(candidate.terms) for candidate in s.candidates].count(0) == 2
        assert len(first.terms) == 1


async def test_a_leader_that_was_cut_off_from_the_store_is_followed_when_its_session_ends(
    clock: MockClock,
) -> None:
    async with stage("a", "b") as s:
        first = await s.one_leads()
        second = next(candidate for candidate in s.candidates if candidate is not first)
        first.store.disconnect()
        await trio.sleep(1)
        assert s.leaders == [first]
        first.store.inner.expire_session()
        await eventually(lambda: second.leading is not None)
        first.store.reconnect()
        await eventually(lambda: s.leaders == [second])
        assert first.terms[0].why == "the metadata session is over"


async def test_who_leaves_while_the_store_is_away_withdraws_when_it_is_back(clock: MockClock) -> None:
    async with stage("a", "b", listens=False) as s:
        first = await s.one_leads()
        session = first.store.session
        first.store.disconnect()
        first.scope.cancel()
        await trio.sleep(0.5)
        first.store.reconnect()
        await eventually(lambda: bool(s.leaders), timeout_s=SESSION_TIMEOUT_S)
        assert s.leaders != [first]
        assert first.store.session is session
        assert len(await first.store.children(candidates_path("e"))) == 1


async def test_candidates_that_cannot_reach_one_another_do_not_duel(clock: MockClock) -> None:
    async with stage("a", "b") as s:
        await s.one_leads()
        s.network.cut("a", "b")
        await trio.sleep(600)
        changes = sum(len(candidate.terms) for candidate in s.candidates)
        assert changes <= 2, "a deposed leader does not hear the new one, so it does not suspect it"
        s.network.heal()
        await trio.sleep(120)
        before = sum(len(candidate.terms) for candidate in s.candidates)
        await trio.sleep(600)
        assert sum(len(candidate.terms) for candidate in s.candidates) == before


async def test_a_line_that_breaks_again_and_again_deposes_ever_more_seldom(clock: MockClock) -> None:
    async with stage("a", "b") as s:
        await s.one_leads()
        for _ in range(60):
            await trio.sleep(5)
            s.network.cut("a", "b")
            await trio.sleep(5)
            s.network.heal()
        assert sum(len(candidate.terms) for candidate in s.candidates) < 25


async def test_a_port_that_is_blocked_deposes_nobody(clock: MockClock) -> None:
    async with stage("a") as s:
        first = await s.one_leads()
        s.network.cut("b", "a")
        await s.join("b")
        await trio.sleep(600)
        assert s.leaders == [first]
        assert len(first.terms) == 1


async def test_terms_grow_whoever_has_them(clock: MockClock) -> None:
    async with stage("a", "b", "c") as s:
        seen: list[int] = []
        for _ in range(6):
            leader = await s.one_leads()
            seen.append(leader.terms[-1].number)
            leader.leave.set()
            term = leader.terms[-1]
            await eventually(lambda term=term: term.is_over)
        assert seen == sorted(set(seen))


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_lost_answers_of_the_store_do_not_keep_anybody_from_leading(
    clock: MockClock, fault: str
) -> None:
    for at in range(1, 5):
        async with stage() as s:
            candidate = await s.join("a")

            async def lose(candidate: Candidate = candidate, at: int = at) -> None:
                setattr(candidate.store, fault, 1)

            candidate.store.before_write = lose
            await s.one_leads()
            assert len(candidate.terms) == 1


async def test_a_store_that_is_away_for_a_while_is_waited_for(clock: MockClock) -> None:
    async with stage() as s:
        store = await s.join("a")
        store.store.disconnect()
        await trio.sleep(20)
        assert s.leaders == []
        store.store.reconnect()
        await s.one_leads()


async def test_what_the_body_raises_comes_out_as_it_is_and_the_lead_is_given_up(clock: MockClock) -> None:
    async with stage() as s:
        client = await s.stack.enter_async_context(open_client(FaultyStore(s.tree), s.network.at("a")))
        election = Election(client, "e", candidate="a", listen="a")

        async def lead() -> None:
            async with election.leadership() as term:
                leader = await election.leader()
                assert leader is not None
                assert (leader.candidate, leader.term, leader.is_registered) == ("a", term.number, True)
                with pytest.raises(InvalidArgument, match="is standing for election already"):
                    async with election.leadership():
                        pass
                raise KeyError("x")

        with pytest.raises(KeyError):
            await lead()
        assert await election.leader() is None
        assert await client.store.children(candidates_path("e")) == []
        async with election.leadership() as term:
            assert term.number == 2


async def test_a_cancelled_standby_is_no_candidate_any_more(clock: MockClock) -> None:
    async with stage("a") as s:
        await s.one_leads()
        b = await s.join("b")
        store = s.candidates[0].store
        await trio.sleep(1)
        assert len(await store.children(candidates_path("e"))) == 2
        b.scope.cancel()
        await trio.sleep(1)
        assert len(await store.children(candidates_path("e"))) == 1


async def test_a_candidate_that_is_cancelled_at_any_moment_leaves_nothing_behind(clock: MockClock) -> None:
    for moment in range(16):
        async with stage() as s:
            store = FaultyStore(s.tree)
            client = await s.stack.enter_async_context(open_client(store, s.network.at("a")))
            store.faults = [uninterrupted(0.2)]
            with trio.move_on_after(0.05 * moment):
                async with Election(client, "e", candidate="a", listen="a").leadership():
                    await trio.sleep_forever()
            store.faults.clear()
            await eventually(lambda s=s: not s.tree_candidates())
            await s.join("b")
            await s.one_leads()


async def test_who_leaves_stands_no_more_however_long_the_store_takes(clock: MockClock) -> None:
    async with stage() as s:
        store = FaultyStore(s.tree)
        client = await s.stack.enter_async_context(open_client(store, s.network.at("a")))

        async def take_long() -> None:
            # Meanwhile, another registration wakes all candidates.
            await s.candidates[0].store.create(candidate_path("e", "0" * 32), b"c", ephemeral=True)
            await trio.sleep(1)

        may_leave = trio.Event()

        async def lead_once() -> None:
            async with Election(client, "e", candidate="a", listen="a").leadership():
                await may_leave.wait()
                store.before_write = take_long

        s.nursery.start_soon(lead_once)
        await trio.sleep(1)
        b = await s.join("b")
        await trio.sleep(1)
        may_leave.set()
        await eventually(lambda: b.leading is not None, timeout_s=5)
        assert b.terms[-1].number == 2
        await trio.sleep(2)
        assert len(s.tree_candidates()) == 2, "b and the one registered above"
        assert s.leaders == [b]


async def test_a_leader_that_registers_while_a_standby_looks_is_not_taken_for_gone(clock: MockClock) -> None:
    """Between the standby's two reads another process registers and takes the lead over."""
    async with stage() as s:
        a = await s.join("a", listens=False)
        await eventually(lambda: a.leading is not None)
        b = await s.join("b", listens=False)
        await trio.sleep(1)
        third = s.tree.open_store()

        async def take_over(call: Call, go_on: GoOn) -> Any:
            found = await go_on()
            if call.path in (election_path("e"), candidates_path("e")):
                b.store.faults.clear()
                await third.create(candidate_path("e", "0" * 32), b"c", ephemeral=True)
                await claim_as_c(third)
            return found

        b.store.faults.append(take_over)
        await third.create(candidate_path("e", "1" * 32), b"d", ephemeral=True)
        await trio.sleep(5)
        assert not b.store.faults
        assert b.terms == []
        found = await b.election.leader()
        assert found is not None
        assert (found.candidate, found.term) == ("c", 2)


async def test_a_leader_that_is_deposed_while_it_looks_learns_it(clock: MockClock) -> None:
    """Between the leader's two reads another process takes the lead over, and the watch says so."""
    async with stage() as s:
        a = await s.join("a", listens=False)
        await eventually(lambda: a.leading is not None)
        third = s.tree.open_store()

        async def take_over(call: Call) -> None:
            if call.path == candidates_path("e"):
                a.store.faults.clear()
                await claim_as_c(third)
                await trio.sleep(1)

        a.store.faults.append(before(take_over))
        await third.create(candidate_path("e", "0" * 32), b"c", ephemeral=True)
        await trio.sleep(5)
        assert not a.store.faults
        assert a.leading is None
        assert [term.why for term in a.terms] == ["c leads in term 2"]


async def test_a_look_that_fails_is_carried_out_again(clock: MockClock) -> None:
    async with stage("a", listens=False) as s:
        a = await s.one_leads()
        third = s.tree.open_store()

        async def away(call: Call) -> None:
            nonlocal failed
            if call.path == candidates_path("e"):
                failed += 1
                a.store.faults.clear()
                raise MetadataUnavailable("just now")

        await third.create(candidate_path("e", "0" * 32), b"c", ephemeral=True)
        await trio.sleep(1)
        failed = 0
        a.store.faults.append(before(away))
        await claim_as_c(third)
        await trio.sleep(5)
        assert failed == 1
        assert a.leading is None
        assert [term.why for term in a.terms] == ["c leads in term 2"]


async def test_a_claim_whose_registration_has_just_gone_is_not_written(clock: MockClock) -> None:
    async with stage() as s:
        other = s.tree.open_store()
        store = FaultyStore(s.tree)

        async def withdrawn(call: Call) -> None:
            if call.verb == "transaction":
                store.faults.clear()
                for name in await other.children(candidates_path("e")):
                    await other.delete(candidate_path("e", name))

        store.faults.append(before(withdrawn))
        client = await s.stack.enter_async_context(open_client(store, s.network.at("a")))
        election = Election(client, "e", candidate="a")
        with trio.fail_after(60):
            async with election.leadership() as term:
                await trio.sleep(5)
                found = await election.leader()
                assert found is not None
                assert found.is_registered
                assert found.term == term.number == 1
            assert term.why is None


async def test_who_leaves_does_not_wait_long_for_a_store_that_hangs(clock: MockClock) -> None:
    async with stage() as s:
        store = FaultyStore(s.tree)
        client = await s.stack.enter_async_context(open_client(store, s.network.at("a")))
        async with Election(client, "e", candidate="a").leadership():
            store.is_hanging = True
            began = trio.current_time()
        assert trio.current_time() - began <= ELECTION_STEP_DOWN_S + 0.1
        assert s.tree_candidates()
        store.is_hanging = False
        await eventually(lambda: not s.tree_candidates())


async def test_a_damaged_record_is_told(clock: MockClock) -> None:
    async with stage() as s:
        client = await s.stack.enter_async_context(open_client(FaultyStore(s.tree), s.network.at("a")))
        await client.store.create(election_path("e"), b"?")
        with pytest.raises(MetadataCorrupt):
            async with Election(client, "e", listen="a").leadership():
                pass


# --- an election and a log -------------------------------------------------------------------------


@attrs.define(eq=False)
class Server:
    """A process that appends to a log while it leads. All servers share ``acknowledged``: data by offset."""

    client: Client
    log: Log
    acknowledged: dict[int, bytes]
    index: int
    leading: Term | None = None
    errors: list[LedgerLogError] = attrs.field(factory=list)
    appended: int = 0
    terms: int = 0
    pause_s: float = 0.1
    """Pause between two appends. Mock time costs nothing, but each append does."""
    is_appending: bool = False

    async def run(self) -> None:
        election = Election(self.client.opened, "log", candidate=self.client.host, listen=self.client.host)
        while True:
            try:
                async with election.leadership() as term, self.log.writer() as writer:
                    self.leading = term
                    self.terms += 1
                    while True:
                        data = f"{self.index} {self.appended}".encode()
                        self.is_appending = True
                        ack = await writer.append(data)
                        self.is_appending = False
                        self.appended += 1
                        assert ack.offset not in self.acknowledged
                        self.acknowledged[ack.offset] = data
                        await trio.sleep(self.pause_s)
            except LedgerLogError as error:
                self.errors.append(error)
            finally:
                self.leading = None


@asynccontextmanager
async def servers(
    count: int, **options: float
) -> AsyncIterator[tuple[MemoryCluster, list[Server], dict[int, bytes]]]:
    acknowledged: dict[int, bytes] = {}
    async with open_cluster() as cluster, AsyncExitStack() as stack:
        made = []
        for index in range(count):
            client = await stack.enter_async_context(cluster.client(**options))
            log = await (create_log(client.opened, "log") if not index else open_log(client.opened, "log"))
            made.append(Server(client, log, acknowledged, index))
        async with trio.open_nursery() as nursery:
            for server in made:
                nursery.start_soon(server.run)
            yield cluster, made, acknowledged
            nursery.cancel_scope.cancel()
        # Every acknowledged record is in the log, at its offset.
        client = await stack.enter_async_context(cluster.client())
        log = await open_log(client.opened, "log")
        async with log.writer(), log.read(0) as records:
            found = {record.offset: record.data async for record in records}
        assert acknowledged.items() <= found.items()


def leader_of(made: list[Server]) -> Server | None:
    leaders = [server for server in made if server.leading is not None]
    return leaders[0] if len(leaders) == 1 else None


async def progress(
    made: list[Server], acknowledged: dict[int, bytes], not_by: Server | None = None
) -> Server:
    """Wait for the next acknowledged append, and return its server."""
    counts = [server.appended for server in made]
    await eventually(
        lambda: any(s.appended > n and s is not not_by for s, n in zip(made, counts, strict=True))
    )
    return next(s for s, n in zip(made, counts, strict=True) if s.appended > n and s is not not_by)


async def test_a_leader_cut_off_from_the_store_only_acknowledges_nothing_once_another_leads(
    clock: MockClock,
) -> None:
    async with servers(2) as (_, made, acknowledged):
        first = await progress(made, acknowledged)
        first.client.store.disconnect()
        appended = first.appended
        await trio.sleep(10)
        assert leader_of(made) is first
        assert first.appended > appended + 50, "appends to an open ledger need no store"
        first.client.store.inner.expire_session()
        second = await progress(made, acknowledged, not_by=first)
        appended = first.appended
        await trio.sleep(10)
        assert first.appended == appended
        assert second.leading is not None
        first.client.store.reconnect()
        await trio.sleep(10)
        assert leader_of(made) is second


@pytest.mark.parametrize("fault", ["stall", "cut"])
@pytest.mark.parametrize("idle_s", [0.0, 30.0])
async def test_a_leader_cut_off_from_the_bookies_only_gives_way_to_a_standby_that_reaches_them(
    clock: MockClock, fault: str, idle_s: float
) -> None:
    async with servers(2) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        pause_s, first.pause_s = first.pause_s, max(first.pause_s, idle_s)
        await trio.sleep(2 * idle_s)
        first.pause_s = pause_s
        began = trio.current_time()
        for bookie in cluster.bookies:
            getattr(cluster.network, fault)(first.client.host, bookie)
        await eventually(lambda: first.is_appending)
        began = trio.current_time()
        second = await progress(made, acknowledged, not_by=first)
        assert trio.current_time() - began < 2.5
        for _ in range(5):
            await trio.sleep(10)
            assert leader_of(made) is second, "the first still reaches no bookie, and stands by"
        assert all(isinstance(error, LostLeadership | AppendUnknown) for error in first.errors)
        cluster.network.heal()
        await trio.sleep(10)
        assert leader_of(made) is second


async def test_a_leader_cut_off_from_two_of_three_bookies_gives_way_too(clock: MockClock) -> None:
    async with servers(2) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        began = trio.current_time()
        for bookie in ["b1", "b3"]:
            cluster.network.stall(first.client.host, bookie)
        await progress(made, acknowledged, not_by=first)
        assert trio.current_time() - began < 2.5


async def test_a_standby_that_is_cut_off_as_well_does_not_take_the_lead_and_a_third_one_does(
    clock: MockClock,
) -> None:
    async with servers(3) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        third = next(server for server in made if server is not first)
        for server in made:
            if server is not third:
                for bookie in cluster.bookies:
                    cluster.network.stall(server.client.host, bookie)
        began = trio.current_time()
        assert await progress(made, acknowledged, not_by=first) is third
        assert trio.current_time() - began < 2.5
        assert sum(server.terms for server in made) == 2


async def test_while_no_standby_reaches_the_bookies_a_leader_keeps_the_lead(clock: MockClock) -> None:
    """Simulate a restart of all bookies at the same time."""
    async with servers(3) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        for server in made:
            for bookie in cluster.bookies:
                cluster.network.cut(server.client.host, bookie)
        await trio.sleep(15)
        assert leader_of(made) is first
        cluster.network.heal()
        await progress(made, acknowledged)
        await trio.sleep(10)
        assert not any(server.errors for server in made)
        assert sum(server.terms for server in made) <= 2, "at most one standby took the offer after the heal"


async def test_without_a_standby_a_leader_keeps_the_lead(clock: MockClock) -> None:
    async with servers(1) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        for bookie in cluster.bookies:
            cluster.network.stall(first.client.host, bookie)
        await trio.sleep(10)
        assert leader_of(made) is first
        cluster.network.heal()
        await progress(made, acknowledged)
        assert not first.errors
        assert first.terms == 1


async def test_slow_disks_do_not_cost_the_lead(clock: MockClock) -> None:
    async with servers(2) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        gates = []
        for bookie in cluster.bookies.values():
            gates.append(Gate("write_sync"))
            bookie.disk.faults = [gates[-1]]
        await trio.sleep(4)
        assert leader_of(made) is first
        for gate in gates:
            gate.open()
        await progress(made, acknowledged)
        await trio.sleep(5)
        assert leader_of(made) is first
        assert first.terms == 1


async def test_a_writer_outside_of_the_leadership_costs_no_lead(clock: MockClock) -> None:
    async with servers(2) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        writer = await first.client.ledgers.create(replication=Replication(3, 3, 3))
        await writer.append(b"x")
        cluster.network.stall(first.client.host, "b1")
        entry_id = writer.push([b"y"])
        await trio.sleep(5)
        assert writer.out_of_reach is not None
        assert leader_of(made) is first
        assert first.terms == 1
        cluster.network.heal()
        await writer.wait_confirmed(entry_id)


async def test_a_leader_that_hangs_is_fenced_and_learns_it_at_its_next_append(clock: MockClock) -> None:
    """Simulate a leader that is stopped and continued: it hears nothing in between."""
    async with servers(2) as (cluster, made, acknowledged):
        first = await progress(made, acknowledged)
        host = first.client.host
        cluster.network.stall(host, "*")
        second = await progress(made, acknowledged, not_by=first)
        appended = first.appended
        await trio.sleep(0.5)
        cluster.network.heal()
        await eventually(lambda: bool(first.errors) or first.leading is None)
        # One append may have reached its quorum before the cut; the leader learns of it only now.
        assert first.appended <= appended + 1
        await trio.sleep(5)
        assert second.leading is not None
        assert all(isinstance(error, LostLeadership) for error in first.errors)


# --- on every metadata store --------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["memory", "file", "sqlite"])
async def test_elections_work_on_every_store(scheme: str, tmp_path: Path) -> None:
    uri = {"memory": "memory:", "file": f"file:{tmp_path}/d", "sqlite": f"sqlite:{tmp_path}/m.sqlite"}[scheme]
    async with ledgerlog.connect(uri, create=True) as cluster:
        one = cluster.election("a/b", candidate="one")
        two = cluster.election("a/b", candidate="two")
        led: list[tuple[str, int]] = []

        async def lead(election: Election) -> None:
            async with election.leadership() as term:
                led.append((election.candidate, int(term)))
                leader = await election.leader()
                assert leader is not None
                assert leader.candidate == election.candidate

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lead, one)
                nursery.start_soon(lead, two)
        assert sorted(name for name, _ in led) == ["one", "two"]
        assert [term for _, term in led] == [1, 2]
