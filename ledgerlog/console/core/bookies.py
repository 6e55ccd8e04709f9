"""The board of bookies: fold registrations, cookies and the figures of INFO replies into rows.

Rates and latencies are differences of the figures over the last seconds. The figures come from
``metrics.families``: a rate here shows the same as ``rate()`` of the metric in Prometheus. If a figure falls,
the bookie has started again, and the differences begin again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import attrs

from ledgerlog.console.core.picture import Happenings, Row, significant
from ledgerlog.model.ids import BookieId

__all__ = ["BookieBoard", "Registered", "serves_reads"]

WINDOW_S = 5.0
"""Rates are taken over this many seconds."""
_SLOW_MS = 500.0


def serves_reads(state: str) -> bool:
    """Whether a bookie in this state serves reads, as far as it is known."""
    return state in ("writable", "read-only")


@attrs.frozen
class Registered:
    """A registered bookie."""

    address: str
    state: str
    """The bookie's state as long as it answers: a word of ``ledgerlog.ledger.figures``."""
    is_asked: bool = True
    """Whether this process can talk to the bookie."""
    is_synced: bool = True
    """Whether the bookie syncs entries before it acknowledges them."""
    rack: str | None = None


@attrs.define(eq=False)
class _Bookie:
    registered: Registered | None = None
    was_registered: bool = False
    silence: str | None = None
    """Why the bookie did not answer the last question. None: it answered, or was not asked yet."""
    figures: Mapping[str, int] = attrs.field(factory=dict)
    answer_ms: float | None = None
    seen: deque[tuple[float, Mapping[str, int]]] = attrs.field(factory=deque)
    state: str = ""
    since_s: float = 0.0


class BookieBoard:
    """Folds the observations of all bookies into rows. All times are in seconds since 1970."""

    def __init__(self, happenings: Happenings) -> None:
        self._happenings = happenings
        self._bookies: dict[BookieId, _Bookie] = {}
        self._draining: frozenset[BookieId] = frozenset()

    def on_registrations(
        self, registered: Mapping[BookieId, Registered], known: Collection[BookieId] | None, at_s: float
    ) -> None:
        """Take the registered bookies, and the bookies that ever served the cluster. None: not known yet."""
        for bookie_id in {*registered, *(known or ())} - self._bookies.keys():
            self._bookies[bookie_id] = _Bookie()
        for bookie_id in list(self._bookies):
            bookie = self._bookies[bookie_id]
            bookie.registered = registered.get(bookie_id)
            if bookie.registered is None:
                if known is not None and bookie_id not in known:
                    del self._bookies[bookie_id]
                    self._happenings.add(at_s, f"bookie {bookie_id}", "is out of service for good")
                    continue
                bookie.seen.clear()
                bookie.answer_ms = None
            self._judge(bookie_id, at_s)

    def on_figures(
        self, bookie_id: BookieId, figures: Mapping[str, int], answer_ms: float, at_s: float
    ) -> None:
        """Take the answer of a bookie. ``figures`` is empty if the bookie keeps them from this client."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            return
        bookie.silence = None
        bookie.answer_ms = answer_ms
        fell = bookie.figures.get("syncs", 0) > figures.get("syncs", 0)
        if fell or bookie.figures.get("entries", 0) > figures.get("entries", 0):
            bookie.seen.clear()
        if bookie.seen and bookie.seen[-1][0] <= at_s - WINDOW_S:
            bookie.seen.clear()  # There were no watchers meanwhile, so take no rate over that time.
        bookie.figures = figures
        bookie.seen.append((at_s, figures))
        while len(bookie.seen) > 2 and bookie.seen[1][0] <= at_s - WINDOW_S:
            bookie.seen.popleft()
        self._judge(bookie_id, at_s)

    def on_silence(self, bookie_id: BookieId, why: str, at_s: float) -> None:
        """Note that a bookie did not answer."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            return
        bookie.silence = why
        bookie.answer_ms = None
        bookie.seen.clear()
        self._judge(bookie_id, at_s)

    def on_draining(self, draining: Collection[BookieId]) -> None:
        """Take the bookies that operators want emptied."""
        self._draining = frozenset(draining)

    def is_there(self, bookie_id: BookieId) -> bool:
        """Whether a bookie serves reads, as far as it is known."""
        return serves_reads(self.state_of(bookie_id))

    def state_of(self, bookie_id: BookieId) -> str:
        """Return the state of a bookie. ``unknown``: the board knows no state of it."""
        bookie = self._bookies.get(bookie_id)
        return bookie.state if bookie is not None else "unknown"

    def _judge(self, bookie_id: BookieId, at_s: float) -> None:
        bookie = self._bookies[bookie_id]
        if bookie.registered is None or bookie.silence is not None:
            state = "unavailable"
        else:
            state = bookie.registered.state
        if state == bookie.state:
            return
        was, bookie.state, bookie.since_s = bookie.state, state, at_s
        if was:  # The first look at a bookie is not a change.
            words = state if state != "unavailable" else f"unavailable: {self._why(bookie)}"
            tone = {"writable": "good", "unavailable": "bad"}.get(state, "note")
            self._happenings.add(at_s, f"bookie {bookie_id}", f"is {words}", tone=tone)

    @staticmethod
    def _why(bookie: _Bookie) -> str | None:
        return "it is not registered" if bookie.registered is None else bookie.silence

    def rows(self) -> dict[str, Row]:
        """Return a row for each bookie."""
        return {bookie_id: self._row(bookie_id) for bookie_id in sorted(self._bookies)}

    def _row(self, bookie_id: BookieId) -> Row:
        bookie = self._bookies[bookie_id]
        registered, figures = bookie.registered, bookie.figures
        entries, payload, reads, syncs, sync_us = (
            self._difference(bookie, name) for name in ("entries", "bytes", "reads", "syncs", "sync_us")
        )
        span_s = bookie.seen[-1][0] - bookie.seen[0][0] if len(bookie.seen) > 1 else 0.0
        disk, free = figures.get("disk_bytes", -1), figures.get("disk_free_bytes", -1)

        def rate(count: int | None) -> float | None:
            return None if count is None or span_s <= 0 else significant(count / span_s)

        return {
            "id": bookie_id,
            "address": None if registered is None else registered.address,
            "rack": None if registered is None else registered.rack,
            "state": bookie.state,
            "why": self._why(bookie) if bookie.state == "unavailable" else None,
            "since_s": round(bookie.since_s, 1),
            "is_synced": registered is None or registered.is_synced,
            "is_draining": bookie_id in self._draining,
            "disk_bytes": disk if disk > 0 else None,
            "disk_used_bytes": disk - free if disk > 0 and free >= 0 else None,
            "is_disk_full": bool(figures.get("is_disk_full")),
            "live_bytes": figures.get("live_bytes"),
            "entries_per_s": rate(entries),
            "bytes_per_s": rate(payload),
            "reads_per_s": rate(reads),
            "sync_ms": significant(sync_us / syncs / 1000) if syncs and sync_us is not None else None,
            "answer_ms": significant(bookie.answer_ms, 2),
            "is_slow": bookie.answer_ms is not None and bookie.answer_ms > _SLOW_MS,
            "requests": figures.get("requests_under_way"),
            "connections": figures.get("connections"),
            "ledgers_in_limbo": figures.get("ledgers_in_limbo"),
            "rotten_runs": figures.get("rotten_runs"),
        }

    @staticmethod
    def _difference(bookie: _Bookie, name: str) -> int | None:
        if len(bookie.seen) < 2:
            return None
        first, last = bookie.seen[0][1], bookie.seen[-1][1]
        return last[name] - first[name] if name in first and name in last else None
