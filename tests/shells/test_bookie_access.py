"""What a bookie lets each role do, when it asks the metadata store, and what a change of grants ends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from raw_client import KEY, RawClient
from serving import Bookie, Machine, ledger

from bookie.core.ledger import BookieLedger
from bookie.core.request_queue import Line
from bookie.server.access import AccessControl
from bookie.server.requests import _line_of
from ledgerlog import limits
from ledgerlog.errors import MetadataUnavailable, StorageCorrupt, StorageError
from ledgerlog.meta.grants import change_grants
from ledgerlog.meta.watches import TreeWatch
from ledgerlog.model.access import NO_RIGHTS, Grant, Role
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.layout import grants_path, ledger_path
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets
from ledgerlog.net.certificates import Certificates
from ledgerlog.net.prover import Prover
from ledgerlog.net.session import handshake
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.testing.faulty_store import Call, GoOn, before
from ledgerlog.testing.memory_cluster import CLUSTER
from ledgerlog.wire.frame import RECOVERY, REPLY, Kind, Status, decode_frame_untrusted, encode_head
from ledgerlog.wire.hello import Hello
from tests import certificates
from tests.steps import counted_steps

SECURITY = Path(__file__).parents[2] / "docs" / "SECURITY.md"

A = 1000
"""This and the next ledgers belong to the log a/1."""
LOOSE = 7
"""A ledger of no log."""
UNKNOWN = 123_456
"""No ledger."""

DENIED, GONE = Status.PERMISSION_DENIED, Status.NO_SUCH_LEDGER


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    for number in range(A, A + 20):
        machine.ledgers[number] = ledger(number, labels={"log-name": b"a/1"})
    return machine


async def grant(machine: Machine, principal: str, role: Role, prefix: str = "") -> None:
    async with machine.tree.open_store() as store:
        await change_grants(store, Principal.parse(principal), lambda now: now.granted(Grant(role, prefix)))


async def revoke(machine: Machine, principal: str) -> None:
    async with machine.tree.open_store() as store:
        await change_grants(store, Principal.parse(principal), lambda now: now.revoked(None))


@attrs.define
class Source:
    """The secrets of a process."""

    secrets: Secrets
    where: str = "the.secret"

    def current(self) -> Secrets:
        return self.secrets

    def reload(self) -> None:
        pass


def prover(secrets: Secrets) -> Prover:
    made = Prover(Source(secrets))
    made.admit(Admission(ProvenBy.SECRET))
    return made


@pytest.fixture(params=["by a certificate", "by a secret"])
def proving(
    request: pytest.FixtureRequest, machine: Machine
) -> Callable[[Bookie, str], Awaitable[RawClient]]:
    """Connects as a principal that proves who it is, as clients do. The bookie is one of a closed cluster."""
    plain = machine.network
    if request.param == "by a secret":
        secrets = Secrets(None, (b"s" * 32,))
        machine.prover = prover(secrets)

        async def by_secret(bookie: Bookie, principal: str) -> RawClient:
            stream = await plain.connect(bookie.node.address)
            await handshake(stream, Hello("b1", None), prover(secrets.derived(Principal.parse(principal))))
            return RawClient(stream)

        return by_secret
    machine.network = TlsNetwork(plain, Certificates(certificates.files("bookie/b1"), CLUSTER))

    async def by_certificate(bookie: Bookie, principal: str) -> RawClient:
        network = TlsNetwork(plain, Certificates(certificates.files(principal), CLUSTER))
        client = RawClient(await network.connect(bookie.node.address))
        assert (await client.hello())[0] is Status.OK
        return client

    return by_certificate


async def client_of(machine: Machine, bookie: Bookie, principal: str) -> RawClient:
    client = RawClient(
        await machine.network.connect(bookie.node.address, principal=Principal.parse(principal))
    )
    status, _ = await client.hello()
    assert status is Status.OK
    return client


# --- the matrix -------------------------------------------------------------------------------------


async def _add(client: RawClient, bookie: Bookie, ledger_id: int, *, recovery: bool = False) -> Status:
    await client.add(ledger_id, 0, [b"x"], recovery=recovery)
    return Status((await client.receive()).header.status)


def _asking(kind: Kind, **fields: object) -> Callable[[RawClient, Bookie, int], Awaitable[Status]]:
    async def ask(client: RawClient, bookie: Bookie, ledger_id: int) -> Status:
        key = bookie.node.info.listing_key if kind is Kind.LEDGERS else KEY
        frame = await client.ask(kind, ledger_id=ledger_id, key=key, **fields)
        return Status(frame.header.status)

    return ask


REQUESTS: dict[str, Callable[[RawClient, Bookie, int], Awaitable[Status]]] = {
    "ADD": _add,
    "ADD, recovery": partial(_add, recovery=True),
    "FENCE": _asking(Kind.FENCE),
    "READ": _asking(Kind.READ, last=9, count=1, argument=99),
    "READ, recovery": _asking(Kind.READ, flags=RECOVERY, last=9, count=1, argument=99),
    "READ, long poll": _asking(Kind.READ, last=9, count=1, argument=99, wait_ms=1),
    "READ_LAC": _asking(Kind.READ_LAC, first=-1, last=-1),
    "READ_LAC, long poll": _asking(Kind.READ_LAC, first=-1, last=-1, wait_ms=1),
    "LIST": _asking(Kind.LIST),
    "SCRUB": _asking(Kind.SCRUB, last=9, count=1, argument=99),
    "INFO": _asking(Kind.INFO),
    "LEDGERS": _asking(Kind.LEDGERS),
}

ROLES: dict[str, tuple[str, Grant | None]] = {
    "no role": ("client/nobody", None),
    "reader": ("client/r", Grant(Role.READER, "a/")),
    "reader of all logs": ("client/ra", Grant(Role.READER)),
    "reader of other logs": ("client/ro", Grant(Role.READER, "b/")),
    "writer": ("client/w", Grant(Role.WRITER, "a/")),
    "writer of all logs": ("client/wa", Grant(Role.WRITER)),
    "writer of other logs": ("client/wo", Grant(Role.WRITER, "b/")),
    "bookie": ("bookie/b2", None),
    "admin": ("admin/alice", None),
    "revoked": ("client/gone", Grant(Role.WRITER, "a/")),
}


def matrix() -> dict[tuple[str, str], bool]:
    """The table of the page."""
    lines = [line for line in SECURITY.read_text().splitlines() if line.startswith("|")]
    head = next(line for line in lines if line.startswith("| request | no role |"))
    roles = [cell.strip() for cell in head.strip("|").split("|")][1:]
    found: dict[tuple[str, str], bool] = {}
    for line in lines[lines.index(head) + 2 :]:
        request, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != len(roles):
            break
        for role, cell in zip(roles, cells, strict=True):
            found[request, role] = {"yes": True, "no": False}[cell]
    return found


def test_the_page_has_every_request_and_every_role() -> None:
    assert {request for request, _ in matrix()} == set(REQUESTS)
    assert {role for _, role in matrix()} == set(ROLES)
    kinds = {request.partition(",")[0] for request in REQUESTS}
    assert kinds == {kind.name for kind in Kind} - {"HELLO", "PROOF", "REFUSED"}


@pytest.mark.parametrize("is_known", [False, True], ids=["new ledger", "known ledger"])
@pytest.mark.parametrize("role", ROLES)
async def test_each_request_is_allowed_or_refused_as_the_page_says(
    machine: Machine,
    role: str,
    is_known: bool,
    proving: Callable[[Bookie, str], Awaitable[RawClient]],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    principal, granted = ROLES[role]
    expected = matrix()
    async with machine.bookie() as bookie:
        if is_known:
            admin = await proving(bookie, "admin/root")
            for number in range(len(REQUESTS)):
                await admin.add(A + number, 0, [b"x"])
            await admin.acknowledged(len(REQUESTS))
        if granted is not None:
            await grant(machine, principal, granted.role, granted.prefix)
        client = await proving(bookie, principal)
        if role == "revoked":
            assert await _add(client, bookie, A) is Status.OK
            await revoke(machine, principal)
            await trio.testing.wait_all_tasks_blocked()
        denied = 0
        for number, (request, ask) in enumerate(REQUESTS.items()):
            status = await ask(client, bookie, A + number)
            assert (status is not Status.PERMISSION_DENIED) == expected[request, role], request
            assert status in (Status.OK, Status.NO_SUCH_LEDGER, Status.PERMISSION_DENIED), request
            denied += status is Status.PERMISSION_DENIED
        assert bookie.node.server.counts["requests_denied"] == denied
        said = [line for line in caplog.messages if f"{principal}: " in line and "have the right" in line]
        assert len(said) == denied, "a line for each refusal"


@pytest.mark.parametrize("role", ROLES)
async def test_a_recovery_flag_gives_nobody_a_right_on_other_requests(machine: Machine, role: str) -> None:
    """A writer must not learn the keys of all ledgers by this flag, and a reader must not use the reserve."""
    principal, granted = ROLES[role]
    expected = matrix()
    async with machine.bookie() as bookie:
        if granted is not None and role != "revoked":
            await grant(machine, principal, granted.role, granted.prefix)
        client = await client_of(machine, bookie, principal)
        for kind in (Kind.INFO, Kind.LEDGERS, Kind.READ_LAC, Kind.LIST, Kind.SCRUB):
            fields = {"last": 9, "count": 1, "argument": 99} if kind is Kind.SCRUB else {}
            status = await _asking(kind, flags=RECOVERY, **fields)(client, bookie, A)
            assert (status is not DENIED) == expected[kind.name, role], kind
            header = decode_frame_untrusted(memoryview(encode_head(kind, flags=RECOVERY))).header
            assert _line_of(header) is Line.USUAL, kind


@pytest.mark.parametrize("kind", ["bookie", "admin"])
async def test_a_revoked_bookie_or_admin_may_do_nothing(machine: Machine, kind: str) -> None:
    async with machine.bookie() as bookie:
        await revoke(machine, f"{kind}/x")
        client = await client_of(machine, bookie, f"{kind}/x")
        for number, ask in enumerate(REQUESTS.values()):
            assert await ask(client, bookie, A + number) is Status.PERMISSION_DENIED
        await grant(machine, f"{kind}/x", Role(kind))
        await trio.testing.wait_all_tasks_blocked()
        assert await REQUESTS["INFO"](client, bookie, 0) is Status.OK


async def test_ledgers_of_no_log_belong_to_those_who_may_do_everything(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        await grant(machine, "client/w", Role.WRITER, "a/")
        await grant(machine, "client/all", Role.WRITER)
        assert await _add(await client_of(machine, bookie, "client/w"), bookie, LOOSE) is DENIED
        assert await _add(await client_of(machine, bookie, "client/all"), bookie, LOOSE) is Status.OK


async def test_in_an_open_cluster_everybody_may_do_everything(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        for number, ask in enumerate(REQUESTS.values()):
            assert await ask(client, bookie, A + number) is not DENIED


async def test_grants_bind_a_program_with_a_secret_only_while_the_cluster_is_not_open(
    machine: Machine,
) -> None:
    """'access mode open' helps every program at once, without a new connection, and closing binds them."""
    secrets = Secrets(None, (b"s" * 32,))
    machine.prover = prover(secrets)
    async with machine.bookie() as bookie:
        await grant(machine, "client/r", Role.READER, "a/")
        stream = await machine.network.connect(bookie.node.address)
        await handshake(stream, Hello("b1", None), prover(secrets.derived(Principal.parse("client/r"))))
        client = RawClient(stream)
        assert await _add(client, bookie, A) is DENIED
        machine.prover.admit(OPEN)
        for number, ask in enumerate(REQUESTS.values()):
            assert await ask(client, bookie, A + number) is not DENIED
        machine.prover.admit(Admission(ProvenBy.SECRET, is_required=False))
        assert await _add(client, bookie, A) is DENIED
        assert await REQUESTS["READ"](client, bookie, A) is Status.OK
        assert await REQUESTS["LEDGERS"](client, bookie, A) is DENIED
    machine.prover.admit(OPEN)
    async with machine.bookie() as bookie:
        stream = await machine.network.connect(bookie.node.address)
        await handshake(stream, Hello("b1", None), prover(secrets.derived(Principal.parse("client/none"))))
        assert await _add(RawClient(stream), bookie, A) is Status.OK


async def test_in_a_cluster_that_is_being_closed_a_request_under_way_is_judged_by_the_grants(
    machine: Machine,
) -> None:
    """Nobody is refused because the grants were not read while the cluster was open."""
    secrets = Secrets(None, (b"s" * 32,))
    machine.prover = prover(secrets)
    machine.prover.admit(OPEN)
    async with machine.bookie() as bookie, trio.open_nursery() as nursery:
        await grant(machine, "client/w", Role.WRITER, "a/")
        asked, going = trio.Event(), trio.Event()

        async def wait(call: Call) -> None:
            if call.path == ledger_path(A):
                asked.set()
                await going.wait()
            elif call.path == grants_path("client/w") and not asked.is_set():
                raise MetadataUnavailable("the bookie does not know the grants in advance")

        bookie.store.faults.append(before(wait))
        stream = await machine.network.connect(bookie.node.address)
        await handshake(stream, Hello("b1", None), prover(secrets.derived(Principal.parse("client/w"))))
        client = RawClient(stream)

        async def close() -> None:
            await asked.wait()
            machine.prover.admit(Admission(ProvenBy.SECRET))
            going.set()

        nursery.start_soon(close)
        assert await _add(client, bookie, A) is Status.OK


async def test_what_a_certificate_proved_has_only_its_rights_in_any_mode(machine: Machine) -> None:
    """A bookie with a certificate takes no connection without one."""
    async with machine.bookie() as bookie:
        assert machine.prover is None, "the cluster is open"
        assert await _add(await client_of(machine, bookie, "client/w"), bookie, A) is DENIED


# --- ledgers that must exist --------------------------------------------------------------------------


@pytest.mark.parametrize("principal", [None, "admin/alice", "client/w"])
async def test_an_id_that_was_not_given_out_cannot_be_claimed(
    machine: Machine, principal: str | None
) -> None:
    """Otherwise, whoever fenced or filled an id first would set the key of the ledger that gets this id
    later."""
    async with machine.bookie() as bookie:
        await grant(machine, "client/w", Role.WRITER)
        stranger = await (client_of(machine, bookie, principal) if principal else bookie.client())
        wrong = b"w" * 16
        assert (await stranger.ask(Kind.FENCE, ledger_id=UNKNOWN, key=wrong)).header.status == GONE
        await stranger.add(UNKNOWN, 0, [b"x"], key=wrong)
        assert await stranger.refused(1) is GONE
        await stranger.tell_lac(UNKNOWN, 5, key=wrong)
        assert await stranger.refused(2) is GONE
        header, _ = await stranger.read(UNKNOWN, 0, 0, recovery=True, key=wrong)
        assert (header.status, header.argument) == (Status.NOT_READY, -1), "it denies no entry"
        assert not bookie.node.engine.knows(UNKNOWN)
        assert bookie.node.server.counts["unknown_ledgers_refused"] == 3
        await bookie.store.create(ledger_path(UNKNOWN), ledger(UNKNOWN).encode())
        owner = await (client_of(machine, bookie, "admin/root") if principal else bookie.client())
        await owner.add(UNKNOWN, 0, [b"x"])
        await owner.acknowledged(1)
        assert (await stranger.ask(Kind.FENCE, ledger_id=UNKNOWN, key=wrong)).header.status == (
            Status.UNAUTHORIZED
        )


async def test_a_first_frame_with_a_wrong_key_is_refused_and_leaves_nothing(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        frame = await client.ask(Kind.FENCE, ledger_id=LOOSE, key=b"w" * 16)
        assert frame.header.status == Status.UNAUTHORIZED
        await client.add(LOOSE, 0, [b"x"], key=b"w" * 16)
        assert await client.refused(1) is Status.UNAUTHORIZED
        assert not bookie.node.engine.knows(LOOSE)
        await client.add(LOOSE, 0, [b"x"])
        await client.acknowledged(2)


async def test_a_permission_is_remembered_only_once_the_storage_compares_the_key(machine: Machine) -> None:
    """The permission is remembered for the ledger, whatever key a later add carries."""
    async with machine.bookie() as bookie:
        client, other = await bookie.client(), await bookie.client()
        bookie.node.set_read_only(True)
        assert await _add(client, bookie, LOOSE) is Status.READ_ONLY
        bookie.node.set_read_only(False)
        await client.add(LOOSE, 0, [b"x"], key=b"w" * 16)
        assert (await client.receive()).header.status == Status.UNAUTHORIZED
        assert await _add(other, bookie, LOOSE) is Status.OK


async def test_no_key_is_taken_unseen_because_the_index_could_not_be_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perhaps the storage can read it a moment later, and stores the add."""
    async with machine.bookie() as bookie:
        client = await bookie.client()
        ledgers = bookie.node.engine._ledgers

        def fails_once(ledger_id: int) -> BookieLedger | None:
            monkeypatch.undo()
            raise StorageError("b/index: Input/output error")

        monkeypatch.setattr(ledgers, "get", fails_once)
        await client.add(LOOSE, 0, [b"x"], key=b"w" * 16)
        assert (await client.receive()).header.status == Status.UNAUTHORIZED
        assert await _add(client, bookie, LOOSE) is Status.OK


