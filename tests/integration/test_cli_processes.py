"""Child processes never outlive the body or the process that started them, no matter how these end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ledgerlog.cli.processes import ChildFailed, end_of_log, open_children
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]

STUBBORN = [
    *(sys.executable, "-I", "-S", "-c"),
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('deaf', flush=True); time.sleep(600)",
]

DIES_WITH_A_STOPPED_CHILD = """
import os, signal, sys, trio
from ledgerlog.cli.processes import open_children

async def main():
    async with open_children() as children:
        for number in range(3):
            child = await children.start("child", [sys.executable, "-c", "import time; time.sleep(600)"])
            child.send_signal(signal.SIGSTOP)
            print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_is_gone_when_the_body_is_left_normally_by_an_error_and_by_a_cancellation() -> None:
    pids = []
    async with open_children() as children:
        pids.append((await children.start("child", SLEEP)).pid)
    caught = None
    try:
        async with open_children() as children:
            pids.append((await children.start("child", SLEEP)).pid)
            raise KeyError
    except KeyError as error:
        caught = error
    assert caught is not None, "the body's own exception comes out, in no group"
    with trio.CancelScope() as scope:
        async with open_children() as children:
            pids.append((await children.start("child", SLEEP)).pid)
            scope.cancel()
            await trio.sleep_forever()
    assert not any(map(is_alive, pids))


async def test_a_stopped_child_and_one_that_ignores_the_request_are_ended_too() -> None:
    async with open_children(grace_s=3.0) as children:
        stopped = await children.start("stopped", SLEEP)
        stopped.send_signal(signal.SIGSTOP)
        stubborn = await children.start("stubborn", STUBBORN, pipe_out=True)
        assert stubborn.stdout is not None
        assert await stubborn.stdout.receive_some() == b"deaf\n"
    assert stopped.exit_status == -signal.SIGTERM
    assert stubborn.exit_status == -signal.SIGKILL


def test_children_of_a_process_that_is_killed_die_with_it_stopped_ones_included() -> None:
    dying = subprocess.run(
        [sys.executable, "-c", DIES_WITH_A_STOPPED_CHILD], capture_output=True, text=True, check=False
    )
    assert dying.returncode == -signal.SIGKILL, dying.stderr
    pids = [int(line) for line in dying.stdout.split()]
    assert len(pids) == 3
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([descriptor], [], [], PATIENCE_S)
            assert ended, f"process {pid} outlived the one that had started it"
        finally:
            os.close(descriptor)


async def test_pipes_lead_to_a_child_and_back_and_many_tasks_may_wait_for_its_end() -> None:
    async with open_children() as children, trio.open_nursery() as nursery:
        echo = await children.start("echo", ["/bin/cat"], pipe_in=True, pipe_out=True)
        assert echo.stdin is not None
        assert echo.stdout is not None
        await echo.stdin.send_all(b"hello")
        assert await echo.stdout.receive_some() == b"hello"
        statuses: list[int] = []

        async def wait() -> None:
            statuses.append(await echo.wait())

        for _ in range(3):
            nursery.start_soon(wait)
        await echo.stdin.aclose()
    assert statuses == [0, 0, 0]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("Traceback (most recent call last):\n  File x, line 1\nValueError: no\n", "ValueError: no"),
        (
            "ERROR it failed\nException: outer\n\tat A.a(A.java:1)\nCaused by: inner\n\tat B.b(B.java:2)\n"
            "\t... 1 more\nWARN audit is off\nERROR exiting\n",
            "Caused by: inner ... ERROR exiting",
        ),
        ("Exception: no\n\tat A.a(A.java:1)\n", "Exception: no"),
        ("\tat A.a(A.java:1)\n\tat A.b(A.java:2)\nlast\n", "last"),
    ],
)
def test_the_end_of_a_log_tells_the_cause_above_the_frames_of_a_java_program(
    tmp_path: Path, log: str, told: str
) -> None:
    (tmp_path / "log").write_text(log)
    assert end_of_log(tmp_path / "log") == told
    assert end_of_log(tmp_path / "none") == end_of_log(None) == ""


async def test_the_end_of_a_child_is_told_with_its_last_words(tmp_path: Path) -> None:
    async with open_children() as children:
        failing = await children.start(
            "failing", [sys.executable, "-c", "raise SystemExit('out of paper')"], log_path=tmp_path / "log"
        )
        assert await failing.wait() == 1
        assert failing.how_it_ended().endswith("ended with status 1: out of paper")
        killed = await children.start("killed", SLEEP)
        killed.kill()
        await killed.wait()
        assert killed.how_it_ended().endswith("was ended by SIGKILL")
        await killed.stop()
        nameless = await children.start("nameless", SLEEP)
        os.kill(nameless.pid, signal.SIGRTMIN + 1)
        await nameless.wait()
        assert nameless.how_it_ended().endswith(f"was ended by signal {signal.SIGRTMIN + 1}")
        await nameless.stop()
        assert children.running == []


async def test_a_child_that_has_ended_leaves_no_descriptor_open() -> None:
    async with open_children() as children:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            child = await children.start("child", SLEEP)
            await child.stop()
            child.kill()  # This does nothing: its descriptor may be another file's now.
        assert len(os.listdir("/proc/self/fd")) == before
        assert children._children == []


async def test_a_program_that_cannot_be_run_is_told_at_once() -> None:
    async with open_children() as children:
        with pytest.raises(ChildFailed, match="No such file"):
            await children.start("nothing", ["/nonexistent/program"])
