"""The code writes the worked examples of docs/LOGS.md byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

from ledgerlog.model.attributes import Attributes, encode_headers
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.producer import NumberedRecords
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import SegmentCounts
from ledgerlog.wire.records import Numbering, encode_entry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "LOGS.md").read_text()
NOW = 1_700_000_000_000


def example(heading: str) -> bytes:
    section = PAGE[PAGE.index(f"# {heading}") :]
    block = re.search(r"\n(?:Example|map:).*?```text\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return bytes.fromhex(block.group(1))


def test_the_example_of_a_record_is_what_is_written() -> None:
    log = LogMetadata.create(
        name="orders",
        incarnation=0,
        created_ms=NOW,
        token=b"tok1",
        replication=Replication(3, 3, 2),
        roll=RollPolicy(max_records=1000),
    )
    log = log.taken_over([], 7, b"tok2").rolled(9, b"tok3")
    log = log.counted(7, SegmentCounts(1000, 52_000, NOW + 500, NOW + 60_500), b"tok4")
    assert log.encode() == example("The record of a log")
    assert LogMetadata.decode_untrusted(example("The record of a log"), 0) == log


def test_the_example_of_an_entry_is_what_is_written() -> None:
    assert example("An entry of a log") == encode_entry(
        [b"a", b"bc"], epoch=3, first_offset=7, timestamp_ms=NOW, bytes_before=100
    )


def test_the_example_of_a_numbered_entry_is_what_is_written() -> None:
    numbered = [NumberedRecords("a", 0, 1, 6), NumberedRecords("bb", 1, 1, 2**40)]
    assert example("The producers of an entry") == encode_entry(
        [b"a", b"bc"],
        epoch=3,
        first_offset=7,
        timestamp_ms=NOW,
        bytes_before=100,
        numbering=Numbering(0, numbered),
    )


def test_the_example_of_keys_and_headers_is_what_is_written() -> None:
    assert example("Keys and headers of an entry") == encode_entry(
        [b"a", b"bc"],
        epoch=3,
        first_offset=7,
        timestamp_ms=NOW,
        bytes_before=100,
        attributes={1: Attributes(b"k", encode_headers({"h": b"v"}))},
    )


def test_the_example_of_a_cursor_is_what_is_written() -> None:
    state = CursorState(name="billing", offset=1000, pins=True, updated_ms=NOW, token=b"tok1")
    assert example("What a log keeps") == state.encode()
