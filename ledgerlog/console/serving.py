"""Serve the console by HTTP, with hypercorn on trio."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import hypercorn.config
import hypercorn.trio
import hypercorn.trio.run
import trio
from hypercorn.trio.tcp_server import TCPServer

from ledgerlog.admin.gate import AdminGate
from ledgerlog.concurrency.complaints import Complaints
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.console.doors import Doors
from ledgerlog.console.observer import ClusterObserver
from ledgerlog.console.web import make_app
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import CONSOLE_BODY_S
from ledgerlog.net.tcp import end_if_unread

__all__ = ["serve_console"]

_complaints = Complaints(logging.getLogger(__name__))

_STOP_S = 1.0
_HEADER_BYTES_MAX = 16 * 1024


class _Config(hypercorn.config.Config):
    """A configuration whose connections end if the browser takes nothing for ``CONSOLE_BODY_S``.

    hypercorn sends without a deadline, and its sends cannot be cancelled. So without this bound, one browser
    that takes nothing would keep the console from ending.
    """

    def create_sockets(self) -> hypercorn.config.Sockets:
        sockets = super().create_sockets()
        for each in (*sockets.secure_sockets, *sockets.insecure_sockets):
            end_if_unread(each, CONSOLE_BODY_S)
        return sockets


class _Connection(TCPServer):
    """A connection whose errors end nothing else.

    hypercorn expects only OSError of a connection. Some requests of strangers raise other errors in it, for
    example an upgrade to h2c with malformed settings.
    """

    async def run(self) -> None:
        try:
            await super().run()
        except* Exception as failures:
            _complaints.tell(f"a connection to the console failed: {failures.exceptions[0]!r}")


# hypercorn has no setting for this. It looks the class up by this name for each connection.
setattr(hypercorn.trio.run, "TCPServer", _Connection)  # noqa: B010  # The module does not export it.


async def serve_console(
    client: LedgerClient,
    listen: str,
    *,
    hosts: frozenset[str],
    now_s: Callable[[], float],
    reads_are_open: bool | None = None,
    certificate: str | None = None,
    key: str | None = None,
    on_serving: Callable[[str], Awaitable[None]],
) -> None:
    """Serve until cancelled.

    Args:
        client: The client of the cluster.
        listen: ``HOST:PORT``; port 0 takes any free one.
        hosts: The names, in lower case, under which browsers may reach the console. IP addresses are always
            allowed.
        now_s: The wall clock, in seconds since 1970.
        reads_are_open: Whether every browser may look. None: every browser may, while the cluster is not
            closed.
        certificate: The file with a certificate, for HTTPS; None: HTTP.
        key: The file with its key.
        on_serving: Awaited with the URL once the console serves.

    Raises:
        OSError: The console cannot listen at ``listen``, or a file cannot be read.
    """
    observer = ClusterObserver(client, now_s=now_s)
    doors = Doors(
        AdminGate(client.store, client.prover, now_s=now_s, reads_are_open=reads_are_open),
        hosts=hosts,
        new_secret=client.environment.new_key,
        now_s=now_s,
        is_https=certificate is not None,
    )
    config = _Config()
    config.bind = [listen]
    config.errorlog = logging.getLogger(__name__)
    config.graceful_timeout = _STOP_S  # Streams never end by themselves.
    config.h11_max_incomplete_size = _HEADER_BYTES_MAX
    config.read_timeout = None
    config.keep_alive_timeout = CONSOLE_BODY_S
    if certificate is not None:
        config.certfile, config.keyfile = certificate, key
    # hypercorn has its own types for ASGI.
    app = cast(Any, make_app(client, observer, doors))

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(observer.run)
            (url, *_) = await nursery.start(partial(hypercorn.trio.serve, app, config))
            await on_serving(url)

    async with open_nursery() as nursery:
        nursery.start_soon(serve)  # The error of a task comes out bare. hypercorn wraps it in groups.
