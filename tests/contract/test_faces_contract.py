"""What every face of the library does: trio, asyncio (a thread, a guest, uvloop), and blocking calls.

Each test is one async function that each face runs in its own way; see ``tests.contract.faces``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import pytest

import ledgerlog
from ledgerlog.errors import (
    CommandFailed,
    ConnectionClosed,
    CursorConflict,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    LogExists,
    LogNotFound,
    LogSealed,
    LostLeadership,
    NotLeader,
    OffsetMismatch,
    OutOfSequence,
    PropertiesConflict,
    RecordTooLarge,
    ReplicaStopped,
    Truncated,
    TruncationPinned,
)
from ledgerlog.limits import RECORD_ATTRIBUTES_BYTES_MAX, RECORD_BYTES_MAX
from tests.contract.faces import ELECTING, EVERY, Face

Test = Callable[[Face, Any], Awaitable[None]]


def on(faces: tuple[Face, ...]) -> Callable[[Test], Callable[[Face], None]]:
    """Run a test by each of these faces, connected to a new cluster of one bookie in memory."""

    def decorate(test: Test) -> Callable[[Face], None]:
        @pytest.mark.parametrize("face", faces, ids=lambda face: face.name)
        @wraps(test)
        def run(face: Face) -> None:
            async def main() -> None:
                async with face.connect("memory:?bookies=1") as cluster:
                    await test(face, cluster)

            face.run(main)

        del run.__wrapped__  # pytest would see the parameters of the inner test.
        return run

    return decorate


@pytest.mark.parametrize("face", EVERY, ids=lambda face: face.name)
def test_a_connection_that_was_left_gives_no_metrics(face: Face) -> None:
    async def main() -> None:
        async with face.connect("memory:?bookies=1") as cluster:
            connected = [each for each in cluster.metrics() if each.name == "ledgerlog_metadata_connected"]
            assert [each.value for each in connected] == [1]
        with pytest.raises(ConnectionClosed):
            cluster.metrics()

    face.run(main)


async def data_of(log: Any, start: Any = "earliest", **options: Any) -> list[bytes]:
    async with log.read(start, **options) as records:
        return [record.data async for record in records]


# --- logs -----------------------------------------------------------------------------------------


@on(EVERY)
async def test_logs_are_made_once_opened_listed_and_deleted(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("a/one", properties={"team": "x"})
    assert log.name == "a/one"
    with pytest.raises(LogExists):
        await cluster.create_log("a/one")
    again = await cluster.create_log("a/one", exist_ok=True)
    assert again.incarnation == log.incarnation
    await cluster.create_log("b")
    assert await cluster.logs() == ["a/one", "b"]
    assert await cluster.logs("a/") == ["a/one"]
    assert await (await cluster.open_log("a/one")).properties() == {"team": "x"}
    await cluster.delete_log("a/one")
    with pytest.raises(LogNotFound):
        await log.info()
    with pytest.raises(LogNotFound):
        await cluster.open_log("a/one")
    with pytest.raises(InvalidArgument):
        await cluster.create_log("..")


@on(EVERY)
async def test_records_have_dense_offsets_in_every_way_of_appending(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        ack = await writer.append(b"a")
        assert (ack.offset, ack.epoch, ack.duplicate) == (0, 1, False)
        assert [ack.offset for ack in await writer.append_many([b"b", b"c"])] == [1, 2]
        atomic = await writer.append_many([b"d", b"e"], atomic=True)
        assert atomic[0].position.entry_id == atomic[1].position.entry_id
        submission = await writer.submit(b"f")
        await writer.flush()
        assert (await submission.wait()).offset == 5
        assert (await writer.append(bytearray(b"g"))).offset == 6
        assert await writer.append_many([]) == []
        assert (writer.next_offset, writer.epoch, writer.failure) == (7, 1, None)
        assert writer.statistics().records_appended == 7
        await writer.roll()
        assert (await writer.append(b"h")).offset == 7
    assert await data_of(log) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    info = await log.info()
    assert (info.next_offset, info.epoch, len(info.segments)) == (8, 1, 2)


@on(EVERY)
async def test_keys_and_headers_are_read_as_they_were_appended(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    many = [("a", b"1"), ("a", b"2")]
    async with log.writer(dedupe=True) as writer:
        await writer.append(b"both", key=b"k", headers={"h": b"v"})
        await writer.append(b"neither")
        submission = await writer.submit(b"submitted", key=b"")
        await submission.wait()
        await writer.append_many(
            [b"one", b"two", b"three"], keys=[None, b"k", None], headers=[many, None, {}]
        )
        await writer.append_many([b"x", b"y"], atomic=True, keys=[b"1", b"2"])
        for _ in range(2):
            await writer.append(b"once", key=b"n", producer="p", sequence=0)
        wrong: list[dict[str, Any]] = [
            {"key": "text"},
            {"headers": {"h": "text"}},
            {"headers": [("h",)]},
            {"key": bytes(RECORD_ATTRIBUTES_BYTES_MAX + 1)},
        ]
        for arguments in wrong:
            with pytest.raises(InvalidArgument):
                await writer.append(b"refused", **arguments)
        with pytest.raises(InvalidArgument):
            await writer.append_many([b"refused"], keys=[])
        with pytest.raises(RecordTooLarge):
            await writer.append(bytes(RECORD_BYTES_MAX), key=b"k")
    async with log.read() as reader:
        found = [(record.data, record.key, record.headers) async for record in reader]
    assert found == [
        (b"both", b"k", (("h", b"v"),)),
        (b"neither", None, ()),
        (b"submitted", b"", ()),
        (b"one", None, tuple(many)),
        (b"two", b"k", ()),
        (b"three", None, ()),
        (b"x", b"1", ()),
        (b"y", b"2", ()),
        (b"once", b"n", ()),
    ]


@on(EVERY)
async def test_what_is_wrong_with_one_append_leaves_the_writer_usable(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        with pytest.raises(RecordTooLarge) as caught:
            await writer.append(bytes(RECORD_BYTES_MAX + 1))
        assert caught.value.limit == RECORD_BYTES_MAX
        with pytest.raises(OffsetMismatch) as mismatch:
            await writer.append(b"x", expected_offset=7)
        assert mismatch.value.actual == 0
        with pytest.raises(InvalidArgument):
            await writer.append("text")
        with pytest.raises(InvalidArgument):
            await writer.append_many([b"x", "text"])
        with pytest.raises(InvalidArgument):
            await writer.append(b"x", sequence=0)
        assert (await writer.append(b"good", expected_offset=0)).offset == 0


@on(EVERY)
async def test_a_numbered_record_is_in_the_log_once_whoever_leads(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer(producer="shop") as writer:
        assert not (await writer.append(b"a", sequence=0)).duplicate
        assert (await writer.append(b"a", sequence=0)).duplicate
        acks = await writer.append_many([b"a", b"b"], sequence=0)
        assert [(ack.offset, ack.duplicate) for ack in acks] == [(0, True), (1, False)]
        with pytest.raises(OutOfSequence):
            await writer.append(b"z", sequence=9)
    async with log.writer() as writer:
        ack = await writer.append(b"b", sequence=1, producer="shop")
        assert (ack.offset, ack.duplicate, ack.epoch) == (1, True, 2)
    assert await data_of(log) == [b"a", b"b"]


@on(EVERY)
async def test_the_next_writer_deposes_the_one_before(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as first:
        await first.append(b"a")
        async with log.writer() as second:
            assert (await second.append(b"b")).epoch == 2

            async def until_refused() -> None:
                while True:
                    await first.append(b"never")

            with pytest.raises((LostLeadership, ledgerlog.AppendUnknown)):
                await until_refused()
            with pytest.raises(LostLeadership):
                await first.append(b"never")
            assert isinstance(first.failure, LostLeadership)
            await second.append(b"c")
    assert await data_of(log) == [b"a", b"b", b"c"]


@on(EVERY)
async def test_an_error_of_the_body_comes_out_as_it_is_and_records_stay(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    error = ValueError("of the body")

    async def fail() -> None:
        async with log.writer() as writer:
            await writer.append(b"kept")
            raise error

    with pytest.raises(ValueError, match="of the body") as caught:
        await fail()
    assert caught.value is error
    assert await data_of(log) == [b"kept"]


@on(EVERY)
async def test_appends_of_many_tasks_are_each_acknowledged_at_their_own_offset(
    face: Face, cluster: Any
) -> None:
    log = await cluster.create_log("log")
    async with log.writer(window=4) as writer:

        async def work(name: int) -> list[tuple[int, bytes]]:
            done = []
            for number in range(10):
                data = b"%d %d" % (name, number)
                done.append(((await writer.append(data)).offset, data))
            return done

        done = await face.together(*(lambda name=name: work(name) for name in range(8)))
    acknowledged = sorted(pair for pairs in done for pair in pairs)
    assert [offset for offset, _ in acknowledged] == list(range(80))
    assert await data_of(log) == [data for _, data in acknowledged]
    for pairs in done:
        assert pairs == sorted(pairs), "each task's records are in its order"


@on(EVERY)
async def test_a_log_is_read_from_every_kind_of_start(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    before = datetime.now(UTC) - timedelta(hours=1)
    async with log.writer() as writer:
        acks = await writer.append_many([b"%d" % number for number in range(10)])
        assert await data_of(log, 8) == [b"8", b"9"]
        assert await data_of(log, acks[7].position, until=9) == [b"7", b"8"]
        assert await data_of(log, before, until=1) == [b"0"]
        assert await data_of(log, "latest") == []
        assert await data_of(log, 10) == []
        async with log.read(3) as records:
            first = await anext(records)
            assert (first.offset, first.data, first.epoch) == (3, b"3", 1)
            assert first.position == acks[3].position
            assert records.next_offset == 4
            found = [record.data async for batch in records.batches() for record in batch]
            assert found == [b"%d" % number for number in range(4, 10)]
        with pytest.raises(InvalidArgument):
            log.read(-1)
        with pytest.raises(InvalidArgument):
            log.read("nowhere")


@on(EVERY)
async def test_who_follows_sees_what_comes_and_the_end_of_a_sealed_log(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")

    async def read() -> list[bytes]:
        return await data_of(log, follow=True)

    async def write() -> None:
        async with log.writer() as writer:
            for number in range(5):
                await writer.append(b"%d" % number)
        await log.seal()

    found, _ = await face.together(read, write)
    assert found == [b"%d" % number for number in range(5)]
    assert (await log.info()).sealed
    with pytest.raises(LogSealed):
        async with log.writer():
            pass


@on(EVERY)
async def test_a_reader_refuses_a_second_caller_and_harms_nothing_of_the_first(
    face: Face, cluster: Any
) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer, log.read(follow=True) as records:
        batches = records.batches()

        async def read_record() -> bytes:
            return bytes((await anext(records)).data)

        async def read_batch() -> bytes:
            (record,) = await anext(batches)
            return bytes(record.data)

        async def call(read: Callable[[], Awaitable[bytes]]) -> bytes | str:
            try:
                return await read()
            except InvalidArgument as refusal:
                await writer.append(b"a")  # The other call waits for it.
                return str(refusal)

        for read, other in (
            (read_record, read_record),
            (read_batch, read_batch),
            (read_record, read_batch),
        ):
            found = await face.together(lambda read=read: call(read), lambda other=other: call(other))
            refusal, data = sorted(found, key=lambda each: isinstance(each, bytes))
            assert data == b"a"
            assert refusal.startswith("another call on this reader is under way")
        assert records.next_offset == 3


@on(EVERY)
async def test_a_reader_that_was_left_gives_nothing_of_what_it_had_fetched(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        for first in (0, 3):
            await writer.append_many([b"%d" % number for number in range(first, first + 3)], atomic=True)
    async with log.read() as begun:
        assert (await anext(begun)).data == b"0"
    async with log.read() as ended:
        assert len([record async for record in ended]) == 6
    for records, next_offset in ((begun, 1), (ended, 6)):
        for _ in range(2):
            with pytest.raises(ConnectionClosed):
                await anext(records)
            with pytest.raises(ConnectionClosed):
                await anext(records.batches())
        assert records.next_offset == next_offset


@on(EVERY)
async def test_what_is_truncated_is_refused_with_the_offset_to_go_on_at(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        await writer.append_many([b"%d" % number for number in range(10)])
        await writer.truncate(4)
    with pytest.raises(Truncated) as caught:
        async with log.read(0):
            pass
    assert caught.value.first_offset == 4
    await log.truncate(6)
    assert await data_of(log) == [b"6", b"7", b"8", b"9"]
    with pytest.raises(InvalidArgument):
        await log.truncate(11)


@on(EVERY)
async def test_properties_are_changed_against_what_others_change(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log", properties={"a": "1"})
    with pytest.raises(PropertiesConflict):
        await log.set_properties({"b": "2"}, expected={"a": "7"})
    await log.set_properties({"b": "2"}, expected={"a": "1"})
    assert await log.update_properties({"b": None, "c": "3"}) == {"c": "3"}
    assert await log.properties() == {"c": "3"}
    await log.configure(roll=ledgerlog.RollPolicy(max_records=10))
    assert (await log.info()).roll.max_records == 10


@on(EVERY)
async def test_a_cursor_moves_once_and_pins(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        await writer.append_many([b"x"] * 10)
    cursor = log.cursor("consumer")
    assert await cursor.get() is None
    await cursor.set(3, pins=True)
    state = await cursor.get()
    assert state.offset == 3
    moved = await cursor.move(5, expected=state)
    assert moved.offset == 5
    with pytest.raises(CursorConflict):
        await cursor.move(6, expected=state)
    assert [each.name for each in await log.cursors()] == ["consumer"]
    with pytest.raises(TruncationPinned) as caught:
        await log.truncate(7)
    assert caught.value.offset == 5
    await log.truncate(7, ignore_pins=True)
    await cursor.delete()
    assert await cursor.get() is None


# --- ledgers --------------------------------------------------------------------------------------


@on(EVERY)
async def test_a_ledger_is_written_closed_read_and_deleted(face: Face, cluster: Any) -> None:
    ledgers = cluster.ledgers
    async with await ledgers.create(metadata={"kind": b"test"}) as writer:
        assert await writer.append(b"a") == 0
        assert list(await writer.append_many([b"b", b"c"])) == [1, 2]
        assert writer.last_add_confirmed == 2
        assert await writer.close() == 2
        with pytest.raises(LedgerClosed):
            await writer.append(b"late")
    reader = await ledgers.open(writer.ledger_id)
    assert await reader.last_add_confirmed() == 2
    assert await reader.read(1, 2) == [b"b", b"c"]
    assert [payload async for _, payload in reader.follow()] == [b"a", b"b", b"c"]
    assert writer.ledger_id in await ledgers.list()
    metadata = await ledgers.metadata(writer.ledger_id)
    assert (metadata.state, metadata.custom) == (ledgerlog.LedgerState.CLOSED, {"kind": b"test"})
    await ledgers.delete(writer.ledger_id)
    with pytest.raises(LedgerNotFound):
        await ledgers.open(writer.ledger_id)


@on(EVERY)
async def test_recovering_a_ledger_fences_its_writer(face: Face, cluster: Any) -> None:
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(await cluster.ledgers.create())
        await writer.append(b"a")
        reader = await cluster.ledgers.open(writer.ledger_id, recover=True)
        assert await reader.last_add_confirmed() == 0
        with pytest.raises((LedgerFenced, LedgerClosed)):
            await writer.append(b"b")
        with pytest.raises((LedgerFenced, LedgerClosed)):
            await stack.aclose()
    assert (await cluster.ledgers.recover(writer.ledger_id)).last_entry == 0


# --- leading --------------------------------------------------------------------------------------


@on(EVERY)
async def test_a_campaign_leads_names_the_leader_and_hands_over(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")
    first_election, second_election = (cluster.election("log", candidate=name) for name in ("1st", "2nd"))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(log.lead(first_election, dedupe=True))
        assert (await (await first.writer()).append(b"a")).epoch == 1
        assert first.is_leading
        second = await stack.enter_async_context(log.lead(second_election))
        with pytest.raises(NotLeader) as caught:
            await second.append(b"never")
        assert caught.value.leader == await second.leader() == await first.leader() == "1st"
        assert (await first_election.leader()).candidate == "1st"
        ack = await first.append(b"b", sequence=0, producer="shop")
        assert ack.offset == 1
        again = await first.append_many([b"b", b"c"], sequence=0, producer="shop")
        assert [(ack.offset, ack.duplicate) for ack in again] == [(1, True), (2, False)]
        with pytest.raises(OffsetMismatch):
            await first.append(b"x", expected_offset=0)
        await log.seal()
        with pytest.raises((LogSealed, LostLeadership)):
            await (await first.writer()).append(b"late")

        async def until_it_gives_up() -> None:
            while True:
                await first.writer()

        with pytest.raises(LogSealed):
            await until_it_gives_up()
        assert isinstance(first.failure, LogSealed)
    with pytest.raises(ConnectionClosed):
        await first.append(b"late")
    assert await data_of(log) == [b"a", b"b", b"c"]


@on(ELECTING)
async def test_one_leads_at_a_time_and_terms_grow(face: Face, cluster: Any) -> None:
    leading: list[str] = []
    terms: list[int] = []

    async def candidate(name: str) -> None:
        async with cluster.election("jobs", candidate=name).leadership() as term:
            assert leading == []
            leading.append(name)
            terms.append(int(term))
            leader = await cluster.election("jobs").leader()
            assert (leader.candidate, leader.term) == (name, term.number)
            assert not term.is_over
            leading.remove(name)
        assert term.is_over
        assert term.why is None
        await term.wait_over()

    await face.together(*(lambda name=name: candidate(name) for name in ("a", "b", "c")))
    assert terms == [1, 2, 3]
    assert await cluster.election("jobs").leader() is None


@on(ELECTING)
async def test_an_error_of_the_body_gives_the_lead_up_and_comes_out(face: Face, cluster: Any) -> None:
    election = cluster.election("jobs")

    async def fail() -> None:
        async with election.leadership():
            raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body"):
        await fail()
    async with election.leadership() as term:
        assert term.number == 2
        with pytest.raises(InvalidArgument, match="is standing for election already"):
            async with election.leadership():
                pass


# --- state machines -------------------------------------------------------------------------------


class Counter(ledgerlog.StateMachine):
    def __init__(self) -> None:
        self.total = 0

    def apply(self, command: ledgerlog.Command) -> bytes:
        self.total += int(command.data)
        return b"%d" % self.total

    def snapshot(self) -> Iterable[bytes]:
        yield b"%d" % self.total

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.total = int(b"".join(chunks))


@on(ELECTING)
async def test_replicas_follow_lead_and_hand_over(face: Face, cluster: Any) -> None:
    log = await cluster.create_log("log")

    def replica(name: str) -> Any:
        return face.api.Replica(
            log,
            Counter(),
            election=cluster.election("log", candidate=name),
            snapshots=face.api.LedgerSnapshots(cluster),
            truncate=True,
        )

    first = replica("1st")
    async with first:
        events = first.events()
        await first.wait_leading()
        assert first.is_leading
        assert await first.propose(b"5") == b"5"
        request = first.new_request_id()
        assert await first.propose(b"2", request_id=request) == b"7"
        assert await first.propose(b"2", request_id=request) == b"7"
        with pytest.raises(CommandFailed):
            await first.propose(b"many")
        with pytest.raises(InvalidArgument):
            await first.propose("text")
        assert await first.read(lambda machine: machine.total, consistency="linear") == 7
        assert (await first.snapshot()).next_offset == first.next_offset
        assert first.statistics().snapshots == 1
        # The first event may be that it leads, or one after it: events count from their call on.
        while (await anext(events)).kind is not ledgerlog.EventKind.SNAPSHOT:
            pass
    assert [event.kind async for event in events] != [], "they end with the replica"
    with pytest.raises(ReplicaStopped):
        await first.propose(b"1")
    with pytest.raises(InvalidArgument, match="entered once"):
        await first.__aenter__()
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(replica("2nd"))
        assert second.statistics().restores == 1
        await second.wait_leading()
        third = await stack.enter_async_context(replica("3rd"))
        with pytest.raises(NotLeader) as caught:
            await third.propose(b"1")
        assert caught.value.leader == await third.leader() == "2nd"
        with pytest.raises(NotLeader):
            await third.read(lambda machine: machine.total, consistency="linear")
        assert await second.propose(b"3") == b"10"
        await third.wait_applied(second.next_offset - 1)
        assert await third.read(lambda machine: machine.total) == 10
        assert (second.failure, third.failure) == (None, None)
