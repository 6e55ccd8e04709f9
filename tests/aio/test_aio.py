"""``ledgerlog.aio``: the library in an asyncio program, with trio in a thread and as a guest."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.lowlevel

import ledgerlog
from ledgerlog import aio
from ledgerlog.aio.base import LeadershipEntered
from ledgerlog.aio.bridge import Bridge, Mailbox
from ledgerlog.aio.replicas import _Events
from ledgerlog.crossing.fetching import Fetched
from ledgerlog.errors import (
    ConnectionClosed,
    InvalidArgument,
    LogNotFound,
    LostLeadership,
    OffsetMismatch,
    RecordsLost,
    RecordTooLarge,
)
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.log.lane import AppendLane, OutsideAppend
from ledgerlog.machine.events import EventKind, ReplicaEvent
from ledgerlog.model.record import Ack
from tests.forking_programs import run_forking
from tests.waiting import PATIENCE_S

T = TypeVar("T")

BOTH_HOSTS = pytest.mark.parametrize("guest", [False, True], ids=["thread", "guest"])


def run(main: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    return asyncio.run(bounded())


async def until_refused(writer: aio.LogWriter) -> None:
    while True:
        await writer.append(b"deposed")


@BOTH_HOSTS
def test_a_program_writes_and_reads_a_log(guest: bool) -> None:
    async def main() -> None:
        async with aio.connect("memory:", guest=guest) as cluster:
            log = await cluster.create_log("orders", exist_ok=True)
            async with log.writer() as writer:
                assert (await writer.append(b"first")).offset == 0
                acks = await writer.append_many([b"a", b"b"])
                assert [ack.offset for ack in acks] == [1, 2]
                submission = await writer.submit(b"c")
                assert (await submission.wait()).offset == 3
                assert writer.statistics().records_appended == 4
            async with log.read(start=0) as records:
                assert [record.data async for record in records] == [b"first", b"a", b"b", b"c"]
                assert records.next_offset == 4
            async with log.read(start=1) as records:
                assert (
                    b"".join([record.data async for batch in records.batches() for record in batch]) == b"abc"
                )
            assert (await log.info()).next_offset == 4
            assert await cluster.logs() == ["orders"]

    run(main)


@BOTH_HOSTS
def test_ledgers_elections_and_cursors_are_there(guest: bool) -> None:
    async def main() -> None:
        async with aio.connect("memory:", guest=guest) as cluster:
            async with await cluster.ledgers.create() as ledger:
                assert await ledger.append(b"entry") == 0
                assert await ledger.close() == 0
            reader = await cluster.ledgers.open(ledger.ledger_id)
            assert [payload async for _, payload in reader.follow()] == [b"entry"]
            async with cluster.election("jobs").leadership() as term:
                assert int(term) == term.number == 1
                assert not term.is_over
            assert term.is_over
            log = await cluster.create_log("log")
            await log.cursor("reader").set(0)
            assert [cursor.name for cursor in await log.cursors()] == ["reader"]

    run(main)


@BOTH_HOSTS
def test_records_of_many_tasks_are_acknowledged_each_at_its_own_offset(guest: bool) -> None:
    async def main() -> None:
        async with aio.connect("memory:", guest=guest) as cluster:
            log = await cluster.create_log("log")
            acknowledged: dict[int, bytes] = {}

            async def work(writer: aio.LogWriter, name: int) -> None:
                for number in range(20):
                    data = b"%d %d" % (name, number)
                    ack = await writer.append(data)
                    assert acknowledged.setdefault(ack.offset, data) is data

            async with log.writer() as writer, asyncio.TaskGroup() as group:
                for name in range(16):
                    group.create_task(work(writer, name))
            async with log.read() as records:
                assert {record.offset: record.data async for record in records} == acknowledged
            assert len(acknowledged) == 320

    run(main)


def test_appends_that_find_no_place_wait_in_their_order() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("log")
            async with log.writer(window=2) as writer:
                acks = await asyncio.gather(*(writer.append(b"%d" % number) for number in range(50)))
            assert [ack.offset for ack in acks] == list(range(50))
            async with log.read() as records:
                assert [record.data async for record in records] == [b"%d" % n for n in range(50)]

    run(main)


def test_errors_are_those_of_the_library() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            with pytest.raises(LogNotFound):
                await cluster.open_log("nowhere")
            log = await cluster.create_log("log")
            async with log.writer() as writer:
                with pytest.raises(RecordTooLarge):
                    await writer.append(bytes(RECORD_BYTES_MAX + 1))
                with pytest.raises(OffsetMismatch):
                    await writer.append(b"x", expected_offset=7)
                with pytest.raises(InvalidArgument):
                    await writer.append("text")
                assert (await writer.append(memoryview(b"a view"))).offset == 0
                async with log.writer():
                    with pytest.raises(LostLeadership):
                        await until_refused(writer)
            with pytest.raises(LostLeadership):
                await writer.append(b"after it was left")

    run(main)


def test_whatever_ends_a_leadership_answers_every_append() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("log")
            async with log.writer(window=2) as writer:
                appends = [asyncio.ensure_future(writer.append(b"%d" % number)) for number in range(100)]
                async with log.writer() as second:
                    outcomes = await asyncio.gather(*appends, return_exceptions=True)
                    await second.append(b"last")
            async with log.read() as records:
                found = [record.data async for record in records]
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, LostLeadership):
                    assert b"%d" % number not in found
                elif not isinstance(outcome, BaseException):
                    assert found[outcome.offset] == b"%d" % number
                else:
                    assert isinstance(outcome, ledgerlog.AppendUnknown)

    run(main)


@BOTH_HOSTS
def test_a_connection_that_is_left_under_cancellation_answers_every_append(guest: bool) -> None:
    """The bookies do not answer, so no leader ends by itself."""

    async def main() -> None:
        stop, opened = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def own() -> None:
            async with aio.connect("memory:", guest=guest) as cluster:
                opened.set_result(cluster)
                await stop.wait()

        owner = asyncio.ensure_future(own())
        cluster = await opened
        writers = []
        for name in ("a", "b"):
            writer = await (await cluster.create_log(name)).writer(window=1).__aenter__()
            await writer.append(b"x")
            writer._inner._leader.pump = lambda: None
            writers.append(writer)
        appends = [asyncio.ensure_future(each.append(b"y")) for each in writers for _ in range(3)]
        await asyncio.sleep(0)
        withdrawn = appends.pop()
        stop.set()
        await asyncio.sleep(0.05)
        owner.cancel()
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await owner
        withdrawn.cancel()
        await asyncio.gather(withdrawn, return_exceptions=True)
        kinds = (ledgerlog.AppendUnknown, LostLeadership, ConnectionClosed)
        assert [type(outcome) for outcome in outcomes if not isinstance(outcome, kinds)] == []

    run(main)


@BOTH_HOSTS
def test_a_cancelled_create_leaves_no_writer(guest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is made at the moment of the cancellation, so there is a writer that nobody receives."""
    create, leave = Ledgers.create, LedgerWriter.__aexit__

    async def main() -> None:
        loop, go_on = asyncio.get_running_loop(), trio.Event()
        is_made, is_left = asyncio.Event(), asyncio.Event()

        async def create_slowly(*args: Any, **options: Any) -> LedgerWriter:
            writer = await create(*args, **options)
            loop.call_soon_threadsafe(is_made.set)
            with trio.CancelScope(shield=True):
                await go_on.wait()
            return writer

        async def leave_and_tell(self: LedgerWriter, *error: Any) -> None:
            try:
                await leave(self, *error)
            finally:
                loop.call_soon_threadsafe(is_left.set)

        monkeypatch.setattr(Ledgers, "create", create_slowly)
        monkeypatch.setattr(LedgerWriter, "__aexit__", leave_and_tell)
        async with aio.connect("memory:", guest=guest) as cluster:
            creating = asyncio.ensure_future(cluster.ledgers.create())
            await is_made.wait()
            creating.cancel()
            await asyncio.sleep(0)
            cluster._portal.tell_trio(go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await creating
            await is_left.wait()

    run(main)


def test_closing_waits_for_no_thread_of_the_default_executor() -> None:
    """The executor's threads may all be busy, for ever."""
    is_over = threading.Event()

    async def main() -> None:
        busy = [asyncio.get_running_loop().run_in_executor(None, is_over.wait) for _ in range(64)]
        async with aio.connect("memory:") as cluster:
            await cluster.create_log("log")
        is_over.set()
        await asyncio.gather(*busy)

    run(main)


@BOTH_HOSTS
def test_a_cancelled_append_leaves_the_writer_in_order(guest: bool) -> None:
    async def main() -> None:
        async with aio.connect("memory:", guest=guest) as cluster:
            log = await cluster.create_log("log")
            async with log.writer(window=1) as writer:
                tasks = [asyncio.ensure_future(writer.append(b"%d" % number)) for number in range(30)]
                await asyncio.sleep(0)
                for task in tasks[1::2]:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                last = await writer.append(b"last")
            async with log.read() as records:
                found = [record.data async for record in records]
            assert found[last.offset] == b"last"
            kept = range(0, 30, 2)
            assert [found[outcomes[number].offset] for number in kept] == [b"%d" % n for n in kept]
            offsets = [outcomes[number].offset for number in kept]
            assert offsets == sorted(offsets)

    run(main)


async def test_a_record_that_waits_for_the_window_when_its_caller_is_cancelled_is_not_written() -> None:
    async with ledgerlog.connect("memory:") as cluster, trio.open_nursery() as nursery:
        log = await cluster.create_log("log")
        told: list[OutsideAppend] = []
        async with log.writer(window=1) as writer:
            lane = AppendLane(writer, nursery, told.extend)
            first, second = OutsideAppend(b"first"), OutsideAppend(b"never")
            lane.take([first, second])
            lane.withdraw(second)
            with trio.fail_after(PATIENCE_S):
                await writer.flush()
        async with log.read() as records:
            assert [record.data async for record in records] == [b"first"]
        assert told == [first]


async def test_records_do_not_pass_one_that_waits_for_the_window() -> None:
    async with ledgerlog.connect("memory:") as cluster, trio.open_nursery() as nursery:
        log = await cluster.create_log("log")
        told: list[OutsideAppend] = []
        async with log.writer(window_bytes=100) as writer:
            lane = AppendLane(writer, nursery, told.extend)
            appends = [OutsideAppend(data) for data in (bytes(80), bytes(90), b"small")]
            lane.take(appends)  # The second does not fit beside the first, and the third would.
            with trio.fail_after(PATIENCE_S):
                while len(told) < 3:
                    await writer.flush()
        assert told == appends
        assert [append.outcome.offset for append in told if isinstance(append.outcome, Ack)] == [0, 1, 2]


def test_a_reader_that_is_cancelled_loses_no_record() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("log")
            async with log.writer() as writer, log.read(follow=True) as records:
                found = []
                for number in range(20):
                    waiting = asyncio.ensure_future(anext(records))
                    await asyncio.sleep(0)
                    waiting.cancel()
                    await asyncio.wait([waiting])
                    if not waiting.cancelled():
                        found.append(waiting.result().data)
                    await writer.append(b"%d" % number)
                while len(found) < 20:
                    found.append((await anext(records)).data)
            assert found == [b"%d" % number for number in range(20)]

    run(main)


def test_a_body_that_is_cancelled_leaves_the_ledger_to_the_next_leader() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("log")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01), log.writer() as writer:
                    await until_refused(writer)
            async with log.writer() as writer:
                await writer.append(b"y")

    run(main)


