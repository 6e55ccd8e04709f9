"""The pure part of the console: boards that fold what was seen, and the differences between two pictures."""

from __future__ import annotations

import itertools

import attrs
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.console.core.bookies import BookieBoard, Registered
from ledgerlog.console.core.ledgers import copies_there, ledger_row
from ledgerlog.console.core.logs import LogBoard, line_of
from ledgerlog.console.core.picture import HAPPENINGS_MAX, Happenings, difference, patched
from ledgerlog.console.core.repairs import RepairBoard, WaitingCount
from ledgerlog.limits import CONSOLE_LINE_PARTS_MAX, CONSOLE_PAGE_ROWS
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import LedgerWork, RepairTask, WorkerProgress
from ledgerlog.model.segments import LogSegment, SegmentCounts

R322 = Replication(3, 2, 2)

rows = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.none(), max_size=3)
pictures = st.dictionaries(st.sampled_from("xy"), st.dictionaries(st.sampled_from("123"), rows, max_size=3))


def shown(picture: object) -> object:
    """What a page shows of a picture: a field that is None is not there, nor is an empty section."""
    assert isinstance(picture, dict)
    cut = {
        section: {key: {f: v for f, v in row.items() if v is not None} for key, row in rows.items()}
        for section, rows in picture.items()
    }
    return {section: rows for section, rows in cut.items() if rows}


# --- pictures ---------------------------------------------------------------------------------------


@given(pictures, pictures)
def test_a_page_that_is_told_the_difference_has_the_next_picture(before: dict, after: dict) -> None:
    told = difference(before, after)
    if told is None:
        assert shown(before) == shown(after)
    else:
        assert shown(patched(before, told)) == shown(after)


def test_only_the_fields_that_changed_are_told() -> None:
    before = {"bookies": {"b1": {"state": "writable", "address": "h:1"}, "b2": {"state": "writable"}}}
    after = {"bookies": {"b1": {"state": "unavailable", "address": "h:1"}, "b2": {"state": "writable"}}}
    assert difference(before, after) == {"set": {"bookies": {"b1": {"state": "unavailable"}}}, "gone": {}}
    assert difference(before, before) is None


def test_happenings_are_bounded() -> None:
    happenings = Happenings()
    for number in range(2 * HAPPENINGS_MAX):
        happenings.add(float(number), "log a", "x")
    assert len(happenings.rows()) == HAPPENINGS_MAX
    assert [row["at_s"] for row in happenings.rows().values()] == [*range(HAPPENINGS_MAX, 2 * HAPPENINGS_MAX)]


def test_the_lines_of_a_console_that_was_started_again_have_other_and_higher_numbers() -> None:
    before, after = Happenings(), Happenings()
    for at_s in (1000.0, 1000.0, 1002.0):
        before.add(at_s, "log a", "x")
    after.add(1003.0, "log a", "y")
    assert len(before.rows()) == 3
    assert max(map(int, before.rows())) < min(map(int, after.rows()))


# --- bookies ----------------------------------------------------------------------------------------


def board_of(*bookies: str) -> tuple[BookieBoard, Happenings]:
    happenings = Happenings()
    board = BookieBoard(happenings)
    board.on_registrations({b: Registered(f"{b}:1", "writable") for b in bookies}, bookies, 0.0)
    return board, happenings


def test_rates_and_latencies_are_differences_of_the_figures() -> None:
    board, _ = board_of("b1")
    first = {"entries": 100, "bytes": 1000, "reads": 0, "syncs": 10, "sync_us": 5_000}
    board.on_figures("b1", first, 3.0, 10.0)
    assert board.rows()["b1"]["entries_per_s"] is None
    board.on_figures(
        "b1", {**first, "entries": 300, "bytes": 5000, "syncs": 30, "sync_us": 45_000}, 3.0, 12.0
    )
    row = board.rows()["b1"]
    assert (row["entries_per_s"], row["bytes_per_s"], row["reads_per_s"]) == (100, 2000, 0)
    assert row["sync_ms"] == 2.0
    assert row["answer_ms"] == 3.0


