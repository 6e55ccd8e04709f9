"""The connections of an ensemble: one *sink* for each bookie in each slot.

A sink receives the reports of a bookie's connection for one slot. It is attached to the connection when the
bookie joins the ensemble, and detached when the bookie leaves. So a late confirmation reaches no sink if the
slot has another bookie by then, or if the bookie is in another slot by then (protocol A.1, queue rule 4).

A sink notes each confirmation in its ``Tenure`` (the entries that the bookie confirmed in this slot) and
passes it to the ``SlotCore`` (the protocol machine of a writer or a recoverer). All other reports of the
connection go straight to the ``SlotOwner`` (the shell around that machine). Its ``act`` is called once per
burst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from ledgerlog.ledger.core.pending import Send
from ledgerlog.ledger.core.reach import Member, Reach
from ledgerlog.ledger.core.tenure import Tenure
from ledgerlog.limits import ENSEMBLE_MAX, REACH_LOST_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.net.transport import Buffer
from ledgerlog.wire.frame import Status

RETRY_S = 0.5
"""Seconds until a bookie that refused an add is tried again."""


class SlotCore(Protocol):
    """The protocol machine. It counts confirmations and says which entries are due."""

    def on_add_ok(self, bookie: BookieId, first: int, last: int, /) -> object: ...

    def take_sends(self, bookie: BookieId, /) -> list[Send]: ...


@attrs.frozen(kw_only=True)
class SlotOwner:
    """The functions of the shell around the protocol machine. Connections call them in their own tasks."""

    on_add_refused: Callable[[BookieId, int, int, Status], None]
    on_bookie_lost: Callable[[BookieId, str], None]
    on_bookie_connected: Callable[[BookieId], None]
    encode: Callable[[Send, int], Sequence[Buffer]]
    act: Callable[[], None]
    """Look at the core's state again: a confirmation arrived, or another of these functions was called."""


class SlotSink:
    """One bookie in one slot of the ensemble, while it is a member. An ``AddSink``."""

    __slots__ = (
        "_count",
        "_encode",
        "_take_sends",
        "bookie",
        "connection",
        "index",
        "on_add_refused",
        "on_batch_end",
        "on_bookie_connected",
        "on_bookie_lost",
        "refused_at",
        "tenure",
    )

    def __init__(
        self, core: SlotCore, owner: SlotOwner, index: int, connection: BookieConnection, tenure: Tenure
    ) -> None:
        self.index = index
        self.bookie = connection.bookie_id
        self.connection = connection
        self._take_sends = core.take_sends
        self._encode = owner.encode
        self._count = core.on_add_ok
        self.tenure = tenure
        self.refused_at: float | None = None
        """See ``Refusals``."""
        self.on_add_refused = owner.on_add_refused
        self.on_bookie_lost = owner.on_bookie_lost
        self.on_bookie_connected = owner.on_bookie_connected
        self.on_batch_end = owner.act

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> None:
        """The bookie has durably stored those entries of first..last that its slot holds."""
        self.tenure.on_add_ok(first, last)
        self._count(bookie, first, last)

    def send_due(self) -> None:
        """Hand all entries due at the bookie to its connection, if it is connected."""
        connection = self.connection
        if not connection.is_connected:
            return
        for send in self._take_sends(self.bookie):
            connection.send_add(self._encode(send, self.index), self, send.first, send.last)


