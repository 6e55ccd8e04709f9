"""Spans around appends and around the work on records, joined through the records' headers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import ledgerlog
from ledgerlog import aio, blocking, tracing
from ledgerlog.model.record import Record
from tests.waiting import PATIENCE_S


class Spans:
    """What the program's tracer got."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    found = Spans()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found.provider)
    yield found
    found.provider.shutdown()


def expect_joined(spans: Spans, records: list[Record]) -> None:
    """Check that each record is worked on in a span that is linked to the one that sent it."""
    sent, processed = spans.named("send orders"), spans.named("process orders")
    assert len(sent) == len(processed) == len(records)
    for one, other, record in zip(sent, processed, records, strict=True):
        assert one.kind is SpanKind.PRODUCER
        assert other.kind is SpanKind.CONSUMER
        (link,) = other.links
        assert one.context is not None
        assert (link.context.trace_id, link.context.span_id) == (one.context.trace_id, one.context.span_id)
        assert other.attributes is not None
        assert other.attributes["messaging.ledgerlog.offset"] == record.offset
        assert other.attributes["messaging.destination.name"] == "orders"


async def test_the_work_on_a_record_is_linked_to_the_append_that_sent_it(spans: Spans) -> None:
    with trio.fail_after(PATIENCE_S):
        async with ledgerlog.connect("memory:") as cluster:
            log = await cluster.create_log("orders")
            async with log.writer() as writer:
                for number in range(3):
                    with tracing.sending("orders", {"n": b"%d" % number}) as headers:
                        await writer.append(b"%d" % number, headers=headers)
            found = []
            async with log.read() as records:
                async for record in records:
                    with tracing.processing("orders", record):
                        found.append(record)
    expect_joined(spans, found)
    assert [record.headers[0] for record in found] == [("n", b"0"), ("n", b"1"), ("n", b"2")]
    assert [name for name, _ in found[0].headers] == ["n", "traceparent"]


def test_it_is_the_same_with_asyncio(spans: Spans) -> None:
    async def body() -> list[Record]:
        found = []
        async with aio.connect("memory:") as cluster:
            log = await cluster.create_log("orders")
            async with log.writer() as writer:
                with tracing.sending("orders") as headers:
                    await writer.append(b"x", headers=headers)
            async with log.read() as records:
                async for record in records:
                    with tracing.processing("orders", record):
                        found.append(record)
        return found

    expect_joined(spans, asyncio.run(asyncio.wait_for(body(), PATIENCE_S)))


def test_it_is_the_same_in_threads(spans: Spans, tmp_path: Path) -> None:
    found = []
    with blocking.connect(f"file:{tmp_path}/cluster") as cluster:
        log = cluster.create_log("orders")
        with log.writer() as writer, tracing.sending("orders") as headers:
            writer.append(b"x", headers=headers)
        with log.read() as records:
            for record in records:
                with tracing.processing("orders", record):
                    found.append(record)
    expect_joined(spans, found)


def record_with(*headers: tuple[str, bytes]) -> Record:
    """Return a record that was appended with these headers and read back."""
    with blocking.connect("memory:") as cluster:
        log = cluster.create_log("orders")
        with log.writer() as writer:
            writer.append(b"x", headers=headers)
        with log.read() as records:
            return next(iter(records))


def test_an_append_that_fails_says_so_in_its_span(spans: Spans) -> None:
    with pytest.raises(ledgerlog.NotLeader), tracing.sending("orders", records=7):
        raise ledgerlog.NotLeader("orders", "another one")
    (span,) = spans.named("send orders")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 7


def test_a_stale_context_in_the_headers_is_replaced_by_that_of_the_append(spans: Spans) -> None:
    old = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with tracing.sending("orders", [("traceparent", old), ("n", b"1")]) as headers:
        pass
    assert [name for name, _ in headers] == ["n", "traceparent"]
    assert headers[1][1] != old


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"00-short", b"x" * 5000])
def test_a_context_that_is_none_links_nothing_and_fails_nothing(spans: Spans, value: bytes) -> None:
    with tracing.processing("orders", record_with(("traceparent", value))):
        pass
    (span,) = spans.named("process orders")
    assert not span.links


def test_without_opentelemetry_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    record = record_with(("n", b"1"))
    with tracing.sending("orders", record.headers) as headers:
        assert headers == (("n", b"1"),)
    with tracing.processing("orders", record):
        pass
    with pytest.raises(ImportError):
        tracing.context_of(record)
