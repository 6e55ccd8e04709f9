"""The code writes the worked example of the wire format in docs/FORMATS.md byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import REPLY, Kind, Status, decode_frame_untrusted, encode_head
from ledgerlog.wire.hello import Hello, decode_hello_untrusted, encode_hello

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "FORMATS.md"


def dumps_of_the_wire_example() -> list[bytes]:
    text = FORMATS.read_text(encoding="utf-8")
    section = text.split("## Wire format", 1)[1].split("\n## ", 1)[0].split("### Example", 1)[1]
    dumps = re.findall(r"```text\n((?:[0-9a-f]{4}  [0-9a-f ]+\n)+)```", section)
    return [bytes.fromhex("".join(line[6:] for line in dump.splitlines())) for dump in dumps]


def test_the_example_is_what_is_sent() -> None:
    entries = Entries.build(7, 41, [b"one", b"three"])
    add = encode_add(entries, lac=40, lafr=39, key=bytes(range(16)), recovery=False)
    assert dumps_of_the_wire_example() == [
        encode_hello(Hello(bookie_id="b1", instance="i1")),
        b"".join(add),
        encode_head(Kind.ADD | REPLY, request=1),
        encode_head(Kind.REFUSED, request=2, status=Status.FENCED, ledger_id=7, first=43, last=43),
    ]


def test_the_example_is_understood() -> None:
    hello, add, acknowledgement, refusal = (
        decode_frame_untrusted(memoryview(dump)) for dump in dumps_of_the_wire_example()
    )
    assert decode_hello_untrusted(hello) == Hello(bookie_id="b1", instance="i1")
    assert decode_entries_untrusted(add).payloads() == [b"one", b"three"]
    assert decode_entries_untrusted(add).first_damaged() is None
    assert acknowledgement.header.request == 1
    assert Status(refusal.header.status) is Status.FENCED


def test_every_kind_and_status_is_described() -> None:
    text = FORMATS.read_text(encoding="utf-8")
    for kind in Kind:
        assert f"| {kind.value} {kind.name} |" in text
    for status in Status:
        assert f"| {status.value} | {status.name} |" in text
