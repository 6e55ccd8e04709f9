"""Asking one bookie for a range of entries, and checking its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import BookieUnavailable, PermissionDenied, WireError
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.permission import check_permitted
from ledgerlog.limits import (
    BUSY_DELAY_MAX_S,
    BUSY_DELAY_MIN_S,
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
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
from ledgerlog.wire.ledgers import LedgerOnBookie, decode_ledgers_untrusted
from ledgerlog.wire.scrub import ScrubReport, decode_scrub_untrusted

logger = logging.getLogger(__name__)

_NEGATIVES = {
    Status.OK: Negative.ABSENT,
    Status.NO_SUCH_ENTRY: Negative.ABSENT,
    Status.NO_SUCH_LEDGER: Negative.ABSENT,
    Status.UNKNOWN: Negative.UNKNOWN,
}

_ABOUT_THE_NEXT = frozenset((Status.CORRUPT, Status.IO_ERROR))
"""Errors in reading one entry: the reply is complete up to the entry before it."""


@attrs.frozen
class Listing:
    """The entries that a bookie's index names, from the first one asked for on."""

    pairs: list[tuple[int, int]]
    """Ranges in ascending order."""
    through: int
    """The ranges are complete up to this entry, which is at least the first one asked for."""
    negative: Negative
    """Whether entries outside the ranges are absent or unknown."""


@attrs.frozen
class RangeAnswer:
    """Entries of a bookie whose digests match, and the last entry that the answer covers."""

    found: dict[int, bytes]
    through: int
    """The answer is complete up to this entry. ``negative`` says what it means if an entry up to here is not
    in ``found``."""
    negative: Negative
    damaged: int | None
    """An entry whose copy is damaged, as the bookie says; ``found`` and ``through`` end before it."""


