"""Asking one bookie for a range of entries, and what its answer is worth."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import BookieUnavailable, WireError
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.limits import (
    BUSY_DELAY_MAX_S,
    BUSY_DELAY_MIN_S,
    ENTRY_ID_MAX,
    READ_REPLY_BYTES_TARGET,
    REQUEST_TIMEOUT_S,
    SCRUB_BYTES,
    SCRUB_TIMEOUT_S,
)
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.connection import BookieBusy, BookieConnection
from ledgerlog.wire.entries import decode_entries_untrusted
from ledgerlog.wire.frame import NO_KEY, RECOVERY, Kind, Status, decode_pairs_untrusted
from ledgerlog.wire.scrub import ScrubReport, decode_scrub_untrusted

logger = logging.getLogger(__name__)

_NEGATIVES = {
    Status.OK: Negative.ABSENT,
    Status.NO_SUCH_ENTRY: Negative.ABSENT,
    Status.NO_SUCH_LEDGER: Negative.ABSENT,
    Status.UNKNOWN: Negative.UNKNOWN,
}

_ABOUT_THE_NEXT = frozenset((Status.CORRUPT, Status.IO_ERROR))
"""Errors in reading one entry: the reply is complete up to the one before it."""


@attrs.frozen
class Listing:
    """Which entries a bookie's index names, from the one asked for on."""

    pairs: list[tuple[int, int]]
    """Growing ranges."""
    through: int
    """They are complete up to here: at least the entry asked for first."""
    negative: Negative
    """What it means that an entry is not among them."""


@attrs.frozen
class RangeAnswer:
    """Entries that a bookie has, with matching digests, and how far that is the whole truth."""

    found: dict[int, bytes]
    through: int
    """Every asked entry up to here that is not in ``found`` is ``negative``."""
    negative: Negative
    damaged: int | None
    """An entry whose copy there fails its digest; ``found`` and ``through`` end before it."""


@attrs.frozen
class ScrubAnswer:
    """What a bookie found when it read a range for itself."""

    report: ScrubReport
    through: int
    """It is complete up to here."""
    negative: Negative
    """What it means that an entry is in none of its ranges."""


