"""``tests/conftest.py`` on small suites that leave things behind, or depend on their environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to find processes in"),
]

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

LEAVES_A_THREAD = """
import threading

def test_first():
    threading.Thread(target=threading.Event().wait, args=(2,), name="straggler").start()
"""

LEAVES_A_GRANDCHILD = """
import subprocess, sys
import pytest

# The middle process ends at once, so that the last one is nobody's child.
MIDDLE = '''
import subprocess
null = subprocess.DEVNULL
print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=null, stderr=null).pid)
'''

@pytest.mark.processes
def test_first():
    pid = subprocess.run([sys.executable, "-c", MIDDLE], check=True, capture_output=True, text=True).stdout
    open("pid", "w").write(pid)
"""

LEAVES_NOTHING = """
import subprocess, sys, threading
import pytest

@pytest.mark.processes
def test_first():
    thread = threading.Thread(target=print)
    thread.start()
    subprocess.run(["true"], check=True)

def test_second():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

DEPENDS_ON_SIGNALS = """
import os, signal, subprocess, sys
import pytest

@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_of_a_signal(number):
    os.kill(os.getpid(), number)  # The run goes on ignoring it.
    child = "import signal, sys; print(signal.getsignal(int(sys.argv[1])) is signal.SIG_IGN)"
    assert subprocess.check_output([sys.executable, "-c", child, str(int(number))]) == b"False\\n"
"""

AS_NOHUP_DOES = ["sh", "-c", "trap '' HUP INT TERM; exec \"$@\" <&-", "sh"]


def run_suite(
    folder: Path, source: str, *options: str, through: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    text = CONFTEST.read_text(encoding="utf-8").replace("GRACE_S = 60.0", "GRACE_S = 0.2")
    (folder / "conftest.py").write_text(text, encoding="utf-8")
    (folder / "test_suite.py").write_text(source, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    processes: x\n", encoding="utf-8")
    return subprocess.run(
        [*through, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_thread_left_behind_fails_the_test_that_started_it(tmp_path: Path) -> None:
    result = run_suite(tmp_path, LEAVES_A_THREAD)
    assert result.returncode == 1
    assert "the test left behind: thread 'straggler'" in result.stdout


def test_an_orphaned_grandchild_is_found_named_and_ended(tmp_path: Path) -> None:
    result = run_suite(tmp_path, LEAVES_A_GRANDCHILD)
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert result.returncode == 1
    assert f"the test left behind: process {pid} (sleep 600)" in result.stdout
    # The process that adopted it may not have collected it yet. A zombie has ended too.
    status = Path(f"/proc/{pid}/stat")
    assert not status.exists() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def test_what_ended_and_what_is_a_daemon_is_not_held_against_a_test(tmp_path: Path) -> None:
    result = run_suite(tmp_path, LEAVES_NOTHING)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_signals_that_the_run_was_told_to_ignore_reach_what_tests_start(tmp_path: Path, workers: int) -> None:
    result = run_suite(tmp_path, DEPENDS_ON_SIGNALS, "-n", str(workers), through=AS_NOHUP_DOES)
    assert result.returncode == 0, result.stdout