# --- leadership -----------------------------------------------------------------------------------


class Lead:
    """A context like a leadership, which a test can end."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._scope = trio.CancelScope()
        self.is_left = False

    @asynccontextmanager
    async def leadership(self) -> AsyncIterator[str]:
        try:
            with self._scope:
                yield "term"
        finally:
            self.is_left = True

    def entered(self) -> LeadershipEntered[str, str]:
        return LeadershipEntered(self._bridge, self.leadership(), lambda _, term: term)

    def end(self) -> None:
        self._bridge.tell_trio(self._scope.cancel)


async def a_step_of_trio(bridge: Bridge) -> None:
    """Wait until trio has run once after everything that it had to do."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    bridge.tell_trio(lambda: loop.call_soon_threadsafe(done.set))
    await done.wait()


@asynccontextmanager
async def a_bridge(guest: bool) -> AsyncIterator[Bridge]:
    bridge = Bridge(is_guest=guest)
    try:
        yield bridge
    finally:
        await bridge.close()


@BOTH_HOSTS
def test_the_end_of_a_leadership_cancels_its_body_and_nothing_else(guest: bool) -> None:
    async def main() -> None:
        async with a_bridge(guest) as bridge:
            lead = Lead(bridge)
            was_left_first = None
            async with lead.entered() as term:
                assert term == "term"
                lead.end()
                try:
                    await asyncio.sleep(PATIENCE_S)
                finally:
                    await a_step_of_trio(bridge)
                    was_left_first = lead.is_left
            assert was_left_first is False, "the manager waits for its body"
            assert lead.is_left
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            await asyncio.sleep(0)

    run(main)


