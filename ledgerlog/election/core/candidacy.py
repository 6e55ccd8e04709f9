"""The rules of an election: when to claim a term, and when a leadership is over. Pure; you pass the time.

``Candidacy`` is one process's part in one election, through any number of leaderships. Inputs are methods,
outputs are attributes. A *term* is one leadership and its number. The election's *record* in the metadata
store has the newest term and its *holder*: the registration of the candidate that leads. ``need(now)`` is the
next task of the shell. The need stays the same until the task is done, or a look begins:

    LOOK       read the record, then the list of candidates            on_looking -> on_looked, else on_stale
    CREATE     make the record ``ElectionState()``                     -> on_stale
    REGISTER   make this candidacy's ephemeral node, under a new id     -> on_registered
    CLAIM      compare-and-set ``claim`` at ``version``, together with
               a check that our own node exists                         -> on_claimed, else on_unsettled
    OFFER      compare-and-set ``offer_record`` at ``version``          -> on_offered, else on_unsettled
    WAIT       nothing until ``wake_at`` or the next input

**The end of a term.** A standby can find a term over in four ways:

* *Vacant.* The record has no holder, or the holder's node is gone. The store deletes that node when the
  holder's session ends. This way needs only the store, so it always works. The standby claims at once.
* *Told.* The holder said over its connection that its term is over: it lost its session, or it left. Or the
  holder is an earlier registration of this process. The process stepped down while the store was away, so the
  node still exists, as long as the session lasts. The standby claims at once.
* *Suspected.* The standby heard the holder lead this term, but does not hear it any more. This is only a
  guess, so the standby waits: it claims only when ``tenure_ms`` have passed since it first saw the term, by
  its own clock. A standby never suspects a holder that it has not heard: a connection that never worked (a
  wrong address, a blocked port) says nothing about the holder.
* *Offered.* The holder cannot reach an ack quorum of bookies, and the record lists the bookies that the
  holder misses (``OutOfReach``). Only a standby that reaches enough of them claims, and it claims at once.
  See "Offers" below.

A wrong guess deposes a living leader, and costs a takeover. A wrong guess is never unsafe. A claim is a
compare-and-set, so each term has one holder. If a deposed holder still writes, the store that gets the writes
must fence them. A log does so by itself, with its takeover.

**Offers.** A leader that is cut off from the bookies does not know which bookies a standby reaches. It must
not just give up: if the bookies themselves are down, the lead would only move from one candidate to the next,
and none of them could write. So it keeps the lead, continues trying and *offers* the term, if another
candidate is registered. If a candidate reaches enough of the missing bookies, it claims the next term. If the
leader reaches an ack quorum again, it withdraws the offer. A deposed leader cannot win back the lead in this
way, because the new term is not offered. A strict leader offers nothing: otherwise a standby would claim
before the strict leader has stopped.

**Duels.** If the connection between two candidates breaks again and again, they would depose each other
forever. The *tenure* is the time for which others may not claim a term on suspicion. If a candidate was
deposed while it lived and now claims on suspicion, it doubles the tenure, up to ``ELECTION_TENURE_MAX_S``.
The tenure delays only a claim on suspicion: even with the longest tenure, the term of a dead leader is free
as soon as its session ends. If a candidate was not deposed for five minutes and for ten tenures, its duel is
over, and it starts with the shortest tenure again.

**Leading.** ``leading`` is the term in which we lead. It is set by ``on_claimed``, or by a look that shows
our claim in the record. It is cleared as soon as one of these is seen: the session is over, the record shows
another term or holder, or our node is gone. Then ``lost`` is the reason, and ``leave`` makes the candidacy
ready to stand again.

**The store is away.** If the session is not connected, it may be over or still continue; this process cannot
know. A leader keeps its lead then. For example, if all of ZooKeeper is restarted, its sessions continue and
so does the leader. If only this process is cut off, the store ends its session and another candidate claims
the next term. Until this process learns that, two processes act as the leader. So the store that gets their
writes must fence the older leader, as a log does. If your store does not fence, ask for the strict kind
(``is_strict``): then ``leading`` is also cleared as soon as the session is not connected.

Invariants: ``leading`` is set only between a claim that took effect and the first proof that the term is over
(strict: the first doubt). A claim is made from the record of the last look, and is never sent for two
versions.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection

from ledgerlog.limits import ELECTION_TENURE_MAX_S, ELECTION_TENURE_S
from ledgerlog.model.election import ElectionState
from ledgerlog.model.reach import OutOfReach

__all__ = ["Candidacy", "ElectionNeed"]

_DUEL_S = 300.0
_DUEL_TENURES = 10
"""After a candidate was deposed, its duel lasts for ``_DUEL_S`` or for ``_DUEL_TENURES`` tenures, whichever
is longer."""


class ElectionNeed(enum.Enum):
    LOOK = "look at the election"
    CREATE = "make the election's record"
    REGISTER = "register as a candidate"
    CLAIM = "claim the leadership"
    OFFER = "offer the leadership"
    WAIT = "wait"


class Candidacy:
    """One process's part in one election. See the module docstring for the rules."""

    def __init__(self, *, candidate: str, address: str | None = None) -> None:
        self._candidate = candidate
        self.address = address
        """The address of our heartbeats. The shell sets it before the first claim."""
        self.is_strict = False
        """Whether a leadership ends as soon as the session is not connected. The shell may change it only
        between two stands (calls of ``Election.leadership``)."""
        self.record: ElectionState | None = None
        self.version = -1
        self.me: str | None = None
        """The id of our registration. None: we are not registered."""
        self.node_version = -1
        self.leading: int | None = None
        """The term in which we lead. None: we do not lead."""
        self.lost: str | None = None
        """The reason that our leadership is over. None: no leadership was lost since the last ``leave``."""
        self._candidates: frozenset[str] = frozenset()
        self._former: frozenset[str] = frozenset()
        """Ids of our earlier registrations; their nodes may still exist."""
        self._session_id: str | None = None
        self._is_connected = False
        self._is_stale = True
        self._seen_at = -math.inf
        """The time at which we first saw the record's term."""
        self._heard: int | None = None
        """The term in the last heartbeat in which its holder said that it leads."""
        self._suspected: int | None = None
        self._ended: int | None = None
        self._better: tuple[int, OutOfReach] | None = None
        """The term and the offer that we can take: we reach enough of the bookies that the holder misses."""
        self._out_of_reach: OutOfReach | None = None
        self._deposed_at = -math.inf
        self._claimed: ElectionState | None = None
        """A claim that was sent and may have taken effect."""

    # --- the shell's next task ----------------------------------------------------------------

    def need(self, now: float) -> ElectionNeed:
        """Return the task of the shell now."""
        if not self._is_connected or self.lost is not None:
            return ElectionNeed.WAIT
        if self._is_stale:
            return ElectionNeed.LOOK
        if self.record is None:
            return ElectionNeed.CREATE
        if self.me is None:
            return ElectionNeed.REGISTER
        if self.leading is None and now >= self._claim_at():
            return ElectionNeed.CLAIM
        if self.leading is not None and self._wanted_offer != self.record.on_offer:
            return ElectionNeed.OFFER
        return ElectionNeed.WAIT

    @property
    def wake_at(self) -> float:
        """The time to call ``need`` again even if nothing happens."""
        is_idle = not self._is_connected or self.lost is not None or self.leading is not None
        return math.inf if is_idle else self._claim_at()

    @property
    def watched(self) -> tuple[int, str, str] | None:
        """The leader to listen to: its term, holder and address. None if no other process leads."""
        record = self.record
        if record is None or record.holder is None or record.address is None or record.holder == self.me:
            return None
        return record.term, record.holder, record.address

    @property
    def offer_to_answer(self) -> tuple[int, OutOfReach] | None:
        """The term that another candidate offers, and the bookies of which we must reach enough to take it.
        None if there is no offer."""
        record = self.record
        if record is None or record.on_offer is None or record.holder == self.me:
            return None
        return record.term, record.on_offer

    @property
    def _wanted_offer(self) -> OutOfReach | None:
        """The offer that the record of our term should have; None: no offer."""
        has_standby = bool(self._candidates - self._former - {self.me})
        return self._out_of_reach if has_standby and not self.is_strict else None

    def offer_record(self) -> ElectionState:
        """Return the record to write at ``version``, with or without our offer. ``need`` must be OFFER."""
        assert self.record is not None
        assert self.leading == self.record.term
        return self.record.offered(self._wanted_offer)

    def claim(self, now: float) -> ElectionState:
        """Return the record to write at ``version`` to become the leader. ``need`` must be CLAIM."""
        assert self.need(now) is ElectionNeed.CLAIM
        assert self.record is not None
        assert self.me is not None
        self._claimed = self.record.taken_by(
            self.me, candidate=self._candidate, address=self.address, tenure_ms=self._tenure_ms(now)
        )
        return self._claimed

    def _claim_at(self) -> float:
        record = self.record
        if record is None or self.me is None:
            return math.inf
        if self._is_free(record):
            return -math.inf
        if self._suspected == record.term == self._heard:
            return self._seen_at + record.tenure_ms / 1000
        return math.inf

    def _is_free(self, record: ElectionState) -> bool:
        """Whether the term is surely over. A suspicion is not enough."""
        return (
            record.holder is None
            or record.holder == self.me
            or record.holder in self._former
            or record.holder not in self._candidates
            or self._ended == record.term
            or (record.on_offer is not None and self._better == (record.term, record.on_offer))
        )

    def _tenure_ms(self, now: float) -> int:
        """Return the tenure for our claim, in milliseconds."""
        shortest = round(ELECTION_TENURE_S * 1000)
        assert self.record is not None
        before = max(shortest, self.record.tenure_ms)
        memory_s = max(_DUEL_S, _DUEL_TENURES * before / 1000)
        if self._is_free(self.record) or now - self._deposed_at > memory_s:
            return shortest
        return min(2 * before, round(ELECTION_TENURE_MAX_S * 1000))

    # --- news from the store ------------------------------------------------------------------

    def on_stale(self) -> None:
        """Note that something in the election may have changed, or that a look did not read all."""
        self._is_stale = True

    def on_looking(self) -> None:
        """Note that a look begins. The look may miss what changes from now on."""
        self._is_stale = False

    def on_looked(
        self, record: ElectionState | None, version: int, candidates: Collection[str], now: float
    ) -> None:
        """Take the result of a look: the shell has read the record, and then the list of candidates.

        Args:
            record: The record. None if it does not exist.
            version: The record's version, -1 if it does not exist.
            candidates: The ids that are registered.
            now: The time.
        """
        if record is None or self.record is None or record.term != self.record.term:
            self._seen_at = now
        if version != self.version:
            self._better = None  # The holder may offer the same once more, long after our answer.
        self.record, self.version = record, version
        self._candidates = frozenset(candidates)
        self._former &= self._candidates
        if self.me is not None and self.me not in self._candidates:
            self._lose("its registration is gone")
            self.me = None
        claimed, self._claimed = self._claimed, None
        is_ours = record is not None and record.holder is not None and record.holder == self.me
        if self.leading is not None:
            assert record is not None or not is_ours
            if not is_ours or record is None or record.term != self.leading:
                self._deposed_at = now
                self._lose(_successor(record))
        elif (
            is_ours
            and self._is_connected  # Otherwise the term is ours, but we claim the next one to lead.
            and claimed is not None
            and record is not None
            and record.term == claimed.term
        ):
            self._lead(record.term)

    def on_registered(self, me: str, version: int, session_id: str) -> None:
        """Note that the shell has made our node, in this session."""
        assert self.leading is None
        self._is_stale = True
        if session_id == self._session_id:
            self.me, self.node_version = me, version

    def on_claimed(self, version: int) -> None:
        """Note that our claim took effect."""
        claimed, self._claimed = self._claimed, None
        assert claimed is not None
        self._is_stale = True
        if claimed.holder != self.me or not self._is_connected:
            return  # The session ended in the meantime. The term is ours, but we cannot lead in it.
        self.record, self.version = claimed, version
        self._lead(claimed.term)

    def on_offered(self, record: ElectionState, version: int) -> None:
        """Note that the record now has our offer, or no longer has it."""
        self.record, self.version = record, version

    def on_unsettled(self) -> None:
        """Note that the write of a claim or an offer found a conflict, or that its answer was lost.

        The next look shows whether the write took effect. If the session is not connected when that look
        arrives, we do not lead in the term, and claim the next one.
        """
        self._is_stale = True

    def on_session(self, session_id: str, *, is_connected: bool, is_lost: bool = False) -> None:
        """Take the present state of the metadata session.

        Args:
            session_id: The id of the session.
            is_connected: Whether the store is in reach, and keeps the session for now.
            is_lost: Whether the store has surely ended the session.
        """
        if self.is_strict and not is_connected:
            self._lose("the metadata session is not connected")
        if is_lost:
            self._lose("the metadata session is over")
        if session_id != self._session_id:
            self._lose("the metadata session is over")
            self._session_id = session_id
            self.me = None
        if is_connected and not self._is_connected:
            self._is_stale = True
        self._is_connected = is_connected

    # --- news from the leader's heartbeat -----------------------------------------------------

    def on_beat(self, term: int) -> None:
        """Note that we just heard the holder of this term lead."""
        self._heard = term
        if self._suspected == term:
            self._suspected = None

    def on_silence(self, term: int) -> None:
        """Note that we cannot hear the holder of this term, or hear that it does not lead."""
        self._suspected = term

    def on_ended(self, term: int) -> None:
        """Note that the holder of this term said that the term is over."""
        self._ended = term

    # --- news of the bookies ------------------------------------------------------------------

    def on_reach(self, out_of_reach: OutOfReach | None) -> None:
        """Note the bookies that we cannot reach while we lead. None: we reach an ack quorum."""
        self._out_of_reach = out_of_reach

    def on_better(self, term: int, offer: OutOfReach) -> None:
        """Note that we reach enough of the bookies in this offer of the holder of this term."""
        self._better = term, offer

    def on_no_better(self) -> None:
        """Note that we do not reach these bookies any more."""
        self._better = None

    # --- leading ------------------------------------------------------------------------------

    def _lead(self, term: int) -> None:
        assert self.leading is None
        assert self._is_connected
        self.leading = term
        self.lost = None

    def _lose(self, why: str) -> None:
        if self.leading is not None:
            self.leading = None
            self.lost = why

    def leave(self) -> ElectionState | None:
        """End the leadership, or the wait for it.

        Returns:
            The record to write at ``version``. If you write it, the next leader need not wait until our
            session ends. None if the record does not name us.
        """
        self.leading = self.lost = self._claimed = self._out_of_reach = self._better = None
        if self.me is not None:
            self._former |= {self.me}
        record = self.record
        if record is None or record.holder is None or record.holder != self.me:
            return None
        return record.vacated()


def _successor(record: ElectionState | None) -> str:
    if record is None:
        return "the election was deleted"
    if record.holder is None:
        return f"term {record.term} was given up"
    return f"{record.candidate} leads in term {record.term}"
