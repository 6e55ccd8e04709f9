"""Faults on real processes: a short run in every test run, a long one by hand; and the proxies by themselves.

``LEDGERLOG_NEMESIS_MINUTES`` and ``LEDGERLOG_NEMESIS_SEED`` set the soak (defaults 60 and 1).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from ledgerlog.cli.zookeeper import ask
from ledgerlog.model.ids import Position
from ledgerlog.model.record import Ack
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.log_history import AppendCall, LogHistory
from tests.nemesis import namespaces, small_disks
from tests.nemesis.damage import damage_files
from tests.nemesis.driver import Nemesis, run
from tests.nemesis.namespaces import open_namespaces
from tests.nemesis.proxies import OTHERS, Link, can_proxy, open_proxies, reset
from tests.nemesis.small_disks import open_small_disk
from tests.nemesis.workload import Writers, judge_deposed
from tests.waiting import PATIENCE_S

SOAK_MINUTES = float(os.environ.get("LEDGERLOG_NEMESIS_MINUTES", "60"))
SOAK_SEED = int(os.environ.get("LEDGERLOG_NEMESIS_SEED", "1"))

proxied = pytest.mark.skipif(not can_proxy(), reason="this machine does not serve all of 127.0.0.0/8")


@proxied
@pytest.mark.processes
async def test_contending_writers_lose_nothing_acknowledged_under_faults(tmp_path: Path) -> None:

    def is_enough(nemesis: Nemesis, writers: Writers) -> bool:
        acknowledged, contended = writers.history.acked > 50, len(writers.history.begun) > 3
        return acknowledged and contended and nemesis.kills > 0 and len(nemesis.happened) >= 6

    report = await run(tmp_path / "cluster", seed=7, trouble_s=15.0, pace_s=1.0, is_enough=is_enough)
    print(json.dumps(report.as_dict()))


@proxied
@pytest.mark.processes
@pytest.mark.soak
async def test_an_hour_of_faults_loses_nothing_acknowledged(tmp_path: Path) -> None:
    report = await run(tmp_path / "cluster", seed=SOAK_SEED, trouble_s=60 * SOAK_MINUTES)
    print(json.dumps(report.as_dict(), indent=2))
    assert report.kills >= 5 * SOAK_MINUTES
    assert report.partitions >= SOAK_MINUTES * 5 / 6
    assert report.acked > 600 * SOAK_MINUTES


@proxied
@pytest.mark.processes
@pytest.mark.soak
async def test_a_minute_of_faults_with_the_metadata_in_an_ensemble_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    with trio.fail_after(3 * PATIENCE_S):
        report = await run(tmp_path / "cluster", seed=8, trouble_s=60.0, pace_s=1.0, zookeepers=3)
    print(json.dumps(report.as_dict()))
    assert report.counts["kills of servers"] >= 2
    assert report.acked > 200, "something was acknowledged"


@pytest.mark.processes
@pytest.mark.soak
@pytest.mark.root
@pytest.mark.skipif(namespaces.why_not() is not None, reason=f"no namespaces here: {namespaces.why_not()}")
async def test_a_minute_of_faults_in_namespaces_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with trio.fail_after(3 * PATIENCE_S):
        report = await run(tmp_path / "cluster", seed=9, trouble_s=60.0, pace_s=1.0, namespaces=True)
    print(json.dumps(report.as_dict()))
    assert report.partitions >= 5
    assert report.acked > 200, "something was acknowledged"


# --- tools of the driver ----------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.skipif(small_disks.why_not() is not None, reason=f"no small disks here: {small_disks.why_not()}")
def test_a_small_disk_is_as_full_as_it_was_made_and_has_room_again(tmp_path: Path) -> None:
    with open_small_disk(tmp_path / "disk") as disk:
        disk.fill(0)
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "one").write_bytes(bytes(4096))
        disk.free()
        disk.free()
        (disk.path / "two").write_bytes(bytes(4096))
    assert not list((tmp_path / "disk").iterdir())


@pytest.mark.processes
@pytest.mark.root
@pytest.mark.skipif(namespaces.why_not() is not None, reason=f"no namespaces here: {namespaces.why_not()}")
def test_what_is_cut_in_a_namespace_vanishes_one_way_and_comes_back() -> None:
    program = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind((sys.argv[1], 5000)); "
    answer = "print('up', flush=True)\nwhile True: s.sendto(*s.recvfrom(9))"
    ask = "s.settimeout(0.5); s.sendto(b'?', (sys.argv[2], 5000)); print(s.recvfrom(9)[0])"
    with open_namespaces(["bookie"], ["writer"]) as network:
        here, there = network.addresses["writer"], network.addresses["bookie"]
        command = [*network.command("bookie"), sys.executable, "-c", program + answer, there]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as bookie:
            try:
                assert bookie.stdout is not None
                assert bookie.stdout.readline() == b"up\n"

                def is_answered() -> bool:
                    asker = [*network.command("writer"), sys.executable, "-c", program + ask, here, there]
                    return subprocess.run(asker, capture_output=True, check=False).returncode == 0

                def wait_answered() -> None:
                    # The kernel brings a cable into service, and asks for an address, in its own time.
                    deadline = time.monotonic() + PATIENCE_S
                    while not is_answered():
                        assert time.monotonic() < deadline, "nothing is answered"

                wait_answered()
                for ways in ({}, {"to_client": False}, {"to_server": False}):
                    network.links["writer", "bookie"].cut(**ways)
                    assert not is_answered()
                    network.heal()
                    wait_answered()
            finally:
                bookie.kill()


async def test_a_server_that_is_killed_in_the_middle_of_its_answer_has_given_none() -> None:
    async def answer_half(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"Zookeeper version: 3.9")
        reset(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer_half, [listener])
        assert await ask(listener.socket.getsockname()[1], "srvr") == ""
        nursery.cancel_scope.cancel()


# --- proxies ----------------------------------------------------------------------------------------


@asynccontextmanager
async def a_link() -> AsyncIterator[tuple[Link, trio.SocketStream, trio.SocketStream]]:
    """A link, and the two ends of a connection through it: the client's and the bookie's."""
    send, receive = trio.open_memory_channel[trio.SocketStream](10)

    async def accepted(stream: trio.SocketStream) -> None:
        await send.send(stream)
        await trio.sleep_forever()

    async with open_proxies(["bookie-1"], ["client"]) as proxies, trio.open_nursery() as nursery:
        host, port = proxies.listen_address("bookie-1").split(":")
        listeners = await trio.open_tcp_listeners(int(port), host=host)
        nursery.start_soon(trio.serve_listeners, accepted, listeners)
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_tcp_stream(proxies.hosts["client"], int(port)) as client:
                await client.send_all(b"hello")
                bookie = await receive.receive()
                assert await bookie.receive_some() == b"hello"
                yield proxies.links["client", "bookie-1"], client, bookie
                assert not proxies.links[OTHERS, "bookie-1"].connections, "the proxy knows the client"
        nursery.cancel_scope.cancel()


@proxied
async def test_a_partition_holds_what_is_sent_and_a_healed_link_delivers_it_in_order() -> None:
    async with a_link() as (link, client, bookie):
        link.cut(to_client=False)
        await client.send_all(b"one ")
        await client.send_all(b"two")
        await bookie.send_all(b"the other way")
        assert await client.receive_some() == b"the other way", "it is cut one way only"
        with trio.move_on_after(0.2) as waited:
            await bookie.receive_some()
        assert waited.cancelled_caught
        link.heal()
        received = b""
        while received != b"one two":
            received += await bookie.receive_some()


@proxied
async def test_a_delay_is_at_least_as_long_as_it_says() -> None:
    async with a_link() as (link, client, bookie):
        link.delay(0.15)
        began = trio.current_time()
        await client.send_all(b"late")
        assert await bookie.receive_some() == b"late"
        assert trio.current_time() - began >= 0.15


@proxied
async def test_a_reset_breaks_both_ends() -> None:
    async with a_link() as (link, client, bookie):
        assert link.reset() == 1
        for end in (client, bookie):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some()


@proxied
async def test_after_half_a_reset_the_bookie_hears_nothing() -> None:
    async with a_link() as (link, client, bookie):
        assert link.reset(half=True) == 1
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        await bookie.send_all(b"to nobody")
        with trio.move_on_after(0.2) as waited:
            await bookie.receive_some()
        assert waited.cancelled_caught
        await bookie.aclose()
        while link.connections:  # noqa: ASYNC110 (the proxy notices in its own time)
            await trio.sleep(0.01)


@proxied
async def test_a_half_closed_connection_still_carries_the_other_way() -> None:
    async with a_link() as (link, client, bookie):
        assert link.half_close() == 1
        assert await bookie.receive_some() == b""
        await bookie.send_all(b"still")
        assert await client.receive_some() == b"still"


@proxied
async def test_behind_a_partition_nobody_learns_of_an_end() -> None:
    async with a_link() as (link, client, bookie):
        link.cut()
        await bookie.aclose()
        with trio.move_on_after(0.2) as waited:
            await client.receive_some()
        assert waited.cancelled_caught
        link.heal()
        assert await client.receive_some() == b""


# --- judging and damaging ---------------------------------------------------------------------------


def test_an_acknowledgement_of_a_deposed_leader_is_found() -> None:
    history = LogHistory()
    history.on_leader(1, 0)
    history.on_leader(2, 5)
    call = AppendCall([b"a"], 1, 2, [Ack(4, Position(1, 4), 1)])
    history.calls.append(call)
    judge_deposed(history)
    call.acks = [Ack(5, Position(1, 5), 1)]
    with pytest.raises(Violation, match="the leader of epoch 1 was told offset 5"):
        judge_deposed(history)


def test_damage_spares_the_end_of_the_newest_segment(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "entries").mkdir()
    newest = tmp_path / "journal" / "2.journal"
    newest.write_bytes(bytes([1]) * 65536 + bytes(65536))
    assert damage_files(tmp_path, Random(1), flips=3, cut=False) == []
    assert damage_files(tmp_path, Random(1), flips=3, cut=True) == []
    (tmp_path / "journal" / "1.journal").write_bytes(bytes([1]) * 65536)
    assert len(damage_files(tmp_path, Random(1), flips=3, cut=False)) == 3
    assert len(damage_files(tmp_path, Random(1), flips=3, cut=True)) == 1
    assert newest.read_bytes() == bytes([1]) * 65536 + bytes(65536)


def test_a_file_that_was_cut_before_may_be_damaged_again(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    cut = tmp_path / "journal" / "1.journal"
    cut.write_bytes(bytes([1]) * 5000)
    (tmp_path / "journal" / "2.journal").write_bytes(b"")
    for seed in range(20):
        assert len(damage_files(tmp_path, Random(seed), flips=3, cut=False)) == 3
    assert cut.stat().st_size == 5000
