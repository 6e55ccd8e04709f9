"""A process believes in its ZooKeeper session only as long as its own lease lasts. No ZooKeeper server."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading

import kazoo.protocol.connection
import pytest
import trio
from kazoo.protocol.connection import AUTH_XID
from trio.testing import wait_all_tasks_blocked

from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.calls import AnswerLost, Exists, NotSent, ZookeeperCall
from ledgerlog.meta.zookeeper.clock import NS, boot_clock_ns
from ledgerlog.meta.zookeeper.link import Ended, Event, KazooLink, Trouble
from ledgerlog.meta.zookeeper.session import ZooKeeperSession
from tests.waiting import PATIENCE_S


def ignore(event: Event) -> None:
    pass


async def test_a_session_is_not_believed_in_because_the_next_one_was_opened() -> None:
    """After a long stop, kazoo's thread may have the next session before the loop hears of this one's end."""
    link = KazooLink("127.0.0.1:1", 6.0, on_event=ignore)
    first = ZooKeeperSession(1, link)
    assert first.state is SessionState.SUSPENDED, "nothing was answered yet"
    link.opened(1, 6 * NS, boot_clock_ns())
    assert first.state is SessionState.CONNECTED
    link.opened(2, 6 * NS, boot_clock_ns())
    assert first.state is SessionState.SUSPENDED
    assert ZooKeeperSession(2, link).state is SessionState.CONNECTED
    link.heard(boot_clock_ns())
    assert first.state is SessionState.SUSPENDED


async def test_a_lease_lasts_as_long_after_the_sending_of_what_was_answered_last_as_was_agreed() -> None:
    link = KazooLink("127.0.0.1:1", 6.0, on_event=ignore)
    session = ZooKeeperSession(1, link)
    now = boot_clock_ns()
    link.opened(1, 6 * NS, now - 7 * NS)
    assert session.state is SessionState.SUSPENDED
    link.heard(now - 3 * NS)
    assert session.state is SessionState.CONNECTED
    assert 2 < session.lease_left_s <= 3
    link.heard(now - 5 * NS)
    assert 2 < session.lease_left_s <= 3, "an older answer takes nothing away"


async def test_who_waits_while_the_lease_has_run_out_hears_of_a_late_answer() -> None:
    """The store had not noticed the end of the lease, so the state was CONNECTED before and after."""
    link = KazooLink("127.0.0.1:1", 6.0, on_event=ignore)
    session = ZooKeeperSession(1, link)
    link.opened(1, 6 * NS, boot_clock_ns() - 7 * NS)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.wait_not, SessionState.SUSPENDED)
            await wait_all_tasks_blocked()
            link.heard(boot_clock_ns())
            session.become(SessionState.CONNECTED)


async def test_a_link_whose_thread_ends_without_a_connection_says_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nobody would replace it. kazoo takes the errors of an address for its own kind only."""

    def refuse(*args: object, **kwargs: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    class Sockets:
        getaddrinfo = staticmethod(refuse)

        def __getattr__(self, name: str) -> object:
            return getattr(socket, name)

    monkeypatch.setattr(kazoo.protocol.connection, "socket", Sockets())
    monkeypatch.setattr(threading, "excepthook", ignore)  # The thread ends with this error.
    send, receive = trio.open_memory_channel[Event](9)
    link = KazooLink("127.0.0.1:1", 6.0, on_event=send.send_nowait)
    link.start()
    with trio.fail_after(PATIENCE_S):
        assert isinstance(await receive.receive(), Ended)
    await trio.to_thread.run_sync(link.stop)


@pytest.mark.parametrize(
    "failure", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_a_link_that_cannot_begin_says_so_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """A store makes a new link in a background task, which must not end the process."""

    def refuse(_: object) -> None:
        raise failure

    send, receive = trio.open_memory_channel[Event](9)
    link = KazooLink("127.0.0.1:1", 6.0, on_event=send.send_nowait)
    monkeypatch.setattr(link._client.handler, "create_socket_pair", refuse.__get__(link))
    link.start()
    with trio.fail_after(PATIENCE_S):
        said = [await receive.receive(), await receive.receive()]
    assert [type(event) for event in said] == [Trouble, Ended]
    assert str(failure) in str(said[1])
    await trio.to_thread.run_sync(link.stop)


@pytest.mark.parametrize("kind", ["of the next request", "of a proof"])
async def test_an_answer_out_of_order_ends_the_connection_and_not_the_session(kind: str) -> None:
    """A server that had two clients in one session left out an answer. The next one ended kazoo's thread.

    kazoo takes every answer to a proof for the answer to the oldest request."""
    sessions: list[int] = []

    async def frame(stream: trio.SocketStream) -> bytes:
        async def read(count: int) -> bytes:
            found = b""
            while len(found) < count:
                found += await stream.receive_some(count - len(found)) or pytest.fail("the link hung up")
            return found

        return await read(*struct.unpack("!i", await read(4)))

    async def say(stream: trio.SocketStream, answer: bytes) -> None:
        await stream.send_all(struct.pack("!i", len(answer)) + answer)

    async def serve(stream: trio.SocketStream) -> None:
        sessions.append(struct.unpack_from("!iqiq", await frame(stream))[3])
        await say(stream, struct.pack("!iiqi16s?", 0, 60_000, 7, 16, b"password", False))
        (xid,) = struct.unpack_from("!i", await frame(stream))
        no_node = -101
        if len(sessions) == 1:
            xid = AUTH_XID if kind == "of a proof" else xid + 1
        await say(stream, struct.pack("!iqi", xid, 1, no_node))
        await trio.sleep_forever()

    async def ask(link: KazooLink) -> object:
        while True:
            answered, done = trio.open_memory_channel[ZookeeperCall](1)
            call = Exists("/a")
            call.deliver = answered.send_nowait
            link.submit(call)
            # A link that has not begun yet, and one whose connection is just ending, sends nothing.
            with contextlib.suppress(NotSent):
                return (await done.receive()).result()

    said: list[Event] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            link = KazooLink(f"127.0.0.1:{listener.socket.getsockname()[1]}", 60.0, on_event=said.append)
            link.start()
            with pytest.raises(AnswerLost):
                await ask(link)
            assert await ask(link) is None
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(link.stop)
    assert sessions == [0, 7]
    assert not [event for event in said if isinstance(event, Ended)]