@BOTH_HOSTS
def test_a_cancellation_from_elsewhere_goes_on_through_a_leadership(guest: bool) -> None:
    async def main() -> None:
        async with a_bridge(guest) as bridge:
            lead = Lead(bridge)

            async def wait_in_its_body() -> None:
                async with asyncio.timeout(None) as limit, lead.entered():
                    limit.reschedule(0)  # Once it is entered.
                    await asyncio.sleep(PATIENCE_S)

            with pytest.raises(TimeoutError):
                await wait_in_its_body()
            assert lead.is_left

    run(main)


@BOTH_HOSTS
def test_a_body_that_ends_as_its_leadership_does_is_not_cancelled_later(guest: bool) -> None:
    async def main() -> None:
        async with a_bridge(guest) as bridge:
            for _ in range(20):
                lead = Lead(bridge)
                async with lead.entered():
                    lead.end()
                assert lead.is_left
                await asyncio.sleep(0)

    run(main)


@BOTH_HOSTS
def test_an_error_of_the_body_comes_out_of_a_leadership_that_ends(guest: bool) -> None:
    async def main() -> None:
        async with a_bridge(guest) as bridge:
            lead = Lead(bridge)

            async def fails_when_it_is_cancelled() -> None:
                lead.end()
                try:
                    await asyncio.sleep(PATIENCE_S)
                finally:
                    raise ValueError("of the body")

            with pytest.raises(ValueError, match="of the body"):
                async with lead.entered():
                    await fails_when_it_is_cancelled()

    run(main)


