"""The plan says which ledgers and files a job may archive, give up, merge and retire. A model log lives while
jobs carry out their plans."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerlog.archive.core.compaction import (
    KeyRule,
    Latest,
    TooManyKeys,
    json_rule,
    parse_key_rule,
    prefix_rule,
    survivors,
    until_rule,
)
from ledgerlog.archive.core.lifecycle import compactable, merge_groups, plan_archive
from ledgerlog.archive.jobs.cleaning import _replaced
from ledgerlog.errors import InvalidArgument
from ledgerlog.model.archive import ArchivedFile, ArchivedLedger
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import RecordBatch
from ledgerlog.model.segments import SegmentCounts

DELAY_MS = 1000


def empty_log() -> LogMetadata:
    return LogMetadata.create(
        name="log", incarnation=1, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )


def record_of(*ledgers: tuple[int, int, int], archived_ms: int = 0, size: int = 100) -> ArchivedFile:
    return ArchivedFile(
        log="log",
        incarnation=1,
        file=f"file:///{ledgers[0][0]}",
        file_bytes=size,
        ledgers=tuple(
            ArchivedLedger(ledger_id=a, first_offset=b, end_offset=c, last_entry=0) for a, b, c in ledgers
        ),
        record_count=ledgers[-1][2] - ledgers[0][1],
        compacted=False,
        digest=bytes(32),
        footer=bytes(32),
        archived_ms=archived_ms,
        token=b"token",
    )


class Model:
    """A log, its ledgers and its archive, as the metadata store has them. Jobs and others change them in any
    order. A ledger's content never changes, so a ledger is readable if it exists."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log: LogMetadata | None = empty_log()
        self.records: dict[int, ArchivedFile] = {}
        self.ledgers: set[int] = set()
        self.files: set[str] = set()
        self.now_ms = 0
        self.next_id = 0
        self.stale: tuple[list[ArchivedFile], LogMetadata | None, set[int]] | None = None

    def check(self) -> None:
        """Check that every listed ledger is on bookies, or in a file with exactly its offsets."""
        if self.log is None:
            return
        for segment in self.log.segments:
            if segment.ledger_id in self.ledgers or segment.record_count == 0:
                continue
            record = self.records.get(segment.ledger_id)
            assert record is not None, f"ledger {segment.ledger_id} is nowhere"
            assert (record.first_offset, record.end_offset) == (segment.first_offset, segment.end_offset)
            assert record.file in self.files
        newest = [segment for segment in self.log.segments if segment.record_count][-1:]
        assert all(segment.ledger_id in self.ledgers for segment in newest), "the next leader needs it"

    # --- what others do ---

    def lead(self) -> None:
        if self.log is None:
            return
        counts = [self._counts() for _ in self.log.open_segments]
        self.next_id += 1
        self.log = self.log.taken_over(counts, self.next_id, b"t")
        self.ledgers.add(self.next_id)

    def _counts(self) -> SegmentCounts:
        count = self.rng.choice((0, 1, 5))
        lost = self.rng.choice((0, 0, 0, 3))
        return SegmentCounts(count, count, 1 if count else None, 1 if count else None, lost)

    def truncate(self) -> None:
        if self.log is None or self.log.counted_end == self.log.first_offset:
            return
        before = self.rng.randint(self.log.first_offset, self.log.counted_end)
        # With dedupe a log keeps its newest counted ledger, which knows the producers; others may drop all.
        self.log, gone = self.log.truncated(before, self.log.counted_end, b"t")
        self.ledgers -= set(gone)

    def delete(self) -> None:
        if self.log is not None and self.rng.random() < 0.1:
            self.ledgers -= {segment.ledger_id for segment in self.log.segments}
            self.log = None

    def wait(self) -> None:
        self.now_ms += self.rng.choice((1, DELAY_MS))

    # --- what jobs do, from an old look at the metadata ---

    def look(self) -> None:
        self.stale = (list(self.records.values()), self.log, set(self.ledgers))

    def work(self) -> None:
        if self.stale is None:
            return
        records, metadata, with_copies = self.stale
        plan = plan_archive(metadata, records, with_copies, now_ms=self.now_ms, keep_copies_ms=DELAY_MS)
        choice = self.rng.choice(("copy", "give up", "retire", "merge"))
        if choice == "copy" and plan.copy:
            segment = self.rng.choice(plan.copy)
            assert segment.is_counted
            assert segment.first_offset is not None
            assert segment.end_offset is not None
            made = record_of(
                (segment.ledger_id, segment.first_offset, segment.end_offset), archived_ms=self.now_ms
            )
            listed = self.log is not None and self.log.index_of(segment.ledger_id) is not None
            if listed and segment.ledger_id not in self.records:  # The transaction checks this.
                self.records[segment.ledger_id] = made
                self.files.add(made.file)
        elif choice == "give up" and plan.give_up:
            record, ledger_id = self.rng.choice(plan.give_up)
            assert self.now_ms - record.archived_ms >= DELAY_MS
            if self.records.get(record.ledger_id) == record:
                self.ledgers.discard(ledger_id)
        elif choice == "retire" and plan.retire:
            record = self.rng.choice(plan.retire)
            listed = self.log is not None and self.log.index_of(record.ledger_id) is not None
            if self.records.get(record.ledger_id) == record and not listed:
                self.files.discard(record.file)
                del self.records[record.ledger_id]
        elif choice == "merge" and metadata is not None:
            groups = merge_groups(metadata, records, with_copies, bytes_max=1000, ledgers_max=100)
            if not groups or self.log is None:
                return
            group = self.rng.choice(groups)
            fresh = all(self.records.get(each.ledger_id) == each for each in group)
            if fresh and all(self.log.index_of(each.ledger_id) is not None for each in group):
                ledgers = [
                    (each.ledger_id, each.first_offset, each.end_offset)
                    for one in group
                    for each in one.ledgers
                ]
                made = attrs.evolve(record_of(*ledgers), file=f"file:///merged/{self.rng.random()}")
                before = self.log
                self.log, gone = self.log.merged(made.ledger_id, made.end_offset, b"t")
                assert self.log.counted_end == before.counted_end
                assert self.log.counted_bytes == before.counted_bytes
                self.ledgers -= set(gone)
                for each in group:
                    del self.records[each.ledger_id]
                self.records[made.ledger_id] = made
                self.files.add(made.file)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_in_any_order_of_jobs_and_lives_every_record_is_somewhere(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(rng)
    actions = [
        model.lead,
        model.lead,
        model.truncate,
        model.delete,
        model.wait,
        model.look,
        model.look,
        *([model.work] * 6),
    ]
    for _ in range(120):
        rng.choice(actions)()
        model.check()
    assert LogMetadata.decode_untrusted((model.log or empty_log()).encode(), 1) == (model.log or empty_log())


def test_copies_wait_for_their_delay_and_the_newest_ledger_for_ever() -> None:
    log = empty_log()
    for number in range(4):
        counts = [SegmentCounts(5, 5, 1, 1)] * len(log.open_segments)
        log = log.taken_over(counts, number, b"t")
    records = [record_of((n, 5 * n, 5 * n + 5), archived_ms=100 * n) for n in range(3)]

    def due(now_ms: int) -> list[int]:
        plan = plan_archive(log, records, {0, 1, 2, 3}, now_ms=now_ms, keep_copies_ms=1000)
        assert len(plan.waiting) == 3 - len(plan.give_up)
        return [ledger_id for _, ledger_id in plan.give_up]

    assert due(999) == []
    assert due(1000) == [0]
    assert due(10**9) == [0, 1]
    assert due(-(10**9)) == [], "the clock was set back"


def test_a_ledger_whose_records_are_all_truncated_is_not_copied() -> None:
    """The log was truncated to offset 8 within a ledger that then ended at offset 5. The list moved the
    ledger to end at offset 8, so its entries do not continue the log."""
    log, _ = empty_log().taken_over((), 1, b"t").truncated(8, 9, b"t")
    moved = log.taken_over([SegmentCounts(5, 5, 1, 1)], 2, b"t")
    assert (moved.segments[0].end_offset, moved.first_offset) == (8, 8)
    log = moved.taken_over([SegmentCounts(3, 3, 2, 2)], 3, b"t")
    plan = plan_archive(log, (), {1, 2, 3}, now_ms=0, keep_copies_ms=DELAY_MS)
    assert [segment.ledger_id for segment in plan.copy] == [2]


def test_merging_takes_neighbours_up_to_a_size_and_leaves_large_files_alone() -> None:
    log = empty_log()
    for number in range(8):
        counts = [SegmentCounts(5, 5, 1, 1)] * len(log.open_segments)
        log = log.taken_over(counts, number, b"t")
    sizes = [10, 10, 60, 10, 10, 10, 10]
    records = [record_of((n, 5 * n, 5 * n + 5), size=size) for n, size in enumerate(sizes)]

    def groups(copies: set[int], bytes_max: int = 100, ledgers_max: int = 10) -> list[list[int]]:
        found = merge_groups(log, records, copies, bytes_max=bytes_max, ledgers_max=ledgers_max)
        return [[record.ledger_id for record in group] for group in found]

    assert groups(set()) == [[0, 1], [3, 4, 5, 6]]
    assert groups({5}) == [[0, 1], [3, 4]]
    assert groups(set(), ledgers_max=2) == [[0, 1], [3, 4], [5, 6]]
    assert groups(set(), bytes_max=1000) == [[0, 1, 2, 3, 4, 5, 6]]
    compacted = compactable(log, records, {4}, bytes_max=70, ledgers_max=10)
    assert [[record.ledger_id for record in group] for group in compacted] == [[0, 1], [2, 3]]


@given(
    made=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 5), st.booleans()), max_size=12
    )
)
def test_a_stray_is_replaced_by_the_first_later_file_that_has_all_of_its_offsets(
    made: list[tuple[int, int, int, bool]],
) -> None:
    files = [
        (first, first + length, ms, f"{at}" if is_stray else None)
        for at, (first, length, ms, is_stray) in enumerate(made)
    ]
    wanted = {}
    for first, end, ms, name in files:
        later = [moment for a, b, moment, _ in files if a <= first and end <= b and moment > ms]
        if name is not None and later:
            wanted[name] = min(later)
    assert _replaced(files) == wanted