def test_a_bookie_that_started_again_has_no_negative_rates() -> None:
    board, _ = board_of("b1")
    board.on_figures("b1", {"entries": 500, "syncs": 50}, 1.0, 1.0)
    board.on_figures("b1", {"entries": 10, "syncs": 1}, 1.0, 2.0)
    assert board.rows()["b1"]["entries_per_s"] is None


def test_a_silent_bookie_and_an_unregistered_one_are_unavailable_and_say_why() -> None:
    board, happenings = board_of("b1", "b2")
    for bookie in ("b1", "b2"):
        board.on_figures(bookie, {}, 1.0, 1.0)
    board.on_silence("b1", "no answer within 0.8 s", 2.0)
    board.on_registrations({"b1": Registered("b1:1", "writable")}, ["b1", "b2"], 2.0)
    found = board.rows()
    assert [found[b]["state"] for b in ("b1", "b2")] == ["unavailable", "unavailable"]
    assert found["b1"]["why"] == "no answer within 0.8 s"
    assert found["b2"]["why"] == "it is not registered"
    assert {row["tone"] for row in happenings.rows().values()} == {"bad"}
    assert not board.is_there("b1")
    board.on_figures("b1", {}, 1.0, 3.0)
    assert board.rows()["b1"]["state"] == "writable"


def test_a_bookie_without_a_cookie_and_a_registration_leaves_the_board() -> None:
    board, happenings = board_of("b1", "b2")
    board.on_registrations({"b1": Registered("b1:1", "writable")}, ["b1"], 2.0)
    assert list(board.rows()) == ["b1"]
    assert "out of service" in next(iter(happenings.rows().values()))["text"]


def test_the_used_part_of_the_disk_is_shown_only_if_it_is_known() -> None:
    board, _ = board_of("b1")
    board.on_figures("b1", {"disk_bytes": -1, "disk_free_bytes": -1}, 1.0, 1.0)
    assert board.rows()["b1"]["disk_bytes"] is None
    board.on_figures("b1", {"disk_bytes": 100, "disk_free_bytes": 25}, 1.0, 2.0)
    assert (board.rows()["b1"]["disk_bytes"], board.rows()["b1"]["disk_used_bytes"]) == (100, 75)


# --- logs -------------------------------------------------------------------------------------------


def segments_of(*records: int, is_open: bool = True) -> tuple[LogSegment, ...]:
    found, at = [], 0
    for number, count in enumerate(records):
        times = (1, 2) if count else (None, None)
        found.append(LogSegment(number, 1, at, count, 10 * count, *times))
        at += count
    return (*found, LogSegment(len(records), 1, at)) if is_open else tuple(found)


def test_a_long_line_has_a_bounded_number_of_parts_and_loses_no_record() -> None:
    segments = segments_of(*[7] * 9_999)
    line = line_of(segments, 7 * 9_999 + 5)
    assert len(line) <= CONSOLE_LINE_PARTS_MAX + 10
    assert sum(part["ledgers"] for part in line) == 10_000
    edges = [(part["first_offset"], part["end_offset"]) for part in line]
    assert edges[0][0] == 0
    assert edges[-1][1] == 7 * 9_999 + 5
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(edges))
    assert [part["ledgers"] for part in line[-6:]] == [1] * 6


def test_empty_ledgers_do_not_make_parts_of_their_own() -> None:
    assert len(line_of(segments_of(*[0] * 5000, 100), 100)) < 20


def test_a_gap_begins_a_part() -> None:
    whole = segments_of(10, 10, 10, *[10] * 300, is_open=False)
    holed = (*whole[:2], whole[2]._replace(lost_before=4), *whole[3:])
    lost = [part["lost_before"] for part in line_of(holed, None)]
    assert sum(lost) == 4