# --- loops ----------------------------------------------------------------------------------------


def test_a_connection_belongs_to_the_loop_that_made_it() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("log")

            async def elsewhere() -> None:
                async with asyncio.timeout(PATIENCE_S):
                    await log.info()

            with pytest.raises(InvalidArgument, match="belongs to the asyncio loop that made it"):
                await asyncio.to_thread(asyncio.run, elsewhere())

    run(main)


async def test_trio_has_its_own_library() -> None:
    with pytest.raises(InvalidArgument, match=r"use ledgerlog\.connect"):
        async with aio.connect("memory:"):
            pass


def test_after_the_connection_every_call_is_refused() -> None:
    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("log")
        with pytest.raises(ConnectionClosed):
            await log.info()
        with pytest.raises(ConnectionClosed):
            _ = cluster.ledgers

    run(main)


def test_a_forked_child_that_leaves_a_context_of_its_parent_ends_as_it_would_without(tmp_path: Path) -> None:
    program = (
        "import asyncio, os\n"
        "from ledgerlog import aio\n"
        "async def main():\n"
        "    async with aio.connect('memory:') as cluster:\n"
        "        log = await cluster.create_log('log')\n"
        "        try:\n"
        "            async with log.writer() as writer:\n"
        "                child = os.fork()\n"
        "                if not child:\n"
        "                    raise SystemExit(3)\n"
        "        except SystemExit as end:\n"
        "            os._exit(end.code)\n"
        "        except BaseException:\n"
        "            os._exit(1)\n"
        "        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "asyncio.run(main())\n"
    )
    assert run_forking(program, tmp_path) == ("3\n", "", 0)