# --- the record -------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written_and_nothing_else_is() -> None:
    record = record_of((7, 0, 5), (9, 5, 6))
    assert ArchivedFile.decode_untrusted(record.encode(), 1, 7) == record
    for data, incarnation, ledger_id in (
        (record.encode(), 2, 7),
        (record.encode(), 1, 9),
        (record.encode()[:-1], 1, 7),
        (b"", 1, 7),
    ):
        with pytest.raises(MetadataCorrupt):
            ArchivedFile.decode_untrusted(data, incarnation, ledger_id)
    for at in range(len(record.encode())):
        damaged = bytearray(record.encode())
        damaged[at] ^= 1
        with contextlib.suppress(MetadataCorrupt):
            ArchivedFile.decode_untrusted(bytes(damaged), 1, 7)
    with pytest.raises(AssertionError):
        record_of((7, 0, 5), (9, 6, 7))


def test_the_example_of_the_page_is_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ARCHIVE.md").read_text(encoding="utf-8")
    record = ArchivedFile.decode_untrusted(bytes.fromhex(page.split("```text\n")[-1].split("```")[0]), 0, 7)
    assert (record.log, record.first_offset, record.end_offset, record.record_count) == (
        "orders",
        0,
        1000,
        1000,
    )
    assert record.ledgers[0].last_entry == 19


