"""The demo's audit works: it counts each way in which a log can be wrong, and counts nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerlog.cli.demo_account import Account, Contradiction, DemoAudit
from ledgerlog.cli.demo_text import number_of, numbered, record_of, text_lines
from ledgerlog.errors import InvalidArgument

RECORDS = [record_of(number, b"line %d" % number) for number in range(6)]


def account(acknowledged: int = len(RECORDS)) -> Account:
    made = Account()
    assert made.take(RECORDS) == 0
    made.acknowledge(0, acknowledged, 0)
    return made


def figures(log: list[bytes], acknowledged: int = len(RECORDS)) -> tuple[int, int, int, int]:
    audit = DemoAudit(account(acknowledged))
    audit.feed(0, log[:2])
    audit.feed(2, log[2:])
    return audit.lost, audit.duplicated, audit.out_of_order, audit.foreign


def test_the_log_that_was_acknowledged_is_clean() -> None:
    audit = DemoAudit(account())
    audit.feed(0, RECORDS)
    assert audit.is_clean


def test_an_acknowledged_record_that_is_missing_at_the_end_is_lost() -> None:
    assert figures(RECORDS[:5]) == (1, 0, 0, 0)


def test_a_record_without_an_acknowledgement_may_be_missing_or_there() -> None:
    assert figures(RECORDS[:5], acknowledged=5) == (0, 0, 0, 0)
    assert figures(RECORDS, acknowledged=5) == (0, 0, 0, 0)


def test_records_that_moved_to_other_offsets_are_lost_where_they_were_promised() -> None:
    assert figures([RECORDS[0], *RECORDS[2:]]) == (5, 0, 0, 0)


def test_a_record_found_twice_is_duplicated() -> None:
    assert figures([*RECORDS, RECORDS[2]]) == (0, 1, 0, 0)


def test_a_record_after_one_with_a_higher_number_is_out_of_order() -> None:
    swapped = [*RECORDS[:4], RECORDS[5], RECORDS[4]]
    assert figures(swapped) == (2, 0, 1, 0)


def test_what_nobody_was_to_append_is_foreign() -> None:
    assert figures([*RECORDS, record_of(6, b"of a deposed leader")]) == (0, 0, 0, 1)
    assert figures([*RECORDS, b"no number"]) == (0, 0, 0, 1)


def test_a_record_with_other_bytes_is_foreign_and_the_acknowledged_one_lost() -> None:
    assert figures([*RECORDS[:5], record_of(5, b"changed")]) == (1, 0, 0, 1)


def test_what_is_found_without_an_acknowledgement_is_told_with_its_offset() -> None:
    audit = DemoAudit(account(4))
    assert audit.feed(0, RECORDS) == [(4, 4), (5, 5)]


def test_two_offsets_for_one_record_are_a_contradiction() -> None:
    made = account(4)
    made.acknowledge(3, 2, 3)
    with pytest.raises(Contradiction, match="record 4 was reported at offset 4 and at 9"):
        made.acknowledge(4, 1, 9)


def test_numbers_are_read_back_from_records() -> None:
    assert number_of(record_of(17, b"")) == 17
    assert number_of(b"000000017 no tab") is None
    assert number_of(b"17\t") is None


def test_a_text_is_read_again_until_there_are_as_many_records_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n\nb")
    assert list(text_lines(path)) == [b"a", b"", b"b"]
    lines = [record.partition(b"\t")[2] for record in numbered(path, 5)]
    assert lines == [b"a", b"", b"b", b"a", b""]
    path.write_bytes(b"")
    with pytest.raises(InvalidArgument, match="no line"):
        list(numbered(path, 1))
