"""Standing for an election: when to claim it, and when a leadership is over. Pure; the clock is handed in.

``Candidacy`` is one process's part in one election, through any number of leaderships. Verbs in, state out:
``need(now)`` says what the shell has to do next and stays so until it is answered.

    LOOK       read the record, then the list of candidates            -> on_looked
    CREATE     make the record ``ElectionRecord()``                     -> on_stale
    REGISTER   make this candidacy's ephemeral node, under a new id     -> on_registered
    CLAIM      compare-and-set ``claim`` at ``version``, together with
               a check that the own node is there                       -> on_claimed, else on_unsettled
    WAIT       nothing until ``wake_at``, or until something happens

**Three ways for a term to end,** as a standby sees it:

* *Vacant.* The record has no holder, or the holder's node is gone, which the store takes away with the
  holder's session. This is the back-stop; it needs nothing but the store. Claimed at once.
* *Told.* The holder itself said that its term is over (it lost its session, or left), or the holder is an
  earlier candidacy of this very process: one that stepped down while the store was away could not tell it,
  and its node stays as long as the session, which may well go on. Claimed at once.
* *Suspected.* The holder was heard leading this term, and is heard no more. That is a guess: claimed only
  once the term is ``tenure_ms`` old, counted by our own clock from when we first saw it. A holder that was
  never heard is not suspected: a line that does not work (an address that leads nowhere, a port that is
  blocked) says nothing about who is behind it.

A wrong guess deposes a leader that lives, and costs a takeover. It is never unsafe: a claim is a
compare-and-set, so each term has one holder; what a deposed holder still tries to write is for the fencing of
whatever it writes to refuse (the log's takeover does that by itself).

**Duels.** Two candidates with a line that breaks again and again would depose one another for ever. So a
candidate that was itself deposed while it lived, and now claims on suspicion, doubles the tenure, up to
``ELECTION_TENURE_MAX_S``. A tenure bounds suspicion only: with the longest one the session still tells
of a dead leader as soon as it ends. One that was not deposed for five minutes, and ten tenures, is out
of the duel: it starts with the shortest again.

**Leading.** ``leading`` is the term, from ``on_claimed`` (or a look that shows our claim in the record) until
the session is not connected, the record shows another term or holder, or our node is gone: whichever is
seen first. Then ``lost`` says why; ``leave`` makes the candidacy ready for another try.

Invariants: ``leading`` is set only between a claim that took effect and the first doubt of it; a claim is
formed on the record that was looked at last and is never sent twice for two versions.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection

from ledgerlog.limits import ELECTION_TENURE_MAX_S, ELECTION_TENURE_S
from ledgerlog.model.election import ElectionRecord

__all__ = ["Candidacy", "ElectionNeed"]

_DUEL_S = 300.0
_DUEL_TENURES = 10
"""A candidate that was deposed counts as duelling for so long, and for so many tenures."""


class ElectionNeed(enum.Enum):
    LOOK = "look at the election"
    CREATE = "make the election's record"
    REGISTER = "register as a candidate"
    CLAIM = "claim the leadership"
    WAIT = "wait"


class Candidacy:
    """One process's part in one election."""

    def __init__(self, *, candidate: str, address: str | None = None) -> None:
        self._candidate = candidate
        self.address = address
        """Where our heartbeat is heard; set before the first claim."""
        self.record: ElectionRecord | None = None
        self.version = -1
        self.me: str | None = None
        """The id under which we are registered now."""
        self.node_version = -1
        self.leading: int | None = None
        """The term in which we lead."""
        self.lost: str | None = None
        """Why the leadership that we had is over."""
        self._candidates: frozenset[str] = frozenset()
        self._former: frozenset[str] = frozenset()
        """Ids under which we stood before; their nodes may be there still."""
        self._session_id: str | None = None
        self._is_connected = False
        self._is_stale = True
        self._seen_at = -math.inf
        """When the record's term was first seen."""
        self._heard: int | None = None
        """The term whose holder was heard leading it."""
        self._suspected: int | None = None
        self._ended: int | None = None
        self._deposed_at = -math.inf
        self._claimed: ElectionRecord | None = None
        """A claim that may have taken effect."""

    # --- what the shell does ------------------------------------------------------------------

    def need(self, now: float) -> ElectionNeed:
        """What to do now."""
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
        return ElectionNeed.WAIT

    @property
    def wake_at(self) -> float:
        """When ``need`` has to be asked again though nothing happened."""
        is_idle = not self._is_connected or self.lost is not None or self.leading is not None
        return math.inf if is_idle else self._claim_at()

    @property
    def watched(self) -> tuple[int, str, str] | None:
        """The term, holder and address of the leader whose heartbeat is worth hearing, None where there is
        none but ourselves."""
        record = self.record
        if record is None or record.holder is None or record.address is None or record.holder == self.me:
            return None
        return record.term, record.holder, record.address

    def claim(self, now: float) -> ElectionRecord:
        """The record to write at ``version`` to become the leader."""
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

    def _is_free(self, record: ElectionRecord) -> bool:
        """Whether the term is over, without any guess."""
        return (
            record.holder is None
            or record.holder == self.me
            or record.holder in self._former
            or record.holder not in self._candidates
            or self._ended == record.term
        )

    def _tenure_ms(self, now: float) -> int:
        """How long others are to leave the term alone that we claim."""
        shortest = round(ELECTION_TENURE_S * 1000)
        assert self.record is not None
        before = max(shortest, self.record.tenure_ms)
        memory_s = max(_DUEL_S, _DUEL_TENURES * before / 1000)
        if self._is_free(self.record) or now - self._deposed_at > memory_s:
            return shortest
        return min(2 * before, round(ELECTION_TENURE_MAX_S * 1000))

    # --- what the store says ------------------------------------------------------------------

    def on_stale(self) -> None:
        """Something of the election may have changed."""
        self._is_stale = True

    def on_looked(
        self, record: ElectionRecord | None, version: int, candidates: Collection[str], now: float
    ) -> None:
        """The record, and the candidates that were listed after it was read."""
        self._is_stale = False
        if record is None or self.record is None or record.term != self.record.term:
            self._seen_at = now
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
        elif is_ours and claimed is not None and record is not None and record.term == claimed.term:
            self._lead(record.term)

    def on_registered(self, me: str, version: int, session_id: str) -> None:
        """Our node is there, and belongs to this session."""
        assert self.leading is None
        self._is_stale = True
        if session_id == self._session_id:
            self.me, self.node_version = me, version

    def on_claimed(self, version: int) -> None:
        """The claim took effect."""
        claimed, self._claimed = self._claimed, None
        assert claimed is not None
        self._is_stale = True
        if claimed.holder != self.me or not self._is_connected:
            return  # The session ended meanwhile: the term is ours and worth nothing.
        self.record, self.version = claimed, version
        self._lead(claimed.term)

    def on_unsettled(self) -> None:
        """The claim met a conflict, or its answer was lost: the next look tells."""
        self._is_stale = True

    def on_session(self, session_id: str, *, is_connected: bool) -> None:
        """The state of the metadata session."""
        if not is_connected:
            self._lose("the metadata session is not connected")
        if session_id != self._session_id:
            self._lose("the metadata session is over")
            self._session_id = session_id
            self.me = None
        if is_connected and not self._is_connected:
            self._is_stale = True
        self._is_connected = is_connected

    # --- what the leader's heartbeat says -----------------------------------------------------

    def on_beat(self, term: int) -> None:
        """The holder of this term was just heard, leading."""
        self._heard = term
        if self._suspected == term:
            self._suspected = None

    def on_silence(self, term: int) -> None:
        """The holder of this term cannot be heard."""
        self._suspected = term

    def on_ended(self, term: int) -> None:
        """The holder of this term said that it is over."""
        self._ended = term

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

    def leave(self) -> ElectionRecord | None:
        """The leadership, or the wait for it, is left. The record to write at ``version`` so that nobody has
        to find out by himself; None where there is none of ours."""
        self.leading = self.lost = self._claimed = None
        if self.me is not None:
            self._former |= {self.me}
        record = self.record
        if record is None or record.holder is None or record.holder != self.me:
            return None
        return record.vacated()


def _successor(record: ElectionRecord | None) -> str:
    if record is None:
        return "the election was deleted"
    if record.holder is None:
        return f"term {record.term} was given up"
    return f"{record.candidate} leads in term {record.term}"
