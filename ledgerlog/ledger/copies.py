"""Asking bookies for their copies of a ledger. ``ledger.core.comparison`` decides what an answer means.

There are three ways to carry out a ``CopyAsk``. Each gives a ``CopyAnswer``, or None if nothing is known:

    ask_copies, classes = 0   lists the entries in the bookie's index: cheap, but the bytes are not checked
    ask_copies, classes > 0   scrubs: the bookie reads its copies and checks them
    read_copies               reads the entries themselves, and checks them here
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from ledgerlog.concurrency.gathering import gather
from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk
from ledgerlog.ledger.core.copies import CopyCheck, CopyFault
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.ranges import list_range, read_range, scrub_range
from ledgerlog.limits import READ_REPLY_BYTES_TARGET, REQUEST_TIMEOUT_S, SCRUB_TIMEOUT_S
from ledgerlog.model.id_ranges import joined
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.pool import ConnectionPool

__all__ = ["ask_copies", "carry_out", "compare_lists", "read_copies"]


async def carry_out(
    check: CopyCheck, answer: Callable[[CopyAsk], Awaitable[CopyAnswer | None]]
) -> list[CopyFault]:
    """Carry a check out to its end, and return all faults that it found."""

    async def get(ask: CopyAsk) -> None:
        given = await answer(ask)
        if given is None:
            check.on_silent(ask)
        else:
            check.on_answer(ask, given)

    faults: list[CopyFault] = []
    while not check.is_done:
        await gather(*(partial(get, ask) for ask in check.take_asks()))
        faults += check.take_faults()
    return faults + check.take_faults()


async def compare_lists(
    pool: ConnectionPool, metadata: LedgerMetadata, *, turn: Callable[[], Awaitable[None]] | None = None
) -> list[CopyFault]:
    """Find the copies that bookies lack, by lists of the bookies' indexes. This finds every missing copy, but
    no damaged one.

    Args:
        pool: Connections to the bookies.
        metadata: The ledger.
        turn: Awaited before each request, if given.

    Returns:
        Faults of every kind except CORRUPT and DIVERGING. The faults of one bookie are in the order of its
        entries. A bookie that does not answer is not asked again, so you wait only once for a hanging bookie.
    """
    silent: set[BookieId] = set()

    async def answer(ask: CopyAsk) -> CopyAnswer | None:
        if ask.bookie in silent:
            return None
        if turn is not None:
            await turn()
        given = await ask_copies(pool.connection(ask.bookie), metadata.ledger_id, ask)
        if given is None:
            silent.add(ask.bookie)
        return given

    return await carry_out(CopyCheck(metadata, scrub=False), answer)


async def ask_copies(
    connection: BookieConnection, ledger_id: int, ask: CopyAsk, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> CopyAnswer | None:
    """Ask a bookie for a list (as far as one reply goes) or for a scrub.

    ``timeout_s`` limits a list; a scrub has its own time limit. Returns None if the bookie did not answer or
    could not look."""
    if not ask.classes:
        listed = await list_range(connection, ledger_id, first=ask.first, timeout_s=timeout_s)
        if listed is None:
            return None
        return CopyAnswer(through=listed.through, negative=listed.negative, sound=listed.pairs)
    scrubbed = await scrub_range(
        connection, ledger_id, first=ask.first, last=ask.last, classes=ask.classes, timeout_s=SCRUB_TIMEOUT_S
    )
    if scrubbed is None:
        return None
    report = scrubbed.report
    return CopyAnswer(
        through=scrubbed.through,
        negative=scrubbed.negative,
        sound=report.sound,
        unsound=report.unsound,
        sums=report.sums,
    )


async def read_copies(
    connection: BookieConnection,
    ledger_id: int,
    share: Share,
    ask: CopyAsk,
    *,
    bytes_max: int = READ_REPLY_BYTES_TARGET,
) -> CopyAnswer | None:
    """Read the asked entries of a bookie's share, and check the copies.

    The answer ends before the first entry about which the bookie said nothing. If that entry is the first one
    asked for, the result is None."""
    replication = share.replication
    stride = replication.ensemble if replication.is_striped else 1
    stop = min(ask.last, ask.first + stride - 1)
    # The next entry to read of each class (the entries with the same write set). The lowest is read first.
    upcoming = [e for e in range(ask.first, stop + 1) if replication.holds(share.slot, e)]
    sound: list[int] = []
    damaged: list[int] = []
    through, negative = ask.last, Negative.ABSENT
    while upcoming and (first := min(upcoming)) <= ask.last:
        answer = await read_range(
            connection, ledger_id, first=first, last=ask.last, stride=stride, bytes_max=bytes_max
        )
        if answer is None or (answer.damaged is None and answer.through < first):
            through = first - 1
            break
        sound += answer.found
        if answer.negative is not Negative.ABSENT:
            negative = answer.negative
        upcoming.remove(first)
        if answer.damaged is not None:
            damaged.append(answer.damaged)
            upcoming.append(answer.damaged + stride)
        else:
            upcoming.append(first + ((answer.through - first) // stride + 1) * stride)
    if through < ask.first:
        return None
    return CopyAnswer(
        through=through,
        negative=negative,
        sound=joined((e, e) for e in sorted(sound) if e <= through),
        unsound=joined((e, e) for e in sorted(damaged) if e <= through),
    )
