"""The administration port of a bookie.

The port is also open before the bookie serves, and while the bookie makes its index again. During these times
``node`` is None.

    POST /read-only?on=true|false    begin or stop refusing ordinary adds for the operator
    POST /scrub                      begin a pass of scrubbing now
    POST /collect                    begin garbage collection and compaction now

The last two begin the work and answer 202. The log and the metrics tell how the work ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from bookie.core.readiness import not_ready
from bookie.server.metrics import bookie_measurements
from bookie.server.node import BookieNode
from ledgerlog.admin.gate import AdminGate, Needs, RequestRefused
from ledgerlog.admin.http import Answer, Asked, serve_http
from ledgerlog.admin.routes import Administration, switch
from ledgerlog.metrics.client import session_measurements
from ledgerlog.metrics.families import Measurement
from ledgerlog.net.transport import Listener

__all__ = ["BookieAdministration"]


class BookieAdministration:
    """The routes of one bookie. ``run`` is its task."""

    def __init__(
        self,
        gate: AdminGate,
        *,
        configuration: Mapping[str, Any],
        beside: Callable[[], Iterable[Measurement]] = tuple,
    ) -> None:
        """Create it.

        Args:
            gate: Decides which client may make which request.
            configuration: The configuration in force, without secrets.
            beside: Reads other metrics of the process, for example the metrics of auto-recovery.
        """
        self.node: BookieNode | None = None
        """The bookie while it serves. The owner sets it."""
        self._configuration = configuration
        self._beside = beside
        self._wanted_read_only = False
        self._routes = Administration(
            "bookie",
            gate,
            not_ready=self._not_ready,
            measurements=self._measurements,
            configuration=self._in_force,
        )
        self._routes.add("POST", "/read-only", Needs.CHANGE, self._read_only)
        self._routes.add("POST", "/scrub", Needs.CHANGE, self._scrub)
        self._routes.add("POST", "/collect", Needs.CHANGE, self._collect)

    async def run(self, listener: Listener) -> None:
        """Serve until cancelled. Raises ConnectionLost if the listener breaks."""
        try:
            await serve_http(listener, self._routes.answer)
        finally:
            listener.close()

    def serves(self, node: BookieNode) -> None:
        """Tell the port that the bookie serves from now on. Call this again after each restart of the
        bookie."""
        self.node = node
        self._routes.name = f"bookie={node.bookie_id}"
        node.set_read_only(self._wanted_read_only)

    def _not_ready(self) -> list[str]:
        node = self.node
        if node is None:
            return ["starting: it replays its journal, or rebuilds its index"]
        figures = node.server.figures()
        return not_ready(
            is_registered=node.is_registered,
            read_only_for=node.read_only_for,
            is_disk_full=bool(figures["is_disk_full"]),
            ledgers_in_limbo=figures["ledgers_in_limbo"],
        )

    def _measurements(self) -> Iterable[Measurement]:
        node = self.node
        if node is not None:
            yield from bookie_measurements(node)
            yield from session_measurements(node.sessions)
        yield from self._beside()

    def _in_force(self) -> Mapping[str, Any]:
        node = self.node
        if node is None:
            return self._configuration
        return {
            **self._configuration,
            "id": node.bookie_id,
            "instance": node.info.instance,
            "cluster": node.cookie.cluster,
            "address": node.address,
            "labels": dict(node.info.labels),
        }

    # --- changes ------------------------------------------------------------------------------------

    def _there(self) -> BookieNode:
        if self.node is None:
            raise RequestRefused(503, "the bookie is starting")
        return self.node

    async def _read_only(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        wanted, node = switch(asked, "on"), self._there()
        self._wanted_read_only = wanted
        node.set_read_only(wanted)
        others = ", ".join(sorted(node.read_only_for - {"operator"}))
        now = "read-only" if node.is_read_only else "writable"
        return Answer.text(200, f"{now} ({others})" if others else now)

    async def _scrub(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        if not self._there().engine.scrubber.prompt():
            raise RequestRefused(409, "scrubbing is turned off (scrub = false)")
        return Answer.text(202, "scrubbing begins")

    async def _collect(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        self._there().engine.reclaimer.prompt()
        return Answer.text(202, "collection and compaction begin, at most once a minute")
