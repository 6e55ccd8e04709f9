"""Route the requests to a process's administration port. Every process has these routes:

    GET  /healthz     200 while the process runs
    GET  /readyz      200 if the process can be used now, otherwise 503 with the reasons, one a line
    GET  /metrics     the metrics of the process, in the format of Prometheus
    GET  /config      the configuration in force, as JSON; never a secret
    GET  /log-level   the levels of the log
    POST /log-level?logger=NAME&level=LEVEL

A request with another method or path is refused. Each change is logged, with the principal that asked for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import attrs
import trio

from ledgerlog.admin.gate import AdminGate, Needs, RequestRefused, telling_of_change
from ledgerlog.admin.http import Answer, Asked
from ledgerlog.concurrency.complaints import Complaints
from ledgerlog.metrics.families import Measurement
from ledgerlog.metrics.prometheus import expose

__all__ = ["Administration", "switch"]

logger = logging.getLogger(__name__)

_LOGGERS = ("ledgerlog", "bookie")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_CHALLENGE = (("www-authenticate", 'Bearer realm="ledgerlog"'),)

Act = Callable[[Asked], Awaitable[Answer]]


@attrs.frozen
class _Route:
    needs: Needs
    act: Act


class Administration:
    """Answers the requests to one process."""

    def __init__(
        self,
        name: str,
        gate: AdminGate,
        *,
        not_ready: Callable[[], list[str]],
        measurements: Callable[[], Iterable[Measurement]],
        configuration: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Create it.

        Args:
            name: The beginning of the process's lines in the log, for example ``bookie=b1``.
            gate: Decides who may send which requests.
            not_ready: Returns the reasons why the process cannot be used now; empty if it can.
            measurements: Reads the metrics.
            configuration: Returns the configuration in force, without secrets.
        """
        self.name = name
        self._gate = gate
        self._not_ready = not_ready
        self._measurements = measurements
        self._configuration = configuration
        self._complaints = Complaints(logger)
        self._routes: dict[tuple[str, str], _Route] = {}
        self.add("GET", "/healthz", Needs.NOTHING, self._healthz)
        self.add("GET", "/readyz", Needs.NOTHING, self._readyz)
        self.add("GET", "/metrics", Needs.READ, self._metrics)
        self.add("GET", "/config", Needs.READ, self._config)
        self.add("GET", "/log-level", Needs.READ, self._levels)
        self.add("POST", "/log-level", Needs.CHANGE, self._set_level)

    def add(self, method: str, path: str, needs: Needs, act: Act) -> None:
        """Add a route."""
        assert (method, path) not in self._routes
        self._routes[method, path] = _Route(needs, act)

    async def answer(self, asked: Asked) -> Answer:
        """Answer a request."""
        method = "GET" if asked.method == "HEAD" else asked.method
        route = self._routes.get((method, asked.path))
        if route is None:
            allowed = sorted(method for method, path in self._routes if path == asked.path)
            if not allowed:
                return Answer.text(404, "there is nothing here", *self._paths())
            return Answer.text(405, f"use {' or '.join(allowed)}", headers=(("allow", ", ".join(allowed)),))
        what = f"{asked.method} {asked.path}"
        try:
            principal = await self._gate.check(asked, route.needs)
            if route.needs is Needs.CHANGE:
                asked_for = "&".join(f"{name}={value}" for name, value in asked.query.items())
                change = f"{what}?{asked_for}" if asked_for else what
                with telling_of_change(self.name, change, by=principal, client=asked.peer):
                    return await route.act(asked)
            return await route.act(asked)
        except RequestRefused as refused:
            if route.needs is Needs.CHANGE or refused.status in (401, 403):
                self._complaints.tell(f"{self.name}: client={asked.peer}: {what} is refused: {refused}")
            return Answer.text(
                refused.status, str(refused), headers=_CHALLENGE if refused.status == 401 else ()
            )

    def _paths(self) -> list[str]:
        return [f"{method} {path}" for method, path in sorted(self._routes, key=lambda route: route[1])]

    # --- the routes that every process has ----------------------------------------------------------

    async def _healthz(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        return Answer.text(200, "it runs")

    async def _readyz(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        reasons = self._not_ready()
        return Answer.text(503, *reasons) if reasons else Answer.text(200, "ready")

    async def _metrics(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        body, content_type = expose(self._measurements(), asked.headers.get("accept", ""))
        return Answer(200, body, content_type)

    async def _config(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        text = json.dumps(dict(self._configuration()), indent=2, default=str)
        return Answer(200, f"{text}\n".encode(), "application/json")

    async def _levels(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        known = logging.Logger.manager.loggerDict.items()
        named = {
            name: logging.getLevelName(found.level)
            for name, found in sorted(known)
            if name.partition(".")[0] in _LOGGERS and isinstance(found, logging.Logger) and found.level
        }
        levels = {"root": logging.getLevelName(logging.getLogger().level), **named}
        return Answer.text(200, *(f"{name} {level}" for name, level in levels.items()))

    async def _set_level(self, asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        name, level = asked.query.get("logger", ""), asked.query.get("level", "").upper()
        if name.partition(".")[0] not in _LOGGERS:
            raise RequestRefused(400, f"logger= must be {' or '.join(_LOGGERS)}, or a logger below")
        if level not in _LEVELS:
            raise RequestRefused(400, f"level= must be one of {', '.join(_LEVELS).lower()}")
        logging.getLogger(name).setLevel(level)
        return Answer.text(200, f"{name} {level}")


def switch(asked: Asked, name: str) -> bool:
    """Return the value of a switch in the query.

    Raises:
        RequestRefused: The query does not have this switch, or its value is not ``true`` or ``false``.
    """
    value = asked.query.get(name, "")
    if value not in ("true", "false"):
        raise RequestRefused(400, f"?{name}= must be true or false")
    return value == "true"
