"""Processes prove who they are with a shared secret: who is served, and with which error others are
refused."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from raw_client import RawClient, add
from trio.testing import MockClock

from ledgerlog import limits
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
    NotEnoughBookies,
    PermissionDenied,
    Unauthenticated,
)
from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.permission import denied
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.meta.grants import change_grants
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.model.secret import Secrets
from ledgerlog.net.certificates import Certificates
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.prover import Prover
from ledgerlog.net.session import BookieBusy, handshake
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.testing.memory_cluster import CLUSTER, MemoryCluster, eventually, new_tree, open_cluster
from ledgerlog.wire.frame import REPLY, Kind, Status
from ledgerlog.wire.hello import Hello, decode_hello_untrusted, encode_hello
from ledgerlog.wire.proof import ClientProof, encode_proof, encode_proof_reply
from tests import certificates

R332 = Replication(3, 3, 2)
CLOSED = Admission(ProvenBy.SECRET)
CLOSING = Admission(ProvenBy.SECRET, is_required=False)
SECRETS = Secrets(None, (b"1" * 32,))
STRANGE = Secrets(None, (b"2" * 32,))
BILLING = Principal.parse("client/billing")


@attrs.define
class Source:
    """Secrets that a test exchanges while processes run."""

    secrets: Secrets
    where: str = "the.secret"

    def current(self) -> Secrets:
        return self.secrets

    def reload(self) -> None:
        pass


def prover(secrets: Secrets | None, admission: Admission = CLOSED) -> Prover:
    made = Prover(None if secrets is None else Source(secrets))
    made.admit(admission)
    return made


def by_name(
    bookies: Secrets | None, clients: Secrets | None, admission: Admission = CLOSED
) -> Callable[..., Prover]:
    return lambda name: prover(clients if name.startswith("client") else bookies, admission)


def principals(cluster: MemoryCluster, bookie_id: str = "b1") -> set[str]:
    connections = cluster.bookies[bookie_id].node.server._connections
    return {str(each.principal) for each in connections if each.is_greeted}


async def greet(cluster: MemoryCluster, who: Prover, bookie_id: str = "b1", **more: object) -> Hello:
    stream = await cluster.network.at("somebody").connect(cluster.bookies[bookie_id].address)
    wanted = attrs.evolve(Hello(bookie_id, None, CLUSTER), **more)
    try:
        answer, _ = await handshake(stream, wanted, who)
    finally:
        stream.close()
    return answer


@pytest.mark.parametrize(
    ("secrets", "who"), [(SECRETS, "admin/cluster"), (SECRETS.derived(BILLING), "client/billing")]
)
async def test_a_closed_cluster_serves_who_proves_who_it_is(
    clock: MockClock, secrets: Secrets, who: str
) -> None:
    async with (
        open_cluster(prover_of=by_name(SECRETS, secrets)) as cluster,
        cluster.client() as client,
    ):
        async with cluster.tree.open_store() as store:
            await change_grants(store, Principal.parse(who), lambda now: now.granted(Grant(Role.WRITER)))
        writer = await client.ledgers.create(replication=R332)
        assert [await writer.append(b"x") for _ in range(3)] == [0, 1, 2]
        assert principals(cluster) == {who}


async def test_a_bookie_is_that_bookie_to_the_others(clock: MockClock) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        me = prover(SECRETS)
        me.act_as(Principal.parse("bookie/b7"))
        stream = await cluster.network.at("b7").connect("b1")
        await handshake(stream, Hello("b1", None, CLUSTER), me)
        await eventually(lambda: principals(cluster) == {"bookie/b7"})
        stream.close()
    mine = prover(SECRETS.derived(BILLING))
    mine.act_as(Principal.parse("bookie/b7"))
    begun = mine.begin()
    assert begun is not None
    assert begun.claim.principal == BILLING, "one principal's secret makes nobody a bookie"


async def test_a_closed_cluster_refuses_who_proves_nothing_and_names_the_remedy(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, None, CLOSED)) as cluster:
        with pytest.raises(Unauthenticated, match="--secret-file FILE"):
            await greet(cluster, prover(None, OPEN))
        assert "it does not prove who it is, and the cluster is closed" in caplog.text
        assert "BEGIN" not in caplog.text


async def test_a_wrong_secret_is_refused_and_the_message_names_the_file(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, STRANGE)) as cluster:
        with pytest.raises(
            Unauthenticated, match=r"does not accept the secret of admin/cluster in the\.secret"
        ):
            await greet(cluster, prover(STRANGE))
        assert "it claims to be admin/cluster, with a secret that is not this cluster's" in caplog.text
        async with cluster.client() as client:
            writer = await client.ledgers.create(replication=Replication(1, 1, 1))
            with trio.fail_after(60), pytest.raises(LedgerLogError, match="does not accept the secret"):
                await writer.append(b"x")


async def test_the_first_append_of_who_no_bookie_believes_ends_soon_and_says_why(clock: MockClock) -> None:
    given = {"client-1": STRANGE}
    async with (
        open_cluster(prover_of=lambda name: prover(given.get(name, SECRETS))) as cluster,
        cluster.client() as client,
    ):
        writer = await client.ledgers.create(replication=R332)
        began = trio.current_time()
        with pytest.raises(Unauthenticated, match="does not accept the secret") as refused:
            await writer.append(b"x")
        assert isinstance(refused.value, NotEnoughBookies), (
            "a campaign goes on, and may win when it is mended"
        )
        assert trio.current_time() - began < 2 * limits.REFUSED_S


async def test_a_writer_waits_long_for_bookies_that_are_down(clock: MockClock) -> None:
    async with open_cluster(prover_of=lambda _: prover(SECRETS)) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        for bookie in cluster.bookies.values():
            await bookie.stop()
        await fails_after(limits.APPEND_DEADLINE_S, writer)


async def test_a_writer_waits_long_for_bookies_that_have_believed_it(clock: MockClock) -> None:
    bookies = {name: prover(SECRETS, CLOSING) for name in ("b1", "b2", "b3")}
    async with open_cluster(prover_of=bookies.get) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        for each in bookies.values():
            each.admit(CLOSED)
        await fails_after(limits.APPEND_DEADLINE_S, writer)


async def fails_after(seconds: float, writer: LedgerWriter) -> None:
    began = trio.current_time()
    with pytest.raises(NotEnoughBookies) as failed:
        await writer.append(b"y")
    assert not isinstance(failed.value, Unauthenticated)
    assert trio.current_time() - began >= seconds


async def test_a_read_with_a_wrong_secret_says_which_bookie_refused_what(clock: MockClock) -> None:
    given = {"client-1": SECRETS, "client-2": STRANGE}
    async with (
        open_cluster(prover_of=lambda name: prover(given.get(name, SECRETS))) as cluster,
        cluster.client() as client,
    ):
        closed = await client.ledgers.create(replication=R332)
        left_open = await client.ledgers.create(replication=R332)
        for writer in (closed, left_open):
            await writer.append(b"x")
        await closed.close()
        async with cluster.client() as stranger:
            refused = r"bookie b\d[^;]*: it does not accept the secret of admin/cluster in the\.secret"
            reader = await stranger.ledgers.open(closed.ledger_id)
            with pytest.raises(LedgerLogError, match=refused):
                await reader.read(0, 0)
            unfinished = await stranger.ledgers.open(left_open.ledger_id)
            with pytest.raises(LedgerLogError, match=refused):
                await unfinished.last_add_confirmed()
            with pytest.raises(LedgerLogError, match=refused):
                await stranger.ledgers.recover(left_open.ledger_id)


@pytest.mark.parametrize("bookies", [None, STRANGE], ids=["none", "another"])
async def test_a_client_of_a_closed_cluster_uses_no_bookie_that_proves_nothing(
    clock: MockClock, bookies: Secrets | None
) -> None:
    """Another process took the address of a bookie that is down."""
    async with open_cluster(1, prover_of=by_name(bookies, SECRETS, OPEN)) as cluster:
        with pytest.raises(Unauthenticated, match="does not prove that it belongs to the cluster"):
            await greet(cluster, prover(SECRETS))
        await greet(cluster, prover(SECRETS, CLOSING))


async def test_a_bookie_that_only_repeats_what_it_hears_is_refused(clock: MockClock) -> None:
    """It sends each frame of the client back, as if it were its own answer."""
    async with (
        open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster,
        trio.open_nursery() as nursery,
    ):
        network = cluster.network.at("mirror")
        listener = await network.listen("mirror")

        async def reflect() -> None:
            stream = await listener.accept()
            heard = RawClient(stream)
            hello = await heard.receive()
            claim = decode_hello_untrusted(hello).claim
            assert claim is not None
            real = RawClient(await network.connect("b1"))
            await real.send(hello.raw)
            await heard.send((await real.receive()).raw)
            proof = await heard.receive()
            await heard.send(encode_proof_reply(bytes(proof.body)))

        nursery.start_soon(reflect)
        stream = await cluster.network.at("client").connect("mirror")
        with pytest.raises(Unauthenticated, match="does not know our secret"):
            await handshake(stream, Hello("b1", None, CLUSTER), prover(SECRETS))
        listener.close()


# --- what a stranger can do -----------------------------------------------------------------------


async def raw(cluster: MemoryCluster) -> RawClient:
    return RawClient(await cluster.network.at("stranger").connect("b1"))


def claiming(secrets: Secrets = SECRETS) -> tuple[ClientProof, bytes]:
    proof = ClientProof(BILLING, secrets.of(BILLING), b"c" * 32)
    return proof, encode_hello(Hello("b1", None, CLUSTER, claim=proof.claim))


async def test_nothing_but_a_proof_is_taken_between_hello_and_the_proof(clock: MockClock) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        node = cluster.bookies["b1"].node
        for frames in (add(7, 0, [b"x"]), [encode_hello(Hello("b1", None))]):
            stranger = await raw(cluster)
            _, hello = claiming()
            await stranger.send(hello)
            assert (await stranger.receive()).header.status == Status.OK
            await stranger.send(*frames)
            await stranger.ended()
        assert node.engine.lac(7) == (-1, -1)


async def test_what_came_with_hello_is_not_served_before_the_proof(clock: MockClock) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        stranger = await raw(cluster)
        _, hello = claiming()
        await stranger.send(hello, *add(7, 0, [b"x"]))
        await stranger.ended()
        assert cluster.bookies["b1"].node.engine.lac(7) == (-1, -1)


async def test_a_wrong_proof_is_refused_and_ends_the_connection(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        stranger = await raw(cluster)
        _, hello = claiming()
        await stranger.send(hello)
        await stranger.receive()
        await stranger.send(encode_proof(bytes(32)))
        answer = await stranger.receive()
        assert (answer.header.kind, answer.header.status) == (Kind.PROOF | REPLY, Status.UNAUTHORIZED)
        assert not answer.body
        await stranger.ended()
        assert "does not prove its claim" in caplog.text


async def prove(client: RawClient, proof: ClientProof, hello: bytes) -> Status:
    """Go on after the HELLO of ``claiming`` was sent."""
    answer = await client.receive()
    challenge = decode_hello_untrusted(answer).challenge
    assert challenge is not None
    await client.send(encode_proof(proof.on_challenge(challenge, hello, bytes(answer.raw))))
    return Status((await client.receive()).header.status)


async def test_who_only_claims_to_be_somebody_uses_nothing_of_theirs_and_learns_nothing(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the proof a connection counts for the strangers of its address, whoever it claims to be."""
    monkeypatch.setattr(limits, "BOOKIE_CONNECTIONS_MAX", 16)
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        fair = cluster.bookies["b1"].node.server._shared.fair
        strangers = [await raw(cluster) for _ in range(12)]
        for stranger in strangers:
            await stranger.send(claiming()[1])
            assert (await stranger.receive()).header.status == Status.OK
        assert BILLING not in fair._principals
        assert fair.everybody.greeted == 0
        assert {key[0] for key in fair._parties} == {None}
        known = [await raw(cluster) for _ in range(13)]
        for client in known[:12]:
            proof, hello = claiming()
            await client.send(hello)
            assert await prove(client, proof, hello) is Status.OK
        # Billing has all its connections now. A stranger who claims to be billing sees no difference.
        late = await raw(cluster)
        await late.send(claiming()[1])
        assert (await late.receive()).header.status == Status.OK
        proof, hello = claiming()
        await known[12].send(hello)
        assert await prove(known[12], proof, hello) is Status.TOO_MANY_REQUESTS
        await known[12].ended()


