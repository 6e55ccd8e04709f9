"""The marks of a bookie that may have lost data: what they forbid, how they change, their bytes."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest

from bookie.core.loss_marks import NO_LEDGER, LossMarks, undenied
from bookie.core.results import ListResult
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.frame import Status

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "FORMATS.md"


def in_limbo(marks: LossMarks, through: int) -> list[int]:
    return [ledger_id for ledger_id in range(through + 1) if marks.denies_nothing(ledger_id)]


def test_a_new_bookie_refuses_nothing_and_denies_what_is_not_there() -> None:
    marks = LossMarks()
    assert not marks.is_unclean
    assert not marks.refuses_adds(0)
    assert not marks.denies_nothing(0)


def test_after_a_loss_every_ledger_up_to_the_highest_id_is_fenced_and_in_limbo_and_none_above() -> None:
    marks = LossMarks().after_loss(41)
    assert marks.is_unclean
    assert [marks.refuses_adds(ledger_id) for ledger_id in (0, 41, 42)] == [True, True, False]
    assert [marks.denies_nothing(ledger_id) for ledger_id in (0, 41, 42)] == [True, True, False]


def test_after_a_loss_in_a_cluster_without_ledgers_nothing_is_marked_but_the_bit() -> None:
    assert LossMarks().after_loss(-1) == LossMarks(is_unclean=True, fenced_through=NO_LEDGER)


def test_clearing_limbo_leaves_the_fence() -> None:
    marks = LossMarks().after_loss(9).cleared([(0, 3), (5, 5), (9, 9)])
    assert in_limbo(marks, 12) == [4, 6, 7, 8]
    assert marks.limbo_count == 4
    assert all(marks.refuses_adds(ledger_id) for ledger_id in range(10))


def test_a_second_loss_puts_cleared_ledgers_into_limbo_again_and_forgets_no_fence() -> None:
    marks = LossMarks().after_loss(9).cleared([(0, 9)]).after_loss(4)
    assert in_limbo(marks, 12) == [0, 1, 2, 3, 4]
    assert marks.fenced_through == 9, "a counter that went back does not take a fence away"


def test_limbo_outlives_a_clean_stop_and_a_start_that_loses_nothing() -> None:
    marks = LossMarks().after_loss(3).serving(acknowledges_unsynced=False)
    assert not marks.is_unclean
    assert in_limbo(marks, 5) == [0, 1, 2, 3]


def test_clearing_is_set_difference_whatever_the_ranges() -> None:
    chance = random.Random(1)
    for _ in range(200):
        highest = chance.randrange(30)
        marks = LossMarks().after_loss(highest)
        wanted = set(range(highest + 1))
        for _ in range(chance.randrange(5)):
            low = chance.randrange(35)
            high = low + chance.randrange(6)
            marks = marks.cleared([(low, high)])
            wanted -= set(range(low, high + 1))
        assert in_limbo(marks, 45) == sorted(wanted)
        assert LossMarks.decode_untrusted(marks.encode(), "marks") == marks


def test_what_was_written_is_read_again_and_anything_else_is_corrupt() -> None:
    data = LossMarks().after_loss(700).cleared([(3, 5)]).encode()
    assert LossMarks.decode_untrusted(data, "marks").encode() == data
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(StorageCorrupt):
            LossMarks.decode_untrusted(damaged, "marks")
    for cut in range(len(data)):
        with pytest.raises(StorageCorrupt):
            LossMarks.decode_untrusted(data[:cut], "marks")


@pytest.mark.parametrize(
    "marks",
    [
        LossMarks(fenced_through=-2),
        LossMarks(limbo=((3, 2),)),
        LossMarks(limbo=((-1, 2),)),
        LossMarks(limbo=((0, 2), (3, 4))),
        LossMarks(limbo=((5, 6), (0, 2))),
    ],
)
def test_marks_that_make_no_sense_are_corrupt_though_their_checksum_holds(marks: LossMarks) -> None:
    with pytest.raises(StorageCorrupt):
        LossMarks.decode_untrusted(marks.encode(), "marks")


def test_a_version_that_would_forget_the_gone_ledgers_refuses_the_marks_of_a_directory_that_has_them() -> (
    None
):
    without = LossMarks().after_loss(41)
    with_them = attrs.evolve(without, has_gone_file=True)
    assert LossMarks.decode_untrusted(with_them.encode(), "marks") == with_them
    assert without.encode()[8:12] == b"\1\0\0\0"
    assert with_them.encode()[8:12] == b"\2\0\0\0", "version 0.1 reads 1 and nothing else"


def test_the_example_on_the_page_is_what_is_written() -> None:
    data = LossMarks().after_loss(41).cleared([(0, 39)]).encode()
    lines = "\n".join(f"{at:04x}  {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16))
    assert f"```text\n{lines}\n```" in FORMATS.read_text(encoding="utf-8")


@pytest.mark.parametrize("status", [Status.CORRUPT, Status.IO_ERROR])
def test_an_answer_in_limbo_denies_nothing_before_an_entry_that_cannot_be_read(status: Status) -> None:
    def answer(through: int) -> ListResult:
        return undenied(ListResult(status, [], through), 4)

    assert answer(3).status is status, "it is about the first entry that was asked for"
    assert [answer(through).status for through in (4, 5)] == [Status.UNKNOWN] * 2
