"""The demo runs to its end and loses nothing. It leaves nothing behind, no matter how it ends."""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import trio

from ledgerlog.cli.processes import open_children
from tests.waiting import until

pytestmark = pytest.mark.processes

DEMO = (sys.executable, "-m", "ledgerlog", "demo")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where throw-away directories go during the test."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


async def test_a_few_thousand_records_survive_a_killed_bookie_and_a_deposed_leader(temporary: Path) -> None:
    ran = await trio.run_process([*DEMO, "--records", "5000", "--json"], capture_stdout=True)
    outcome = json.loads(ran.stdout)
    assert outcome["records"] == outcome["acknowledged"] == 5000
    assert outcome["lost"] == outcome["duplicated"] == outcome["out_of_order"] == outcome["foreign"] == 0
    assert outcome["bookies_killed"] == outcome["leaders_killed"] == 1
    assert outcome["takeover_ms"] > 0
    assert outcome["records_per_s"] > 0
    assert outcome["refused_batches"] >= 1
    assert outcome["refusal"].startswith("LostLeadership")
    assert os.listdir(temporary) == []


async def test_a_file_is_sent_line_by_line_however_short_it_is(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"one\n\xff\xfe\n\nfour")
    ran = await trio.run_process([*DEMO, "--input", str(tmp_path / "text")], capture_stdout=True)
    rows = dict(re.findall(r"(records|acknowledged) +(\d+)", ran.stdout.decode()))
    assert rows == {"records": "4", "acknowledged": "4"}
    assert b"the deposed leader was told: LostLeadership" in ran.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_demo_leaves_no_process_and_no_directory(
    temporary: Path, tmp_path: Path, number: signal.Signals
) -> None:
    async with open_children() as children:
        demo = await children.start("demo", [*DEMO, "--records", "100000000"], log_path=tmp_path / "stderr")
        await until(lambda: glob.glob(f"{temporary}/*/contender-2.log"))
        demo.send_signal(number)
        assert await demo.wait() == 128 + number
    assert (tmp_path / "stderr").read_text() == f"ledgerlog: interrupted by {number.name}\n"
    assert os.listdir(temporary) == []


async def test_an_empty_file_is_refused_before_anything_is_started(temporary: Path) -> None:
    ran = await trio.run_process([*DEMO, "--input", os.devnull], capture_stderr=True, check=False)
    assert ran.returncode in (1, 2)
    assert ran.stderr.count(b"\n") >= 1
    assert b"Traceback" not in ran.stderr
    assert os.listdir(temporary) == []