async def test_proofs_that_come_together_get_no_more_connections_than_one_principal_may_have(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BOOKIE_CONNECTIONS_MAX", 16)
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        clients = [(await raw(cluster), *claiming()) for _ in range(14)]
        for client, _, hello in clients:
            await client.send(hello)
        statuses = [await prove(*client) for client in clients]
        assert statuses == [Status.OK] * 12 + [Status.TOO_MANY_REQUESTS] * 2


async def test_a_client_whose_principal_has_all_connections_is_told_that_the_bookie_is_busy(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        fair = cluster.bookies["b1"].node.server._shared.fair
        monkeypatch.setattr(fair, "_most_of_one", 0)
        fair.enter("elsewhere", Principal.parse("admin/cluster"))
        with pytest.raises(BookieBusy, match="as many connections"):
            await greet(cluster, prover(SECRETS))


async def test_a_second_proof_is_no_request(clock: MockClock) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        known = await raw(cluster)
        proof, hello = claiming()
        await known.send(hello)
        answer = await known.receive()
        challenge = decode_hello_untrusted(answer).challenge
        assert challenge is not None
        said = encode_proof(proof.on_challenge(challenge, hello, bytes(answer.raw)))
        await known.send(said)
        assert (await known.receive()).header.status == Status.OK
        await known.send(said)
        await known.ended()


async def test_who_does_not_send_its_proof_in_time_is_a_stranger_and_cut_off(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster:
        server = cluster.bookies["b1"].node.server
        stranger = await raw(cluster)
        _, hello = claiming()
        began = trio.current_time()
        await stranger.send(hello)
        await stranger.receive()
        assert len(server._shared.strangers) == 1
        await stranger.ended()
        assert trio.current_time() - began == pytest.approx(limits.HANDSHAKE_TIMEOUT_S, abs=0.1)
        assert "it did not send PROOF within" in caplog.text
        assert not len(server._shared.strangers)


# --- closing a cluster that works -----------------------------------------------------------------


async def test_a_live_cluster_is_closed_without_a_failed_append(clock: MockClock) -> None:
    """Open, then closing while each process is started again with the secret, then closed."""
    given: dict[str, Prover] = {}

    def prover_of(name: str) -> Prover:
        return given.setdefault(name, prover(None, OPEN))

    async with open_cluster(4, prover_of=prover_of) as cluster, cluster.client() as client:
        first = await client.ledgers.create(replication=R332)
        assert await first.append(b"open") == 0
        for each in given.values():
            each.admit(CLOSING)
        given["client-2"] = prover(SECRETS, CLOSING)
        async with cluster.client() as later:
            second = await later.ledgers.create(replication=R332)
            for number, (name, bookie) in enumerate(cluster.bookies.items()):
                given[name] = prover(SECRETS, CLOSING)
                await bookie.stop()
                await bookie.start()
                assert await first.append(b"closing") == number + 1
                assert await second.append(b"closing") == number
            await eventually(lambda: "admin/cluster" in principals(cluster))
            for each in given.values():
                each.admit(CLOSED)
            for number in range(4, 8):
                assert await second.append(b"closed") == number
            await eventually(lambda: all("None" not in principals(cluster, name) for name in cluster.bookies))
            with pytest.raises(Unauthenticated):
                await greet(cluster, prover(None, CLOSED))


async def test_a_client_without_the_secret_is_cut_off_when_the_cluster_closes(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    bookies = {name: prover(SECRETS, CLOSING) for name in ("b1", "b2", "b3")}
    async with (
        open_cluster(prover_of=bookies.get) as cluster,
        cluster.client() as client,
    ):
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        assert principals(cluster) == {"None"}
        for each in bookies.values():
            each.admit(CLOSED)
        await eventually(lambda: not principals(cluster))
        assert "it did not prove who it is, and the cluster is closed now" in caplog.text


# --- exchanging the secret ------------------------------------------------------------------------


async def test_a_secret_is_exchanged_on_a_live_cluster_without_a_failed_append(clock: MockClock) -> None:
    """Files are replaced in any order. Processes start again in between, so all connections are new."""
    sources: dict[str, Source] = {}

    def prover_of(name: str) -> Prover:
        source = sources.setdefault(name, Source(SECRETS))
        made = Prover(source)
        made.admit(CLOSED)
        return made

    async with open_cluster(4, prover_of=prover_of) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        appended = 0
        both = SECRETS.rotated(b"9" * 32)
        for step in (both, both.settled()):
            for source in sources.values():
                source.secrets = step
                for bookie in cluster.bookies.values():
                    await bookie.stop()
                    await bookie.start()
                    assert await writer.append(b"x") == appended
                    appended += 1
        with pytest.raises(Unauthenticated):
            await greet(cluster, prover(SECRETS))
        await greet(cluster, prover(both))


# --- own mistakes ---------------------------------------------------------------------------------


def test_who_has_nothing_to_prove_itself_with_is_told_before_it_connects() -> None:
    with pytest.raises(Unauthenticated, match=r"closed by a secret.*--secret-file FILE"):
        prover(None).check_own()
    with pytest.raises(Unauthenticated, match="--tls-cert"):
        prover(None, Admission(ProvenBy.TLS)).check_own()
    prover(None, CLOSING).check_own()
    prover(SECRETS).check_own()
    prover(None, OPEN).check_own()


def test_a_bookie_needs_the_secret_of_the_cluster() -> None:
    with pytest.raises(InvalidArgument, match="holds the secret of client/billing; a bookie needs"):
        prover(SECRETS.derived(BILLING)).check_verifies()
    prover(SECRETS).check_verifies()
    prover(None).check_verifies()


def test_a_process_with_a_certificate_claims_nothing() -> None:
    certified = Prover(Source(SECRETS), has_certificate=True)
    certified.admit(Admission(ProvenBy.TLS))
    certified.check_own()
    assert certified.begin() is None
    certified.accept_unproven(BILLING)
    with pytest.raises(Unauthenticated):
        certified.accept_unproven(None)


async def test_a_connection_that_ends_instead_of_the_proof_is_lost(clock: MockClock) -> None:
    async with (
        open_cluster(1, prover_of=by_name(SECRETS, SECRETS)) as cluster,
        trio.open_nursery() as nursery,
    ):
        network = cluster.network.at("mirror")
        listener = await network.listen("mirror")

        async def end_early() -> None:
            heard = RawClient(await listener.accept())
            real = RawClient(await network.connect("b1"))
            await real.send((await heard.receive()).raw)
            await heard.send((await real.receive()).raw)
            await heard.receive()
            heard.stream.close()

        nursery.start_soon(end_early)
        stream = await cluster.network.at("client").connect("mirror")
        with pytest.raises(ConnectionLost, match="instead of answering PROOF"):
            await handshake(stream, Hello("b1", None, CLUSTER), prover(SECRETS))
        listener.close()


async def test_a_refusal_names_the_process_that_is_refused(clock: MockClock) -> None:
    async with (
        open_cluster(prover_of=by_name(SECRETS, SECRETS.derived(BILLING))) as cluster,
        cluster.client() as client,
    ):
        writer = await client.ledgers.create(replication=R332)
        with pytest.raises(PermissionDenied, match="client/billing may not add to it, according to bookie b"):
            await writer.append(b"x")


async def test_a_refusal_names_the_principal_of_a_certificate(clock: MockClock) -> None:
    files = Certificates(certificates.files("client/billing"), CLUSTER)
    async with (
        new_tree().open_store() as store,
        open_client(store, TlsNetwork(LocalNetwork(), files), prover=Prover(has_certificate=True)) as client,
    ):
        error = denied(client.pool.connection("b1"), 7, "read it")
        assert "ledger 7: client/billing may not read it, according to bookie b1" in str(error)
