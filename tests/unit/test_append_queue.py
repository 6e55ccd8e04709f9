"""From records to entries and back to answers: packing, order, conditions, and the outcome of each record."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument, OffsetMismatch, RecordTooLarge
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.log.core.append_queue import AppendQueue, Batch, BatchState, cumulative, group_cost
from ledgerlog.log.core.search import EntrySearch
from ledgerlog.model.attributes import Attributes, encode_headers
from ledgerlog.model.ids import Position
from ledgerlog.model.record import Ack
from ledgerlog.wire.records import decode_entry, decode_header, decode_packed, encode_entry


def new_queue(**options: int) -> AppendQueue:
    return AppendQueue("log", epoch=3, next_offset=10, **options)


def add(queue: AppendQueue, record: bytes = b"x", expected: int | None = None) -> tuple[Batch, int]:
    batch = queue.add(record, len(record), expected)
    return batch, len(batch.records) - 1


def send(queue: AppendQueue, ledger_id: int, entry_id: int) -> Batch:
    batch = queue.first_to_send(full_only=False)
    assert batch is not None
    queue.on_sent(batch, ledger_id, entry_id)
    return batch


def test_what_arrives_before_a_batch_is_sent_becomes_one_entry() -> None:
    queue = new_queue()
    batch, _ = add(queue, b"a")
    assert add(queue, b"b") == (batch, 1)
    send(queue, 7, 0)
    later, slot = add(queue, b"c")
    assert later is not batch
    assert queue.on_confirmed(7, 0) == 1
    assert [batch.ack(0), batch.ack(1)] == [Ack(10, Position(7, 0, 0), 3), Ack(11, Position(7, 0, 1), 3)]
    send(queue, 7, 1)
    assert queue.on_confirmed(7, 1) == 2
    assert later.ack(slot) == Ack(12, Position(7, 1, 0), 3)
    assert (queue.tail, queue.durable_offset, queue.records_outstanding, queue.bytes_outstanding) == (
        13,
        13,
        0,
        0,
    )


def keyed(queue: AppendQueue, record: bytes, attributes: Attributes | None) -> tuple[Batch, int]:
    size = len(record) + (0 if attributes is None else attributes.size)
    batch = queue.add(record, size, None, attributes)
    return batch, len(batch.records) - 1


KEY = Attributes(b"key", b"")


def test_a_key_goes_where_its_record_goes_and_counts_in_every_bound() -> None:
    queue = new_queue()
    plain, _ = add(queue, b"a")
    batch, _ = keyed(queue, b"b", KEY)
    assert batch is not plain, "an entry has columns for keys from its first record on, or never"
    assert keyed(queue, b"c", None) == (batch, 1)
    assert keyed(queue, b"", KEY) == (batch, 2)
    assert (batch.size, queue.bytes_outstanding) == (2 + 2 * KEY.size, 3 + 2 * KEY.size)
    assert batch.cost == batch.size + 3 * batch.overhead
    assert plain.live_attributes() is None
    assert batch.live_attributes() == {0: KEY, 2: KEY}
    queue.take_back(batch, 0, 1)
    assert batch.live_attributes() == {1: KEY}, "by the slots of the entry"
    assert (batch.size, queue.bytes_outstanding) == (1 + KEY.size, 2 + KEY.size)
    queue.take_back(batch, 2, 3)
    assert batch.live_attributes() is None, "an entry without keys has none of their bytes"
    send(queue, 7, 0)
    send(queue, 7, 1)
    queue.on_confirmed(7, 1)
    assert (queue.bytes_outstanding, queue.durable_bytes, batch.attributes) == (0, 2, None)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.just(KEY)), min_size=1, max_size=40),
    st.integers(1, 200),
    st.booleans(),
)
def test_an_entry_with_keys_is_never_larger_than_what_its_batch_was_counted_for(
    records: list[tuple[int, Attributes | None]], entry_bytes: int, together: bool
) -> None:
    queue = new_queue(entry_bytes=entry_bytes)
    payloads = [bytes(size) for size, _ in records]
    column = [each for _, each in records]
    sizes = [size + (each.size if each else 0) for size, each in records]
    at = 0
    while together and at < len(records):
        at = queue.add_many(payloads, cumulative(sizes), at, len(records), column if any(column) else None)
    for payload, each in zip(payloads, column, strict=True) if not together else ():
        keyed(queue, payload, each)
    found: list[tuple[bytes, Attributes | None]] = []
    while queue.has_queued:
        batch = send(queue, 7, len(found))
        attributes = batch.live_attributes()
        found += [(data, (attributes or {}).get(slot)) for slot, data in enumerate(batch.live_records())]
        payload = encode_entry(
            batch.live_records(),
            epoch=3,
            first_offset=batch.first_offset,
            timestamp_ms=0,
            bytes_before=0,
            attributes=attributes,
        )
        assert len(payload) - 44 - 4 <= batch.cost
        assert batch.cost <= entry_bytes or len(batch.records) == 1
        assert decode_header(payload, ledger_id=7, entry_id=0).byte_length == batch.size
    assert found == list(zip(payloads, column, strict=True))


def test_a_batch_is_closed_when_the_next_record_would_exceed_the_entry_size() -> None:
    queue = new_queue(entry_bytes=20)
    first, _ = add(queue, b"x" * 8)
    assert add(queue, b"x" * 4)[0] is first
    assert queue.first_to_send(full_only=True) is None
    second, _ = add(queue, b"")
    assert second is not first
    assert queue.has_full
    assert queue.first_to_send(full_only=True) is first
    huge, _ = add(queue, b"x" * 100)
    assert huge.records == [b"x" * 100], "a record that is larger than an entry should be has one of its own"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(10, 60), st.integers(0, 3))
def test_many_records_are_packed_exactly_as_one_by_one(
    sizes: list[int], entry_bytes: int, before: int
) -> None:
    records = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    single, many = (new_queue(entry_bytes=entry_bytes) for _ in range(2))
    for queue in (single, many):
        for _ in range(before):
            add(queue, b"before")
    for record in records:
        add(single, record)
    ends = cumulative(sizes)
    at = 0
    while at < len(records):
        begun = at
        at = many.add_many(records, ends, at, len(records))
        assert many.last_batch.records[-(at - begun) :] == records[begun:at]
    for attribute in ("tail", "next_ticket", "records_outstanding", "bytes_outstanding"):
        assert getattr(single, attribute) == getattr(many, attribute)
    entry = 0
    while single.has_queued:
        assert send(single, 1, entry).records == send(many, 1, entry).records
        entry += 1
    assert not many.has_queued


def test_many_records_stop_at_the_limit() -> None:
    queue = new_queue()
    assert queue.add_many([b"a"] * 9, cumulative([1] * 9), 2, 5) == 5
    assert queue.last_batch.records == [b"a"] * 3


def test_a_group_lies_in_one_entry() -> None:
    queue = new_queue(entry_bytes=30)
    first, _ = add(queue, b"x" * 10)
    group = queue.add_group([b"y" * 6] * 2, group_cost([6, 6]))
    assert group is not first
    assert group.records == [b"y" * 6] * 2
    big = queue.add_group([b"z" * 100] * 2, group_cost([100, 100]))
    assert big.records == [b"z" * 100] * 2
    with pytest.raises(RecordTooLarge):
        group_cost([RECORD_BYTES_MAX] * 2)
    assert group_cost([RECORD_BYTES_MAX]) == RECORD_BYTES_MAX + 4


def test_the_window_bounds_records_and_bytes_but_one_record_always_fits() -> None:
    queue = new_queue(window_records=2, window_bytes=10)
    assert queue.has_room(1000)
    add(queue, b"x" * 6)
    assert queue.has_room(4)
    assert not queue.has_room(5)
    assert queue.room() == (1, 4)
    add(queue, b"")
    assert not queue.has_room(0)
    send(queue, 1, 0)
    assert not queue.has_room(0), "what is sent is outstanding until it is confirmed"
    queue.on_confirmed(1, 0)
    assert queue.has_room(10)
    with pytest.raises(InvalidArgument):
        new_queue(window_records=0)


# --- order ----------------------------------------------------------------------------------------


def test_c05_what_a_newer_ledger_confirms_is_held_until_the_older_one_has_confirmed_all() -> None:
    queue = new_queue()
    add(queue)
    old = send(queue, 1, 0)
    add(queue)
    new = send(queue, 2, 0)
    assert queue.on_confirmed(2, 0) == -1
    assert new.state is BatchState.SENT
    assert not queue.is_drained(1)
    assert queue.on_confirmed(1, 0) == 1
    assert (old.state, new.state) == (BatchState.DURABLE, BatchState.DURABLE)
    assert queue.is_drained(1)


def test_c05_when_the_older_ledger_loses_an_entry_the_newer_one_loses_all() -> None:
    queue = new_queue()
    batches = []
    for ledger_id, entry_id in ((1, 0), (1, 1), (2, 0)):
        add(queue)
        batches.append(send(queue, ledger_id, entry_id))
    queue.on_confirmed(2, 0)
    assert queue.resolve({1: 0, 2: 0}) == 0
    assert [batch.state for batch in batches] == [BatchState.DURABLE, BatchState.LOST, BatchState.LOST]
    assert (queue.lost_count, queue.unknown_count) == (2, 0)


def test_behind_an_accepted_loss_nothing_is_known() -> None:
    """Records that a short ledger lost are surely not in the log. Records of the newer ledger wait for an
    operator.
    """
    queue = new_queue()
    batches = []
    for ledger_id, entry_id in ((1, 0), (1, 1), (2, 0), (2, 1)):
        add(queue)
        batches.append(send(queue, ledger_id, entry_id))
    queue.resolve({1: 0, 2: 0}, {1})
    states = [BatchState.DURABLE, BatchState.LOST, BatchState.UNKNOWN, BatchState.LOST]
    assert [batch.state for batch in batches] == states


@pytest.mark.parametrize(
    ("ends", "states"),
    [
        ({}, "UUUUL"),
        ({1: 1, 2: 1}, "DDDDL"),
        ({1: 1, 2: 0}, "DDDLL"),
        ({1: 1}, "DDUUL"),
        ({1: 0}, "DLLLL"),
        ({1: -1}, "LLLLL"),
        ({2: 1}, "UUUUL"),
        ({2: 0}, "UUULL"),
        ({2: -1}, "UULLL"),
    ],
)
def test_verdicts_follow_from_where_the_ledgers_ended(ends: dict[int, int], states: str) -> None:
    """Four entries were sent, two to each of two ledgers. A fifth batch was not sent."""
    queue = new_queue()
    batches = []
    for ledger_id, entry_id in ((1, 0), (1, 1), (2, 0), (2, 1)):
        add(queue)
        batches.append(send(queue, ledger_id, entry_id))
    batches.append(add(queue)[0])
    answered = queue.resolve(ends)
    assert "".join(batch.state.name[0] for batch in batches) == states
    assert answered == states.count("D") - 1
    assert (queue.lost_count, queue.unknown_count) == (states.count("L"), states.count("U"))
    assert (queue.records_outstanding, queue.bytes_outstanding) == (0, 0)


# --- taking back ----------------------------------------------------------------------------------


def test_a_record_taken_back_before_it_was_sent_is_not_written_and_the_others_move_up() -> None:
    queue = new_queue()
    batch, _ = add(queue, b"a")
    add(queue, b"b")
    add(queue, b"c")
    assert queue.take_back(batch, 1, 2)
    assert queue.tail == 12
    assert send(queue, 1, 0) is batch
    assert batch.live_records() == [b"a", b"c"]
    assert queue.on_confirmed(1, 0) == 2
    assert batch.ack(2) == Ack(11, Position(1, 0, 1), 3)
    assert batch.acks(2, 3) == [batch.ack(2)]
    assert (queue.durable_offset, queue.records_outstanding, queue.bytes_outstanding) == (12, 0, 0)


def test_what_was_sent_is_not_taken_back() -> None:
    queue = new_queue()
    batch, _ = add(queue)
    send(queue, 1, 0)
    assert not queue.take_back(batch, 0, 1)
    assert queue.on_confirmed(1, 0) == 0


def test_a_batch_of_which_nothing_is_left_becomes_no_entry_and_is_answered_in_its_turn() -> None:
    queue = new_queue()
    add(queue)
    sent = send(queue, 1, 0)
    batch, _ = add(queue)
    add(queue)
    queue.take_back(batch, 0, 2)
    assert queue.first_to_send(full_only=False) is None
    assert queue.answered == -1, "not before what was sent before it"
    assert sent.end_ticket == 3
    assert queue.on_confirmed(1, 0) == 2
    batch, _ = add(queue)
    queue.take_back(batch, 0, 1)
    assert queue.first_to_send(full_only=False) is None
    assert queue.answered == 3, "nothing is before it"


# --- conditions -----------------------------------------------------------------------------------


def test_a_condition_that_does_not_hold_is_refused_at_once() -> None:
    queue = new_queue()
    add(queue)
    queue.check_expected(11)
    with pytest.raises(OffsetMismatch) as caught:
        queue.check_expected(10)
    assert caught.value.actual == 11


def test_a_condition_that_a_cancelled_record_broke_drops_its_record_and_what_depends_on_it() -> None:
    queue = new_queue()
    batch, _ = add(queue, b"a")
    add(queue, b"b", expected=11)
    add(queue, b"c", expected=12)
    add(queue, b"d")
    queue.take_back(batch, 0, 1)
    assert queue.tail == 11
    queue.check_expected(11)
    send(queue, 1, 0)
    queue.on_confirmed(1, 0)
    with pytest.raises(OffsetMismatch) as caught:
        batch.ack(1)
    assert (caught.value.expected, caught.value.actual) == (11, 10)
    with pytest.raises(OffsetMismatch):
        batch.ack(2)
    assert batch.ack(3) == Ack(10, Position(1, 0, 0), 3)


def test_a_condition_before_the_cancelled_record_still_holds() -> None:
    queue = new_queue()
    batch, _ = add(queue, b"a", expected=10)
    add(queue, b"b")
    queue.take_back(batch, 1, 2)
    send(queue, 1, 0)
    queue.on_confirmed(1, 0)
    assert batch.ack(0).offset == 10


# --- everything together --------------------------------------------------------------------------


def marks_for(dice: random.Random, name: bytes) -> Attributes | None:
    """For some records a key, headers or both, which name their record."""
    key = dice.choice([None, None, b"", b"k" + name])
    headers = encode_headers({"h": name}) if dice.random() < 0.3 else b""
    return None if key is None and not headers else Attributes(key, headers)


def read_back(batch: Batch, dice: random.Random, bytes_before: int) -> list[tuple[bytes, Attributes | None]]:
    """What a reader gets of the entry of a batch, in two parts; a packed reader gets the same."""
    payload = encode_entry(
        batch.live_records(),
        epoch=3,
        first_offset=batch.first_offset,
        timestamp_ms=0,
        bytes_before=bytes_before,
        compress=dice.random() < 0.5,
        attributes=batch.live_attributes(),
    )
    header, whole = decode_entry(payload, ledger_id=1, entry_id=0)
    _, packed = decode_packed(payload, ledger_id=1, entry_id=0)
    assert header.byte_length == whole.byte_length == packed.byte_length == batch.size
    cut = dice.randint(whole.first_offset, whole.end_offset)
    found: list[tuple[bytes, Attributes | None]] = []
    for start, end in ((whole.first_offset, cut), (cut, whole.end_offset)):
        part = packed.between(start, end)
        keys = [None] * len(part) if part.keys is None else part.keys.items()
        headers = [b""] * len(part) if part.headers is None else part.headers.items()
        for record, key, encoded in zip(whole.between(start, end), keys, headers, strict=True):
            assert record.offset == whole.first_offset + record.position.slot
            assert (record.key, encode_headers(record.headers)) == (key, encoded)
            assert encoded is not None
            found.append((record.data, Attributes(key, encoded) if key is not None or encoded else None))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_offsets_are_dense_and_every_record_gets_one_verdict(seed: int) -> None:
    dice = random.Random(seed)
    queue = new_queue(entry_bytes=dice.choice([24, 100]))
    ledgers: dict[int, list[bytes]] = {1: []}
    log: list[bytes] = []
    log_bytes = 0
    marks: dict[bytes, Attributes | None] = {}
    taken: list[tuple[bytes, int, Batch, int]] = []
    cancelled: set[bytes] = set()
    current, lac = 1, {1: -1}
    for number in range(200):
        name = str(number).encode()
        marks[name] = marks_for(dice, name)
        match dice.choice(
            ["add", "add", "many", "group", "condition", "cancel", "send", "send", "confirm", "roll"]
        ):
            case "add":
                batch, slot = keyed(queue, name, marks[name])
                taken.append((name, queue.next_ticket - 1, batch, slot))
            case "many" | "group" as how:
                names = [name + b"." + str(k).encode() for k in range(dice.randrange(1, 9))]
                are_marked = dice.random() < 0.7
                marks |= {each: marks_for(dice, each) if are_marked else None for each in names}
                column = [marks[each] for each in names]
                sizes = [
                    len(each) + (mark.size if mark else 0) for each, mark in zip(names, column, strict=True)
                ]
                at = 0
                while at < len(names):
                    begun = at
                    attributes = column if any(column) else None
                    if how == "many":
                        at = queue.add_many(names, cumulative(sizes), at, len(names), attributes)
                    else:
                        at = len(names)
                        queue.add_group(names, sum(sizes), attributes)
                    batch = queue.last_batch
                    for k in range(begun, at):
                        slot = len(batch.records) - (at - k)
                        taken.append((names[k], queue.next_ticket - (at - k), batch, slot))
            case "condition":
                expected = queue.tail + dice.choice([0, 0, 1])
                try:
                    queue.check_expected(expected)
                except OffsetMismatch:
                    continue
                mark = marks[name]
                batch = queue.add(name, len(name) + (mark.size if mark else 0), expected, mark)
                taken.append((name, queue.next_ticket - 1, batch, len(batch.records) - 1))
            case "cancel" if taken:
                name, _, batch, slot = dice.choice(taken[-6:])
                if name not in cancelled and queue.take_back(batch, slot, slot + 1):
                    cancelled.add(name)
            case "send":
                batch_ = queue.first_to_send(full_only=dice.random() < 0.3)
                if batch_ is not None:
                    ledgers[current].append(b"")
                    assert batch_.first_offset == 10 + len(log)
                    found = read_back(batch_, dice, log_bytes)
                    assert found == [(each, marks[each]) for each, _ in found], "a record keeps its own key"
                    log += [each for each, _ in found]
                    log_bytes += batch_.size
                    queue.on_sent(batch_, current, len(ledgers[current]) - 1)
            case "confirm":
                ledger_id = dice.choice(list(lac))
                lac[ledger_id] = dice.randint(lac[ledger_id], len(ledgers[ledger_id]) - 1)
                queue.on_confirmed(ledger_id, lac[ledger_id])
            case "roll" if current == 1 or queue.is_drained(current - 1):
                lac.pop(current - 1, None)
                current += 1
                ledgers[current], lac[current] = [], -1
            case _:
                pass
        assert queue.durable_offset <= queue.next_offset <= queue.tail
    ends = {
        ledger_id: dice.randint(lac[ledger_id], len(ledgers[ledger_id]) - 1)
        for ledger_id in lac
        if dice.random() < 0.7
    }
    answered = queue.resolve(ends)
    for name, ticket, batch, slot in taken:
        if name in cancelled:
            assert name not in log
            continue
        mismatch = batch.dropped is not None and slot in batch.dropped
        if batch.state is BatchState.DURABLE and not mismatch:
            assert ticket <= answered
            assert log[batch.ack(slot).offset - 10] == name
        if mismatch:
            assert name not in log
    assert queue.records_outstanding == 0
    assert queue.bytes_outstanding == 0
    states = [batch.state for _, _, batch, _ in taken if batch.live_slot(0) >= 0 and batch.ledger_id >= 0]
    order = [BatchState.DURABLE, BatchState.UNKNOWN, BatchState.LOST]
    assert states == sorted(states, key=order.index), "what is durable is a prefix"


# --- searching ------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 50), min_size=0, max_size=40).map(sorted),
    st.integers(-3, 55),
    st.booleans(),
    st.booleans(),
)
def test_a_search_finds_the_first_entry_that_reaches_a_value(
    values: list[int], wanted: int, knows_below: bool, knows_high: bool
) -> None:
    search = EntrySearch(
        0,
        len(values) - 1,
        wanted,
        value_below=0 if knows_below else None,
        value_at_high=values[-1] if knows_high and values else None,
    )
    probes = 0
    while search.probe is not None:
        search.on_value(values[search.probe])
        probes += 1
    assert search.found == next((n for n, value in enumerate(values) if value >= wanted), len(values))
    assert probes <= 2 * len(values).bit_length() + 1


def test_an_offset_among_entries_of_one_size_is_found_in_a_few_probes() -> None:
    for wanted in range(0, 1_000_000, 9_973):
        search = EntrySearch(0, 999, wanted, value_below=0, value_at_high=999_999)
        probes = 0
        while search.probe is not None:
            search.on_value(1000 * search.probe + 999)
            probes += 1
        assert search.found == wanted // 1000
        assert probes <= 4
