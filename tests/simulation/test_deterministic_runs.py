"""Runs under ``ledgerlog.testing.deterministic``: the seed decides everything, and nothing else gets in."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.testing.deterministic import (
    CpuTimeExceeded,
    Deadlock,
    Nondeterminism,
    SimulatedTimeExceeded,
    Simulation,
    current_simulation,
)
from ledgerlog.testing.runs import simulated_cluster
from tests.waiting import PATIENCE_S

GOLDEN = "babcea92f3e998f945c74b853515a4bb"
"""Of seed 7 of ``contend``. It changes when trio's scheduler, Python's generator, or the recipe does; then
old seeds mean other runs, and the change is to be a decision."""


async def contend(simulation: Simulation) -> None:
    """Tasks that race for a lock, a deadline and each other."""
    lock = trio.Lock()
    dice = simulation.random("workers")

    async def work(number: int) -> None:
        for turn in range(5):
            async with lock:
                await trio.lowlevel.checkpoint()
                simulation.event("turn", number, turn)
            with trio.move_on_after(dice.random()) as scope:
                await trio.sleep(0.5)
            simulation.event("waited", number, scope.cancelled_caught)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(work, number)


def test_the_golden_run_is_still_the_same() -> None:
    assert Simulation(7, is_strict=True).run(contend).trace_hash == GOLDEN


def test_a_loop_in_another_thread_does_not_change_a_run() -> None:
    has_stepped, is_over = threading.Event(), threading.Event()

    async def step() -> None:
        while not is_over.is_set():
            await trio.lowlevel.checkpoint()
            has_stepped.set()

    async def loop() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(step)

    async def look_and_contend(simulation: Simulation, look: Callable[[], object]) -> None:
        async def look_often() -> None:
            for _ in range(10):
                look()
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_often)
            await contend(simulation)

    def see_it_step() -> None:
        has_stepped.clear()
        assert has_stepped.wait(PATIENCE_S)

    other = threading.Thread(target=trio.run, args=[loop])
    other.start()
    try:
        beside = Simulation(7).run(partial(look_and_contend, look=see_it_step))
    finally:
        is_over.set()
        other.join()
    alone = Simulation(7).run(partial(look_and_contend, look=lambda: None))
    assert beside.trace_hash == alone.trace_hash


def test_a_seed_gives_one_run_and_seeds_differ() -> None:
    hashes = [Simulation(seed, is_strict=True).run(contend).trace_hash for seed in (1, 1, 2, 2, 3)]
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]
    assert len(set(hashes)) == 3


@pytest.mark.processes
def test_two_processes_with_different_hash_seeds_give_the_same_runs() -> None:
    program = (
        "from test_deterministic_runs import *\n"
        "print([Simulation(seed, is_strict=True).run(contend).trace_hash for seed in range(20)])"
    )
    found = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1]
    assert found[0].count("'") == 40


def test_timers_run_in_their_order_and_simulated_time_costs_nothing() -> None:
    async def main(simulation: Simulation) -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []

        def note(word: str) -> None:
            seen.append((simulation.now, word))

        simulation.after(2.0, note, "second")
        simulation.after(1.0, note, "first")
        simulation.after(1.5, note, "never").cancel()
        simulation.after(2.0, note, "third")
        await trio.sleep(3600)
        assert trio.current_time() == simulation.now == 3600
        return seen

    outcome = Simulation(1).run(main)
    assert outcome.value == [(1.0, "first"), (2.0, "second"), (2.0, "third")]
    assert outcome.simulated_s == 3600
    assert outcome.cpu_s < 5


def test_a_deadlock_is_found_and_names_who_waits_and_what_is_open_is_closed() -> None:
    closed = []

    async def wait_for_nothing() -> None:
        try:
            await trio.Event().wait()
        finally:
            closed.append(True)

    async def main(simulation: Simulation) -> None:
        simulation.event("began")
        await wait_for_nothing()

    with pytest.raises(Deadlock, match="nothing more can happen") as caught:
        Simulation(5).run(main)
    assert closed
    (note,) = caught.value.__notes__
    assert "seed 5" in note
    assert "began" in note


def test_a_run_without_an_end_meets_its_bounds() -> None:
    async def sleep_for_ever(simulation: Simulation) -> None:
        while True:  # noqa: ASYNC110  # This is the point.
            await trio.sleep(10)

    async def spin(simulation: Simulation) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(SimulatedTimeExceeded):
        Simulation(1).run(sleep_for_ever, simulated_s_max=1000)
    with pytest.raises(CpuTimeExceeded):
        Simulation(1).run(spin, cpu_s_max=0.2)
    Simulation(1).run(contend)  # Nothing of the run is left.


def test_a_run_beyond_its_simulated_time_names_the_tasks_that_wait_in_the_users_code() -> None:
    async def service(client: Cluster) -> None:
        log = await client.create_log("orders")
        async with log.read(follow=True) as records:
            await anext(records)

    async def wait_for_nothing(simulation: Simulation) -> None:
        async with simulated_cluster(bookies=1) as cluster:
            cluster.start("box-office", service)
            await trio.sleep_forever()

    with pytest.raises(SimulatedTimeExceeded) as caught:
        Simulation(1).run(wait_for_nothing, simulated_s_max=100)
    _, _, waiting = str(caught.value).partition("still waiting: ")
    scenario, box_office = waiting.split("; ")
    assert f"in wait_for_nothing ({__file__}:" in scenario
    assert box_office.startswith(f"box-office in service ({__file__}:")


async def run_asyncio() -> None:
    waits = asyncio.sleep(1)
    try:
        asyncio.run(waits)
    finally:
        waits.close()


async def start_subprocess() -> None:
    subprocess.Popen(["true"])  # noqa: ASYNC220  # It is refused at once.


async def start_thread() -> None:
    threading.Thread(target=print).start()


async def work_in_thread() -> None:
    await trio.to_thread.run_sync(print)


async def open_socket() -> None:
    socket.socket()


async def read_clock() -> None:
    time.monotonic()


async def throw_dice() -> None:
    random.random()


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (run_asyncio, "only code that runs on trio can be simulated"),
        (start_subprocess, "only code that runs on trio can be simulated"),
        (start_thread, "only code that runs on trio can be simulated"),
        (work_in_thread, "only code that runs on trio can be simulated"),
        (open_socket, "no network but the one to its cluster"),
        (read_clock, r"trio\.current_time"),
        (throw_dice, "a seeded generator"),
    ],
)
def test_a_refusal_says_what_to_do_instead(use: Callable[[], Awaitable[None]], advice: str) -> None:
    async def main(simulation: Simulation) -> None:
        await use()

    with pytest.raises(Nondeterminism, match=advice):
        Simulation(1).run(main)


@pytest.mark.parametrize(
    ("module", "name", "args"),
    [
        (time, "time", ()),
        (time, "monotonic", ()),
        (time, "perf_counter", ()),
        (time, "sleep", (1,)),
        (random, "random", ()),
        (random, "shuffle", ([1, 2],)),
        (os, "urandom", (4,)),
        (socket, "socket", ()),
        (subprocess, "Popen", (["true"],)),
        (asyncio, "new_event_loop", ()),
    ],
)
def test_the_world_outside_raises_inside_a_run_and_works_after_it(
    module: ModuleType, name: str, args: tuple[object, ...]
) -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(Nondeterminism):
            random.SystemRandom().randbytes(4)
        with pytest.raises(Nondeterminism):
            threading.Thread(target=print).start()
        getattr(module, name)(*args)

    with pytest.raises(Nondeterminism, match=f"{module.__name__}.{name} was called"):
        Simulation(1).run(main)
    assert os.urandom(4)
    assert time.time() > 1e9
    assert 0 <= random.random() < 1


def test_threads_are_refused_and_log_records_carry_simulated_time(caplog: pytest.LogCaptureFixture) -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(Nondeterminism):
            await trio.to_thread.run_sync(print)
        await trio.sleep(12)
        logging.getLogger("a-service").warning("late")

    Simulation(1).run(main)
    assert [record.created for record in caplog.records] == [12]


def test_a_thread_that_was_there_before_the_run_uses_the_real_world() -> None:
    asked, answered = threading.Event(), threading.Event()
    clocks: list[float] = []

    def look() -> None:
        asked.wait()
        clocks.append(time.time())
        answered.set()

    thread = threading.Thread(target=look)
    thread.start()

    async def main(simulation: Simulation) -> None:
        asked.set()
        answered.wait()

    Simulation(1).run(main)
    thread.join()
    assert clocks[0] > 1e9


def test_there_is_no_current_simulation_outside_of_one() -> None:
    async def main(simulation: Simulation) -> None:
        assert current_simulation() is simulation

    Simulation(1).run(main)
    with pytest.raises(RuntimeError, match="simulated run"):
        current_simulation()
