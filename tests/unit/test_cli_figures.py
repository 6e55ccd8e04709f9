"""Percentiles count records, and process clocks count the time that the processes really used."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ledgerlog.cli.bench_figures import CpuClock, Latencies
from ledgerlog.cli.processes import ChildFailed


def test_a_percentile_counts_records_and_not_batches() -> None:
    latencies = Latencies()
    latencies.add(1_000_000, 99)
    latencies.add(50_000_000, 1)
    assert latencies.count == 100
    assert latencies.percentiles_ms(0.5, 0.99, 0.999) == [1.0, 1.0, 50.0]


def test_no_latency_gives_no_percentile_above_zero() -> None:
    assert Latencies().percentiles_ms(0.5) == [0.0]


def test_records_due_one_after_the_other_spread_between_the_first_and_the_last() -> None:
    latencies = Latencies()
    latencies.add_spread(8_000_000, 0, 80)
    assert latencies.count == 80
    low, middle, high = latencies.percentiles_ms(0.01, 0.5, 1.0)
    assert 0 <= low < middle < high <= 8
    assert 3 <= middle <= 5


def test_the_clock_of_another_process_is_that_process_s_and_exact_to_less_than_a_tick() -> None:
    clock = CpuClock({"this": os.getpid()})
    end = time.process_time_ns() + 3_000_000
    while time.process_time_ns() < end:
        pass
    here, others = clock.spent_ns()
    assert here >= 3_000_000
    assert abs(others["this"] - here) < 3_000_000


def test_the_clock_of_a_process_that_has_ended_is_refused_by_its_name() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        clock = CpuClock({"bookie-1": process.pid})
    with pytest.raises(ChildFailed, match="bookie-1 has ended"):
        clock.spent_ns()
