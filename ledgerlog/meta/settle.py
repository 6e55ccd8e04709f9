"""Carry out a change of metadata, even if rivals interfere or answers are lost. Only this module does that.

A change reads, decides, and writes by compare-and-set. If the write does not succeed, there are three cases:

    a rival was faster     VersionConflict, NodeExists, NodeMissing: nothing was written. Read and decide
                           again.
    its answer was lost    MetadataOutcomeUnknown: it was applied or not. Read again: the value carries a
                           token, by which the writer recognizes its own write. If the token is not there,
                           write again.
    the store is away      MetadataUnavailable: *this call* did nothing. But if the answer to an earlier write
                           of the change was lost, the change may have happened. Then it is wrong to raise
                           MetadataUnavailable, which means that nothing happened.

``settle`` runs this loop. No other module has an ``except`` for a lost answer.

Some tasks never give up, for example a candidate in an election and a bookie's registration. Such a task
reads before each write, so it does not matter whether its last write took effect. ``go_on`` runs one step of
such a task, with pauses that grow while the store is away. ``follow`` is a task that reads the watched nodes
again after every change.

Sometimes you must act at once when an answer is lost, before the loop continues. ``on_lost_answer`` and
``on_unsettled`` do that. For example, the node of a candidate may have been made although the answer was
lost. Then the candidate has the node removed.

**Bound.** A store may answer reads but no writes, for example if its file is on a full disk. Without a bound,
the loop would ask such a store forever. ``settle`` gives up if no write of the change was answered for
``limits.METADATA_TIMEOUT_S``. Then the outcome of the change is unknown, because a lost write may still be
applied. A refusal counts as an answer. The change also fails after ``limits.METADATA_CONFLICTS_MAX`` attempts
if the node changed between the read and the write in each of them: then another program is at fault.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    LedgerLogError,
    MetadataError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
)
from ledgerlog.limits import METADATA_CONFLICTS_MAX, METADATA_TIMEOUT_S, RECONNECT_DELAY_MAX_S
from ledgerlog.meta.store import MetadataStore, NodeExists, NodeMissing, VersionConflict, Versioned

__all__ = [
    "AWAY",
    "CONFLICTS",
    "follow",
    "go_on",
    "new_number",
    "on_lost_answer",
    "on_refusal",
    "on_unsettled",
    "remove",
    "settle",
]

CONFLICTS: tuple[type[LedgerLogError], ...] = (VersionConflict, NodeExists, NodeMissing)
"""The errors of a compare-and-set if a rival was faster."""

_UNSETTLED: tuple[type[LedgerLogError], ...] = (*CONFLICTS, MetadataOutcomeUnknown)

AWAY: tuple[type[LedgerLogError], ...] = (MetadataError, SessionExpired)
"""The errors of a call if the store, or its answer, is not available now."""

_PAUSE_S = 0.2

T = TypeVar("T")


async def settle(
    store: MetadataStore,
    attempt: Callable[[bool], Awaitable[T]],
    *,
    what: str,
    conflicts: tuple[type[LedgerLogError], ...] = CONFLICTS,
) -> T:
    """Call ``attempt`` until it returns, and return its result.

    ``attempt`` reads, decides and writes. It is called again after each conflict and each lost answer. Before
    each further call, ``settle`` syncs the store, so that ``attempt`` reads all earlier writes. Any other
    exception of ``attempt`` is raised unchanged.

    Args:
        store: The store that ``attempt`` writes to.
        attempt: Its argument is True if an earlier write of this change may have been applied, or may still
            be applied. In that case it must look for its own write first.
        what: The change, for messages: "deleting ledger 7".
        conflicts: The errors that mean that a rival was faster and nothing was written.

    Raises:
        MetadataOutcomeUnknown: The change may have happened, or may still happen.
        MetadataUnavailable, SessionExpired: Nothing was written.
    """
    doubt: MetadataOutcomeUnknown | None = None
    unanswered_since: float | None = None
    refusals = 0
    while True:
        try:
            if doubt is not None or refusals:
                await store.sync()
            return await attempt(doubt is not None)
        except MetadataOutcomeUnknown as lost:
            doubt, now = lost, trio.current_time()
            if unanswered_since is None:
                unanswered_since = now
                await trio.lowlevel.checkpoint()
            elif now - unanswered_since < METADATA_TIMEOUT_S:
                await trio.sleep(_PAUSE_S)
            else:
                raise MetadataOutcomeUnknown(
                    f"{what} may have happened or not: the store has answered no write for "
                    f"{METADATA_TIMEOUT_S:g} s ({lost})"
                ) from lost
        except conflicts as refusal:
            unanswered_since = None
            refusals += 1
            if refusals >= METADATA_CONFLICTS_MAX:
                why = f"{what}: other processes changed it {refusals} times between a read and a write"
                if doubt is not None:
                    raise MetadataOutcomeUnknown(f"{why}; it may have happened") from refusal
                raise MetadataUnavailable(f"{why}; nothing was written") from refusal
        except (MetadataUnavailable, SessionExpired) as away:
            if doubt is None:
                raise
            raise MetadataOutcomeUnknown(
                f"{what} may have happened or not: the answer was lost, and the store cannot be asked: {away}"
            ) from away


@contextmanager
def on_lost_answer(act: Callable[[], object], *, is_cancelled_too: bool = False) -> Iterator[None]:
    """Call ``act`` if the answer to the body's write is lost. The exception leaves the ``with`` unchanged.

    Args:
        act: What to do; it must not wait.
        is_cancelled_too: Also call ``act`` if the body is cancelled, because the answer is not received then
            either.
    """
    try:
        yield
    except MetadataOutcomeUnknown:
        act()
        raise
    except trio.Cancelled:
        if is_cancelled_too:
            act()
        raise


@contextmanager
def on_unsettled(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` if a rival was faster than the body's write, or if the answer is lost.

    The exception is passed on to ``settle``, which calls the attempt again.
    """
    try:
        yield
    except _UNSETTLED:
        act()
        raise


