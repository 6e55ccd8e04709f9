"""A web service on asyncio that takes orders, each of them once: FastAPI on uvicorn.

    python examples/orders_fastapi.py URI HOST:PORT

Start it as often as you like, each time with another address and the same URI (``ledgerlog cluster run
DIRECTORY`` starts a cluster and prints its URI). One of the processes leads and accepts orders; all of them
send events about orders:

    curl -L -X PUT -d 'two apples' http://127.0.0.1:8001/orders/anna/0
    curl -N http://127.0.0.1:8002/events

What to look at:

* ``log.lead`` campaigns for the lead while the service runs. If the leader dies, another process leads within
  a second. A process that does not lead sends clients to the one that does.
* The address of an order has its client and its number, so the log recognises an order that it already has.
  If a client gets no answer, it sends the same request again, to any process.
* ``/events`` follows the log and sends each order as a server-sent event. The id of an event is the order's
  offset. So if a browser reconnects, here or at another process, it continues after the last order that it
  saw. If the log was truncated beyond that order, it continues at the first order that is left.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Literal

import uvicorn
from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

import ledgerlog
import ledgerlog.aio


class EventStream(StreamingResponse):
    """A stream of events. A server that stops cancels it, which is no error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await super().__call__(scope, receive, send)


def make_app(uri: str, address: str) -> FastAPI:
    """Return the service.

    Args:
        uri: The cluster.
        address: Where clients reach this process. It is its name in the election.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with ledgerlog.aio.connect(uri) as cluster:
            log = await cluster.create_log("orders", exist_ok=True)
            election = cluster.election("orders", candidate=address)
            async with log.lead(election, dedupe=True) as campaign:
                app.state.log, app.state.campaign = log, campaign
                yield

    app = FastAPI(lifespan=lifespan)

    @app.put("/orders/{client}/{number}")
    async def put_order(client: str, number: int, request: Request) -> Response:
        """Take an order. A client numbers its orders from 0."""
        campaign: ledgerlog.aio.Campaign = app.state.campaign
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

    @app.get("/events")
    async def events(last_event_id: Annotated[int | None, Header(ge=0)] = None) -> StreamingResponse:
        """Send all orders after the last one that the client saw, and then each new one."""

        async def stream(start: int | Literal["earliest"]) -> AsyncIterator[str]:
            log: ledgerlog.aio.Log = app.state.log
            while True:
                try:
                    async with log.read(start, follow=True) as records:
                        async for record in records:
                            yield f"id: {record.offset}\ndata: {record.data.decode()}\n\n"
                    return  # The log is sealed: there will be no more events.
                except ledgerlog.Truncated as truncated:
                    start = truncated.first_offset  # The log no longer has older orders.

        start = "earliest" if last_event_id is None else last_event_id + 1
        return EventStream(stream(start), media_type="text/event-stream")

    @app.get("/leader")
    async def leader() -> dict[str, str | None]:
        """Tell which process leads."""
        return {"leader": await app.state.campaign.leader()}

    return app


def try_again(why: ledgerlog.LedgerLogError) -> Response:
    return JSONResponse({"error": str(why)}, status_code=503, headers={"Retry-After": "1"})


def main() -> None:
    uri, address = sys.argv[1:]
    host, _, port = address.rpartition(":")
    # Streams of events end only with their clients, so a stop does not wait for them.
    uvicorn.run(
        make_app(uri, address), host=host, port=int(port), timeout_graceful_shutdown=1, log_level="warning"
    )


if __name__ == "__main__":
    main()
