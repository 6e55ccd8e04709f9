"""Entries that settle during the write of an ensemble change still reach the replacement."""

from __future__ import annotations

from ledgerlog.ledger.core import pending as core
from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.model.ledger import Fragment
from ledgerlog.model.quorum import Replication


def changing(sizes: list[int]) -> PendingAdds:
    """Entries from 0 on were sent to b0, b1, b2. b0 has failed; its replacement by b3 is being written."""
    pending = PendingAdds(Replication(3, 3, 2), (Fragment(0, ("b0", "b1", "b2")),))
    for size in sizes:
        pending.push([b"x"], size)
    for bookie in ("b0", "b1", "b2"):
        pending.take_sends(bookie)
    pending.on_bookie_failed("b0")
    pending.strip([0], carry=True)
    return pending


def settle(pending: PendingAdds, last: int) -> None:
    pending.on_add_ok("b1", 0, last)
    pending.on_add_ok("b2", 0, last)


def install(pending: PendingAdds) -> None:
    pending.install({0: "b3"}, (Fragment(0, ("b3", "b1", "b2")),))


def sent(pending: PendingAdds, bookie: str) -> list[int]:
    return [send.first for send in pending.take_sends(bookie)]


def test_the_replacement_is_handed_what_settled_meanwhile_and_then_it_is_let_go() -> None:
    pending = changing([1, 1, 1])
    settle(pending, 1)
    assert (pending.settled, pending.byte_count) == (1, 3)
    install(pending)
    settle(pending, 2)
    assert pending.is_drained
    assert sent(pending, "b3") == [0, 1, 2]
    assert not pending.batches
    assert pending.byte_count == 0


def test_a_replacement_that_connects_only_now_is_handed_it_as_well() -> None:
    pending = changing([1, 1])
    settle(pending, 1)
    install(pending)
    pending.on_bookie_connected("b3")
    assert sent(pending, "b3") == [0, 1]
    assert not pending.batches
    assert not pending.on_add_ok("b3", 0, 1), "it confirms what is settled, which is no news"


def test_for_a_replacement_that_fails_nothing_is_kept() -> None:
    pending = changing([1, 1])
    settle(pending, 1)
    install(pending)
    pending.on_bookie_failed("b3")
    assert not pending.batches
    pending.on_bookie_connected("b3")
    assert sent(pending, "b3") == []


def test_what_is_kept_is_bounded() -> None:
    half = core.CARRIED_BYTES_MAX // 2
    pending = changing([half, half, 1, 1])
    settle(pending, 1)
    assert pending.byte_count == 2 * half + 2
    settle(pending, 2)
    assert pending.byte_count == 1, "a writer is not held up for copies beyond the quorum"
    install(pending)
    assert sent(pending, "b3") == [3]


def test_what_settled_is_kept_though_the_bookie_that_leaves_comes_and_goes() -> None:
    pending = changing([1, 1])
    settle(pending, 0)
    pending.on_bookie_connected("b0")
    pending.on_bookie_failed("b0")
    settle(pending, 1)
    install(pending)
    assert sent(pending, "b3") == [0, 1]


def test_in_guaranteed_mode_a_replacement_that_connects_only_now_is_handed_all_above_the_lafr() -> None:
    pending = PendingAdds(Replication(3, 3, 2, guaranteed=True), (Fragment(0, ("b0", "b1", "b2")),))
    for _ in range(2):
        pending.push([b"x"], 1)
    for bookie in ("b0", "b1", "b2"):
        pending.take_sends(bookie)
    settle(pending, 1)
    pending.on_bookie_failed("b0")
    assert (pending.lac, pending.lafr) == (1, -1)
    pending.strip([0], carry=True)
    install(pending)
    pending.on_bookie_connected("b3")
    assert sent(pending, "b3") == [0, 1]