@contextmanager
def on_refusal(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` if a rival was faster than the body's write, which did nothing.

    The exception is passed on to ``settle``, which calls the attempt again.
    """
    try:
        yield
    except CONFLICTS:
        act()
        raise


async def go_on(
    step: Callable[[], Awaitable[object]],
    *,
    what: str,
    backoff: Backoff,
    log: logging.Logger,
    survives: tuple[type[LedgerLogError], ...] = AWAY,
) -> bool:
    """Run one step of a task that continues forever.

    If ``step`` raises one of ``survives``, log it ("WHAT now: ...") and pause. The first failure of a series
    is a warning, and the others are debug messages.

    Args:
        step: It must read before it writes, because its last write may have happened.
        what: The task, for the log.
        backoff: The pauses. Reset it once you are sure that the task works again.
        log: Where to log.
        survives: The errors to wait out. Others are raised.

    Returns:
        Whether ``step`` returned.
    """
    try:
        await step()
    except survives as cause:
        log.log(logging.DEBUG if backoff.is_growing else logging.WARNING, "%s now: %s", what, cause)
        await trio.sleep(backoff.next_s())
        return False
    return True


async def follow(
    store: MetadataStore,
    path: str,
    look: Callable[[], Awaitable[object]],
    *,
    what: str,
    log: logging.Logger,
    every_s: float = math.inf,
    pause_s: float = RECONNECT_DELAY_MAX_S,
    survives: tuple[type[LedgerLogError], ...] = (LedgerLogError,),
) -> NoReturn:
    """Call ``look`` after each change at or below ``path``, forever.

    ``look`` is called first when the task starts, and also after ``every_s`` seconds without a change.

    After one of the errors in ``survives``, ``follow`` pauses as ``go_on`` does, and then calls ``look``
    again.

    Args:
        store: The store to watch.
        path: The path to watch, with everything below it.
        look: Reads the nodes again.
        what: The task, for the log.
        log: Where to log.
        every_s: Call ``look`` after this many seconds without a change.
        pause_s: The pause after an error, in seconds.
        survives: The errors to wait out. Others are raised.
    """
    backoff = Backoff(pause_s, pause_s)

    async def watch_and_look() -> None:
        async with store.watch(path) as watch:
            while True:
                await look()
                backoff.reset()
                with trio.move_on_after(every_s):
                    await watch.wait()

    while True:
        await go_on(watch_and_look, what=what, backoff=backoff, log=log, survives=survives)


async def remove(store: MetadataStore, path: str) -> bool:
    """Delete the node that is at a path now. Its version does not matter.

    If an answer was lost and another node is there afterwards, a rival made that node, and it stays.

    Returns:
        Whether there was a node. If an answer was lost, and the node is then missing or is another node, it
        counts as deleted by this call.

    Raises:
        NodeHasChildren: There are nodes below it. Nothing was deleted.
        MetadataOutcomeUnknown: The node may have been deleted, or may still be deleted.
        MetadataUnavailable, SessionExpired: Nothing was deleted.
    """
    tried: Versioned | None = None

    async def write(is_unsure: bool) -> bool:
        nonlocal tried
        if not is_unsure:
            await store.sync()
        node = await store.get(path)
        if is_unsure and node != tried:
            return True  # The attempt with the lost answer deleted it.
        if node is None:
            return False
        tried = node
        await store.delete(path, version=node.version)
        return True

    return await settle(store, write, what=f"the deletion of {path}")


async def new_number(store: MetadataStore, counter: str) -> int:
    """Return a number of ``counter`` that no other caller has.

    If an answer is lost, a number is skipped.

    Raises:
        MetadataUnavailable: There is no number. Numbers may have been skipped; nothing else happened.
    """

    async def ask(_: bool) -> int:
        return await store.next_id(counter)

    try:
        return await settle(store, ask, what=f"the next number of {counter}")
    except MetadataOutcomeUnknown as lost:
        raise MetadataUnavailable(f"no new number of {counter} came back; nothing was made: {lost}") from lost