async def test_a_ledger_whose_fence_is_under_way_may_be_known_by_another_key_yet(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        engine = bookie.node.engine
        state = BookieLedger(LOOSE, b"w" * 16)
        engine._ledgers.add(state)
        assert not engine.knows(LOOSE)
        engine._ledgers.drop(state)
        assert (await engine.fence(LOOSE, KEY)).status is Status.OK
        assert engine.knows(LOOSE)


async def test_a_refused_add_has_its_number_and_its_neighbours_are_acknowledged(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await client.add(1, 0, [b"x"])
        await client.add(UNKNOWN, 0, [b"x"])
        await client.add(2, 0, [b"x"])
        seen = [(await client.receive()).header]
        while seen[-1].kind != (Kind.ADD | REPLY) or seen[-1].request != 3:
            seen.append((await client.receive()).header)
        assert [(h.request, h.status) for h in seen if h.kind == Kind.REFUSED] == [(2, GONE)]


async def test_a_replica_of_the_store_that_lags_denies_no_ledger(machine: Machine) -> None:
    """Before a bookie says that a ledger does not exist, it syncs its client of the store."""
    async with machine.bookie() as bookie:
        is_behind = True

        async def lag(call: Call, go_on: GoOn) -> Any:
            nonlocal is_behind
            if call.verb == "sync":
                is_behind = False
            found = await go_on()
            return None if is_behind and call.verb == "get" and call.path == ledger_path(LOOSE) else found

        bookie.store.faults.append(lag)
        client = await bookie.client()
        await client.add(LOOSE, 0, [b"x"])
        await client.acknowledged(1)


# --- the store ----------------------------------------------------------------------------------------


async def test_the_store_is_asked_once_for_each_ledger_and_not_for_known_ones(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        asked: list[str] = []

        async def note(call: Call) -> None:
            if call.path.startswith("ledgers/"):
                asked.append(call.path)

        bookie.store.faults.append(before(note))
        client = await bookie.client()
        for entry in range(10):
            await client.add(LOOSE, entry, [b"x"])
        await client.acknowledged(10)
        assert asked == [ledger_path(LOOSE)]
        other = await bookie.client()
        await other.add(LOOSE, 10, [b"x"])
        await other.acknowledged(1)
        await other.read(LOOSE, 0, 9)
        await other.read(UNKNOWN, 0, 9)
        assert asked == [ledger_path(LOOSE)]


async def test_while_the_store_is_away_an_open_ledger_goes_on(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        admin = await client_of(machine, bookie, "admin/alice")
        writer = await bookie.client()
        for client in (admin, writer):
            await client.add(LOOSE, 0, [b"x"])
            await client.acknowledged(1)
        bookie.store.is_hanging = True
        await trio.sleep(10)  # Meanwhile the refresh of the grants fails.
        for number, client in ((1, admin), (2, writer), (3, await bookie.client())):
            await client.add(LOOSE, number, [b"x"])
            await client.acknowledged(1 if number == 3 else 2)
        other = await client_of(machine, bookie, "admin/alice")
        assert (await other.ask(Kind.FENCE, ledger_id=LOOSE, key=KEY)).header.status == Status.OK


async def test_a_new_ledger_is_refused_for_now_if_the_store_does_not_answer(
    machine: Machine, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client treats a bookie that answers NOT_READY as away. An add waits for at most a second, because
    adds of other ledgers wait behind it. If the store is known to be away, it does not wait at all."""
    caplog.set_level(logging.INFO)
    async with machine.bookie() as bookie:
        client = await bookie.client()
        bookie.store.is_hanging = True
        begun = trio.current_time()
        await client.add(LOOSE, 0, [b"x"])
        assert await client.refused(1) is Status.NOT_READY
        assert trio.current_time() - begun == pytest.approx(limits.ACCESS_LOOK_S)
        begun = trio.current_time()
        for number in (2, 3, 4):
            await client.add(LOOSE, 0, [b"x"])
            assert await client.refused(number) is Status.NOT_READY
        assert trio.current_time() == begun
        bookie.store.is_hanging = False
        await trio.sleep(2)
        await client.add(LOOSE, 0, [b"x"])
        await client.acknowledged(5)
    assert caplog.text.count("the rights of clients cannot be read") == 1
    assert caplog.text.count("the rights of clients can be read from the metadata store again") == 1


async def test_a_new_ledger_is_refused_for_now_if_a_row_of_the_store_is_damaged(
    machine: Machine, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(path: str) -> None:
        raise StorageCorrupt("metadata.sqlite", None, f"the row of {path} is damaged")

    async with machine.bookie() as bookie:
        client = await bookie.client()
        with monkeypatch.context() as patches:
            patches.setattr(bookie.store, "get", damaged)
            await client.add(LOOSE, 0, [b"x"])
            assert await client.refused(1) is Status.NOT_READY
        await trio.sleep(2)
        await client.add(LOOSE, 0, [b"x"])
        await client.acknowledged(2)


async def test_the_last_known_grants_hold_while_the_store_is_away(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        await grant(machine, "client/r", Role.READER, "a/")
        client = await client_of(machine, bookie, "client/r")
        assert (await client.read(A, 0, 0))[0].status == Status.NO_SUCH_LEDGER
        # The bookie does not keep grants up to date if their principal has no connection.
        client.stream.close()
        bookie.store.is_hanging = True
        await revoke(machine, "client/r")
        await trio.sleep(20)
        again = await client_of(machine, bookie, "client/r")
        assert (await again.read(A, 0, 0))[0].status == Status.NO_SUCH_LEDGER
        assert (await again.read(A + 1, 0, 0))[0].status == Status.NOT_READY, "its log was never looked up"
        unseen = await client_of(machine, bookie, "client/other")
        assert (await unseen.read(A, 0, 0))[0].status == Status.NOT_READY
        bookie.store.is_hanging = False
        await trio.sleep(limits.ACCESS_REFRESH_S + 1)
        assert (await again.read(A, 0, 0))[0].status == DENIED


async def test_damaged_grants_give_no_right(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    async with machine.bookie() as bookie:
        await bookie.store.create(grants_path("admin/alice"), b"damaged")
        client = await client_of(machine, bookie, "admin/alice")
        assert await REQUESTS["INFO"](client, bookie, 0) is DENIED
    assert "admin/alice has no rights here: grants of admin/alice" in caplog.text


# --- changes --------------------------------------------------------------------------------------------


async def test_a_grant_is_in_force_at_once_for_who_was_refused(machine: Machine) -> None:
    """A bookie looks at the newest grants before it refuses."""
    async with machine.bookie() as bookie:
        client = await client_of(machine, bookie, "client/w")
        assert await _add(client, bookie, A) is DENIED
        await grant(machine, "client/w", Role.WRITER, "a/")
        await trio.testing.wait_all_tasks_blocked()
        assert await _add(client, bookie, A) is Status.OK


async def test_a_bookie_that_was_told_of_no_change_looks_again_before_it_refuses(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        client = await client_of(machine, bookie, "client/w")
        assert await _add(client, bookie, A) is DENIED

        async def only_for_requests(call: Call, go_on: GoOn) -> Any:
            if trio.lowlevel.current_task().name.endswith("AccessControl.run"):
                raise MetadataUnavailable("it tells no changes")
            return await go_on()

        bookie.store.faults.append(only_for_requests)
        await trio.sleep(10)
        await grant(machine, "client/w", Role.WRITER, "a/")
        assert await _add(client, bookie, A) is Status.OK


async def test_an_answer_about_grants_that_comes_late_replaces_no_newer_one(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        late, going = trio.Event(), trio.Event()

        async def hold_one(call: Call, go_on: GoOn) -> Any:
            found = await go_on()
            if call.path == grants_path("client/w") and call.verb == "get" and not late.is_set():
                late.set()
                await going.wait()
            return found

        await grant(machine, "client/w", Role.WRITER, "a/")
        client = await client_of(machine, bookie, "client/w")
        assert await _add(client, bookie, A) is Status.OK
        known = bookie.node.server._shared.access._principals[Principal.parse("client/w")]
        bookie.store.faults.append(hold_one)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bookie.node.server._shared.access._read_grants, known)
            await late.wait()
            await trio.sleep(0.01)
            await revoke(machine, "client/w")
            await trio.sleep(0.1)
            assert await _add(client, bookie, A) is DENIED
            going.set()
        assert known.rights == NO_RIGHTS


async def test_without_any_watch_a_change_is_in_force_within_five_seconds(
    machine: Machine, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreeWatch, "mark", lambda watch: None)
    async with machine.bookie() as bookie:
        await grant(machine, "client/w", Role.WRITER, "a/")
        client = await client_of(machine, bookie, "client/w")
        assert await _add(client, bookie, A) is Status.OK
        await revoke(machine, "client/w")
        await trio.sleep(5)
        assert await _add(client, bookie, A) is DENIED


async def test_while_nobody_is_connected_only_a_change_of_the_grants_wakes_a_bookie(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        await grant(machine, "client/w", Role.WRITER, "a/")
        client = await client_of(machine, bookie, "client/w")
        assert await _add(client, bookie, A) is Status.OK
        client.stream.close()
        await trio.sleep(2 * limits.ACCESS_REFRESH_S)
        task = f"{AccessControl.__module__}.{AccessControl.run.__qualname__}"
        with counted_steps() as steps:
            await trio.sleep(3600)
            assert not steps[task]
            await revoke(machine, "client/w")
            await trio.sleep(1)
            assert steps[task], "it follows the changes"
        again = await client_of(machine, bookie, "client/w")
        assert await _add(again, bookie, A) is DENIED


async def test_a_revocation_ends_long_polls_at_once(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        await grant(machine, "client/r", Role.READER, "a/")
        await grant(machine, "client/r2", Role.READER, "a/")
        client = await client_of(machine, bookie, "client/r")
        other = await client_of(machine, bookie, "client/r2")
        fields = {"ledger_id": A, "first": 5, "last": -1, "wait_ms": 5000}
        poll = await client.request(Kind.READ_LAC, **fields)
        read = await client.request(
            Kind.READ, ledger_id=A, first=5, last=9, count=1, argument=9, wait_ms=5000
        )
        untouched = await other.request(Kind.READ_LAC, **fields)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        await revoke(machine, "client/r")
        assert (await client.reply_to(poll)).header.status == DENIED
        assert (await client.reply_to(read)).header.status == DENIED
        assert trio.current_time() == begun
        assert (await other.reply_to(untouched)).header.status == Status.OK
        assert trio.current_time() >= begun + 4, "whose rights did not change waits on"


async def test_a_flood_of_refusals_asks_the_store_once_a_second_and_logs_a_bounded_number_of_lines(
    machine: Machine, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        calls: list[Call] = []

        async def note(call: Call) -> None:
            calls.append(call)

        client = await client_of(machine, bookie, "client/nobody")
        await trio.sleep(1)
        bookie.store.faults.append(before(note))
        for number in range(500):
            await client.add(A, number, [b"x"])
            assert await client.refused(number + 1) is DENIED
        assert len(calls) <= 3 * 2
        assert bookie.node.server.counts["requests_denied"] == 500
    lines = [line for line in caplog.messages if "client/nobody: ADD of ledger=1000 is refused" in line]
    assert len(lines) == 20
    assert lines[0].endswith("it does not have the right")


async def test_a_flood_of_unknown_ledgers_leaves_the_store_to_others(machine: Machine) -> None:
    """No matter how many connections of one address ask, only a few of their questions are under way at
    once."""
    async with machine.bookie() as bookie:
        under_way, most = 0, 0
        going_on = trio.Event()

        async def count(call: Call, go_on: GoOn) -> Any:
            nonlocal under_way, most
            if not call.path.startswith("ledgers/"):
                return await go_on()
            under_way += 1
            most = max(most, under_way)
            await going_on.wait()
            under_way -= 1
            return await go_on()

        clients = [await bookie.client() for _ in range(20)]
        bookie.store.faults.append(count)
        requests = [
            await client.request(Kind.FENCE, ledger_id=UNKNOWN + number, key=KEY)
            for number, client in enumerate(clients)
            for _ in range(3)
        ]
        await trio.testing.wait_all_tasks_blocked()
        assert most == limits.PARTY_LOOKS
        going_on.set()
        for number, request in enumerate(requests):
            assert (await clients[number // 3].reply_to(request)).header.status == GONE
        assert most == limits.PARTY_LOOKS


async def test_what_a_bookie_remembers_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ACCESS_LEDGERS", 4)
    monkeypatch.setattr(limits, "ACCESS_CONNECTION_LEDGERS", 4)
    monkeypatch.setattr(limits, "ACCESS_PRINCIPALS", 4)
    async with machine.bookie() as bookie:
        client = await bookie.client()
        for number in range(20):
            await client.add(number, 0, [b"x"])
        await client.acknowledged(20)
        control = bookie.node.access
        assert len(control._facts) <= 4
        assert all(len(access.writable) <= 4 for access in control._accesses)
        for number in range(20):
            peer = await client_of(machine, bookie, f"client/{number}")
            await REQUESTS["INFO"](peer, bookie, 0)
            peer.stream.close()
            await trio.testing.wait_all_tasks_blocked()
        assert len(control._principals) <= 5