# --- compaction ---------------------------------------------------------------------------------------


def batch(start: int, *payloads: bytes, ms: int = 5) -> RecordBatch:
    return RecordBatch(
        ledger_id=1,
        entry_id=2,
        first_offset=start,
        first_slot=0,
        epoch=1,
        timestamp_ms=ms,
        payloads=list(payloads),
    )


@given(keys=st.lists(st.binary(min_size=0, max_size=2), max_size=60), cut=st.integers(1, 7))
def test_of_each_key_the_latest_stays_and_what_has_no_key_stays(keys: list[bytes], cut: int) -> None:
    batches = [batch(at, *keys[at : at + cut]) for at in range(0, len(keys), cut)]
    latest = Latest(prefix_rule(1))
    latest.feed(batches)
    left = {
        record.offset: record for each in batches for part in survivors(each, latest.keeps) for record in part
    }
    last = {key[:1]: at for at, key in enumerate(keys) if key}
    assert set(left) == {at for at, key in enumerate(keys) if not key or last[key[:1]] == at}
    whole = {record.offset: record for each in batches for record in each}
    assert all(whole[offset] == record for offset, record in left.items())


def test_rules_are_read_from_text() -> None:
    assert parse_key_rule("prefix:2").key(b"abc") == b"ab"
    assert parse_key_rule("prefix:2").key(b"a") is None
    assert parse_key_rule("until::").key(b"a:b:c") == b"a"
    assert parse_key_rule("until:=").key(b"abc") is None
    assert parse_key_rule("json:a.b").key(b'{"a":{"b":[1, {"z":1,"y":2}]}}') == b'[1,{"y":2,"z":1}]'
    for record in (b'{"a":1}', b"[]", b"\xff", b'{"a":{"b":null}}', b"[" * 100_000):
        assert parse_key_rule("json:a.b").key(record) is None
    assert parse_key_rule("prefix:1", "empty").is_tombstone(b"a")
    assert not parse_key_rule("prefix:1", "empty").is_tombstone(b"ab")
    assert not parse_key_rule("prefix:1").is_tombstone(b"a")
    assert parse_key_rule("until:=", "empty").is_tombstone(b"a=")
    assert parse_key_rule("json:a", "json:gone").is_tombstone(b'{"a":1,"gone":true}')
    assert not parse_key_rule("json:a", "json:gone").is_tombstone(b'{"a":1,"gone":1}')
    for text, tombstones in (
        ("prefix:0", None),
        ("prefix:x", None),
        ("prefix:²", None),
        ("prefix:" + 5000 * "1", None),
        ("until:", None),
        ("json:", None),
        ("json:a..b", None),
        ("keys", None),
        ("key", "json:a"),
        ("prefix:1", "json:a"),
        ("json:a", "empty"),
        ("prefix:1", "what"),
    ):
        with pytest.raises(InvalidArgument):
            parse_key_rule(text, tombstones)
    with pytest.raises(InvalidArgument):
        until_rule(b"")
    with pytest.raises(InvalidArgument):
        json_rule("a", tombstone=".")


