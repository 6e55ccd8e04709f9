"""The address at which a candidate listens for standbys if it was not told one."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from ledgerlog.cluster import default_listen_address
from ledgerlog.limits import CONNECT_TIMEOUT_S
from ledgerlog.net.tcp import own_host_towards


async def test_the_way_to_this_machine_begins_at_this_machine() -> None:
    assert await own_host_towards("127.0.0.1", 2181) == "127.0.0.1"


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("zk://127.0.0.1:2181/a", "127.0.0.1:0"),
        ("zks://127.0.0.1:2281/a", "127.0.0.1:0"),
        ("ZKS://127.0.0.1:2281/a", "127.0.0.1:0"),
        ("sqlite:/data/metadata.sqlite", "127.0.0.1:0"),
        ("memory:", "election:0"),
        ("file:/data", "election:0"),
    ],
)
async def test_a_candidate_listens_where_its_standbys_can_reach_it(uri: str, address: str) -> None:
    assert await default_listen_address(uri) == address


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
