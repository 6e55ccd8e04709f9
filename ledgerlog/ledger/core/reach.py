"""Which bookies a ledger's writer can reach, while its oldest append waits for too long. Pure.

A slow bookie and a bookie that was cut off look alike at first: neither acknowledges an add. They differ in
one thing: a slow bookie still gives signs of life. Two signs count:

* a frame on the connection that the adds go over, whatever it says;
* an answer to HELLO over a connection of its own. Ask for this one, because a bookie that has received too
  much (``limits.BOOKIE_INFLIGHT_BYTES``) or waits for its disk reads nothing more from the first connection,
  and answers nothing there. It still greets new clients.

A ledger is *stalled* if appends wait and none was acknowledged for ``REACH_ASK_S``. From then on, call
``look`` every ``REACH_LOOK_S``. Do not call it for a ledger that makes progress: a single slow bookie among
fast ones then costs nothing.

    take_asks()     bookies to be asked for a sign of life         -> on_sign
    silent          members that gave none for ``REACH_LOST_S``: break off their connections
    unanswering     the same, of members that are not connected: do not wait for the attempt to end
    take_doubtful() replacements that did not answer: prefer others
    out_of_reach    why no ack quorum can be had now; None if it can, or may

**Members first.** Replacements are asked only if too few members gave a recent sign. If for ``REACH_LOST_S``
the members and the replacements together were too few for an ack quorum, ``out_of_reach`` is set. It counts
bookies that give signs of life, not bookies that acknowledge. So slow disks never set it.

**The time that counts.** Each ``look`` adds at most twice ``REACH_LOOK_S``, however late it comes. For
example, if this process was suspended for a minute, a minute of signs may wait in its sockets. The process
reads them before later looks can declare a bookie lost.
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
    """A bookie of the ensemble, as the connection to it looks now."""

    bookie: BookieId
    is_connected: bool
    frames: int
    """How many frames have come from it, over all connections so far."""


@attrs.define(eq=False)
class _Seen:
    """What is known of one bookie since the stall began."""

    since: float
    """When it was first looked at. At the beginning, 0."""
    frames: int | None = None
    sign_at: float | None = None
    """When it gave its last sign of life."""
    asked_at: float | None = None
    """When it was last asked."""
    is_doubtful: bool = False
    """Whether it did not answer when it was asked before."""


class Reach:
    """The bookies of one ledger, for its writer. See the module."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication
        self._seen: dict[BookieId, _Seen] = {}
        self._asks: list[BookieId] = []
        self._doubtful: list[BookieId] = []
        self._looked_at: float | None = None
        """When the writer last looked. None: the ledger is not stalled."""
        self._now = 0.0
        """How long the stall has lasted, in time that counts."""
        self.silent: tuple[BookieId, ...] = ()
        """Members that are connected and gave no sign of life for ``REACH_LOST_S``, by the last look."""
        self.unanswering: tuple[BookieId, ...] = ()
        """Members that are not connected and gave no sign of life for ``REACH_LOST_S``, by the last look."""
        self.out_of_reach: OutOfReach | None = None
        """What keeps the writer from an ack quorum; None if it can reach one or does not know yet."""

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

        Spares may go wherever they help."""
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
        """How long the bookie has given no sign; if it never gave one, how long the stall has lasted."""
        return _span(self._seen[bookie].sign_at or 0.0, self._now)

    def _is_lost(self, member: BookieId) -> bool:
        """Whether the bookie gave no sign for ``REACH_LOST_S``, although it had that long to give one."""
        is_new = _span(self._seen[member].since, self._now) < REACH_LOST_S
        return self._since_sign(member) >= REACH_LOST_S and not is_new

    def _since_asked(self, bookie: BookieId) -> float:
        asked_at = self._seen[bookie].asked_at
        return math.inf if asked_at is None else _span(asked_at, self._now)

    def _is_spare_reached(self, spare: BookieId) -> bool:
        return self._seen[spare].sign_at is not None and self._since_sign(spare) < REACH_LOST_S

    def _may_answer(self, bookie: BookieId) -> bool:
        """Whether the bookie was asked for the first time, a moment ago."""
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
    """The time between, rounded to remove float errors: looks come exactly at the limits."""
    return round(end - start, 6)
