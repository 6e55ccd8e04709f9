"""The benchmarks run, print their figures in the form that scripts rely on, and leave nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_command
from tests.integration.running_cluster import RunningCluster

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


async def bench(*args: str) -> list[dict[str, Any]]:
    ran = await run_command("ledgerlog", "bench", *args, "--json")
    assert ran.status == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


async def test_writing_is_measured_with_a_window_and_one_at_a_time(temporary: Path) -> None:
    window, lone = await bench("write", "--size", "100", "--window", "100", "--seconds", "0.2")
    for run in (window, lone):
        assert run["records"] > 0
        assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["p999_ms"]
        cpu = run["cpu_us"]
        assert sorted(cpu["bookies"]) == ["bookie-1", "bookie-2", "bookie-3"]
        assert cpu["sum"] == pytest.approx(cpu["client"] + sum(cpu["bookies"].values()), rel=0.01)
        assert run["syncs_per_s"] > 0
        # It may be slightly below 3: when the bytes are counted, third copies of the last entries may be on
        # their way.
        assert run["journal_bytes_per_payload_byte"] > 2.5, "three copies"
    assert (window["mode"], window["window"], lone["mode"], lone["window"]) == ("window", 100, "lone", 1)
    assert window["baseline"] is None
    assert lone["baseline"]["ratio"] == pytest.approx(
        lone["p50_ms"] / (lone["baseline"]["sync_ms"] + lone["baseline"]["round_trip_ms"]), rel=0.05
    )
    assert os.listdir(temporary) == []


async def test_tls_is_measured_in_turns_with_plain(temporary: Path) -> None:
    *runs, ratio = await bench("write", "--tls", "--size", "100", "--rate", "500", "--seconds", "0.1")
    assert [run["tls"] for run in runs] == [False, True] * 3
    assert all(run["records"] > 0 for run in runs)
    assert (ratio["tls_ratio"]["mode"], ratio["tls_ratio"]["size"]) == ("rate", 100)
    assert ratio["tls_ratio"]["cpu_us"] > 0
    assert os.listdir(temporary) == []


async def test_credentials_that_a_benchmark_would_not_use_are_refused() -> None:
    ran = await run_command("ledgerlog", "bench", "write", "--secret-file", "x")
    assert ran.status == 2
    assert "--secret-file cannot be used: without --uri" in ran.stderr


async def test_writing_is_measured_at_a_fixed_rate(shared: RunningCluster) -> None:
    (run,) = await bench("write", "--uri", shared.uri, "--size", "100", "--rate", "2000", "--seconds", "0.2")
    assert (run["mode"], run["window"], run["rate"]) == ("rate", None, 2000)
    assert 0 < run["records"] <= 400, "as many as fall due, or fewer on a busy machine"


@pytest.mark.parametrize("api", ["log", "aio"])
async def test_a_log_is_driven_in_its_three_ways(shared: RunningCluster, api: str) -> None:
    runs = await bench(
        "write", "--uri", shared.uri, "--api", api, "--size", "50", "--window", "50", "--seconds", "0.2"
    )
    assert [(run["api"], run["mode"]) for run in runs] == [(api, m) for m in ("append_many", "tasks", "lone")]
    assert all(run["records"] > 0 for run in runs)


async def test_what_cannot_be_driven_under_asyncio_is_refused(tmp_path: Path) -> None:
    for options, why in (
        (["--uri", f"file:{tmp_path}"], "only one connection can use"),
        (["--rate", "10"], "leave out --api aio"),
    ):
        ran = await run_command("ledgerlog", "bench", "write", "--api", "aio", *options)
        assert ran.status == 2
        assert why in ran.stderr


async def test_replay_is_measured_by_the_batch_and_by_the_record(shared: RunningCluster) -> None:
    batches, records = await bench("read", "--uri", shared.uri, "--size", "100", "--records", "1000")
    assert (batches["mode"], records["mode"]) == ("batches", "records")
    assert batches["records"] == records["records"] == 1000
    assert batches["records_per_cpu_s"] > 0


async def test_takeover_is_measured_for_logs_and_for_ledgers(shared: RunningCluster) -> None:
    runs = await bench("takeover", "--uri", shared.uri, "--entries", "0,50", "--rounds", "1")
    assert [(run["what"], run["entries_after_lac"]) for run in runs] == [
        ("log", 0),
        ("append", 0),
        ("ledger", 0),
        ("ledger", 50),
    ]
    assert all(run["median_ms"] > 0 for run in runs)


async def test_lone_appends_are_measured_for_themselves(shared: RunningCluster) -> None:
    (run,) = await bench("lone", "--uri", shared.uri, "--size", "100", "--seconds", "0.3")
    assert (run["mode"], run["window"]) == ("lone", 1)
    assert 0 < run["p50_ms"] <= run["p99_ms"]
    assert run["cpu_us"]["client"] > 0


async def test_every_record_reaches_every_follower_and_is_counted(temporary: Path) -> None:
    (run,) = await bench("followers", "--followers", "7", "--rate", "50", "--seconds", "0.5")
    assert run["mode"] == "followers"
    assert run["records"] == 7 * run["written"] > 0
    assert run["missing"] == 0
    assert 0 < run["p50_ms"] <= run["p99_ms"]
    assert run["records_per_s"] > 0 < run["cpu_us"]["sum"]
    assert os.listdir(temporary) == []


async def test_a_writer_is_measured_alone_and_beside_readers(temporary: Path) -> None:
    alone, beside = await bench("isolation", "--rate", "200", "--seconds", "0.5")
    assert [alone["mode"], beside["mode"]] == ["alone", "with_readers"]
    assert (alone["replays"], beside["count"]) == (None, 1)
    for run in (alone, beside):
        assert run["records"] > 0
        assert 0 < run["p50_ms"] <= run["p99_ms"]
    assert os.listdir(temporary) == []


async def test_idleness_is_measured_without_and_with_open_logs(temporary: Path) -> None:
    connected, logs = await bench("idle", "--logs", "3", "--seconds", "0.3")
    assert [connected["mode"], logs["mode"]] == ["connected", "logs"]
    assert (connected["count"], logs["count"]) == (0, 3)
    for run in (connected, logs):
        assert sorted(run["core_percent"]) == ["bookie-1", "bookie-2", "bookie-3", "client"]
        assert run["cpu_us"]["sum"] >= 0
    assert os.listdir(temporary) == []
