"""Which bookies a ledger's writer can reach while its oldest append waits too long. This module does no I/O.

A slow bookie and a bookie that was cut off look alike at first: both acknowledge no adds. They differ in one
thing: a slow bookie still gives signs of life. Two signs count:

* any frame from the bookie on the connection that carries the adds;
* an answer to HELLO over a new, separate connection. This sign is needed because a bookie that has received
  too much (``limits.BOOKIE_INFLIGHT_BYTES``), or waits for its disk, reads nothing more from the first
  connection, and answers nothing there. Such a bookie still answers the HELLO of new connections.

A ledger is *stalled* if appends wait and none was acknowledged for ``REACH_ASK_S``. While a ledger is
stalled, call ``look`` every ``REACH_LOOK_S``. Do not call ``look`` for a ledger that makes progress: then a
single slow bookie among fast ones costs nothing. A *member* is a bookie of the ensemble; a *replacement* (or
spare) is a bookie that could take a member's place. After each look:

    take_asks()     bookies to be asked for a sign of life         -> on_sign
    silent          connected members without a sign for ``REACH_LOST_S``: break off their connections
    unanswering     unconnected members without a sign for ``REACH_LOST_S``: give up the attempt to connect
    take_doubtful() bookies that were asked and did not answer: prefer others as replacements
    out_of_reach    why no ack quorum can be reached now; None if it can be reached, or may be

**Members first.** Replacements are asked only if too few members gave a recent sign. If for ``REACH_LOST_S``
the members and the replacements together were too few for an ack quorum, ``out_of_reach`` is set. It counts
bookies that give signs of life, not bookies that acknowledge. So slow disks never set it.

**The time that counts.** The stall has a clock of its own. Each ``look`` moves that clock on by at most twice
``REACH_LOOK_S``, even if the look comes late. For example, if this process was suspended for a minute, the
signs of that minute may still wait in its sockets. The process reads these signs before later looks can
declare a bookie lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from ledgerlog.limits import REACH_ASK_S, REACH_LOOK_S, REACH_LOST_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.model.reach import OutOfReach

__all__ = ["Member", "Reach"]


@attrs.frozen
class Member:
    """A bookie of the ensemble, and the present state of the connection to it."""

    bookie: BookieId
    is_connected: bool
    frames: int
    """How many frames have come from the bookie, over all connections so far."""


@attrs.define(eq=False)
class _Seen:
    """The facts about one bookie since the stall began. All times are by the clock of the stall."""

    since: float
    """When the bookie was first looked at; 0 for the bookies of the first look."""
    frames: int | None = None
    sign_at: float | None = None
    """When the bookie gave its last sign of life."""
    asked_at: float | None = None
    """When the bookie was last asked for a sign."""
    is_doubtful: bool = False
    """Whether the bookie was asked and did not answer in time."""


class Reach:
    """The bookies that the writer of one ledger can reach. See the module docstring."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication
        self._seen: dict[BookieId, _Seen] = {}
        self._asks: list[BookieId] = []
        self._doubtful: list[BookieId] = []
        self._looked_at: float | None = None
        """When the writer last looked. None: the ledger is not stalled."""
        self._now = 0.0
        """How long the stall has lasted, by its own clock."""
        self.silent: tuple[BookieId, ...] = ()
        """Members that are connected and gave no sign of life for ``REACH_LOST_S``, by the last look."""
        self.unanswering: tuple[BookieId, ...] = ()
        """Members that are not connected and gave no sign of life for ``REACH_LOST_S``, by the last look."""
        self.out_of_reach: OutOfReach | None = None
        """Why the writer cannot reach an ack quorum; None if it can reach one or does not know yet."""

    def on_progress(self) -> None:
        """An append was acknowledged, or none waits."""
        self._seen.clear()
        self._asks, self._doubtful = [], []
        self._looked_at = self.out_of_reach = None
        self.silent = self.unanswering = ()

    def look(self, now: float, members: Sequence[Member], spares: Sequence[BookieId]) -> None:
        """Look at a stalled ledger.

        Args:
            now: The time.
            members: The ensemble, slot by slot.
            spares: Bookies that could replace members.
        """
        if self._looked_at is None:
            self._now, since = REACH_ASK_S, 0.0
        else:
            self._now += min(now - self._looked_at, 2 * REACH_LOOK_S)
            since = self._now
        self._looked_at = now
        for member in members:
            seen = self._seen.setdefault(member.bookie, _Seen(since))
            if seen.frames is not None and seen.frames != member.frames:
                self.on_sign(member.bookie)
            seen.frames = member.frames
            self._ask_if_quiet(member.bookie)
        # A member that was asked at the last look has answered by now, if it can be reached.
        recent = [self._since_sign(member.bookie) < REACH_ASK_S + REACH_LOOK_S for member in members]
        for spare in spares if self._needed(recent, 0) else ():
            self._seen.setdefault(spare, _Seen(since))
            self._ask_if_quiet(spare)
        lost = [member for member in members if self._is_lost(member.bookie)]
        self.silent = tuple(member.bookie for member in lost if member.is_connected)
        self.unanswering = tuple(member.bookie for member in lost if not member.is_connected)
        self._judge(members, spares)

    def _judge(self, members: Sequence[Member], spares: Sequence[BookieId]) -> None:
        reached = [self._since_sign(member.bookie) < REACH_LOST_S for member in members]
        known = [spare for spare in spares if spare in self._seen]
        lost = [spare for spare in known if not self._is_spare_reached(spare)]
        needed = self._needed(reached, len(known) - len(lost))
        lost += [one.bookie for one, is_reached in zip(members, reached, strict=True) if not is_reached]
        may_answer = any(map(self._may_answer, lost))
        if not needed:
            self.out_of_reach = None
        elif not may_answer and len(known) == len(spares):
            self.out_of_reach = OutOfReach(tuple(sorted(lost)), needed)

    def _needed(self, reached: Sequence[bool], spares: int) -> int:
        """How many more bookies are needed, counted for the write set that lacks most for an ack quorum.

        A spare may take any slot, so it counts for every write set."""
        replication = self._replication
        fewest = min(
            sum(reached[slot] for slot in replication.write_set(first)) for first in range(len(reached))
        )
        return max(0, replication.ack_quorum - fewest - spares)

    def _ask_if_quiet(self, bookie: BookieId) -> None:
        seen = self._seen[bookie]
        if seen.asked_at is not None:
            if self._since_sign(bookie) < REACH_ASK_S or self._since_asked(bookie) < REACH_ASK_S:
                return
            if seen.sign_at is None or seen.sign_at < seen.asked_at:
                seen.is_doubtful = True
                self._doubtful.append(bookie)
        seen.asked_at = self._now
        self._asks.append(bookie)

    def _since_sign(self, bookie: BookieId) -> float:
        """Return how long the bookie has given no sign; if it never gave one, how long the stall has
        lasted."""
        return _span(self._seen[bookie].sign_at or 0.0, self._now)

    def _is_lost(self, member: BookieId) -> bool:
        """Whether the bookie gave no sign for ``REACH_LOST_S``, and was looked at for at least that long."""
        is_new = _span(self._seen[member].since, self._now) < REACH_LOST_S
        return self._since_sign(member) >= REACH_LOST_S and not is_new

    def _since_asked(self, bookie: BookieId) -> float:
        asked_at = self._seen[bookie].asked_at
        return math.inf if asked_at is None else _span(asked_at, self._now)

    def _is_spare_reached(self, spare: BookieId) -> bool:
        return self._seen[spare].sign_at is not None and self._since_sign(spare) < REACH_LOST_S

    def _may_answer(self, bookie: BookieId) -> bool:
        """Whether the bookie was asked just now, and is not doubtful."""
        return self._since_asked(bookie) < REACH_ASK_S - REACH_LOOK_S and not self._seen[bookie].is_doubtful

    def on_sign(self, bookie: BookieId) -> None:
        """The bookie answered, or something came from it."""
        seen = self._seen.get(bookie)
        if seen is not None:
            seen.sign_at, seen.is_doubtful = self._now, False

    def take_asks(self) -> list[BookieId]:
        """Take the bookies to be asked for a sign of life now."""
        asks, self._asks = self._asks, []
        return asks

    def take_doubtful(self) -> list[BookieId]:
        """Take the bookies that were asked and did not answer in time."""
        doubtful, self._doubtful = self._doubtful, []
        return doubtful


def _span(start: float, end: float) -> float:
    """Return the time from ``start`` to ``end``, rounded to remove float errors: looks come exactly at the
    limits."""
    return round(end - start, 6)
