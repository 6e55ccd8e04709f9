"""What a bookie's process asks of its interpreter, so that a busy event loop delays nobody for long."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from running_cluster import ledgerlog_ok

from ledgerlog.cli.processes import open_children
from ledgerlog.limits import BOOKIE_COLLECTOR, BOOKIE_THREAD_SWITCH_S
from tests.waiting import until

# Python runs this module at its start, if it finds it.
TELLS = """
import atexit, gc, sys
tell = lambda: print("asked for", sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count() > 10_000)
atexit.register(lambda: (tell(), sys.stdout.flush()))
"""


async def test_a_bookie_hands_over_quickly_and_seldom_collects_all_garbage(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(TELLS)
    uri, log = f"sqlite:{tmp_path / 'm.sqlite'}", tmp_path / "b1.log"
    await ledgerlog_ok("metadata", "init", "--open", uri=uri)
    async with open_children() as children:
        bookie = await children.start(
            "b1",
            [sys.executable, "-m", "bookie", "run", str(tmp_path / "b1"), "--metadata", uri, "--id", "b1"],
            log_path=log,
            environment={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        await until(lambda: "serving on" in log.read_text())
        await bookie.stop()
    assert f"asked for {BOOKIE_THREAD_SWITCH_S} {BOOKIE_COLLECTOR} True" in log.read_text()
