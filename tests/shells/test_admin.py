"""The administration port: who may ask what, its bounds, and what a bookie answers."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.server.administration import BookieAdministration
from ledgerlog import limits
from ledgerlog.admin.gate import AdminGate
from ledgerlog.admin.http import Answer, Asked, ask_http, serve_http
from ledgerlog.errors import WireError
from ledgerlog.meta.grants import change_grants
from ledgerlog.meta.memory import Content
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.layout import GRANTS
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import ADMIN, Secrets
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.testing.faulty_store import StaleReplica
from ledgerlog.testing.memory_cluster import Bookie, eventually, open_cluster

NOW_S = 1_767_225_600.0
SECRETS = Secrets(None, (b"s" * 32,))
CLOSED = Admission(ProvenBy.SECRET)
BILLING = Principal("client", "billing")


class Source:
    where = "here"

    def current(self) -> Secrets:
        return SECRETS


def token(
    who: Principal = ADMIN,
    *,
    scope: TokenScope = TokenScope.CHANGE,
    seconds: float = 60,
    secrets: Secrets = SECRETS,
) -> str:
    return Token(who, scope, int(NOW_S + seconds)).encode(secrets.of(who)[0])


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@attrs.frozen
class Answered:
    status: int
    headers: dict[str, str]
    body: str


async def receive(stream: Stream) -> bytes:
    buffer = memoryview(bytearray(65536))
    return bytes(buffer[: await stream.receive_into(buffer)])


async def answer_on(stream: Stream) -> Answered:
    got = b""
    while b"\r\n\r\n" not in got:
        piece = await receive(stream)
        assert piece, "the connection ended within an answer"
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += await receive(stream)
    return Answered(int(first.split()[1]), headers, body.decode())


async def ended(stream: Stream) -> None:
    with suppress(ConnectionLost):
        while await receive(stream):
            pass


@attrs.define
class Port:
    network: LocalNetwork
    address: str

    async def ask(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        *,
        principal: Principal | None = None,
    ) -> Answered:
        stream = await self.network.connect(self.address, principal=principal)
        lines = [f"{method} {target} HTTP/1.1", "Host: bookie", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await stream.send_all(["\r\n".join([*lines, "", ""]).encode()])
        answered = await answer_on(stream)
        stream.close()
        return answered


@asynccontextmanager
async def served(answer: Callable[[Asked], Awaitable[Answer]]) -> AsyncIterator[Port]:
    network = LocalNetwork()
    listener = await network.listen("admin:0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http, listener, answer)
        yield Port(network, listener.address)
        nursery.cancel_scope.cancel()


@attrs.define
class Administered:
    bookie: Bookie
    administration: BookieAdministration
    prover: Prover
    port: Port

    async def ask(self, *args: Any, **options: Any) -> Answered:
        return await self.port.ask(*args, **options)


@asynccontextmanager
async def administered(
    *, has_secret: bool = True, admission: Admission = CLOSED, reads_are_open: bool | None = None
) -> AsyncIterator[Administered]:
    """A bookie with its administration port. The bookie itself asks its clients for no proof."""
    async with open_cluster(1) as cluster, trio.open_nursery() as nursery:
        bookie = cluster.bookies["b1"]
        prover = Prover(Source() if has_secret else None)
        prover.admit(admission)
        administration = BookieAdministration(
            AdminGate(bookie.store, prover, now_s=lambda: NOW_S, reads_are_open=reads_are_open),
            configuration={"storage": {"scrub": True}},
        )
        administration.serves(bookie.node)
        network = LocalNetwork()
        listener = await network.listen("admin:0")
        nursery.start_soon(administration.run, listener)
        yield Administered(bookie, administration, prover, Port(network, listener.address))
        nursery.cancel_scope.cancel()


# --- who may ask ----------------------------------------------------------------------------------


async def test_a_change_without_a_proof_is_refused_in_an_open_cluster_too(clock: MockClock) -> None:
    """So a web page in an operator's browser cannot cause a change: it cannot add the proof."""
    for admission in (CLOSED, OPEN):
        async with administered(admission=admission) as here:
            refused = await here.ask("POST", "/read-only?on=true", {"Origin": "http://evil.example"})
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert not here.bookie.node.is_read_only
            preflight = await here.ask(
                "OPTIONS",
                "/read-only",
                {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
            )
            assert preflight.status == 405
            assert not [name for name in preflight.headers if name.startswith("access-control")]


async def test_a_process_without_a_secret_takes_no_change_from_anybody(clock: MockClock) -> None:
    async with administered(has_secret=False, admission=OPEN) as here:
        refused = await here.ask("POST", "/scrub", bearer(token()))
        assert refused.status == 401


@pytest.mark.parametrize(
    ("given", "status", "why"),
    [
        (token(), 200, "read-only"),
        (token(scope=TokenScope.READ), 403, "only allows reading"),
        (token(seconds=0), 401, "has expired"),
        (token(secrets=Secrets(None, (b"t" * 32,))), 401, "not made with the secret"),
        (token(BILLING), 403, "does not have the role admin"),
        (token(Principal("bookie", "b1")), 403, "does not have the role admin"),
        ("secret", 401, "not a token"),
    ],
    ids=["sound", "for reading", "expired", "another secret", "a client", "a bookie", "no token"],
)
async def test_a_change_needs_a_fresh_token_of_an_admin(
    clock: MockClock, given: str, status: int, why: str
) -> None:
    async with administered() as here:
        answered = await here.ask("POST", "/read-only?on=true", bearer(given))
        assert (answered.status, why in answered.body) == (status, True), answered
        assert here.bookie.node.is_read_only == (status == 200)


async def test_a_revoked_admin_changes_nothing_and_a_client_with_the_role_may(clock: MockClock) -> None:
    async with administered() as here:
        store = here.bookie.store
        await change_grants(store, ADMIN, lambda now: now.revoked(None))
        await change_grants(store, BILLING, lambda now: now.granted(Grant(Role.ADMIN)))
        assert (await here.ask("POST", "/collect", bearer(token()))).status == 403
        assert (await here.ask("POST", "/collect", bearer(token(BILLING)))).status == 202


async def test_a_revocation_ends_tokens_at_once_even_if_the_replica_of_the_store_lags(
    clock: MockClock,
) -> None:
    async with administered() as here:
        store = here.bookie.store
        await change_grants(store, ADMIN, lambda now: now.revoked(None))
        store.faults.append(StaleReplica(Content(), GRANTS))
        assert (await here.ask("POST", "/collect", bearer(token()))).status == 403


async def test_if_the_rights_cannot_be_read_a_change_is_refused_and_health_is_told(clock: MockClock) -> None:
    async with administered() as here:
        here.bookie.store.is_hanging = True
        refused = await here.ask("POST", "/read-only?on=true", bearer(token()))
        assert refused.status == 503
        assert "not known now" in refused.body
        assert (await here.ask("GET", "/healthz")).status == 200
        here.bookie.store.is_hanging = False


async def test_a_certificate_is_a_proof_unless_a_page_in_a_browser_uses_it(clock: MockClock) -> None:
    admin = Principal("admin", "alice")
    async with administered(has_secret=False) as here:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            refused = await here.ask("POST", "/read-only?on=true", headers, principal=admin)
            assert refused.status == 403
        assert (await here.ask("POST", "/read-only?on=true", principal=BILLING)).status == 403
        assert (await here.ask("POST", "/read-only?on=true", principal=admin)).status == 200


async def test_reads_of_a_closed_cluster_need_a_proof_and_those_of_an_open_one_do_not(
    clock: MockClock,
) -> None:
    reading = bearer(token(scope=TokenScope.READ))
    async with administered() as here:
        for path in ("/metrics", "/config", "/log-level"):
            assert (await here.ask("GET", path)).status == 401, path
            assert (await here.ask("GET", path, reading)).status == 200, path
            assert (await here.ask("GET", path, bearer(token(BILLING)))).status == 403, path
        for path in ("/healthz", "/readyz"):
            assert (await here.ask("GET", path)).status == 200, path
        here.prover.admit(OPEN)
        assert (await here.ask("GET", "/metrics")).status == 200
    async with administered(reads_are_open=True) as here:
        assert (await here.ask("GET", "/metrics")).status == 200
    async with administered(admission=OPEN, reads_are_open=False) as here:
        assert (await here.ask("GET", "/metrics")).status == 401


# --- what a bookie answers ------------------------------------------------------------------------


async def test_a_bookie_says_why_it_is_not_ready(clock: MockClock) -> None:
    async with administered() as here:

        async def reasons() -> str:
            answered = await here.ask("GET", "/readyz")
            assert (answered.status == 200) == (answered.body == "ready\n")
            return answered.body

        assert await reasons() == "ready\n"
        await here.ask("POST", "/read-only?on=true", bearer(token()))
        here.bookie.node.set_read_only(True, wanted_by="disk")
        assert await reasons() == ("read-only: its disk is nearly full\nread-only: an operator wants it\n")
        here.bookie.node.set_read_only(False, wanted_by="disk")
        assert (await here.ask("POST", "/read-only?on=false", bearer(token()))).body == "writable\n"
        here.bookie.store.disconnect()
        assert (await reasons()).startswith("cut off from the metadata store")
        here.bookie.store.reconnect()
        here.administration.node = None
        assert (await reasons()).startswith("starting")
        assert (await here.ask("POST", "/scrub", bearer(token()))).status == 503
        assert (await here.ask("GET", "/metrics", bearer(token()))).status == 200


async def test_what_an_operator_wanted_holds_when_the_bookie_serves_again(clock: MockClock) -> None:
    async with administered() as here:
        await here.ask("POST", "/read-only?on=true", bearer(token()))
        here.bookie.node.set_read_only(False)
        here.administration.serves(here.bookie.node)
        assert here.bookie.node.is_read_only


async def test_scrubbing_and_collection_begin_when_they_are_asked_for(clock: MockClock) -> None:
    async with administered() as here:
        engine = here.bookie.node.engine
        assert (await here.ask("POST", "/scrub", bearer(token()))).status == 202
        with trio.fail_after(60):  # The first regular pass would be an hour later.
            await eventually(lambda: engine.scrubber.passes == 1)
        assert (await here.ask("POST", "/collect", bearer(token()))).status == 202
        await eventually(lambda: engine.reclaimer.rounds == 1)


async def test_the_level_of_the_log_changes_for_our_loggers_only(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("bookie.server.node")
    async with administered() as here:
        try:
            changed = await here.ask(
                "POST", "/log-level?logger=bookie.server.node&level=debug", bearer(token())
            )
            assert (changed.status, changed.body) == (200, "bookie.server.node DEBUG\n")
            assert logger.level == logging.DEBUG
            assert "bookie.server.node DEBUG" in (await here.ask("GET", "/log-level", bearer(token()))).body
            for query in ("logger=root&level=debug", "logger=bookie&level=loud", "level=debug", ""):
                refused = await here.ask("POST", f"/log-level?{query}", bearer(token()))
                assert refused.status == 400, query
        finally:
            logger.setLevel(logging.NOTSET)
    assert "POST /log-level?logger=bookie.server.node&level=debug by admin/cluster at client=" in caplog.text


async def test_no_token_gets_into_the_log_or_into_an_answer(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with administered() as here:
        for given in (token(), token(BILLING), token(seconds=0)):
            for path in ("/read-only?on=true", "/nowhere", "/config"):
                answered = await here.ask("POST", path, bearer(given))
                proof = given.rpartition("/")[2]
                assert proof not in answered.body
                assert proof not in caplog.text


# --- HTTP -----------------------------------------------------------------------------------------


async def echo(asked: Asked) -> Answer:
    await trio.lowlevel.checkpoint()
    return Answer.text(200, f"{asked.method} {asked.path} {dict(asked.query)}")


async def test_a_connection_serves_many_requests_one_after_the_other(clock: MockClock) -> None:
    async with served(echo) as port:
        stream = await port.network.connect(port.address)
        for number in range(3):
            await stream.send_all([f"GET /a?n={number} HTTP/1.1\r\nHost: x\r\n\r\n".encode()])
            assert (await answer_on(stream)).body == f"GET /a {{'n': '{number}'}}\n"
        await stream.send_all([b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"])
        assert b"200" in await receive(stream)
        assert await receive(stream) == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01 a TLS client\r\n\r\n", 400),
        (b"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000, 431),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000, 413),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", 417),
    ],
)
async def test_what_is_no_request_or_too_large_is_refused_and_its_connection_ends(
    clock: MockClock, sent: bytes, status: int
) -> None:
    async with served(echo) as port:
        stream = await port.network.connect(port.address)
        await stream.send_all([sent])
        assert (await answer_on(stream)).status == status
        await ended(stream)
        assert (await port.ask("GET", "/a")).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"HEAD /?a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD //[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000,
        b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    ],
)
async def test_a_refusal_of_a_head_request_has_no_body(clock: MockClock, sent: bytes) -> None:
    """Anybody could end a bookie with it: an answer with a body is an error there."""
    async with served(echo) as port:
        stream = await port.network.connect(port.address)
        await stream.send_all([sent])
        answer = await receive(stream)
        assert answer.startswith(b"HTTP/1.1 4")
        assert answer.endswith(b"\r\n\r\n")
        await ended(stream)
        assert (await port.ask("GET", "/a")).status == 200


@pytest.mark.parametrize("bad", [b"\0garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_bad_request_after_a_head_request_is_refused_with_a_body(
    clock: MockClock, bad: bytes
) -> None:
    async with served(echo) as port:
        stream = await port.network.connect(port.address)
        await stream.send_all([b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n"])
        assert b"200" in await receive(stream)
        await stream.send_all([bad])
        assert (await answer_on(stream)).status == 400
        await ended(stream)
        assert (await port.ask("GET", "/a")).status == 200


async def test_a_page_that_fails_is_answered_with_500_and_logged(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(asked: Asked) -> Answer:
        if asked.path == "/bad":
            raise KeyError("a page")
        return Answer.text(200, "good")

    async with served(answer) as port:
        assert (await port.ask("GET", "/bad")).status == 500
        assert (await port.ask("GET", "/good")).status == 200
    assert "a request for /bad failed" in caplog.text
    assert "KeyError" in caplog.text


async def test_connections_that_say_nothing_keep_nobody_out_and_end_after_a_while(clock: MockClock) -> None:
    async with served(echo) as port:
        silent = [await port.network.connect(port.address) for _ in range(limits.ADMIN_CONNECTIONS)]
        half = silent[1]
        await half.send_all([b"GET /a HTTP/1.1\r\nHo"])
        await trio.testing.wait_all_tasks_blocked()
        assert (await port.ask("GET", "/a")).status == 200
        began = trio.current_time()
        await ended(half)
        assert trio.current_time() - began <= limits.ADMIN_REQUEST_S


# --- who asks -------------------------------------------------------------------------------------


async def test_a_process_asks_with_a_token_of_its_own_secret_and_gets_every_answer(clock: MockClock) -> None:
    async with administered() as here:
        where = here.port.network, here.port.address
        mine = here.prover.token(TokenScope.CHANGE, expires_s=NOW_S + 60)
        told = await ask_http(*where, "GET", "/config", token=mine)
        assert (told.status, told.content_type) == (200, "application/json")
        assert json.loads(told.body)["id"] == "b1"
        assert (await ask_http(*where, "POST", "/read-only?on=true")).status == 401
        assert not here.bookie.node.is_read_only
        assert await ask_http(*where, "POST", "/read-only?on=true", token=mine) == Answer(200, b"read-only\n")
        assert here.bookie.node.is_read_only
        reading = here.prover.token(TokenScope.READ, expires_s=NOW_S + 60)
        assert (await ask_http(*where, "POST", "/read-only?on=false", token=reading)).status == 403
    assert Prover(None).token(TokenScope.READ, expires_s=NOW_S) is None


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", WireError, "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", WireError, "does not answer in HTTP"),
        (b"", WireError, "does not answer in HTTP"),
        (
            b"HTTP/1.1 200 OK\r\n\r\n" + bytes(limits.ADMIN_ANSWER_BYTES_MAX + 1),
            WireError,
            "has more than 1048576 bytes",
        ),
        (None, ConnectionLost, "no answer within 10 s"),
    ],
    ids=["another protocol", "half an answer", "nothing", "too much", "silence"],
)
async def test_an_answer_that_is_none_is_one_error(
    clock: MockClock, said: bytes | None, error: type[Exception], why: str
) -> None:
    network = LocalNetwork()
    listener = await network.listen("admin:0")

    async def serve() -> None:
        stream = await listener.accept()
        await receive(stream)
        if said is None:
            await trio.sleep_forever()
        else:
            with suppress(ConnectionLost):
                await stream.send_all([said])
            stream.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        caught: Exception | None = None
        try:
            await ask_http(network, listener.address, "GET", "/config")
        except error as refused:
            caught = refused
        assert caught is not None
        assert why in str(caught)
        nursery.cancel_scope.cancel()
