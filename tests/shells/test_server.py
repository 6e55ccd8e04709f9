"""A bookie's answers to its clients: a test for each sentence of the wire protocol about serving."""

from __future__ import annotations

import gc
import logging
import traceback
import weakref
from copy import deepcopy
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from raw_client import KEY, RawClient, add, figures, pairs
from serving import Bookie, Machine

from bookie.server import requests
from bookie.server.fair import Party
from bookie.server.phase_one import settle_marks
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.index.index import MemoryIndex
from ledgerlog import limits
from ledgerlog.errors import CookieMismatch, StorageError, WireError
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.model.principal import Principal
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.testing.faulty_disk import DiskCall, Fails, FaultyDisk, Gate, GoOn
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import HEADER_BYTES, REPLY, SPARSE, Kind, Status, encode_head
from ledgerlog.wire.hello import Hello, encode_hello
from ledgerlog.wire.ledgers import LedgerOnBookie, decode_ledgers_untrusted
from ledgerlog.wire.scrub import decode_scrub_untrusted
from tests.waiting import PATIENCE_S

L = 7


@pytest.fixture
def machine() -> Machine:
    return Machine()


# --- HELLO ----------------------------------------------------------------------------------------


async def test_a_bookie_says_who_it_is(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.connect()
        status, hello = await client.hello()
        cookie = bookie.node.cookie
        assert status is Status.OK
        assert hello == Hello("b1", cookie.instance, cookie.cluster)
        again = await bookie.connect()
        assert await again.hello("b1", cookie.instance, cookie.cluster) == (Status.OK, hello)


@pytest.mark.parametrize(
    "meant",
    [Hello("b2", None), Hello("b1", "another instance"), Hello("b1", None, "another cluster")],
)
async def test_who_means_another_bookie_is_told_and_cut_off(
    machine: Machine, meant: Hello, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.connect()
        status, hello = await client.hello(meant.bookie_id, meant.instance, meant.cluster)
        assert status is Status.WRONG_BOOKIE
        assert hello.instance == bookie.node.cookie.instance
        await client.ended()
        assert "client=client:1: cut off: it wants" in caplog.text


async def test_what_follows_a_refused_hello_is_not_answered(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.connect()
        await client.send(encode_hello(Hello("b2", None)), *add(L, 0, [b"x"]))
        assert (await client.receive()).header.status == Status.WRONG_BOOKIE
        await client.ended()
        assert bookie.node.engine.lac(L) == (-1, -1)
        other = await bookie.client()
        header, _ = await other.read(L, 0, 0)
        assert header.status == Status.NO_SUCH_LEDGER


async def test_who_speaks_another_protocol_is_told_and_cut_off(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.connect()
        await client.send(encode_hello(Hello("b1", None, protocol=2)))
        assert (await client.receive()).header.status == Status.BAD_REQUEST
        await client.ended()


@pytest.mark.parametrize("kind", [Kind.READ, Kind.ADD, Kind.FENCE, Kind.INFO, Kind.LIST, Kind.READ_LAC])
async def test_nothing_is_answered_before_hello(machine: Machine, kind: Kind) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.connect()
        await client.send(encode_head(kind, ledger_id=L, last=-1, key=KEY))
        await client.ended()
        assert bookie.node.server.counts["peers_cut_off"] == 1


async def test_who_does_not_say_hello_in_time_is_cut_off(
    machine: Machine, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        silent, slow = await bookie.connect(), await bookie.connect()
        begun = trio.current_time()
        await slow.send(encode_hello(Hello("b1", None))[:50])
        await silent.ended()
        await slow.ended()
        assert trio.current_time() - begun == pytest.approx(limits.HANDSHAKE_TIMEOUT_S)
        assert caplog.text.count("did not send HELLO within 5 s") == 2


async def test_a_second_hello_ends_the_connection(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await client.send(encode_hello(Hello("b1", None)))
        await client.ended()


async def test_ledgers_and_their_keys_are_listed_for_who_brings_the_listing_key(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        for number in (3, 5, 9):
            await client.add(number, 0, [b"one", b"two"][: 1 + number % 2])
        await client.acknowledged(3)
        key = bookie.node.info.listing_key
        assert len(key) == 16
        for _ in range(2):
            reply = await client.ask(Kind.LEDGERS, ledger_id=4, key=key)
            assert (reply.header.status, reply.header.argument) == (Status.OK, LEDGER_ID_MAX)
            assert decode_ledgers_untrusted(reply.body) == [
                LedgerOnBookie(5, 1, KEY),
                LedgerOnBookie(9, 1, KEY),
            ]
            await bookie.node.engine.flush()
        for wrong in (bytes(16), KEY):
            reply = await client.ask(Kind.LEDGERS, ledger_id=0, key=wrong)
            assert reply.header.status == Status.UNAUTHORIZED
            assert not reply.body


async def test_a_long_list_of_ledgers_comes_in_parts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LEDGERS_MAX", 3)
    async with machine.bookie() as bookie:
        client = await bookie.client()
        for number in range(10):
            await client.add(number, 0, [b"x"])
            if number == 5:
                await client.acknowledged(6)
                await bookie.node.engine.flush()
        await client.acknowledged(10)
        found, first = [], 0
        while first <= LEDGER_ID_MAX:
            reply = await client.ask(Kind.LEDGERS, ledger_id=first, key=bookie.node.info.listing_key)
            found += [ledger.ledger_id for ledger in decode_ledgers_untrusted(reply.body)]
            first = reply.header.argument + 1
        assert found == list(range(10))


# --- adds -----------------------------------------------------------------------------------------


async def test_an_add_is_acknowledged_and_can_be_read(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await client.add(L, 0, [b"one", b"two"], lac=-1)
        await client.acknowledged(1)
        header, entries = await client.read(L, 0, 9)
        assert header.status == Status.OK
        assert (list(entries.ids), entries.payloads()) == ([0, 1], [b"one", b"two"])
        assert header.argument == 9


async def test_nothing_is_acknowledged_before_it_is_durable(machine: Machine) -> None:
    machine.disk = disk = FaultyDisk()
    async with machine.bookie() as bookie:
        client = await bookie.client()
        is_writing = trio.Event()

        async def tell(call: DiskCall, go_on: GoOn) -> Any:
            if call.verb == "write_sync":
                is_writing.set()
            return await go_on()

        disk.faults += [tell, gate := Gate("write_sync")]
        await client.add(L, 0, [b"x"])
        await client.tell_lac(L, 0)
        await is_writing.wait()
        with pytest.raises(trio.TooSlowError):
            await client.receive(timeout_s=0.05)
        # The block of the first add is on its way. So the next add is in the block after it.
        await client.add(L, 1, [b"y"])
        gate.let_one_through()
        # The second frame needs no sync of its own, but still waits for the sync of the first.
        await client.acknowledged(2)
        with pytest.raises(trio.TooSlowError):
            await client.receive(timeout_s=0.05)
        gate.open()
        await client.acknowledged(3)


async def test_acknowledgements_are_cumulative_and_numbers_count_from_one_on_each_connection(
    machine: Machine,
) -> None:
    async with machine.bookie() as bookie:
        for _ in range(2):
            client = await bookie.client()
            for number in range(100):
                await client.add(L, 3 * number, [b"a", b"b", b"c"])
            await client.acknowledged(100)


async def test_an_add_without_entries_tells_the_lac_and_is_acknowledged(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await client.add(L, 0, [b"x"])
        await client.acknowledged(1)
        await client.tell_lac(L, 0)
        await client.acknowledged(2)
        reply = await client.ask(Kind.READ_LAC, ledger_id=L)
        assert (reply.header.status, reply.header.lac, reply.header.lafr) == (Status.OK, 0, -1)


async def test_a_refused_add_is_named_before_an_acknowledgement_passes_it(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await client.send(
            *add(L, 0, [b"x"]),
            *add(L, 1, [b"y"], key=b"w" * 16),
            *add(L, 1, [b"y"]),
        )
        outcomes = {}
        while 3 not in outcomes:
            header = (await client.receive()).header
            assert header.request not in outcomes
            outcomes[header.request] = (header.kind, header.status)
        assert outcomes[2] == (Kind.REFUSED, Status.UNAUTHORIZED)
        assert outcomes[3] == (Kind.ADD | REPLY, Status.OK)
        assert list(outcomes).index(2) < list(outcomes).index(3)


async def test_a_fenced_ledger_refuses_ordinary_adds_and_takes_those_of_recovery(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        writer, recoverer = await bookie.client(), await bookie.client()
        await writer.add(L, 0, [b"x"])
        await writer.acknowledged(1)
        reply = await recoverer.ask(Kind.FENCE, ledger_id=L, key=KEY)
        assert reply.header.status == Status.OK
        await writer.add(L, 1, [b"y"])
        assert await writer.refused(2) is Status.FENCED
        await recoverer.add(L, 1, [b"y"], recovery=True)
        await recoverer.acknowledged(1)


async def test_a_damaged_entry_is_refused_and_told_and_nothing_of_its_frame_is_stored(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        head, payload = add(L, 0, [b"one", b"two"])
        await client.send(head, bytes(payload[:-1]) + b"?")
        assert await client.refused(1) is Status.CORRUPT
        assert "ledger=7: entry 1 does not match its digest" in caplog.text
        assert "ledger=7: entries 0..1 are refused: CORRUPT" in caplog.text
        header, entries = await client.read(L, 0, 1)
        assert len(entries) == 0
        assert header.status == Status.NO_SUCH_LEDGER
        await client.add(L, 0, [b"one", b"two"])
        await client.acknowledged(2)


async def test_an_entry_that_exists_with_another_payload_is_a_conflict(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await client.add(L, 0, [b"x"])
        await client.acknowledged(1)
        await client.add(L, 0, [b"x"])
        await client.acknowledged(2)
        await client.add(L, 0, [b"y"])
        assert await client.refused(3) is Status.CONFLICT


async def test_sparse_ids_are_stored_as_they_are(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        entries = Entries.build(L, 0, [b"%d" % n for n in range(9)]).select([0, 3, 4, 8])
        assert entries.flags == SPARSE
        await client.send(*encode_add(entries, lac=-1, lafr=-1, key=KEY, recovery=False))
        await client.acknowledged(1)
        _, found = await client.read(L, 0, 8)
        assert list(found.ids) == [0, 3, 4, 8]
        _, found = await client.read(L, 0, 8, stride=4)
        assert list(found.ids) == [0, 4, 8]


async def test_a_read_only_bookie_refuses_ordinary_adds_and_takes_those_of_recovery(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        bookie.node.set_read_only(True)
        await client.add(L, 0, [b"x"])
        assert await client.refused(1) is Status.READ_ONLY
        await client.add(L, 0, [b"x"], recovery=True)
        await client.acknowledged(2)
        await client.tell_lac(L, 0)
        await client.acknowledged(3)
        observer = machine.tree.open_store()
        with trio.fail_after(PATIENCE_S):
            async with observer.watch("bookies") as watch:
                while await observer.children("bookies/read-only") != ["b1"]:
                    await watch.wait()
        assert await observer.children("bookies/writable") == []
        bookie.node.set_read_only(False)
        await client.add(L, 1, [b"y"])
        await client.acknowledged(4)


# --- requests -------------------------------------------------------------------------------------


async def filled(bookie: Bookie, count: int, size: int = 10) -> RawClient:
    """A client, and a ledger of ``count`` entries of which the last is not confirmed."""
    client = await bookie.client()
    await client.add(L, 0, [b"%0*d" % (size, n) for n in range(count)], lac=count - 2)
    await client.acknowledged(1)
    return client


async def test_a_read_ends_within_the_bytes_asked_for_and_says_how_far_it_is_complete(
    machine: Machine,
) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 100)
        header, entries = await client.read(L, 10, 90, bytes_max=55)
        assert list(entries.ids) == [10, 11, 12, 13, 14]
        assert header.argument == 14
        assert (header.lac, header.lafr) == (98, -1)
        header, entries = await client.read(L, 10, 90, stride=20)
        assert list(entries.ids) == [10, 30, 50, 70, 90]


async def test_a_read_of_what_is_not_there_is_an_answer(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        header, entries = await client.read(L, 5, 8)
        assert (header.status, header.argument, len(entries)) == (Status.OK, 8, 0)
        header, entries = await client.read(L + 1, 0, 8)
        assert (header.status, header.argument, len(entries)) == (Status.NO_SUCH_LEDGER, 8, 0)


async def test_a_recovery_read_fences_before_it_answers(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        writer, recoverer = await bookie.client(), await bookie.client()
        header, _ = await recoverer.read(L, 0, 0, recovery=True, wait_ms=60_000)
        assert header.argument == 0
        await writer.add(L, 0, [b"late"])
        assert await writer.refused(1) is Status.FENCED
        header, _ = await recoverer.read(L, 0, 0, recovery=True, key=b"w" * 16)
        assert header.status == Status.UNAUTHORIZED


async def test_a_fence_with_the_wrong_key_changes_nothing(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        reply = await client.ask(Kind.FENCE, ledger_id=L, key=b"w" * 16)
        assert reply.header.status == Status.UNAUTHORIZED
        await client.add(L, 3, [b"x"])
        await client.acknowledged(2)
        reply = await client.ask(Kind.FENCE, ledger_id=L, key=KEY)
        assert (reply.header.status, reply.header.lac) == (Status.OK, 1)


async def test_a_list_names_the_ranges_that_are_there(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        await client.add(L, 10, [b"x", b"y"])
        await client.acknowledged(2)
        reply = await client.ask(Kind.LIST, ledger_id=L)
        assert reply.header.status == Status.OK
        assert pairs(reply) == [(0, 2), (10, 11)]
        assert reply.header.argument >= 11


async def test_a_list_ends_where_it_is_asked_to_and_at_the_end_where_it_is_not_told(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        await client.add(L, 10, [b"x", b"y"])
        await client.acknowledged(2)
        for first, last, named in (
            (0, 1, [(0, 1)]),
            (1, 10, [(1, 2), (10, 10)]),
            (3, 9, []),
            (2, 0, [(2, 2), (10, 11)]),
        ):
            reply = await client.ask(Kind.LIST, ledger_id=L, first=first, last=last)
            assert reply.header.status == Status.OK
            assert pairs(reply) == named
            assert reply.header.argument == (last or limits.ENTRY_ID_MAX)
        reply = await client.ask(Kind.LIST, ledger_id=L + 1, first=4, last=9)
        assert (reply.header.status, reply.header.argument) == (Status.NO_SUCH_LEDGER, 9)
        for first, last in ((-1, 5), (6, 5)):
            reply = await client.ask(Kind.LIST, ledger_id=L, first=first, last=last)
            assert reply.header.status == Status.BAD_REQUEST


async def test_a_scrub_says_what_is_sound_and_what_its_digests_add_up_to(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        await client.add(L, 10, [b"x", b"y"])
        await client.acknowledged(2)
        reply = await client.ask(Kind.SCRUB, ledger_id=L, first=1, last=10, count=2, argument=100_000)
        assert (reply.header.status, reply.header.argument) == (Status.OK, 10)
        report = decode_scrub_untrusted(reply.body)
        assert (report.sound, report.unsound) == ([(1, 2), (10, 10)], [])
        assert [row[:3] for row in report.sums] == [(0, 0, 2), (0, 1, 1)]
        reply = await client.ask(Kind.SCRUB, ledger_id=L, first=1, last=10, count=2, argument=1)
        assert reply.header.argument == 9, "one run is all that so few bytes are good for"
        for fields in (
            {"first": -1, "last": 5, "count": 1, "argument": 1},
            {"first": 6, "last": 5, "count": 1, "argument": 1},
            {"first": 0, "last": 5, "count": 0, "argument": 1},
            {"first": 0, "last": 5, "count": limits.SCRUB_BLOCK_ENTRIES + 1, "argument": 1},
            {"first": 0, "last": 5, "count": 1, "argument": 0},
        ):
            reply = await client.ask(Kind.SCRUB, ledger_id=L, **fields)
            assert reply.header.status == Status.BAD_REQUEST, fields
        reply = await client.ask(Kind.SCRUB, ledger_id=L + 1, first=0, last=5, count=1, argument=1)
        assert reply.header.status == Status.NO_SUCH_LEDGER


async def test_what_is_damaged_on_the_disk_is_told_as_that_and_never_as_absent(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.disk = disk = MemoryDisk()
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
    for content in disk.files.values():
        place = content.find(b"0000000001", 4096)  # Not in ids of cookies and headers.
        if place >= 0:
            content[place] ^= 1
    async with machine.bookie() as bookie:
        client = await bookie.client()
        header, entries = await client.read(L, 0, 2)
        assert header.status == Status.CORRUPT
        assert header.argument < 1
        assert 1 not in entries.ids
        assert f"ledger=7: entries after entry {header.argument} cannot be read: CORRUPT" in caplog.text


async def test_an_index_that_cannot_be_read_is_an_error_and_not_an_absence(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def get_now(self: object, key: bytes) -> bytes | None:
        raise StorageError("the index failed")

    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryIndex, "get_now", get_now)
            for kind, fields in (
                (Kind.READ, {"count": 1, "argument": 100}),
                (Kind.READ, {"count": 1, "argument": 100, "wait_ms": 10}),
                (Kind.READ_LAC, {}),
                (Kind.READ_LAC, {"wait_ms": 10}),
                (Kind.FENCE, {"key": KEY}),
                (Kind.LIST, {}),
                (Kind.SCRUB, {"count": 1, "argument": 100}),
            ):
                reply = await client.ask(kind, ledger_id=L + 1, **fields)
                assert reply.header.status == Status.IO_ERROR, kind
            await client.add(L + 1, 0, [b"x"])
            assert await client.refused(2) is Status.IO_ERROR
        assert "ledger=8: the index failed" in caplog.text
        await client.add(L + 1, 0, [b"x"])
        await client.acknowledged(3)


async def test_a_request_that_fails_gives_the_bytes_of_its_reply_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scan(self: object, *args: object, **keywords: object) -> list[object]:
        raise StorageError("the index failed")

    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        key = bookie.node.info.listing_key
        with monkeypatch.context() as patch:
            patch.setattr(MemoryIndex, "scan", scan)
            for _ in range(2 * limits.BOOKIE_CONNECTION_REPLY_BYTES // (32 * requests.LEDGERS_MAX)):
                reply = await client.ask(Kind.LEDGERS, key=key)
                assert reply.header.status == Status.IO_ERROR
        assert (await client.ask(Kind.LEDGERS, key=key)).header.status == Status.OK


async def test_info_is_numbers_by_name(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        found = figures(await client.ask(Kind.INFO))
        assert found["connections_accepted"] == 1
        assert found["requests_under_way"] == 1
        assert all(type(value) is int for value in found.values())


@pytest.mark.parametrize(
    "fields",
    [
        {"first": 5, "last": 4, "count": 1, "argument": 100},
        {"first": -1, "last": 4, "count": 1, "argument": 100},
        {"first": 0, "last": 4, "count": 0, "argument": 100},
        {"first": 0, "last": 4, "count": 1, "argument": 0},
        {"first": 0, "last": 4, "count": 1, "argument": -5},
    ],
)
async def test_a_read_that_makes_no_sense_is_a_bad_request(machine: Machine, fields: dict[str, int]) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 10)
        reply = await client.ask(Kind.READ, ledger_id=L, **fields)
        assert reply.header.status == Status.BAD_REQUEST
        assert len((await client.read(L, 0, 4))[1]) == 5


@pytest.mark.parametrize(
    "message",
    [
        encode_head(Kind.READ, count=1, argument=9, index=b"body"),
        encode_head(Kind.INFO | REPLY),
        encode_head(Kind.ADD | REPLY, request=1),
        encode_head(Kind.REFUSED, request=1, status=Status.FENCED),
        b"\0" * HEADER_BYTES,
        b"GET / HTTP/1.1\r\n\r\n" + b"x" * 200,
    ],
)
async def test_what_is_no_request_ends_the_connection_with_one_line_in_the_log(
    machine: Machine, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        honest = await filled(bookie, 3)
        client = await bookie.client()
        await client.send(message)
        await client.ended()
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(lines) == 1
        assert lines[0].startswith("client=client:2: cut off: ")
        assert len((await honest.read(L, 0, 2))[1]) == 3


# --- long polls -----------------------------------------------------------------------------------


async def test_a_long_poll_is_answered_when_the_lac_arrives(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        writer, reader = await filled(bookie, 3), await bookie.client()  # LAC 1
        read = await reader.request(
            Kind.READ, ledger_id=L, first=2, last=9, count=1, argument=1000, wait_ms=4000
        )
        lac = await reader.request(Kind.READ_LAC, ledger_id=L, first=1, wait_ms=4000)
        await trio.sleep(1)
        begun = trio.current_time()
        await writer.tell_lac(L, 2)
        for number in (read, lac):
            header = (await reader.reply_to(number)).header
            assert (header.status, header.lac) == (Status.OK, 2)
        assert trio.current_time() == begun


async def test_a_long_poll_that_has_nothing_to_wait_for_answers_at_once(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        reader = await filled(bookie, 3)
        begun = trio.current_time()
        _, entries = await reader.read(L, 1, 1, wait_ms=4000)
        assert len(entries) == 1
        assert (await reader.ask(Kind.READ_LAC, ledger_id=L, first=0, wait_ms=4000)).header.lac == 1
        assert trio.current_time() == begun


@pytest.mark.parametrize(("wait_ms", "waits_s"), [(300, 0.3), (2**32 - 1, limits.LONG_POLL_S)])
async def test_a_long_poll_that_waits_in_vain_answers_with_what_there_is(
    machine: Machine, autojump_clock: trio.testing.MockClock, wait_ms: int, waits_s: float
) -> None:
    async with machine.bookie() as bookie:
        reader = await filled(bookie, 3)
        begun = trio.current_time()
        header = (await reader.ask(Kind.READ_LAC, ledger_id=L, first=1, wait_ms=wait_ms)).header
        assert header.lac == 1
        assert trio.current_time() - begun == pytest.approx(waits_s)
        header, entries = await reader.read(L, 2, 5, wait_ms=wait_ms)
        assert (header.status, header.lac, len(entries)) == (Status.OK, 1, 1)


async def test_a_request_that_waits_does_not_hold_up_adds_of_its_connection(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        poll = await client.request(Kind.READ_LAC, ledger_id=L, first=5, wait_ms=60_000)
        await client.add(L, 3, [b"x"])
        await client.acknowledged(2)
        await client.tell_lac(L, 6)
        await client.acknowledged(3)
        assert (await client.reply_to(poll)).header.lac == 6


async def test_long_polls_that_end_together_are_answered_in_turns(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    """The party uses up its turns. So other parties wait for one turn at most, no matter how many polls
    end."""
    async with machine.bookie() as bookie:
        client = await bookie.client()
        for _ in range(100):
            await client.request(Kind.READ_LAC, ledger_id=L, first=5, wait_ms=1000)
        await trio.testing.wait_all_tasks_blocked()
        fair, asked = bookie.node.server._shared.fair, 0
        take = fair.take

        def note(party: Party, cost: int) -> bool:
            nonlocal asked
            asked += cost
            return take(party, cost)

        fair.take = note
        for number in range(1, 101):
            await client.reply_to(number)
        assert asked >= 100 * limits.TURN_REQUEST_BYTES


async def test_a_long_poll_that_is_over_is_not_woken_again(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    """By its ledger if its time was up or its connection has ended; by the clock if the LAC has come."""
    async with machine.bookie() as bookie:
        client, other = await bookie.client(), await bookie.client()
        shared = bookie.node.server._shared
        await client.request(Kind.READ_LAC, ledger_id=L, first=0, wait_ms=100)
        await other.request(Kind.READ_LAC, ledger_id=L, first=0, wait_ms=10_000)
        await client.reply_to(1)
        other.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not shared.engine._lac_watch._waiters
        assert not len(shared.polls._ends)
        await client.request(Kind.READ_LAC, ledger_id=L, first=0, wait_ms=500)
        await client.add(L, 0, [b"a", b"b", b"c"])
        await client.tell_lac(L, 2)
        await client.acknowledged(2)
        await client.reply_to(2)
        assert not len(shared.polls._ends)
        await trio.sleep(1)
        await client.ask(Kind.INFO)


async def test_a_bookie_that_stops_answers_long_polls_at_once(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    """Also those that were in the line when it was told to stop."""
    async with machine.bookie() as bookie:
        client = await bookie.client()
        polls = [
            encode_head(Kind.READ_LAC, request=number, ledger_id=L, first=5, wait_ms=1000)
            for number in range(1, 101)
        ]
        client.stream.send_nowait(polls)
        server = bookie.node.server
        while not server.figures()["requests_under_way"]:
            await trio.lowlevel.checkpoint()
        asked = server.figures()["requests_under_way"]
        (connection,) = server._connections
        assert len(connection._requests._polls) < asked, "some are still in the line"
        began = trio.current_time()
        connection.drain()
        for number in range(1, asked + 1):
            await client.reply_to(number)
        assert trio.current_time() == began


async def test_a_client_that_proved_who_it_is_belongs_to_its_own_party(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        alice = Principal.parse("client/alice")
        for principal in (alice, alice, None):
            client = RawClient(await machine.network.connect(bookie.node.address, principal=principal))
            assert (await client.hello())[0] is Status.OK
        fair = bookie.node.server._shared.fair
        assert {key[0]: party.own.connections for key, party in fair._parties.items()} == {alice: 2, None: 1}
        assert fair._principals[alice].connections == 2


async def test_polls_of_a_connection_that_ends_are_forgotten(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        other = await bookie.client()
        for _ in range(10):
            await other.request(Kind.READ_LAC, ledger_id=L, first=5, wait_ms=60_000)
        while figures(await client.ask(Kind.INFO))["requests_under_way"] != 11:
            await trio.testing.wait_all_tasks_blocked()
        other.stream.close()
        while figures(await client.ask(Kind.INFO))["requests_under_way"] != 1:
            await trio.testing.wait_all_tasks_blocked()
        while bookie.node.server.connections != 1:  # Its requests end first.
            await trio.testing.wait_all_tasks_blocked()


# --- bounds ---------------------------------------------------------------------------------------


async def test_one_request_too_many_is_answered_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BOOKIE_CONNECTION_REQUESTS", 2)
    monkeypatch.setattr(limits, "BOOKIE_REQUESTS", 3)
    async with machine.bookie() as bookie:
        client, other = await filled(bookie, 3), await bookie.client()
        # What is so small has no quarter to be kept from long polls.
        polls = [await client.request(Kind.READ_LAC, ledger_id=L, first=5, wait_ms=60_000) for _ in range(2)]
        reply = await client.ask(Kind.READ, ledger_id=L, first=0, last=0, count=1, argument=100)
        assert reply.header.status == Status.TOO_MANY_REQUESTS
        assert reply.header.argument == -1, "a refusal says nothing of any entry"
        await other.request(Kind.READ_LAC, ledger_id=L, first=5, wait_ms=60_000)
        reply = await other.ask(Kind.INFO)
        assert reply.header.status == Status.TOO_MANY_REQUESTS
        await client.add(L, 3, [b"x"], lac=6)  # Adds are not counted.
        await client.acknowledged(2)
        for poll in polls:
            assert (await client.reply_to(poll)).header.lac == 6


async def test_one_connection_too_many_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "BOOKIE_CONNECTIONS_MAX", 2)
    async with machine.bookie() as bookie:
        first, second = await bookie.client(), await bookie.client()
        third = await bookie.connect()
        assert (await third.receive()).header.status == Status.TOO_MANY_REQUESTS
        await third.ended()
        assert "2 connections are open" in caplog.text
        first.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert await (await bookie.client()).ask(Kind.INFO)
        assert figures(await second.ask(Kind.INFO))["connections_refused"] == 1


async def test_many_clients_are_served_at_once(machine: Machine) -> None:
    async with machine.bookie() as bookie:

        async def write_and_read(number: int) -> None:
            client = await bookie.client()
            for entry in range(5):
                await client.add(number, entry, [b"%d" % number], lac=entry - 1)
            await client.acknowledged(5)
            _, entries = await client.read(number, 0, 9)
            assert entries.payloads() == [b"%d" % number] * 5

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(write_and_read, number)
        assert bookie.node.server.connections == 200


async def test_a_client_that_does_not_read_is_not_read_from(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(limits, "BOOKIE_CONNECTION_ANSWER_BYTES", 4_000)
    machine = Machine(network=LocalNetwork(buffer_bytes=2_000))
    async with machine.bookie() as bookie:
        client = await bookie.client()
        sent = 0
        with trio.move_on_after(5):
            while True:
                # Each is refused: the key is wrong, or the ledger has it from the first add.
                await client.stream.send_all(add(L, 0, [b"x"], key=sent.to_bytes(16, "big")))
                sent += 1
        # What is refused is 96 bytes each; one chunk of adds may pass the bound.
        assert sent < (4_000 + 2 * 2_000 + limits.BOOKIE_CONNECTION_BUFFER_BYTES_MIN) / 96
        await trio.sleep(limits.FRAME_PROGRESS_TIMEOUT_S)
        assert bookie.node.server.connections == 0  # And in the end it is cut off.


async def test_the_bookie_pauses_while_it_holds_too_much_that_is_not_durable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        monkeypatch.setattr(limits, "BOOKIE_INFLIGHT_BYTES", 1)
        for entry in range(3, 103):
            await client.add(L, entry, [b"x" * 1000])
        await client.acknowledged(101)
        _, entries = await client.read(L, 3, 102)
        assert len(entries) == 100


async def test_a_frame_that_is_not_completed_in_time_ends_the_connection(
    machine: Machine, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        await trio.sleep(3600)  # Between frames a connection may be quiet.
        data = b"".join(bytes(buffer) for buffer in add(L, 0, [b"x" * 100]))
        begun = trio.current_time()
        await client.send(data[:3])
        for position in range(3, 100):
            await trio.sleep(1)
            try:
                await client.send(data[position : position + 1])
            except ConnectionLost:
                break
        assert trio.current_time() - begun == pytest.approx(limits.FRAME_PROGRESS_TIMEOUT_S, abs=1)
        assert f"a message of {len(data)} bytes was not complete 10 s after its beginning" in caplog.text


async def test_each_frame_has_its_own_time(machine: Machine, autojump_clock: trio.testing.MockClock) -> None:
    async with machine.bookie() as bookie:
        client = await bookie.client()
        stream = b"".join(bytes(b) for n in range(10) for b in add(L, n, [b"x" * 100]))
        half = len(stream) // 20
        for position in range(0, len(stream), half):
            await client.send(stream[position : position + half])
            await trio.sleep(limits.FRAME_PROGRESS_TIMEOUT_S * 0.6)
        await client.acknowledged(10)


async def test_large_frames_take_turns(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BOOKIE_LARGE_FRAMES", 1)
    async with machine.bookie() as bookie:
        done: list[int] = []
        data = b"".join(bytes(b) for b in add(1, 0, [b"x" * 1_000_000]))
        holder = await bookie.client()
        await holder.send(data[:-1])

        async def write(number: int) -> None:
            client = await bookie.client()
            await client.add(number, 0, [b"y" * 2_000_000])
            await client.acknowledged(1)
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(2, 6):
                nursery.start_soon(write, number)
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
            await holder.send(data[-1:])
            await holder.acknowledged(1)
        assert sorted(done) == [2, 3, 4, 5]


async def test_a_reply_that_is_sent_at_once_takes_up_no_room_any_more(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3, size=1_000)
        await client.read(L, 0, 2)
        assert figures(await client.ask(Kind.INFO))["reply_bytes"] == 0


async def test_replies_of_all_connections_together_are_bounded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    machine.network = LocalNetwork(buffer_bytes=1_000)
    monkeypatch.setattr(limits, "BOOKIE_REPLY_BYTES", 3 * limits.MIB)
    async with machine.bookie() as bookie:
        writer = await bookie.client()
        for entry in range(16):
            await writer.add(L, entry, [b"x" * 250_000])
        await writer.acknowledged(16)
        readers = [await bookie.client() for _ in range(20)]
        numbers = [
            await reader.request(Kind.READ, ledger_id=L, first=0, last=15, count=1, argument=limits.MIB)
            for reader in readers
        ]
        await trio.testing.wait_all_tasks_blocked()
        found = figures(await writer.ask(Kind.INFO))
        assert found["requests_under_way"] > 15
        assert found["reply_bytes"] <= 3 * limits.MIB
        async with trio.open_nursery() as nursery:
            for reader, number in zip(readers, numbers, strict=True):
                nursery.start_soon(reader.reply_to, number)  # In the end all are served.
        assert figures(await writer.ask(Kind.INFO))["reply_bytes"] == 0


# --- ends -----------------------------------------------------------------------------------------


async def test_a_bookie_that_stops_answers_what_was_begun(machine: Machine) -> None:
    async with machine.bookie() as bookie:
        client = await filled(bookie, 3)
        poll = await client.request(Kind.READ_LAC, ledger_id=L, first=5, wait_ms=60_000)
        await client.add(L, 3, [b"x"])
        await client.acknowledged(2)
        await client.add(L, 4, [b"y"])
        await trio.testing.wait_all_tasks_blocked()
        address, network = bookie.node.address, bookie.network
    assert {(h.kind, h.request) for h in [(await client.receive()).header for _ in range(2)]} == {
        (Kind.ADD | REPLY, 3),
        (Kind.READ_LAC | REPLY, poll),
    }
    await client.ended()
    with pytest.raises(ConnectionLost):
        await network.connect(address)
    assert await machine.tree.open_store().children("bookies/writable") == []
    async with machine.bookie() as bookie:
        _, entries = await (await bookie.client()).read(L, 0, 9)
        assert len(entries) == 5


async def test_a_bookie_that_stops_waits_only_until_what_it_took_is_durable(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    disk = FaultyDisk()
    machine = Machine(disk=disk)
    async with machine.bookie() as bookie:
        client = await bookie.client()
        disk.faults.append(gate := Gate("write_sync"))
        await client.add(L, 0, [b"x"])
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()

        async def sync() -> None:
            await trio.sleep(limits.BOOKIE_DRAIN_S / 2)
            gate.open()

        nursery.start_soon(sync)
    assert trio.current_time() - begun == pytest.approx(limits.BOOKIE_DRAIN_S / 2)
    await client.acknowledged(1)


async def test_a_client_that_cannot_be_finished_does_not_hold_up_the_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(network=LocalNetwork(buffer_bytes=1_000))
    async with machine.bookie() as bookie:
        client = await filled(bookie, 100, size=1_000)
        await client.request(Kind.READ, ledger_id=L, first=0, last=99, count=1, argument=100_000)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
    assert trio.current_time() - begun == pytest.approx(limits.BOOKIE_DRAIN_S)
    assert "connections dropped that did not finish within 5 s: clients=1" in caplog.text


async def test_a_bookie_that_is_cancelled_stops_at_once_and_is_not_registered_any_more(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.CancelScope() as scope:
        async with machine.bookie() as bookie:
            client = await filled(bookie, 3)
            begun = trio.current_time()
            scope.cancel()
            await trio.sleep_forever()
    assert trio.current_time() == begun
    with pytest.raises((EOFError, ConnectionLost)):
        await client.receive()
    assert await machine.tree.open_store().children("bookies/writable") == []


async def test_nothing_of_a_bookie_that_has_ended_stays_in_its_process(machine: Machine) -> None:
    """A process serves again with the same prover if it makes the index again. Each engine has large
    buffers."""
    machine.prover = Prover()
    async with machine.bookie() as bookie:
        await filled(bookie, 3)
        ended = weakref.ref(bookie.node.server), weakref.ref(bookie.node.engine)
    del bookie
    gc.collect()
    assert [found() for found in ended] == [None, None]


async def test_the_error_of_a_body_is_raised_as_it_is(machine: Machine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with machine.bookie():
            raise ZeroDivisionError


async def test_a_bug_in_serving_one_client_ends_that_client_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        honest, unlucky = await filled(bookie, 3), await bookie.client()
        with monkeypatch.context() as patch:
            patch.setattr(type(bookie.node.engine), "statistics", lambda self: 1 / 0)
            await unlucky.request(Kind.INFO)
            await unlucky.ended()
        (failure,) = (record.exc_info for record in caplog.records if record.exc_info)
        assert "ZeroDivisionError" in "".join(traceback.format_exception(*failure))
        assert len((await honest.read(L, 0, 2))[1]) == 3


async def test_a_broken_invariant_ends_the_bookie(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def statistics(self: object) -> dict[str, int]:
        raise AssertionError("what other clients rely on is not true any more")

    async def ask_and_wait() -> None:
        async with machine.bookie() as bookie:
            client = await filled(bookie, 3)
            monkeypatch.setattr(type(bookie.node.engine), "statistics", statistics)
            await client.request(Kind.INFO)
            await trio.sleep(5)

    with pytest.raises(AssertionError, match="rely on"):
        await ask_and_wait()


async def test_a_failed_sync_ends_the_bookie_and_acknowledges_nothing(machine: Machine) -> None:
    machine.disk = disk = FaultyDisk()
    clients = []

    async def write_and_wait() -> None:
        async with machine.bookie() as bookie:
            clients.append(await filled(bookie, 3))
            disk.faults.append(Fails("write_sync", error=StorageError("the disk failed")))
            await clients[0].add(L, 3, [b"x"])
            await trio.sleep(5)

    with pytest.raises(StorageError, match="the disk failed"):
        await write_and_wait()
    with pytest.raises((EOFError, ConnectionLost)):
        await clients[0].receive()
    assert await machine.tree.open_store().children("bookies/writable") == []


async def test_a_bookie_waits_until_the_registration_of_its_earlier_life_has_ended(
    machine: Machine, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie() as bookie:
        value = bookie.node.info.encode()
    earlier = machine.tree.open_store()
    await earlier.create("bookies/writable/b1", value, ephemeral=True)

    async def end_earlier() -> None:
        await trio.sleep(limits.SESSION_TIMEOUT_S)
        earlier.expire_session()

    nursery.start_soon(end_earlier)
    async with machine.bookie():
        assert trio.current_time() >= limits.SESSION_TIMEOUT_S
        assert await machine.tree.open_store().children("bookies/writable") == ["b1"]


async def test_a_bookie_on_a_copy_of_the_directory_of_one_that_serves_serves_nobody(
    machine: Machine, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine.bookie():
        pass
    copy = attrs.evolve(
        machine, disk=deepcopy(machine.disk), indexes=deepcopy(machine.indexes), listen="copy"
    )
    async with machine.bookie() as bookie:
        answered = False

        async def try_the_copy() -> None:
            nonlocal answered
            while True:
                try:
                    await RawClient(await machine.network.connect("copy")).hello()
                    answered = True
                except (ConnectionLost, WireError, EOFError, trio.TooSlowError):
                    await trio.sleep(1)

        async with trio.open_nursery() as trying:
            trying.start_soon(try_the_copy)
            with pytest.raises(CookieMismatch, match="registered at bookie by another process"):
                async with copy.bookie():
                    raise AssertionError("it serves")
            trying.cancel_scope.cancel()
        assert not answered
        await bookie.client()
        assert await machine.tree.open_store().children("bookies/writable") == ["b1"]


def everything_in(tree: MemoryTree) -> dict[str, bytes]:
    return {path: node.value for path, node in tree._nodes.items()}


@pytest.mark.parametrize("served_before", [False, True])
async def test_a_bookie_whose_address_is_taken_leaves_nothing_behind(
    machine: Machine, served_before: bool
) -> None:
    if served_before:
        async with machine.bookie():
            pass
    metadata, files = everything_in(machine.tree), set(machine.disk.files)
    other = await machine.network.listen(machine.listen)
    with pytest.raises(ConnectionLost, match="the address is taken"):
        async with machine.bookie():
            raise AssertionError("it serves")
    assert everything_in(machine.tree) == metadata
    assert set(machine.disk.files) == files
    other.close()
    async with machine.bookie() as bookie:
        assert (await (await bookie.client()).ask(Kind.INFO)).header.status == Status.OK


async def test_a_bookie_that_fails_to_start_listens_no_more(machine: Machine) -> None:
    async with machine.bookie():
        pass
    with pytest.raises(CookieMismatch):
        async with machine.bookie("b2"):
            raise AssertionError("it serves")
    (await machine.network.listen(machine.listen)).close()


async def test_who_connects_while_a_bookie_starts_is_turned_away_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client must not wait until its deadline, because other bookies could serve it meanwhile."""
    turned_away = 0

    async def settle_slowly(*arguments: Any) -> Any:
        nonlocal turned_away
        client = RawClient(await machine.network.connect(machine.listen))
        with pytest.raises((EOFError, ConnectionLost)):
            await client.hello()
        turned_away += 1
        return await settle_marks(*arguments)

    monkeypatch.setattr("bookie.server.node.settle_marks", settle_slowly)
    async with machine.bookie() as bookie:
        assert turned_away == 1
        await bookie.client()


async def test_labels_and_address_are_registered(machine: Machine) -> None:
    machine.labels = {"rack": "r1"}
    async with machine.bookie() as bookie:
        assert bookie.node.info.labels == {"rack": "r1"}
        node = await machine.tree.open_store().get("bookies/writable/b1")
        assert node is not None
        assert node.value == bookie.node.info.encode()


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
