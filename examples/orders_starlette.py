"""A web service on trio that takes orders, each of them once: Starlette on hypercorn's trio worker.

    python examples/orders_starlette.py URI HOST:PORT

It is the service of ``orders_fastapi.py`` for trio: the same addresses, the same answers, and you can run
both in one cluster. Read the explanations there.

What differs: the cluster and the campaign are open while the server runs, and a stream of events is a
separate class of response, which reads the log in the task of its request.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Literal

import hypercorn.config
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import ledgerlog


class EventStream(Response):
    """A response: each record of a log as a server-sent event, until the client goes away."""

    def __init__(self, log: ledgerlog.Log, start: int | Literal["earliest"]) -> None:
        self._log = log
        self._start = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_gone, receive, nursery.cancel_scope)
            await self._send_events(send)
            nursery.cancel_scope.cancel()  # The log is sealed: there will be no more events.
        await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, send: Send) -> None:
        start = self._start
        while True:
            try:
                async with self._log.read(start, follow=True) as records:
                    async for record in records:
                        event = b"id: %d\ndata: %s\n\n" % (record.offset, record.data)
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                return
            except ledgerlog.Truncated as truncated:
                start = truncated.first_offset  # The log no longer has older orders.

    async def _wait_gone(self, receive: Receive, scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def make_app(log: ledgerlog.Log, campaign: ledgerlog.Campaign) -> Starlette:
    """Return the service."""

    async def put_order(request: Request) -> Response:
        """Take an order. A client numbers its orders from 0."""
        client, number = request.path_params["client"], request.path_params["number"]
        try:
            text = (await request.body()).decode()
        except UnicodeDecodeError:
            return JSONResponse({"error": "an order is a text in UTF-8"}, status_code=422)
        order = json.dumps({"client": client, "number": number, "order": text})
        try:
            ack = await campaign.append(order.encode(), producer=client, sequence=number)
        except ledgerlog.NotLeader as elsewhere:
            if elsewhere.leader is None:
                return try_again(elsewhere)
            return RedirectResponse(f"http://{elsewhere.leader}{request.url.path}")  # 307: the same request.
        except ledgerlog.AppendUnknown as unknown:
            return try_again(unknown)  # The order may be in the log. If it is, it will not be there twice.
        except ledgerlog.TooManyProducers as full:
            return try_again(full)  # The log remembers as many clients as it may, each for a day.
        except ledgerlog.OutOfSequence as error:
            return JSONResponse({"error": str(error), "last": error.last}, status_code=409)
        except ledgerlog.InvalidArgument as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        return JSONResponse({"offset": ack.offset, "duplicate": ack.duplicate})

    async def events(request: Request) -> Response:
        """Send all orders after the last one that the client saw, and then each new one."""
        last = request.headers.get("last-event-id")
        start: int | Literal["earliest"]
        try:
            start = "earliest" if last is None else int(last) + 1
        except ValueError:
            return JSONResponse({"error": "Last-Event-ID is not a number"}, status_code=422)
        if start != "earliest" and start < 1:
            return JSONResponse({"error": "Last-Event-ID is negative"}, status_code=422)
        return EventStream(log, start)

    async def leader(request: Request) -> Response:
        """Tell which process leads."""
        return JSONResponse({"leader": await campaign.leader()})

    return Starlette(
        routes=[
            Route("/orders/{client}/{number:int}", put_order, methods=["PUT"]),
            Route("/events", events),
            Route("/leader", leader),
        ]
    )


def try_again(why: ledgerlog.LedgerLogError) -> Response:
    return JSONResponse({"error": str(why)}, status_code=503, headers={"Retry-After": "1"})


async def main(uri: str, address: str) -> None:
    config = hypercorn.config.Config()
    config.bind = [address]
    config.graceful_timeout = 1  # Event streams end only with their clients: a stop does not wait.
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with ledgerlog.connect(uri) as cluster:
            log = await cluster.create_log("orders", exist_ok=True)
            async with log.lead(cluster.election("orders", candidate=address), dedupe=True) as campaign:
                await hypercorn.trio.serve(
                    make_app(log, campaign), config, shutdown_trigger=lambda: anext(signals)
                )


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
