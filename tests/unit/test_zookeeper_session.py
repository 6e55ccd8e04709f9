"""A process believes in its ZooKeeper session only as long as its own lease lasts. No server, no thread."""

from __future__ import annotations

from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.clock import NS, boot_clock_ns
from ledgerlog.meta.zookeeper.link import Event, KazooLink
from ledgerlog.meta.zookeeper.session import ZooKeeperSession


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