async def read_range(
    connection: BookieConnection,
    ledger_id: int,
    *,
    first: int,
    last: int,
    stride: int = 1,
    recovery_key: bytes | None = None,
    bytes_max: int = READ_REPLY_BYTES_TARGET,
    timeout_s: float = REQUEST_TIMEOUT_S,
    is_patient: bool = True,
) -> RangeAnswer | None:
    """Entries first, first + stride, ... up to last, as far as one reply of about ``bytes_max`` goes.

    With ``recovery_key`` the read fences the ledger before it is answered. None where the bookie did not
    answer, refused to look (whatever else is in its reply then), or said nothing about the first entry:
    nothing at all is known then. A bookie with too many requests under way is asked again within
    ``timeout_s``; with ``is_patient`` False, BookieBusy."""
    try:
        reply = await connection.request(
            Kind.READ,
            timeout_s=timeout_s,
            is_patient=is_patient,
            flags=0 if recovery_key is None else RECOVERY,
            ledger_id=ledger_id,
            first=first,
            last=last,
            count=stride,
            argument=bytes_max,
            key=NO_KEY if recovery_key is None else recovery_key,
        )
        entries = decode_entries_untrusted(reply)
    except (BookieUnavailable, WireError) as cause:
        if isinstance(cause, BookieBusy) and not is_patient:
            raise
        logger.debug("ledger=%d bookie=%s read failed: %s", ledger_id, connection.bookie_id, cause)
        return None
    status = Status(reply.header.status)
    if status not in _NEGATIVES and status not in _ABOUT_THE_NEXT:
        logger.debug("ledger=%d bookie=%s read refused: %s", ledger_id, connection.bookie_id, status.name)
        return None
    through = reply.header.argument
    negative = _NEGATIVES.get(status)
    found = dict(zip(entries.ids, entries.payloads(), strict=True))
    damaged = entries.first_damaged() if len(entries) else None
    if damaged is not None:
        logger.warning(
            "ledger=%d bookie=%s entry %d fails its digest", ledger_id, connection.bookie_id, damaged
        )
        through = damaged - 1
        found = {entry_id: payload for entry_id, payload in found.items() if entry_id < damaged}
    elif negative is None:
        if status is Status.CORRUPT:
            damaged = first + max(0, -(-(through + 1 - first) // stride)) * stride
        if through < first and damaged is None:
            return None
        negative = Negative.ABSENT  # The error is about the entry after ``through``.
    return RangeAnswer(found, through, negative or Negative.ABSENT, damaged)


async def read_entries(
    metadata: LedgerMetadata,
    first: int,
    last: int,
    *,
    bytes_max: int,
    connection: Callable[[BookieId], BookieConnection],
    failed: dict[BookieId, None],
    prefer: int,
) -> list[bytes]:
    """The payloads of as many entries from ``first`` on as one exchange with the bookies of the ledger
    brings, at least one, at most through ``last``.

    ``failed`` are the bookies that did not answer last: they are asked last, and who answers now leaves it.
    Where those that are left have too many requests under way, they are asked again for
    ``limits.REQUEST_TIMEOUT_S``.
    EntryNotFound, EntryUnavailable, EntryCorrupt: see ``ledger.core.reader``."""
    read = RangeRead(metadata, first, last, avoid=list(failed), prefer=prefer)

    async def ask_for(ask: RangeAsk, share: int) -> None:
        try:
            answer = await read_range(
                connection(ask.bookie),
                metadata.ledger_id,
                first=ask.first,
                last=ask.last,
                stride=ask.stride,
                bytes_max=share,
                is_patient=False,
            )
        except BookieBusy:
            read.on_busy(ask)
            return
        if answer is None:
            failed[ask.bookie] = None
            read.on_failed(ask)
        else:
            failed.pop(ask.bookie, None)
            read.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)

    deadline = trio.current_time() + REQUEST_TIMEOUT_S
    backoff = Backoff(BUSY_DELAY_MIN_S, BUSY_DELAY_MAX_S)
    while not read.is_done:
        asks = read.take_asks()
        if read.is_waiting:
            left_s = deadline - trio.current_time()
            if left_s <= 0:
                read.give_up_busy()
                continue
            await trio.sleep(min(backoff.next_s(), left_s))
            read.ask_busy_again()
            continue
        if len(asks) == 1:
            await ask_for(asks[0], bytes_max)
        else:
            async with trio.open_nursery() as nursery:
                for ask in asks:
                    nursery.start_soon(ask_for, ask, max(1, bytes_max // len(asks)))
        payloads = read.payloads()
        if payloads:
            return payloads
    assert read.failure is not None
    raise read.failure


async def list_range(
    connection: BookieConnection,
    ledger_id: int,
    *,
    first: int,
    last: int = ENTRY_ID_MAX,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Listing | None:
    """Which of the entries first..last of a ledger a bookie has, as far as one reply goes (it may go further
    than ``last``); the bytes are not looked at. None where it did not answer, or cannot read its index:
    nothing is known then."""
    try:
        reply = await connection.request(
            Kind.LIST, timeout_s=timeout_s, ledger_id=ledger_id, first=first, last=last
        )
        pairs = decode_pairs_untrusted(reply.body)
    except (BookieUnavailable, WireError) as cause:
        logger.debug("ledger=%d bookie=%s listing failed: %s", ledger_id, connection.bookie_id, cause)
        return None
    negative = _NEGATIVES.get(Status(reply.header.status))
    if negative is None:
        return None
    # A reply that names nothing is about all that was asked for. Where the ledger is not known at all, some
    # bookies do not say so in ``argument``.
    through = reply.header.argument if pairs else max(last, reply.header.argument)
    return Listing(pairs, through, negative) if through >= first else None


async def scrub_range(
    connection: BookieConnection,
    ledger_id: int,
    *,
    first: int,
    last: int,
    classes: int,
    timeout_s: float = SCRUB_TIMEOUT_S,
) -> ScrubAnswer | None:
    """Have a bookie read entries first..last and check their digests, as far as one request goes; ``classes``
    is by how many remainders of their ids the digests are added up (``wire.scrub``). None where it did not
    answer, or cannot read its index: nothing is known then."""
    try:
        reply = await connection.request(
            Kind.SCRUB,
            timeout_s=timeout_s,
            ledger_id=ledger_id,
            first=first,
            last=last,
            count=classes,
            argument=SCRUB_BYTES,
        )
        negative = _NEGATIVES.get(Status(reply.header.status))
        if negative is None:
            return None
        report = decode_scrub_untrusted(reply.body)
    except (BookieUnavailable, WireError) as cause:
        logger.debug("ledger=%d bookie=%s scrub failed: %s", ledger_id, connection.bookie_id, cause)
        return None
    return ScrubAnswer(report, reply.header.argument, negative)