class SlotSinks:
    """The sinks of the current ensemble."""

    def __init__(
        self, core: SlotCore, owner: SlotOwner, pool: ConnectionPool, replication: Replication
    ) -> None:
        self._core = core
        self._owner = owner
        self._pool = pool
        self._replication = replication
        self._left_short: set[BookieId] = set()
        """Former members that left before they had confirmed all of their entries."""
        self.sinks: list[SlotSink] = []

    def follow(self, ensemble: Sequence[BookieId], first: int) -> None:
        """Attach the bookies that joined the ensemble, and detach the bookies that left.

        Args:
            ensemble: The bookies, by slot.
            first: The first entry of the fragment with this ensemble. A bookie that left needs only the
                entries before ``first``; a bookie that joined needs only the entries from ``first`` on.
        """
        if not self.sinks:
            self.sinks = [self._attach(index, bookie, first) for index, bookie in enumerate(ensemble)]
            return
        for sink, bookie in zip(list(self.sinks), ensemble, strict=True):
            if sink.bookie != bookie:
                sink.connection.detach(sink)
                if sink.tenure.lacks_any(first - 1):
                    self._left_short.add(sink.bookie)
                self.sinks[sink.index] = self._attach(sink.index, bookie, first)

    def _attach(self, index: int, bookie: BookieId, first: int) -> SlotSink:
        connection = self._pool.connection(bookie)
        sink = SlotSink(self._core, self._owner, index, connection, Tenure(self._replication, index, first))
        connection.attach(sink)
        return sink

    def lacking(self, last: int) -> list[BookieId]:
        """Return the bookies that did not confirm all of their entries up to ``last``, sorted."""
        present = {sink.bookie for sink in self.sinks if sink.tenure.lacks_any(last)}
        return sorted(self._left_short | present)

    def given_up(self, last: int) -> list[BookieId]:
        """Return the bookies that did not confirm all of their entries up to ``last`` and may never confirm
        them: they left, are not connected, or have confirmed later entries. They are sorted."""
        present = {
            sink.bookie
            for sink in self.sinks
            if (sink.tenure.has_gap if sink.connection.is_connected else sink.tenure.lacks_any)(last)
        }
        return sorted(self._left_short | present)

    def expects_more(self, last: int) -> bool:
        """Return whether a bookie lacks entries up to ``last`` that it may still confirm."""
        return self.lacking(last) != self.given_up(last)

    def connected(self) -> list[SlotSink]:
        """Return the sinks whose bookies are connected."""
        return [sink for sink in self.sinks if sink.connection.is_connected]

    @property
    def are_refused(self) -> bool:
        """Whether authentication between this process and each of these bookies failed."""
        return bool(self.sinks) and all(sink.connection.is_refused for sink in self.sinks)

    def send_due(self) -> None:
        for sink in self.sinks:
            sink.send_due()

    def look_for_signs(
        self, reach: Reach, spares: Sequence[BookieId], on_doubtful: Callable[[BookieId], object]
    ) -> None:
        """Find the bookies that are out of reach (not only slow), and break off their connections.

        Call it every ``limits.REACH_LOOK_S`` while the ledger is stalled.

        Args:
            reach: The caller's knowledge of the bookies' signs of life; this updates it.
            spares: Bookies that could replace members.
            on_doubtful: Called with each bookie that was asked for a sign of life and does not answer.
        """
        members = [
            Member(sink.bookie, sink.connection.is_connected, sink.connection.frames_received)
            for sink in self.sinks
        ]
        reach.look(trio.current_time(), members, spares[:ENSEMBLE_MAX])
        for bookie in reach.take_asks():
            self._pool.ask(bookie, reach.on_sign)
        for bookie in reach.take_doubtful():
            on_doubtful(bookie)
        for sink in list(self.sinks):
            if sink.bookie in reach.silent:
                sink.connection.break_off(f"no sign of life for {REACH_LOST_S:g} s")

    def close(self) -> None:
        """Detach all sinks. No callback is called afterwards."""
        for sink in self.sinks:
            sink.connection.detach(sink)
        self.sinks = []


class Refusals:
    """The members of an ensemble that refused an add over their present connection, for example because of a
    full disk.

    The sink of a member holds the time of its refusal. So a bookie that leaves the ensemble is forgotten."""

    def __init__(self, slots: SlotSinks) -> None:
        self._slots = slots

    def __bool__(self) -> bool:
        return any(sink.refused_at is not None for sink in self._slots.sinks)

    def __contains__(self, bookie: BookieId) -> bool:
        return any(sink.refused_at is not None for sink in self._slots.sinks if sink.bookie == bookie)

    def add(self, bookie: BookieId) -> None:
        """Note that the bookie refused an add now."""
        self._note(bookie, trio.current_time())

    def forget(self, bookie: BookieId) -> None:
        """Forget the bookie: its connection was lost, or it has a new connection, over which all adds are
        sent again."""
        self._note(bookie, None)

    def _note(self, bookie: BookieId, refused_at: float | None) -> None:
        for sink in self._slots.sinks:
            if sink.bookie == bookie:
                sink.refused_at = refused_at

    def take_due(self) -> list[SlotSink]:
        """Take the connected members whose refusal was at least ``RETRY_S`` ago. They may be tried again."""
        now = trio.current_time()
        due = [
            sink
            for sink in self._slots.connected()
            if sink.refused_at is not None and now - sink.refused_at >= RETRY_S
        ]
        for sink in due:
            sink.refused_at = None
        return due
