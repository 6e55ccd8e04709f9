"""The library without ``await``: from scripts, from threads, interrupted, and in a forked child."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog import blocking
from ledgerlog.blocking.portal import Portal, _Outcomes
from ledgerlog.crossing.loop import OutsideCall
from ledgerlog.errors import (
    ConnectionClosed,
    InvalidArgument,
    LedgerNotFound,
    LogExists,
    LogNotFound,
    LostLeadership,
    NotLeader,
    OffsetMismatch,
    Truncated,
    WrongProcess,
)
from tests.forking_programs import run_forking
from tests.waiting import PATIENCE_S


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ledgerlog-blocking"]


@pytest.fixture
def cluster() -> Iterator[blocking.Cluster]:
    with blocking.connect("memory:") as made:
        yield made
    assert loop_threads() == [], "closing ends the thread"


def test_a_program_writes_and_reads_a_log(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("orders")
    with log.writer() as writer:
        assert writer.append(b"first").offset == 0
        assert [ack.offset for ack in writer.append_many([b"a", b"b"])] == [1, 2]
        submissions = [writer.submit(b"%d" % number) for number in range(5)]
        assert [submission.wait().offset for submission in submissions] == [3, 4, 5, 6, 7]
        writer.flush()
        writer.roll()
        assert writer.append(b"last", expected_offset=8).epoch == writer.epoch == 1
        assert writer.statistics().rolls == 1
        assert writer.next_offset == 9
    with log.read(start=0) as records:
        assert [record.data for record in records] == [b"first", b"a", b"b", *b"0 1 2 3 4".split(), b"last"]
        assert records.next_offset == 9
    with log.read(start=2, until=5) as records:
        assert next(records).data == b"b"
        assert [list(batch.payloads) for batch in records.batches()] != []
        assert records.next_offset == 5
    assert cluster.logs() == ["orders"]
    log.truncate(3)
    assert log.info().first_offset == 3
    with pytest.raises(Truncated), log.read(start=0):
        pass
    log.set_properties({"a": "b"})
    assert log.properties() == {"a": "b"}
    log.seal()
    assert log.info().sealed
    cluster.delete_log("orders")
    with pytest.raises(LogNotFound):
        cluster.open_log("orders")


def test_a_program_writes_and_reads_ledgers(cluster: blocking.Cluster) -> None:
    with cluster.ledgers.create() as writer:
        assert writer.append(b"a") == 0
        assert writer.append_many([b"b", b"c"]) == range(1, 3)
        writer.flush()
        assert writer.last_add_confirmed == 2
    reader = cluster.ledgers.open(writer.ledger_id)
    assert reader.read(0, 2) == [b"a", b"b", b"c"]
    assert list(reader.follow(1)) == [(1, b"b"), (2, b"c")]
    assert reader.last_add_confirmed() == 2
    assert cluster.ledgers.metadata(writer.ledger_id).last_entry == 2
    assert cluster.ledgers.verify(writer.ledger_id).entries == 3
    empty = cluster.ledgers.create()
    assert empty.close() == -1
    assert list(cluster.ledgers.open(empty.ledger_id).follow()) == []
    assert cluster.ledgers.list() == [writer.ledger_id, empty.ledger_id]
    cluster.ledgers.delete(empty.ledger_id)
    with pytest.raises(LedgerNotFound):
        cluster.ledgers.open(empty.ledger_id)


def test_a_ledger_whose_body_raised_is_left_for_recovery(cluster: blocking.Cluster) -> None:
    writer = cluster.ledgers.create()
    writer.append(b"a")
    with pytest.raises(KeyError), writer:
        raise KeyError
    assert cluster.ledgers.metadata(writer.ledger_id).last_entry is None
    assert cluster.ledgers.recover(writer.ledger_id).last_entry == 0


def test_errors_are_those_of_the_library(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    with pytest.raises(LogExists):
        cluster.create_log("log")
    with log.writer() as writer:
        with pytest.raises(OffsetMismatch) as caught:
            writer.append(b"x", expected_offset=7)
        assert caught.value.actual == 0
        with log.writer() as other:
            with pytest.raises(LostLeadership):
                writer.append(b"y")
            assert other.append(b"z").epoch == 2
    with pytest.raises(InvalidArgument):
        blocking.connect("nowhere:")
    assert len(loop_threads()) == 1


def test_a_body_that_raises_leaves_its_writer_in_order(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    left: list[blocking.LogWriter] = []

    def fail() -> None:
        with log.writer() as writer:
            left.append(writer)
            writer.submit(b"on its way")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with log.read() as records:
        assert [record.data for record in records] == [b"on its way"]
    with pytest.raises(LostLeadership):
        left[0].append(b"x")


def test_a_follower_sees_what_another_thread_appends(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    seen: list[bytes] = []

    def follow() -> None:
        with log.read(follow=True, until=100) as records:
            seen.extend(record.data for record in records)

    follower = threading.Thread(target=follow)
    follower.start()
    with log.writer() as writer:
        for number in range(100):
            writer.append(b"%d" % number)
        follower.join(PATIENCE_S)
    assert seen == [b"%d" % number for number in range(100)]


def test_a_follower_can_look_and_go_on(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    with log.writer() as writer, log.read(follow=True) as records:
        assert records.next(timeout_s=0.01) is None
        writer.append(b"a")
        record = records.next(timeout_s=PATIENCE_S)
        assert record is not None
        assert record.data == b"a"
        assert records.next(timeout_s=0) is None


def test_nobody_waits_for_a_reader_that_was_left(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    told = threading.Event()

    def follow(records: blocking.LogReader) -> None:
        with pytest.raises(ConnectionClosed):
            records.next()
        told.set()

    with log.read(follow=True) as records:
        follower = threading.Thread(target=follow, args=(records,), daemon=True)
        follower.start()
    assert told.wait(PATIENCE_S)
    with pytest.raises(ConnectionClosed):
        records.next(timeout_s=PATIENCE_S)


def test_threads_that_call_one_reader_lose_and_double_no_record(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    with log.writer() as writer:
        writer.append_many([b"x"] * 20, atomic=True)
        writer.append_many([b"x"] * 20, atomic=True)

    def work(together: threading.Barrier, records: blocking.LogReader, found: list[int]) -> None:
        together.wait()
        while True:
            try:
                record = records.next(timeout_s=PATIENCE_S)
            except InvalidArgument:
                continue
            if record is None:
                return
            found.append(record.offset)

    for _ in range(5):
        found: list[int] = []
        with log.read() as records:
            arguments = (threading.Barrier(4), records, found)
            threads = [threading.Thread(target=work, args=arguments, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert records.next_offset == 40
        assert sorted(found) == list(range(40))


def test_ctrl_c_that_comes_as_a_call_begins_leaves_the_reader_usable(
    cluster: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.create_log("log")
    with log.writer() as writer:
        writer.append_many([b"a", b"b"])

    class Interrupted(dict[str, int]):
        def setdefault(self, key: str, default: int = 0) -> int:
            super().setdefault(key, default)
            raise KeyboardInterrupt

    with log.read() as records:
        user = Interrupted()
        monkeypatch.setattr(records._one_call, "_user", user)
        with pytest.raises(KeyboardInterrupt):
            next(records)
        monkeypatch.setattr(records._one_call, "_user", dict(user))
        assert [record.data for record in records] == [b"a", b"b"]
        found: list[bytes] = []
        other = threading.Thread(target=lambda: found.extend(record.data for record in records))
        other.start()
        other.join(PATIENCE_S)
        assert found == []
        assert not records._one_call._user


def test_many_threads_append_through_one_writer(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    with log.writer() as writer:
        offsets: list[int] = []

        def work() -> None:
            for _ in range(50):
                offsets.append(writer.append(b"x").offset)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(400))


def test_a_cluster_that_is_closed_leaves_what_is_open_and_says_so_afterwards() -> None:
    cluster = blocking.connect("memory:")
    log = cluster.create_log("log")
    entered = log.writer()
    writer = entered.__enter__()
    writer.append(b"a")
    cluster.close()
    cluster.close()
    assert loop_threads() == []
    for use in (lambda: writer.append(b"b"), log.info, lambda: cluster.open_log("log"), cluster.logs):
        with pytest.raises(ConnectionClosed):
            use()
    entered.__exit__(None, None, None)


def test_a_file_cluster_is_closed_whole_and_goes_on_later(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with (
            blocking.connect(f"file:{tmp_path}/d") as cluster,
            cluster.create_log("log", exist_ok=True).writer() as writer,
        ):
            assert writer.append(b"x") == (epoch - 1, *writer_ack(writer, epoch))


def writer_ack(writer: blocking.LogWriter, epoch: int) -> tuple[object, ...]:
    return (ledgerlog.Position(writer.statistics().ledger_id, 0, 0), epoch, False)


async def test_inside_of_trio_a_call_is_refused() -> None:
    made: list[blocking.Cluster] = []

    def connect() -> None:
        made.append(blocking.connect("memory:"))

    await trio.to_thread.run_sync(connect)
    with pytest.raises(InvalidArgument, match="inside of trio"):
        made[0].logs()
    assert made[0].metrics(), "it does not wait, so it stops no loop"
    await trio.to_thread.run_sync(made[0].close)


def test_a_forked_child_is_told_to_connect_anew(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from ledgerlog import blocking\n"
        "from ledgerlog.errors import WrongProcess\n"
        "from ledgerlog.metrics.prometheus import ClusterCollector\n"
        "cluster = blocking.connect('memory:')\n"
        "log = cluster.create_log('log')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        log.info()\n"
        "    except WrongProcess as error:\n"
        "        cluster.close()\n"
        "        for use in (cluster.metrics, cluster.__enter__):\n"
        "            try:\n"
        "                use()\n"
        "            except WrongProcess:\n"
        "                continue\n"
        "            os._exit(2)\n"
        "        assert list(ClusterCollector(cluster).collect()) == []\n"
        "        with blocking.connect('memory:') as own:\n"
        "            os._exit(7 if own.logs() == [] and error.pid == os.getppid() else 1)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert log.info().next_offset == 0\n"
        "print('done')\n"
    )
    assert run_forking(program, tmp_path) == ("done\n", "", 0)


def test_a_forked_child_that_leaves_a_with_of_its_parent_ends_as_it_would_without(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from ledgerlog import blocking\n"
        "children = []\n"
        "with blocking.connect('memory:') as cluster:\n"
        "    log = cluster.create_log('log')\n"
        "    with log.writer() as writer, log.read(follow=True) as records, cluster.ledgers.create():\n"
        "        writer.append(b'a')\n"
        "        for end in (SystemExit(3), None):\n"
        "            children.append(os.fork())\n"
        "            if not children[-1]:\n"
        "                if end is not None:\n"
        "                    raise end\n"
        "                break\n"
        "        else:\n"
        "            ends = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children]\n"
        "            writer.append(b'b')\n"
        "            assert [next(records).data for _ in range(2)] == [b'a', b'b']\n"
        "            print(ends)\n"
    )
    assert run_forking(program, tmp_path) == ("[3, 0]\n", "", 0)


def test_a_program_that_forgets_to_close_ends_in_order(tmp_path: Path) -> None:
    program = (
        "from ledgerlog import blocking\n"
        f"cluster = blocking.connect('file:{tmp_path}/d')\n"
        "writer = cluster.create_log('log').writer().__enter__()\n"
        "writer.submit(b'x')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ran.stderr, ran.returncode) == ("", 0)
    with blocking.connect(f"file:{tmp_path}/d") as cluster:
        assert cluster.open_log("log").info().next_offset == 1


def test_ctrl_c_interrupts_a_wait_and_the_connection_goes_on(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    with log.read(follow=True) as records:

        def interrupt() -> None:
            # By then the main thread is inside of the call; if it is not, it is interrupted before it.
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

        def wait() -> None:
            thread.start()
            next(records)

        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            thread = threading.Thread(target=interrupt)
            with pytest.raises(KeyboardInterrupt):
                wait()
            thread.join()
        finally:
            signal.signal(signal.SIGINT, previous)
        with log.writer() as writer:
            writer.append(b"a")
        assert next(records).data == b"a", "nothing was lost by it"


def test_ctrl_c_that_comes_with_the_outcome_is_not_waited_upon_and_loses_no_record(
    cluster: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.create_log("orders")
    with log.writer() as writer:
        writer.append_many([b"%d" % number for number in range(100)])
    get, interruptions = _Outcomes.get, [KeyboardInterrupt()]

    def get_and_be_interrupted(outcomes: _Outcomes[object]) -> object:
        outcome = get(outcomes)
        if interruptions:
            raise interruptions.pop()  # As a handler does that runs when the queue has given the item.
        return outcome

    with log.read() as records:
        monkeypatch.setattr(_Outcomes, "get", get_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(records)
        assert [record.offset for record in records] == list(range(100))


def test_work_that_comes_when_the_loop_has_just_ended_is_refused() -> None:
    portal = Portal()

    async def work() -> int:
        return 1

    outcomes = _Outcomes[int]()
    call = OutsideCall(work, outcomes.tell)

    class AtTheEnd(trio.abc.Instrument):
        def task_exited(self, task: trio.lowlevel.Task) -> None:
            if task.name.endswith("_main"):
                portal.tell(lambda: portal._loop.start(call))

    async def watch() -> None:
        trio.lowlevel.add_instrument(AtTheEnd())

    portal.run(watch)
    portal.close()
    with pytest.raises(ConnectionClosed):
        portal.wait(outcomes, call.scope).unwrap()


def test_ctrl_c_in_the_body_leaves_the_ledger_to_the_next_leader(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")

    def interrupted() -> None:
        with log.writer() as writer:
            writer.append(b"a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert log.info().segments[-1].record_count is None
    with log.writer() as writer:
        assert writer.append(b"b").offset == 1


ASYNCHRONOUS_ONLY = {"wait_over"}
WHOLE = (blocking.Log, blocking.Cursor, blocking.LogWriter, blocking.LogReader, blocking.Submission)
"""Of these everything public is there; of the others what programs use, and not what tools do."""


@pytest.mark.parametrize(
    ("face", "original"),
    [
        (blocking.Cluster, ledgerlog.Cluster),
        (blocking.Log, ledgerlog.Log),
        (blocking.Cursor, ledgerlog.Cursor),
        (blocking.LogWriter, ledgerlog.LogWriter),
        (blocking.LogReader, ledgerlog.LogReader),
        (blocking.Submission, ledgerlog.Submission),
        (blocking.Ledgers, ledgerlog.Ledgers),
        (blocking.LedgerWriter, ledgerlog.LedgerWriter),
        (blocking.LedgerReader, ledgerlog.LedgerReader),
    ],
)
def test_each_method_is_there_with_the_parameters_of_its_namesake(face: type, original: type) -> None:
    theirs = {name: method for name, method in public(original) if name not in ASYNCHRONOUS_ONLY}
    ours = dict(public(face))
    if face in WHOLE:
        assert theirs.keys() - ours.keys() == set(), "add it to ledgerlog.blocking as well"
    for name in theirs.keys() & ours.keys() - {"close"}:
        expected = inspect.signature(theirs[name]).parameters
        found = inspect.signature(ours[name]).parameters
        assert [*found] == [*expected], name
        assert all(found[each].default == expected[each].default for each in found), name


def public(kind: type) -> list[tuple[str, Callable[..., object]]]:
    return [
        (name, method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    ]


def test_a_producer_may_repeat_itself_and_a_cursor_keeps_a_place(cluster: blocking.Cluster) -> None:
    log = cluster.create_log("log")
    with log.writer(producer="p") as writer:
        assert writer.append(b"a", sequence=0).duplicate is False
        assert writer.append(b"a", sequence=0).duplicate is True
    cursor = log.cursor("c")
    assert cursor.get() is None
    state = cursor.set(1, properties={"a": "b"})
    assert cursor.move(1, expected=state).properties == {"a": "b"}
    assert [found.name for found in log.cursors()] == ["c"]
    cursor.delete()
    assert cursor.get() is None


def test_a_wrong_process_is_named() -> None:
    assert "process 7" in str(WrongProcess(7))


def test_threads_lead_a_log_whenever_their_process_is_elected() -> None:
    with blocking.connect("memory:") as cluster:
        log = cluster.create_log("log")
        with log.lead(cluster.election("log", candidate="first")) as first:
            assert first.writer().append(b"a").offset == 0
            with log.lead(cluster.election("log", candidate="second")) as second:
                with pytest.raises(NotLeader, match="first leads"):
                    second.append(b"never")
                assert first.append_many([b"b", b"c"])[-1].offset == 2
                assert second.leader() == "first"
