"""Traces: an append and the work on a record as spans of OpenTelemetry, joined through the record's headers.

    from ledgerlog import tracing

    with tracing.sending("orders") as headers:
        await writer.append(b"17 apples", headers=headers)

    async for record in records:
        with tracing.processing("orders", record):
            handle(record)

``sending`` puts the context of its span into the headers, as the program's propagator writes it (by default
as W3C's ``traceparent``). ``processing`` begins a span that is linked to the sender's span. So a trace shows
which request appended a record, even if another process handles the record hours later.

The functions work with every face: trio, ``ledgerlog.aio`` and ``ledgerlog.blocking``. They need only
OpenTelemetry's API (the extra ``ledgerlog[tracing]``). If it is not installed they do nothing, and a record
gets no header. The library begins no span by itself, so this module costs nothing for records that you do not
trace. Spans and attributes have the names of OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ledgerlog import __version__
from ledgerlog.model.attributes import Headers, HeadersLike
from ledgerlog.model.record import Record

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

__all__ = ["context_of", "processing", "sending"]

_SYSTEM = "ledgerlog"


@contextmanager
def sending(log: str, headers: HeadersLike | None = None, *, records: int = 1) -> Iterator[Headers]:
    """Begin a span of kind PRODUCER around an append, for the body of the ``with``.

    Args:
        log: The name of the log.
        headers: The record's own headers. If the propagator sets a header of the same name, its header
            replaces yours.
        records: How many records the body appends. Give all of them the headers.

    Returns:
        The headers to append the record with. If OpenTelemetry is not installed, these are the given headers.

    Raises:
        Exception: What the body raises. The span then has the error.

    Cancelling: ends the span without an error.

    Example:
        ```python
        with tracing.sending("orders") as headers:
            await writer.append(b"17 apples", headers=headers)
        ```
    """
    given = tuple(headers.items() if isinstance(headers, Mapping) else headers or ())
    if (tracer := _tracer()) is None:
        yield given
        return
    from opentelemetry import propagate, trace

    attributes: dict[str, str | int] = _attributes(log, "send")
    if records != 1:
        attributes["messaging.batch.message_count"] = records
    with tracer.start_as_current_span(f"send {log}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        found: dict[str, str] = {}
        propagate.inject(found)
        yield (
            *(pair for pair in given if pair[0] not in found),
            *((name, value.encode()) for name, value in found.items()),
        )


@contextmanager
def processing(log: str, record: Record) -> Iterator[None]:
    """Begin a span of kind CONSUMER around the work on a record, for the body of the ``with``.

    The span is a child of the current span, and is linked to the span in which the record was sent.

    Args:
        log: The name of the log.
        record: The record.

    Raises:
        Exception: What the body raises. The span then has the error.

    Cancelling: ends the span without an error.
    """
    if (tracer := _tracer()) is None:
        yield
        return
    from opentelemetry import trace

    sent = trace.get_current_span(context_of(record)).get_span_context()
    with tracer.start_as_current_span(
        f"process {log}",
        kind=trace.SpanKind.CONSUMER,
        attributes=_attributes(log, "process")
        | {"messaging.ledgerlog.offset": record.offset, "messaging.message.body.size": len(record.data)},
        links=[trace.Link(sent)] if sent.is_valid else [],
    ):
        yield


def context_of(record: Record) -> Context:
    """Return the context that a record was sent in, for example to begin spans of your own below it.

    Raises:
        ImportError: OpenTelemetry's API is not installed.
    """
    from opentelemetry import context, propagate

    carrier: dict[str, str] = {}
    for name, value in record.headers:
        carrier.setdefault(name.lower(), value.decode("ascii", errors="replace"))
    return propagate.extract(carrier, context.Context())


def _attributes(log: str, operation: str) -> dict[str, str | int]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": log,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _tracer() -> Tracer | None:
    """Return the program's tracer; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    # Do not keep it: a program may set its provider after its first span.
    return trace.get_tracer("ledgerlog", __version__)