def log_of(*, epoch: int = 1, records: int = 10, token: bytes = b"t") -> LogMetadata:
    made = LogMetadata.create(
        name="orders", incarnation=3, created_ms=1, token=token, replication=Replication(3, 3, 2)
    )
    return attrs.evolve(made, epoch=epoch, segments=segments_of(records), token=token)


def ledger_of(ledger_id: int, state: LedgerState, last_entry: int | None = None) -> LedgerMetadata:
    made = LedgerMetadata.create(
        ledger_id=ledger_id,
        replication=R322,
        ensemble=["b1", "b2", "b3"],
        key=b"k" * 16,
        token=b"t" * 16,
        created_ms=1,
        custom={},
    )
    return attrs.evolve(made, state=state, last_entry=last_entry)


def takeover(board: LogBoard) -> dict:
    return dict(board.sections()["takeovers"])["1"]


def test_a_takeover_is_drawn_step_by_step() -> None:
    happenings = Happenings()
    board = LogBoard("orders", happenings)
    before = log_of()
    board.on_record(before, 1.0)
    board.on_ledger(1, ledger_of(1, LedgerState.OPEN), 1.0)
    assert board.row()["lead"] == "led"
    board.on_ledger(1, ledger_of(1, LedgerState.IN_RECOVERY), 5.0)
    assert board.row()["lead"] == "taken over"
    assert board.row()["line"][-1]["is_fenced"]
    assert takeover(board)["fenced"] == [1]
    board.on_ledger(1, ledger_of(1, LedgerState.CLOSED, last_entry=4), 6.0)
    assert takeover(board)["closed"] == [[1, 4]]
    assert not takeover(board)["is_over"]
    counted = before.segments[1].with_counts(SegmentCounts(5, 50, 1, 2))
    segments = (before.segments[0], counted, LogSegment(2, 2, 15))
    after = attrs.evolve(before, epoch=2, token=b"u", segments=segments)
    board.on_record(after, 7.5)
    found = takeover(board)
    assert found["is_over"]
    assert (found["epoch_before"], found["epoch"], found["ledger"], found["seconds"]) == (1, 2, 2, 2.5)
    assert board.row()["lead"] == "led"
    assert [row["tone"] for row in happenings.rows().values()] == ["note", "good"]


def test_a_log_whose_open_ledger_repair_closed_has_no_leader_until_the_next_one_comes() -> None:
    board = LogBoard("orders", Happenings())
    before = log_of()
    board.on_record(before, 1.0)
    board.on_ledger(1, ledger_of(1, LedgerState.IN_RECOVERY), 5.0)
    board.on_ledger(1, ledger_of(1, LedgerState.CLOSED, last_entry=4), 6.0)
    assert board.row()["lead"] == "nobody"
    assert takeover(board)["is_closed"]
    counted = before.segments[1].with_counts(SegmentCounts(5, 50, 1, 2))
    segments = (before.segments[0], counted, LogSegment(2, 2, 15))
    board.on_record(attrs.evolve(before, epoch=2, token=b"u", segments=segments), 4000.0)
    assert board.row()["lead"] == "led"
    assert takeover(board)["is_over"]
    assert takeover(board)["seconds"] is None, "it did not take an hour"
    late = LogBoard("orders", Happenings())
    late.on_record(before, 10.0)
    late.on_ledger(1, ledger_of(1, LedgerState.CLOSED, last_entry=4), 10.0)
    assert late.row()["lead"] == "nobody"


def test_a_takeover_that_was_too_fast_to_watch_is_told_by_its_result() -> None:
    board = LogBoard("orders", Happenings())
    before = log_of()
    board.on_record(before, 1.0)
    board.on_record(attrs.evolve(before, epoch=2, token=b"u"), 2.0)
    found = takeover(board)
    assert (found["is_over"], found["fenced"], found["seconds"]) == (True, [1], None)


