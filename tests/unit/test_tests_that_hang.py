"""The time limit of every test (``tests/hanging.py``), checked with tests that hang."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

SUITE = """
import contextlib, threading, time
import pytest, trio

hangs = pytest.mark.limit_s(1)

async def waits_for_ever():
    await trio.sleep_forever()

async def waits_behind_a_shield():
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

async def waits_behind_ever_new_shields():
    while True:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.01)

@hangs
@pytest.mark.parametrize("wait", [waits_for_ever, waits_behind_a_shield, waits_behind_ever_new_shields])
async def test_of_a_task(wait):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep_forever()

@hangs
def test_of_a_run():
    trio.run(waits_for_ever)

@hangs
def test_of_a_run_in_a_thread():
    thread = threading.Thread(target=trio.run, args=(waits_for_ever,), name="another thread")
    thread.start()
    thread.join()

@hangs
def test_of_a_lock():
    threading.Event().wait()

@hangs
async def test_of_a_busy_loop():
    while True:
        pass

@hangs
def test_that_swallows():
    with contextlib.suppress(BaseException):
        time.sleep(600)

@pytest.fixture
def sleeping():
    yield
    time.sleep(600)

@hangs
def test_of_a_fixture(sleeping):
    pass

@pytest.mark.limit_s(600)
def test_after():
    pass
"""

UNENDING = """
import contextlib, time
import pytest

@pytest.mark.limit_s(1)
def test_of_what_nothing_ends():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(600)

def test_after():
    pass
"""


STUCK = """
import re

def test_of_code_that_keeps_the_lock():
    re.match("(a+)+b", "a" * 60)
"""


def run_suite(
    folder: Path, source: str, *options: str, grace_s: float = 3
) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(source, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.hanging", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-o", f"hang_grace_s={grace_s}", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the report of each test in the suite: empty if it passed."""
    folder = tmp_path_factory.mktemp("hanging")
    run_suite(folder, SUITE, "--junitxml=report.xml")
    return {
        case.attrib["name"]: "".join(outcome.text or "" for outcome in case)
        for case in ElementTree.parse(folder / "report.xml").iter("testcase")
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("test_of_a_task[waits_for_ever]", "Task test_suite.waits_for_ever:"),
        ("test_of_a_task[waits_behind_a_shield]", "Task test_suite.waits_behind_a_shield:"),
        ("test_of_a_task[waits_behind_ever_new_shields]", "Task test_suite.waits_behind_ever_new_shields:"),
        ("test_of_a_run", "Task test_suite.waits_for_ever:"),
        ("test_of_a_run_in_a_thread", "Task test_suite.waits_for_ever:"),
        ("test_of_a_run_in_a_thread", "Thread 'another thread', innermost call last:"),
        ("test_of_a_lock", "threading.Event().wait()"),
        ("test_of_a_busy_loop", "in test_of_a_busy_loop"),
        ("test_that_swallows", "time.sleep(600)"),
        ("test_of_a_fixture", "time.sleep(600)"),
    ],
)
def test_a_test_that_hangs_fails_with_all_stacks(told: dict[str, str], name: str, shown: str) -> None:
    first, _, rest = told[name].partition("\n")
    assert first == f"test_suite.py::{name} took longer than 1 s"
    assert "Thread 'MainThread', innermost call last:" in rest
    assert shown in rest


def test_the_run_goes_on_after_a_test_that_hung(told: dict[str, str]) -> None:
    assert told["test_after"] == ""


@pytest.mark.long
def test_a_test_that_nothing_ends_ends_its_worker_and_the_run_goes_on(tmp_path: Path) -> None:
    result = run_suite(tmp_path, UNENDING, "-n", "1", grace_s=1)
    assert "test_suite.py::test_of_what_nothing_ends took longer than 1 s" in result.stderr
    assert "Thread 'MainThread', innermost call last:" in result.stderr
    assert "crashed while running 'test_suite.py::test_of_what_nothing_ends'" in result.stdout
    assert "1 failed, 1 passed" in result.stdout


@pytest.mark.long
def test_code_that_keeps_the_lock_of_the_interpreter_ends_the_process_with_the_stacks(tmp_path: Path) -> None:
    result = run_suite(tmp_path, STUCK, grace_s=0.5)
    assert result.returncode == 1
    assert "Timeout (0:00:05)!" in result.stderr
    assert "in test_of_code_that_keeps_the_lock" in result.stderr
