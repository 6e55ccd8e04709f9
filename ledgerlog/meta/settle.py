"""The one compare-and-settle: a change of metadata that meets rivals and loses answers.

A change reads, decides, and writes by compare-and-set. Besides success, three things can come of the write:

    a rival was faster     VersionConflict, NodeExists, NodeMissing: nothing was written. Read and decide
                           again.
    its answer was lost    MetadataOutcomeUnknown: it was applied or not. Read: the value carries a token, by
                           which the writer knows its own. If it is not there, write again.
    the store is away      MetadataUnavailable: *this call* did nothing. If the answer to a write before it
                           was lost, nobody knows what the change as a whole did, and it must not say
                           "nothing".

``settle`` is that loop, and no other module has an ``except`` for a lost answer.

A task that goes on for ever (a candidate in an election, a bookie's registration) gives up nothing: it reads
again, whatever came of its last write. ``go_on`` is one step of such a task, with pauses that grow while the
store is away, and ``follow`` is a task that looks at what a watch covers after every change.

If something has to be done at once when an answer is lost, before the loop goes on, ``on_lost_answer`` and
``on_unsettled`` do it. For example, a candidate whose node may have been made has it taken away.

**Bound.** A store that can be read and takes no write, one in a file on a full disk for example, would be
asked for ever. A change gives up once no write of it has been answered for ``limits.METADATA_TIMEOUT_S``, and
its outcome is unknown then: a write that was lost may come yet. A refusal is an answer. A node that changed
``limits.METADATA_CONFLICTS_MAX`` times between a look and a write is somebody's fault, and an error as well.
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
from ledgerlog.meta.store import MetadataStore, NodeExists, NodeMissing, VersionConflict

__all__ = [
    "AWAY",
    "CONFLICTS",
    "UNSETTLED",
    "follow",
    "go_on",
    "new_number",
    "on_lost_answer",
    "on_unsettled",
    "remove",
    "settle",
]

CONFLICTS: tuple[type[LedgerLogError], ...] = (VersionConflict, NodeExists, NodeMissing)
"""What a compare-and-set says if a rival was faster."""

UNSETTLED: tuple[type[LedgerLogError], ...] = (*CONFLICTS, MetadataOutcomeUnknown)
"""What a core that settles its own writes is told of: it reads again."""

AWAY: tuple[type[LedgerLogError], ...] = (MetadataError, SessionExpired)
"""What a call raises if the store, or the answer of the store, is not to be had now."""

_PAUSE_S = 0.2

T = TypeVar("T")


async def settle(
    store: MetadataStore,
    attempt: Callable[[bool], Awaitable[T]],
    *,
    what: str,
    conflicts: tuple[type[LedgerLogError], ...] = CONFLICTS,
) -> T:
    """Call ``attempt`` until it returns, and return what it returned. ``what`` names the change in messages
    ("deleting ledger 7").

    ``attempt`` reads, decides and writes. It is called again after one of ``conflicts`` and after a lost
    answer, each time behind a sync, so that it reads whatever was written before. Its argument says whether
    an earlier write of this change may have been applied or may come yet: then it has to look for its own
    write first. Every other exception of it is raised as it is.

    Raises:
        MetadataOutcomeUnknown: the change may have happened, or may happen yet.
        MetadataUnavailable, SessionExpired: nothing was written.
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
                why = f"{what}: others changed it {refusals} times between a look and a write"
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
    """The body writes. If the answer is lost, ``act`` is called, and the exception goes on.

    With ``is_cancelled_too`` the same if the caller is cancelled: it does not hear the answer either."""
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
    """The body writes. If a rival was faster or the answer is lost, ``act`` is called, and the exception goes
    on: to ``settle``, which has the caller read again."""
    try:
        yield
    except UNSETTLED:
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
    """One step of a task that goes on for ever. Returns whether ``step`` returned; if it raised one of
    ``survives``, this says so ("WHAT now: ...", once in a row of failures) and pauses.

    ``step`` reads before it writes: what it wrote the last time may have happened. Reset ``backoff`` once you
    are sure that things go well again."""
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
    survives: tuple[type[LedgerLogError], ...] = AWAY,
) -> NoReturn:
    """For ever, call ``look``: now, after a change at or below ``path``, and after ``every_s`` without one.
    Outages are waited out as by ``go_on``; after one, ``look`` is called again."""
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
    """Delete a node, whatever is in it; False if there was none. Errors as for ``settle``."""

    async def write(is_unsure: bool) -> bool:
        try:
            await store.delete(path)
        except NodeMissing:
            return is_unsure  # By the attempt whose answer was lost.
        return True

    return await settle(store, write, what=f"the deletion of {path}")


async def new_number(store: MetadataStore, counter: str) -> int:
    """A number of ``counter`` that nobody else has. If its answer was lost, a number is passed over.

    MetadataUnavailable: nothing was made, and at most numbers were passed over."""

    async def ask(_: bool) -> int:
        return await store.next_id(counter)

    try:
        return await settle(store, ask, what=f"the next number of {counter}")
    except MetadataOutcomeUnknown as lost:
        raise MetadataUnavailable(f"no new number of {counter} came back; nothing was made: {lost}") from lost