def test_a_deleted_log_is_shown_as_such_and_another_one_of_the_name_begins_anew() -> None:
    happenings = Happenings()
    board = LogBoard("orders", happenings)
    board.on_record(log_of(epoch=7), 1.0)
    board.on_missing(2.0)
    assert board.row()["state"] == "deleted"
    assert board.sections()["segments"] == {}
    board.on_record(attrs.evolve(log_of(epoch=1), incarnation=4, token=b"v"), 3.0)
    assert (board.row()["state"], board.row()["epoch"]) == ("there", 1)
    assert board.sections()["takeovers"] == {}
    assert len(happenings.rows()) == 2


def test_the_lag_of_a_cursor_is_counted_to_the_confirmed_end() -> None:
    board = LogBoard("orders", Happenings())
    board.on_record(log_of(records=10), 1.0)
    cursor = CursorState(name="c", offset=4, pins=False, properties={}, updated_ms=0, token=b"t" * 16)
    board.on_cursors({"c": cursor})
    assert dict(board.sections()["cursors"])["c"]["lag"] is None
    board.on_tail(12, 2.0)
    assert dict(board.sections()["cursors"])["c"]["lag"] == 8


def test_a_table_of_segments_has_a_page_of_rows() -> None:
    board = LogBoard("orders", Happenings(), segments_from=30)
    board.on_record(attrs.evolve(log_of(), segments=segments_of(*[1] * 199)), 1.0)
    shown = [int(key) for key in board.sections()["segments"]]
    assert shown == list(range(200 - 30 - CONSOLE_PAGE_ROWS, 200 - 30))


# --- ledgers ----------------------------------------------------------------------------------------


def test_the_copies_in_reach_are_those_of_the_entry_that_has_the_fewest() -> None:
    ledger = attrs.evolve(
        ledger_of(5, LedgerState.CLOSED, last_entry=9),
        fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(4, ("b1", "b2", "b4"))),
    )
    assert copies_there(ledger, 0, lambda b: True) == 2
    assert copies_there(ledger, 0, lambda b: b != "b3") == 1
    assert copies_there(ledger, 1, lambda b: b != "b3") == 2
    assert ledger_row(5, ledger, None, lambda b: b != "b3")["copies"] == 1
    # A ledger of one entry has its copies on two bookies; the third does not matter.
    single = ledger_of(6, LedgerState.CLOSED, last_entry=0)
    assert copies_there(single, 0, lambda b: b != "b3") == 2


# --- repair -----------------------------------------------------------------------------------------


def test_repair_shrinks_on_the_board_and_shows_who_works_on_what() -> None:
    happenings = Happenings()
    count = WaitingCount(happenings)
    board = RepairBoard(count)
    board.on_tasks([], {}, 0.0)
    board.on_tasks(range(100), {70: "w"}, 1.0)
    board.on_task(70, RepairTask(ledger_id=70, lost=("b1",)))
    progress = WorkerProgress(name="w1", work=(LedgerWork(ledger_id=70, doing="copies"),), bytes_per_s=7)
    board.on_state(workers={"w": progress}, audit=None, settings=None, draining=(), damaged=())
    sections = board.sections(with_tasks=True)
    assert len(sections["tasks"]) == CONSOLE_PAGE_ROWS
    assert sections["tasks"]["70"]["doing"] == "copies"
    assert sections["tasks"]["70"]["worker"] == "w1"
    assert sections["repair"][""]["waiting"] == 100
    board.on_tasks([3], {}, 2.0)
    board.on_tasks([], {}, 3.0)
    summary = board.sections(with_tasks=True)["repair"][""]
    assert [number for _, number in summary["history"]] == [0, 100, 1, 0]
    assert [row["tone"] for row in happenings.rows().values()] == ["bad", "good"]
    other = RepairBoard(count)
    for waiting in ([], [3], []):
        for each in (board, other):
            each.on_tasks(waiting, {}, 4.0)
    assert [row["tone"] for row in happenings.rows().values()] == ["bad", "good"] * 2, "each once"