@BOTH_HOSTS
def test_metrics_are_read_in_any_thread(guest: bool) -> None:
    async def main() -> None:
        async with aio.connect("memory:", guest=guest) as cluster:
            assert await asyncio.to_thread(cluster.metrics)
        with pytest.raises(ConnectionClosed):
            await asyncio.to_thread(cluster.metrics)

    run(main)


def test_a_loop_that_ends_with_a_connection_open_is_told(caplog: pytest.LogCaptureFixture) -> None:
    bridges = []

    async def main() -> None:
        bridges.append(Bridge())

    asyncio.run(main())
    (bridge,) = bridges
    with caplog.at_level(logging.ERROR):
        bridge._wake_asyncio(lambda: None)
        bridge._wake_asyncio(lambda: None)
    bridge._host.end()
    bridge._host.join(PATIENCE_S)
    assert [record.message for record in caplog.records] == [
        "the asyncio loop ended while a connection was open: leave the connection first"
    ]


def test_ledgerlog_itself_names_its_face_for_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match=r"use ledgerlog\.aio"):
            async with ledgerlog.connect(f"file:{tmp_path}"):
                pass

    run(main)


def test_what_gathers_for_the_other_loop_wakes_it_once() -> None:
    wakes: list[Callable[[], object]] = []
    done: list[int] = []
    box = Mailbox(wakes.append)
    for number in range(3):
        box.put(lambda number=number: done.append(number))
    assert len(wakes) == 1
    wakes.pop()()
    assert done == [0, 1, 2]
    box.put(lambda: box.put(lambda: done.append(9)))
    wakes.pop()()
    assert done == [0, 1, 2], "what comes while the acts run wakes the loop again"
    wakes.pop()()
    assert done == [0, 1, 2, 9]


def test_an_act_is_there_when_the_other_loop_wakes() -> None:
    done: list[int] = []
    Mailbox(lambda act: act()).put(lambda: done.append(1))
    assert done == [1]


def test_an_act_that_cannot_wake_the_other_loop_is_refused_each_time() -> None:
    def wake(act: Callable[[], object]) -> None:
        raise ConnectionClosed("it has ended")

    box = Mailbox(wake)
    for _ in range(2):
        with pytest.raises(ConnectionClosed):
            box.put(lambda: None)


@BOTH_HOSTS
def test_a_cancelled_call_has_ended_when_the_cancellation_comes_out(guest: bool) -> None:
    async def main() -> None:
        bridge = Bridge(is_guest=guest)
        began, has_ended = asyncio.Event(), False

        async def work() -> None:
            nonlocal has_ended
            bridge.tell_asyncio(began.set)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.05)
                has_ended = True

        call = asyncio.ensure_future(bridge.run(work))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert has_ended
        await bridge.close()

    run(main)


@BOTH_HOSTS
def test_a_connection_that_is_left_leaves_its_contexts_from_the_newest_on(guest: bool) -> None:
    async def main() -> None:
        bridge, left = Bridge(is_guest=guest), list[int]()

        @asynccontextmanager
        async def numbered(number: int) -> AsyncIterator[None]:
            try:
                yield
            finally:
                left.append(number)

        for number in range(3):
            await bridge.enter(numbered(number))
        await bridge.close()
        assert left == [2, 1, 0]

    run(main)


def test_what_arrived_before_a_failure_is_given_first() -> None:
    async def main() -> None:
        fetched = Fetched()
        lost = RecordsLost("log", 0, 1)
        fetched.batches.append(lost)
        fetched.failure, fetched.is_complete = ConnectionClosed("it was left"), True
        assert await fetched.take(0) == [lost]
        with pytest.raises(ConnectionClosed):
            await fetched.take(1)

    trio.run(main)


