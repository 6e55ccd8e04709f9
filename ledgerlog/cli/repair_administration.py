"""The administration port of ``ledgerlog repair run``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import trio

from ledgerlog.admin.gate import AdminGate, Needs, RequestRefused
from ledgerlog.admin.http import Answer, Asked, serve_http
from ledgerlog.admin.routes import Administration
from ledgerlog.cluster import Cluster
from ledgerlog.meta.store import SessionState
from ledgerlog.metrics.client import client_measurements, session_measurements
from ledgerlog.metrics.families import Measurement
from ledgerlog.net.transport import Listener
from ledgerlog.redact import redact
from ledgerlog.repair.metrics import repair_measurements
from ledgerlog.repair.service import AutoRecovery

__all__ = ["serve_administration"]


async def serve_administration(
    cluster: Cluster, service: AutoRecovery, door: Listener, *, may_read: bool | None
) -> None:
    """Serve until cancelled.

        POST /audit    the auditor goes over all metadata now

    Args:
        cluster: The cluster to repair.
        service: The service that repairs it.
        door: The listener to serve on. It is closed at the end.
        may_read: Whether all processes may read. None: they may while the cluster is not closed.

    Raises:
        ConnectionLost: The listener broke.
    """
    client = cluster.client

    def not_ready() -> list[str]:
        is_connected = client.store.session.state is SessionState.CONNECTED
        return [] if is_connected else ["cut off from the metadata store"]

    def measurements() -> Iterator[Measurement]:
        yield from repair_measurements(service)
        yield from client_measurements(client)
        yield from session_measurements(client.sessions)

    def configuration() -> Mapping[str, Any]:
        return {
            "metadata": redact(cluster.uri),
            "name": service.worker.name,
            "cluster": client.store.cluster,
            "admission": str(client.prover.admission),
            "paused": service.worker.pacer.is_paused,
        }

    async def audit(asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        if not service.auditor.prompt():
            raise RequestRefused(409, "this process is not the auditor: see 'repair status'")
        return Answer.text(202, "a pass over all metadata begins")

    routes = Administration(
        f"worker={service.worker.name}",
        AdminGate(client.store, client.prover, now_s=time.time, reads_are_open=may_read),
        not_ready=not_ready,
        measurements=measurements,
        configuration=configuration,
    )
    routes.add("POST", "/audit", Needs.CHANGE, audit)
    try:
        await serve_http(door, routes.answer)
    finally:
        door.close()
