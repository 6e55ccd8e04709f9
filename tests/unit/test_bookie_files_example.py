"""The code writes the worked example of a bookie's files in docs/FORMATS.md byte for byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import trio

from bookie.core import rows
from bookie.core.block import PAGE_BYTES
from bookie.core.boot import ReplayStart
from bookie.core.entry_log import LoggedLedger
from bookie.core.file_set import FileSet
from bookie.core.journal import GroupCommit, SegmentImage
from bookie.core.journal_items import ADD, FENCE, START, EntryRun, JournalPosition, encode_fence, encode_start
from bookie.core.merging import merge_runs
from bookie.core.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from ledgerlog.wire.entries import Entries, encode_add

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "FORMATS.md"
NONCE = bytes(range(0x10, 0x20))
KEY = bytes(range(16))


def example_segment() -> bytes:
    """Return a new segment after its START, and after an add of two entries and a fence in the same sync."""
    header = SegmentHeader(number=1, size=65536, nonce=NONCE, instance="i1")
    view = memoryview(bytearray(header.size))
    view[:SEGMENT_HEADER_BYTES] = header.encode()
    commit = GroupCommit(durable=0, image=SegmentImage(1, NONCE, view))
    commit.append(START, encode_start(JournalPosition(0, 0, 0)))
    write(commit)
    entries = Entries.build(7, 41, [b"one", b"three"])
    commit.append(ADD, b"".join(encode_add(entries, lac=40, lafr=39, key=KEY, recovery=False)))
    commit.append(FENCE, encode_fence(7, KEY))
    write(commit)
    return bytes(view[: 3 * PAGE_BYTES])


def write(commit: GroupCommit) -> None:
    block = commit.take_block()
    assert block is not None
    commit.on_written(block)


def example_log() -> bytes:
    """Return the entry log that would replace the example segment."""

    async def write() -> bytes:
        segment = memoryview(example_segment())
        run = EntryRun(7, 41, 42, 2, file=1, offset=8264, length=120, sequence=2)

        async def fetch(runs: Sequence[EntryRun]) -> list[memoryview]:
            return [segment[each.offset : each.offset + each.length] for each in runs]

        disk = MemoryDisk()
        logs = EntryLogFiles(disk, "entries", "i1", lambda: NONCE)
        await logs.prepare()
        written = await logs.write(
            level=0,
            replaced=FileSet.of([1]),
            ledgers={7: LoggedLedger(7, KEY, is_fenced=True, is_deleted=False, lac=40, lafr=39)},
            runs=list(merge_runs([run])),
            usage={7: 120},
            fetch=fetch,
            pace=None,
        )
        return bytes(disk.files[logs.path(written.number)])

    return trio.run(write)


def example_rows() -> list[rows.Row]:
    run = EntryRun(7, 41, 42, 2, file=1, offset=8264, length=120, sequence=2)
    end = JournalPosition(1, 12288, 2)
    return [
        rows.encode_run(run),
        rows.encode_file(
            rows.FileRow(1, 12288, last_sequence=2, runs=1, run_bytes=120, live_bytes=120, ledgers=1)
        ),
        rows.encode_usage(1, {7: 120}),
        rows.encode_mark(ReplayStart(2, 3, is_optional=True, end=end)),
    ]


def dump(data: bytes) -> str:
    """Format bytes like ``hexdump``: sixteen bytes a line, ``*`` for lines that repeat the previous line."""
    lines: list[str] = []
    previous = b""
    for at in range(0, len(data), 16):
        line = data[at : at + 16]
        if line != previous:
            lines.append(f"{at:04x}  {line.hex(' ')}")
        elif lines[-1] != "*":
            lines.append("*")
        previous = line
    return "\n".join([*lines, f"{len(data):04x}"])


def section() -> str:
    return FORMATS.read_text(encoding="utf-8").split("## Bookie files", 1)[1].split("\n## ", 1)[0]


def test_the_example_segment_is_what_is_written() -> None:
    assert f"```text\n{dump(example_segment())}\n```" in section()


def test_the_example_log_is_what_is_written() -> None:
    assert f"```text\n{dump(example_log())}\n```" in section()


def test_the_example_rows_are_what_is_written() -> None:
    for key, value in example_rows():
        assert f"{key.hex(' ')}\n    {value.hex(' ')}" in section()


def test_the_run_of_the_example_is_where_its_row_says() -> None:
    run = rows.decode_run(*example_rows()[0], "index")
    frame = example_segment()[run.offset : run.offset + run.length]
    entries = Entries.build(7, 41, [b"one", b"three"])
    assert frame == b"".join(encode_add(entries, lac=40, lafr=39, key=KEY, recovery=False))


def test_every_kind_of_record_and_row_is_described() -> None:
    text = section()
    for kind, name in ((START, "START"), (ADD, "ADD"), (FENCE, "FENCE"), (4, "CLOSE")):
        assert re.search(rf"^\| {kind} {name} \|", text, re.MULTILINE), name
    for letter in "IMLRS":
        assert re.search(rf"^\| `{letter}`", text, re.MULTILINE), letter
