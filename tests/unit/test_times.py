"""A time without a zone means the same in a program, in a command and in Spark, on every machine."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

import ledgerlog
from ledgerlog.cli.options import parse_start
from ledgerlog.model.record import milliseconds, parse_moment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York", "XXX-5:30"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Set the machine's time zone for one test."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


class _NoOffset(tzinfo):
    """A zone without an offset: Python calls such a time naive too."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None


TIMES = [
    # the text, and the time in milliseconds
    ("2026-01-31T12:00:00", 1769860800000),
    ("2026-01-31T12:00", 1769860800000),
    ("2026-07-31", 1785456000000),
    ("2026-01-31T12:00:00.0005", 1769860800001),
    ("2026-01-31T12:00:00Z", 1769860800000),
    ("2026-01-31T12:00:00+01:00", 1769857200000),
]


@pytest.mark.parametrize(("text", "ms"), TIMES)
def test_a_time_is_the_same_in_a_program_to_a_command_and_to_spark(zone: str, text: str, ms: int) -> None:
    in_a_program = datetime.fromisoformat(text)
    assert milliseconds(in_a_program) == ms
    to_a_command = parse_start(text)
    assert isinstance(to_a_command, datetime)
    assert milliseconds(to_a_command) == ms
    assert milliseconds(parse_moment(text)) == ms
    if in_a_program.tzinfo is None:
        assert milliseconds(in_a_program.replace(tzinfo=_NoOffset())) == ms


def test_spark_takes_the_same_times(zone: str) -> None:
    options = pytest.importorskip("ledgerlog.spark.options", reason="pyspark is not installed")
    for text, ms in TIMES:
        given = {"uri": "sqlite:x", "path": "orders", "startingTimestamp": text}
        assert options.parse_read_options(given, is_stream=False).starting_ms == ms


async def test_reading_from_a_time_without_a_zone_begins_at_the_same_record_everywhere(zone: str) -> None:
    async with ledgerlog.connect("memory:") as cluster:
        log = await cluster.create_log("orders")
        async with log.writer() as writer:
            await writer.append(b"a")
        async with log.read() as records:
            (at,) = [record.timestamp async for record in records]
        naive = at.replace(tzinfo=None)
        for start, count in ((naive, 1), (naive + timedelta(milliseconds=1), 0)):
            for given in (start, parse_start(start.isoformat())):
                async with log.read(given) as records:
                    assert len([record async for record in records]) == count


def test_one_module_reads_times() -> None:
    readers = ("fromisoformat", "strptime", "astimezone", "utcnow")
    found = []
    for package in ("ledgerlog", "bookie", "pyspark_ledgerlog", "pyspark_ledgeraudit"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not any(name in text for name in readers):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Attribute) and node.attr in readers:
                    found.append(f"{path.relative_to(ROOT)}: {node.attr}")
    assert found == [f"ledgerlog{os.sep}model{os.sep}record.py: fromisoformat"]