@attrs.frozen
class ScrubAnswer:
    """A bookie's report after reading and checking a range of its own entries."""

    report: ScrubReport
    through: int
    """The report is complete up to this entry."""
    negative: Negative
    """Whether entries outside the report's ranges are absent or unknown."""


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
    tell_why: Callable[[str], object] | None = None,
) -> RangeAnswer | None:
    """Read entries first, first + stride, ... up to last from one bookie, as many as one reply brings.

    Args:
        connection: The connection to the bookie.
        ledger_id: The ledger.
        first: The first entry.
        last: The last entry that may be read.
        stride: The distance between entries.
        recovery_key: If given, the read fences the ledger before the bookie answers.
        bytes_max: About how many payload bytes to read.
        timeout_s: Seconds for the whole call.
        is_patient: Ask a busy bookie again, within ``timeout_s``.
        tell_why: If the bookie did not answer, this is called with the reason before None is returned. The
            reason names the bookie.

    Returns:
        The answer. None if nothing is known: the bookie did not answer, refused to look (its reply is then
        ignored), or said nothing about the first entry. If an entry of the reply fails its digest, it was
        damaged on the way: the answer ends before it, and is None if that is the first entry.

    Raises:
        BookieBusy: The bookie has too many requests under way, and ``is_patient`` is False.
        PermissionDenied: This client may not read the ledger, or not recover it.
    """
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
        if tell_why is not None:
            tell_why(str(cause))
        return None
    status = Status(reply.header.status)
    what = "read it" if recovery_key is None else "recover it"
    check_permitted(status, connection, ledger_id, what)
    is_about_next = status in _ABOUT_THE_NEXT
    if status not in _NEGATIVES and not is_about_next:
        logger.debug("ledger=%d bookie=%s read refused: %s", ledger_id, connection.bookie_id, status.name)
        return None
    through = reply.header.argument
    negative = _NEGATIVES.get(status, Negative.ABSENT)
    found = dict(zip(entries.ids, entries.payloads(), strict=True))
    broken = entries.first_damaged() if len(entries) else None
    if broken is not None:
        # The bookie checks each digest before it sends: these bytes changed on the way.
        why = f"bookie {connection.bookie_id}: entry {broken} of its reply fails its digest"
        logger.warning("ledger=%d %s", ledger_id, why)
        found = {entry_id: payload for entry_id, payload in found.items() if entry_id < broken}
        if found:
            return RangeAnswer(found, broken - 1, negative, None)
        if tell_why is not None:
            tell_why(why)
        return None
    damaged = None
    if is_about_next:
        if status is Status.CORRUPT:
            damaged = first + max(0, -(-(through + 1 - first) // stride)) * stride
        if through < first and damaged is None:
            return None
    return RangeAnswer(found, through, negative, damaged)


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
    """Read entries from ``first`` on, as many as one exchange with the ledger's bookies brings: at least one.

    If only busy bookies are left, this asks them again for ``limits.REQUEST_TIMEOUT_S``.

    Args:
        metadata: The ledger.
        first: The first entry.
        last: The last entry that may be read.
        bytes_max: About how many payload bytes to read.
        connection: Gives the connection to a bookie.
        failed: Bookies that did not answer last time. They are asked last. This call adds bookies that
            do not answer, and removes bookies that answer.
        prefer: Which bookie of each write set to ask first: any number, taken modulo the write quorum.

    Returns:
        The payloads of consecutive entries from ``first`` on.

    Raises:
        EntryNotFound: Every bookie of the write set says that it has no such entry.
        EntryUnavailable: A bookie that may have the entry did not answer, or is in limbo.
        EntryCorrupt: A copy is damaged, and no bookie that may have a sound one is left.
        PermissionDenied: This client may not read the ledger.
    """
    read = RangeRead(metadata, first, last, avoid=list(failed), prefer=prefer)

    async def ask_for(ask: RangeAsk, share: int) -> None:
        why: list[str] = []
        try:
            answer = await read_range(
                connection(ask.bookie),
                metadata.ledger_id,
                first=ask.first,
                last=ask.last,
                stride=ask.stride,
                bytes_max=share,
                is_patient=False,
                tell_why=why.append,
            )
        except BookieBusy:
            read.on_busy(ask)
            return
        except PermissionDenied as denial:
            read.on_denied(denial)
            return
        if answer is None:
            failed[ask.bookie] = None
            read.on_failed(ask, *why)
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
    """List the entries of first..last that a bookie's index names, as many as one reply brings.

    The list may go beyond ``last``. The bookie does not read the entries' bytes. Returns None if nothing is
    known: the bookie did not answer, or cannot read its index. Raises PermissionDenied if this client may not
    read the ledger."""
    try:
        reply = await connection.request(
            Kind.LIST, timeout_s=timeout_s, ledger_id=ledger_id, first=first, last=last
        )
        check_permitted(reply.header.status, connection, ledger_id, "read it")
        pairs = decode_pairs_untrusted(reply.body)
    except (BookieUnavailable, WireError) as cause:
        logger.debug("ledger=%d bookie=%s listing failed: %s", ledger_id, connection.bookie_id, cause)
        return None
    negative = _NEGATIVES.get(Status(reply.header.status))
    if negative is None:
        return None
    # A reply without ranges covers everything that was asked for, even if its ``argument`` is lower. That may
    # be so if the bookie does not know the ledger at all.
    through = reply.header.argument if pairs else max(last, reply.header.argument)
    return Listing(pairs, through, negative) if through >= first else None


async def list_ledgers(
    connection: BookieConnection, key: bytes, *, timeout_s: float = SCRUB_TIMEOUT_S
) -> tuple[list[LedgerOnBookie], Negative] | None:
    """List all ledgers for which a bookie holds entries.

    Args:
        connection: The connection to the bookie.
        key: The listing key in the bookie's registration.
        timeout_s: Seconds for each request.

    Returns:
        The ledgers, and whether all other ledgers are absent or unknown (the bookie is in limbo). None if
        nothing is known: the bookie did not answer, or refused.

    Raises:
        PermissionDenied: This client may not see the list.
    """
    held: list[LedgerOnBookie] = []
    first, negative = 0, Negative.ABSENT
    while first <= LEDGER_ID_MAX:
        try:
            reply = await connection.request(Kind.LEDGERS, timeout_s=timeout_s, ledger_id=first, key=key)
            if reply.header.status == Status.PERMISSION_DENIED:
                raise PermissionDenied(
                    f"{connection.whoami} may not list the ledgers of bookie {connection.bookie_id}: only an "
                    "admin or a bookie may"
                )
            status = _NEGATIVES.get(Status(reply.header.status))
            ledgers = decode_ledgers_untrusted(reply.body)
        except (BookieUnavailable, WireError) as cause:
            logger.debug("bookie=%s listing of ledgers failed: %s", connection.bookie_id, cause)
            return None
        through = reply.header.argument
        if status is None or through < max([first, *(ledger.ledger_id for ledger in ledgers)]):
            return None
        if status is Negative.UNKNOWN:
            negative = status
        held += ledgers
        first = through + 1
    return held, negative


async def scrub_range(
    connection: BookieConnection,
    ledger_id: int,
    *,
    first: int,
    last: int,
    classes: int,
    timeout_s: float = SCRUB_TIMEOUT_S,
) -> ScrubAnswer | None:
    """Have a bookie read entries first..last and check their digests, as many as one request covers.

    The bookie adds up the digests by the remainders of the entry ids modulo ``classes`` (``wire.scrub``).
    Returns None if the bookie did not answer, or cannot read its index: nothing is known. Raises
    PermissionDenied if this client may not read the ledger."""
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
        check_permitted(reply.header.status, connection, ledger_id, "read it")
        negative = _NEGATIVES.get(Status(reply.header.status))
        if negative is None:
            return None
        report = decode_scrub_untrusted(reply.body)
    except (BookieUnavailable, WireError) as cause:
        logger.debug("ledger=%d bookie=%s scrub failed: %s", ledger_id, connection.bookie_id, cause)
        return None
    return ScrubAnswer(report, reply.header.argument, negative)
