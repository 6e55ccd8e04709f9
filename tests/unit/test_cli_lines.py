"""Lines of a file become records and lines again, byte for byte, in pieces of any size."""

from __future__ import annotations

from io import BytesIO

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ledgerlog.cli.lines import LineCutter, LineJoiner, open_sink
from ledgerlog.errors import EntryUnavailable
from ledgerlog.limits import RECORD_BYTES_MAX


def cut(text: bytes, step: int) -> tuple[list[bytes], bool]:
    """Return the records of a text that arrives in pieces, and whether its last line had no newline."""
    cutter = LineCutter()
    records = [line for at in range(0, len(text), step) for line in cutter.cut(text[at : at + step])]
    unterminated = cutter.holds_a_line
    return records + cutter.finish(), unterminated


def join(records: list[bytes], unterminated: bool, step: int) -> bytes:
    joiner = LineJoiner(len(records) - 1 if unterminated else None)
    return b"".join(joiner.join(at, records[at : at + step]) for at in range(0, len(records), step))


texts = st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"\0", b"\xff"]), max_size=30).map(b"".join)


@given(texts, st.integers(1, 7), st.integers(1, 4))
def test_a_text_comes_back_as_it_was(text: bytes, read_step: int, write_step: int) -> None:
    records, unterminated = cut(text, read_step)
    assert join(records, unterminated, write_step) == text


@given(texts, st.integers(1, 7))
def test_the_records_are_the_lines_however_the_text_arrives(text: bytes, step: int) -> None:
    lines = text.split(b"\n")
    records, _ = cut(text, step)
    assert records == (lines if lines[-1] else lines[:-1])


def test_a_record_that_ended_without_a_newline_gets_one_once_another_follows() -> None:
    joiner = LineJoiner(1)
    assert joiner.join(0, [b"a", b"b"]) == b"a\nb"
    assert joiner.join(2, [b"c"]) == b"\nc\n"


@pytest.mark.parametrize("step", [1 << 20, 1 << 30])
def test_a_line_of_the_largest_record_is_taken_and_one_byte_more_is_refused_by_its_number(step: int) -> None:
    longest = b"x" * RECORD_BYTES_MAX
    assert cut(b"a\n" + longest + b"\nb\n", step) == ([b"a", longest, b"b"], False)

    cutter = LineCutter()
    text = b"a\n\n" + longest + b"x\nb\n"
    records = []
    for at in range(0, len(text), step):
        records += cutter.cut(text[at : at + step])
        if cutter.failure is not None:
            break
    assert records == [b"a", b""], "what stands before the line is given out, what follows is not"
    assert cutter.failure is not None
    assert "line 3" in str(cutter.failure)
    assert cutter.finish() == []


def test_a_line_that_never_ends_is_refused_without_being_held() -> None:
    cutter = LineCutter()
    chunk = b"x" * (1 << 20)
    chunks = 0
    while cutter.failure is None:
        cutter.cut(chunk)
        chunks += 1
    assert chunks == RECORD_BYTES_MAX // len(chunk) + 1


async def fail_after_a_line(output: BytesIO) -> None:
    async with open_sink(output) as sink:
        await sink.put(b"a line\n")
        raise EntryUnavailable(1, 2, "no bookie")


async def test_what_was_read_before_an_error_is_written() -> None:
    output = BytesIO()
    with pytest.raises(EntryUnavailable):
        await fail_after_a_line(output)
    assert output.getvalue() == b"a line\n"
