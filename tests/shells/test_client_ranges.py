"""What a range read makes of a bookie's reply: a refusal is not an answer about entries."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from scripted_bookie import Peer, Scene, opened_scene

from ledgerlog.errors import PermissionDenied
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.ranges import Listing, RangeAnswer, list_range, read_range
from ledgerlog.net.local import LocalNetwork
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Kind, Status, encode_pairs

ABOUT_ENTRIES = frozenset((Status.OK, Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, Status.UNKNOWN))
ABOUT_THE_NEXT = frozenset((Status.CORRUPT, Status.IO_ERROR))
ABOUT_THE_CLIENT = frozenset((Status.PERMISSION_DENIED,))
REFUSALS = frozenset(Status) - ABOUT_ENTRIES - ABOUT_THE_NEXT - ABOUT_THE_CLIENT


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened_scene(LocalNetwork(), "bookie:0") as scene:
        yield scene


async def answer_to(
    scene: Scene, *, first: int, status: Status, through: int, entries: Entries | None = None, flips: int = 0
) -> RangeAnswer | None:
    """What is made of a reply to a recovery read of ``first`` to 9. The last byte of the reply changes on the
    way by ``flips``."""
    answers: list[RangeAnswer | None] = []

    async def read() -> None:
        answers.append(
            await read_range(scene.connection, 7, first=first, last=9, recovery_key=b"k" * 16, timeout_s=60)
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        peer: Peer = await scene.bookie.next()
        request = await peer.next_frame()
        assert request.header.kind == Kind.READ
        if entries is None:
            await peer.reply(request, status=status, argument=through)
        else:
            payload = bytearray(entries.payload)
            payload[-1] ^= flips
            await peer.reply(
                request,
                status=status,
                flags=entries.flags,
                count=len(entries),
                first=entries.ids[0],
                last=entries.ids[-1],
                argument=through,
                index=entries.index_part(),
                payload_bytes=len(payload),
            )
            await peer.send(bytes(payload))
    return answers[0]


@pytest.mark.parametrize("status", sorted(REFUSALS), ids=lambda status: status.name)
@pytest.mark.parametrize("first", [0, 4])
async def test_a_refused_read_says_nothing_of_any_entry_whatever_is_in_its_reply(
    scene: Scene, first: int, status: Status, autojump_clock: trio.testing.MockClock
) -> None:
    assert await answer_to(scene, first=first, status=status, through=first) is None


async def test_a_read_that_is_denied_is_an_error_and_no_answer(scene: Scene) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await answer_to(scene, first=0, status=Status.PERMISSION_DENIED, through=9)
    assert isinstance(caught.value.exceptions[0], PermissionDenied)


@pytest.mark.parametrize("status", sorted(ABOUT_THE_NEXT), ids=lambda status: status.name)
async def test_an_error_in_reading_an_entry_leaves_what_the_reply_says_of_those_before(
    scene: Scene, status: Status
) -> None:
    answer = await answer_to(scene, first=2, status=status, through=4)
    assert answer is not None
    assert (answer.through, answer.negative) == (4, Negative.ABSENT)
    assert answer.damaged == (5 if status is Status.CORRUPT else None)


@pytest.mark.parametrize(
    ("status", "negative"), [(Status.OK, Negative.ABSENT), (Status.UNKNOWN, Negative.UNKNOWN)], ids=str
)
@pytest.mark.parametrize("flips", [0, 1], ids=["intact", "changed"])
async def test_a_bookie_in_limbo_denies_no_entry_even_if_later_bytes_of_its_reply_changed_on_the_way(
    scene: Scene, status: Status, negative: Negative, flips: int
) -> None:
    entries = Entries.gather(7, {0: b"zero", 3: b"three"})
    answer = await answer_to(scene, first=0, status=status, through=9, entries=entries, flips=flips)
    if flips:
        assert answer == RangeAnswer({0: b"zero"}, 2, negative, None)
    else:
        assert answer == RangeAnswer({0: b"zero", 3: b"three"}, 9, negative, None)


async def listing_of(
    scene: Scene, *, status: Status, pairs: list[tuple[int, int]], through: int
) -> Listing | None:
    """What is made of a reply to a list of 4 to 9."""
    listings: list[Listing | None] = []

    async def ask() -> None:
        listings.append(await list_range(scene.connection, 7, first=4, last=9, timeout_s=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        peer: Peer = await scene.bookie.next()
        request = await peer.next_frame()
        assert (request.header.kind, request.header.first, request.header.last) == (Kind.LIST, 4, 9)
        await peer.reply(request, status=status, argument=through, index=encode_pairs(pairs))
    return listings[0]


async def test_a_list_that_ends_early_says_how_far_it_is_complete(scene: Scene) -> None:
    listing = await listing_of(scene, status=Status.OK, pairs=[(4, 5)], through=6)
    assert listing == Listing([(4, 5)], 6, Negative.ABSENT)


@pytest.mark.parametrize("through", [3, 9])
@pytest.mark.parametrize("status", [Status.OK, Status.NO_SUCH_LEDGER])
async def test_a_list_that_names_nothing_is_about_all_that_was_asked_for(
    scene: Scene, status: Status, through: int
) -> None:
    assert await listing_of(scene, status=status, pairs=[], through=through) == Listing(
        [], 9, Negative.ABSENT
    )


@pytest.mark.parametrize(("status", "pairs", "through"), [(Status.IO_ERROR, [], 9), (Status.OK, [(4, 5)], 3)])
async def test_a_list_that_failed_or_does_not_reach_its_first_entry_says_nothing(
    scene: Scene, status: Status, pairs: list[tuple[int, int]], through: int
) -> None:
    assert await listing_of(scene, status=status, pairs=pairs, through=through) is None