def test_by_its_own_key_the_latest_record_stays_and_one_without_data_is_a_tombstone() -> None:
    rule = parse_key_rule("key", "empty")
    kept: list[int] = []
    batches = [batch(0, b"1", b"2", b"", b"4", b"", ms=5), batch(5, b"6", b"", ms=20)]
    batches[0].keys = [b"a", None, b"b", b"a", b"c"]
    batches[1].keys = [b"c", b"d"]
    latest = Latest(rule, tombstones_before_ms=10)
    latest.feed(batches)
    for each in batches:
        for part in survivors(each, latest.keeps):
            kept += [record.offset for record in part if record.key in (None, b"a", b"c", b"d")]
    assert kept == [1, 3, 5, 6], "b was deleted long ago, d lately; a record without a key stays"
    plain = batch(0, b"1", b"1")
    assert survivors(plain, Latest(parse_key_rule("key")).keeps) == [plain]


def test_tombstones_go_when_they_are_old_and_the_latest_of_their_key() -> None:
    latest = Latest(prefix_rule(1, tombstones=True), tombstones_before_ms=10)
    batches = [batch(0, b"a1", b"b", ms=5), batch(2, b"a", ms=9), batch(3, b"c1", b"c", ms=10)]
    latest.feed(batches)
    assert [r.offset for each in batches for part in survivors(each, latest.keeps) for r in part] == [4]


def test_numbers_that_are_one_double_and_differ_are_no_keys() -> None:
    key = parse_key_rule("json:a").key
    for one, other in (
        ("12345678901234567.1", "12345678901234567.2"),
        ("1e400", "1e500"),
        ("[0.10000000000000000001]", "[0.10000000000000000002]"),
        ('{"b": 1e-400}', '{"b": 1e-500}'),
        ("NaN", "Infinity"),
        ("1e99999999999999999999", "1e99999999999999999998"),
    ):
        assert key(b'{"a":%s}' % one.encode()) is None
        assert key(b'{"a":%s}' % other.encode()) is None
    assert key(b'{"a":1.50}') == key(b'{"a":15e-1}') == b"1.5"
    assert key(b'{"a":0.1}') != key(b'{"a":"0.1"}')
    assert key(b'{"a":%d}' % 2**80) != key(b'{"a":%d}' % (2**80 + 1))
    assert key(b'{"a":7,"b":1e400}') == b"7", "a member that is not the key may be any number"


def test_a_rule_that_finds_a_key_at_the_second_look_only_drops_nothing() -> None:
    known: list[bytes] = []
    latest = Latest(KeyRule(key=lambda record: record if record in known else None))
    batches = [batch(0, b"a", b"b")]
    latest.feed(batches)
    known.append(b"a")
    assert [r.offset for each in batches for part in survivors(each, latest.keeps) for r in part] == [0, 1]


def test_more_keys_than_one_process_holds_are_an_error_that_says_where_to_go() -> None:
    latest = Latest(prefix_rule(1), keys_max=2)
    latest.feed([batch(0, b"a", b"b", b"a")])
    with pytest.raises(TooManyKeys, match="Spark"):
        latest.feed([batch(3, b"c")])