# --- campaigns ------------------------------------------------------------------------------------


@BOTH_HOSTS
def test_a_service_leads_a_log_whenever_it_is_elected(guest: bool) -> None:
    async def main() -> None:
        async with aio.connect("memory:", guest=guest) as cluster:
            log = await cluster.create_log("log")
            async with log.lead(cluster.election("log", candidate="first")) as first:
                assert (await (await first.writer()).append(b"a")).epoch == 1
                assert (await first.append(b"b")).offset == 1
                async with log.lead(cluster.election("log", candidate="second")) as second:
                    with pytest.raises(ledgerlog.NotLeader, match="first leads"):
                        await second.append_many([b"never"])
                    async with log.writer() as intruder:
                        assert intruder.epoch == 2
                        with suppress(ledgerlog.LostLeadership, ledgerlog.AppendUnknown):
                            await intruder.append(b"c")  # A candidate may have taken the log back before it.
                    leaders = [asyncio.ensure_future(campaign.writer()) for campaign in (first, second)]
                    (leader, *_), waiting = await asyncio.wait(leaders, return_when=asyncio.FIRST_COMPLETED)
                    ack = await leader.result().append(b"d")
                    assert ack.epoch > 2
                    async with log.read(start=ack.offset) as records:
                        assert [record.data async for record in records] == [b"d"]
                    for each in waiting:
                        each.cancel()
            with pytest.raises(ConnectionClosed):
                await first.append(b"late")

    run(main)


@BOTH_HOSTS
def test_a_machine_is_called_by_one_thread_and_replicas_agree(guest: bool) -> None:
    class Words(ledgerlog.StateMachine):
        def __init__(self) -> None:
            self.words: list[bytes] = []
            self.threads: set[int] = set()

        def apply(self, command: ledgerlog.Command) -> None:
            self.threads.add(threading.get_ident())
            self.words.append(command.data)

        def snapshot(self) -> Iterable[bytes]:
            yield b" ".join(self.words)

        def restore(self, chunks: Iterable[bytes]) -> None:
            self.words = b"".join(chunks).split()

    def seen(machine: Words) -> tuple[set[int], list[bytes]]:
        return machine.threads | {threading.get_ident()}, list(machine.words)

    async def main() -> None:
        async with aio.connect("memory:?bookies=1", guest=guest) as cluster:
            log = await cluster.create_log("log")
            async with aio.Replica(log, Words()) as leader, aio.Replica(log, Words(), leads=False) as other:
                await leader.wait_leading()
                for word in (b"a", b"b", b"c"):
                    await leader.propose(word)
                await other.wait_applied(leader.next_offset - 1)
                assert await leader.digest() == await other.digest()
                threads, words = await leader.read(seen)
                assert words == [b"a", b"b", b"c"]
                assert len(threads) == 1
                assert (threads == {threading.get_ident()}) is guest

    run(main)


def test_an_event_that_a_cancelled_caller_did_not_receive_comes_again() -> None:
    class Replica:
        async def events(self) -> AsyncIterator[ReplicaEvent]:
            for offset in range(3):
                yield ReplicaEvent(EventKind.SNAPSHOT, offset)

    class LossyBridge:
        """It loses every other answer, as a bridge does whose caller is cancelled meanwhile."""

        calls = 0

        def check(self) -> None: ...

        def tell_trio(self, act: Callable[[], object]) -> None:
            act()

        async def run(self, work: Callable[[], Awaitable[T]]) -> T:
            answer = await work()
            self.calls += 1
            if self.calls % 2:
                raise asyncio.CancelledError
            return answer

    async def main() -> None:
        events, found = _Events(LossyBridge(), Replica()), list[int]()
        while len(found) < 3:
            with suppress(asyncio.CancelledError):
                found.append((await anext(events)).offset)
        assert found == [0, 1, 2]
        for _ in range(2):
            with suppress(asyncio.CancelledError), pytest.raises(StopAsyncIteration):
                await anext(events)

    run(main)
