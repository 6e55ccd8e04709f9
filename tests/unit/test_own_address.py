"""The address at which a candidate listens for standbys if it was not told one."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from ledgerlog.limits import CONNECT_TIMEOUT_S
from ledgerlog.net.tcp import own_host_towards


async def test_the_way_to_this_machine_begins_at_this_machine() -> None:
    assert await own_host_towards("127.0.0.1", 2181) == "127.0.0.1"


async def test_no_address_if_the_name_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(trio.socket, "getaddrinfo", refuse)
    assert await own_host_towards("no-such-host", 2181) is None


async def test_a_name_server_that_does_not_answer_stops_no_other_task(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> list[object]:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio.socket, "getaddrinfo", hang)
    began = trio.current_time()
    assert await own_host_towards("zookeeper.example", 2181) is None
    assert trio.current_time() - began == CONNECT_TIMEOUT_S
