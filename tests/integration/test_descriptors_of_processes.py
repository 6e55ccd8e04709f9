"""If a bookie's process has few descriptors, its connections are bounded, and its files always get one."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

import pytest
import trio
from test_bookie_process import Client, Place

from ledgerlog.errors import BookieUnavailable, WireError
from ledgerlog.net.session import handshake
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.wire.hello import Hello
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

LIMIT = 400
"""Enough for a bookie and some 140 connections."""


class Limited(Place):
    """Its processes have ``LIMIT`` descriptors at most."""

    def command(self, *options: str) -> list[str]:
        return ["sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh", *super().command(*options)]


@pytest.fixture
def place(tmp_path: Path) -> Limited:
    return Limited(tmp_path).with_cluster()


async def idle_connection(address: str, *, says_hello: bool) -> Stream:
    stream = await TcpNetwork().connect(address)
    if says_hello:
        with contextlib.suppress(BookieUnavailable, ConnectionLost, WireError):  # It may be refused.
            await handshake(stream, Hello("b1", None))
    return stream


@pytest.mark.parametrize("says_hello", [False, True])
async def test_more_idle_connections_than_descriptors_do_not_end_a_bookie(
    place: Limited, says_hello: bool
) -> None:
    (place.root / "config.toml").write_text("segment_bytes = 8_388_608\ndisk_watch_interval_s = 0.05\n")
    options = ("--id", "b1", "--config", str(place.root / "config.toml"))
    async with place.bookie(*options) as bookie:
        address = await bookie.address()
        neighbour = await Client.connect(address)
        idle = []
        with trio.fail_after(PATIENCE_S):
            for _ in range(LIMIT + 100):
                idle.append(await idle_connection(address, says_hello=says_hello))
        # Enough data that the bookie needs new segments and entry logs.
        for number in range(100):
            await neighbour.add(4 * number, [b"x" * 100_000] * 4)
            while await neighbour.acknowledged() <= number:
                pass
        _, payloads = await neighbour.read(0, 3)
        assert len(payloads) == 4
        used = len(os.listdir(f"/proc/{bookie.process.pid}/fd"))
        assert used < LIMIT - 50, "a part is kept for files"
        for stream in idle:
            stream.close()
        neighbour.close()
        bookie.process.terminate()
        assert await bookie.wait() == 0
    async with place.bookie("--id", "b1") as bookie:
        client = await Client.connect(await bookie.address())
        _, payloads = await client.read(396, 399)
        assert len(payloads) == 4
        client.close()


class Soft(Place):
    def command(self, *options: str) -> list[str]:
        return ["sh", "-c", 'ulimit -Sn 64 && ulimit -Hn 1000 && exec "$@"', "sh", *super().command(*options)]


@pytest.fixture
def soft_place(tmp_path: Path) -> Soft:
    return Soft(tmp_path).with_cluster()


async def test_a_bookie_raises_its_limit_as_far_as_it_may(soft_place: Soft) -> None:
    async with soft_place.bookie("--id", "b1") as bookie:
        await bookie.address()
        assert resource.prlimit(bookie.process.pid, resource.RLIMIT_NOFILE) == (1000, 1000)


async def test_far_too_few_descriptors_are_refused_with_what_to_do(
    place: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 100)
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert "may have 100 files and connections open" in error
    assert "ulimit -n" in error
    assert not place.data.exists()
