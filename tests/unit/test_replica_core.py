"""Commands in order, each request once; the table of requests; envelopes and snapshots as bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.machine.core.replica import ReplicaCore, RequestTable
from ledgerlog.machine.machine import StateMachine
from ledgerlog.model.command import (
    Command,
    CommandOutcome,
    Envelope,
    check_request_id,
    new_request_id,
    since_of,
)
from ledgerlog.wire.commands import decode_envelope_untrusted, encode_envelope
from ledgerlog.wire.snapshots import SnapshotHead, decode_snapshot_untrusted, encode_snapshot


class Adder(StateMachine):
    def __init__(self) -> None:
        self.total = 0
        self.seen: list[Command] = []

    def apply(self, command: Command) -> bytes | None:
        self.seen.append(command)
        if command.data == b"none":
            return None
        if command.data == b"memory":
            raise MemoryError
        self.total += int(command.data)
        return b"%d" % self.total

    def snapshot(self) -> Iterable[bytes]:
        yield b"%d" % self.total

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.total = int(b"".join(chunks))


def command(data: bytes, request_id: str, ms: int = 0) -> Envelope:
    return Envelope(timestamp_ms=ms, seed=7, request_id=request_id, data=data)


def test_commands_are_applied_in_order_and_a_repeat_changes_nothing() -> None:
    machine = Adder()
    core = ReplicaCore(machine)
    assert core.apply(0, command(b"5", "a")) == CommandOutcome(0, b"5")
    assert core.apply(1, command(b"2", "b")) == CommandOutcome(1, b"7")
    assert core.apply(2, command(b"5", "a")) == CommandOutcome(0, b"5"), "as it was the first time"
    assert machine.total == 7
    assert core.apply(3, Envelope(timestamp_ms=0, seed=0)) is None, "a barrier"
    assert core.apply(4, command(b"none", "c")) == CommandOutcome(4, b"")
    assert core.next_offset == 5
    with pytest.raises(AssertionError, match="comes next"):
        core.apply(7, command(b"1", "d"))


def test_an_exception_is_a_result_and_a_lack_of_memory_is_not() -> None:
    core = ReplicaCore(Adder())
    failed = core.apply(0, command(b"x", "a"))
    assert failed is not None
    assert (failed.error, failed.result[:15]) == ("ValueError", b"invalid literal")
    assert core.apply(1, command(b"1", "a")) == failed
    with pytest.raises(MemoryError):
        core.apply(2, command(b"memory", "b"))


@pytest.mark.parametrize("result", [7, "text", bytearray(b"7")])
def test_a_return_value_that_is_not_bytes_is_no_result(result: object) -> None:
    class Odd(Adder):
        def apply(self, command: Command) -> Any:
            return result

    core = ReplicaCore(Odd())
    with pytest.raises(TypeError, match="not bytes or None"):
        core.apply(0, command(b"1", "a"))
    assert core.next_offset == 0
    assert len(core.requests) == 0, "a corrected machine has to execute it"


class WithoutRestore:
    apply = snapshot = Adder.apply


class Waits(Adder):
    async def apply(self, command: Command) -> bytes:
        return b""


class YieldsAndWaits(Adder):
    async def snapshot(self) -> AsyncIterator[bytes]:
        yield b""


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Adder, "Adder is a class, not a machine: pass an object of it"),
        (object(), "object has no method apply: pass an object of a subclass of ledgerlog.StateMachine"),
        (WithoutRestore(), "WithoutRestore has no method restore"),
        (Waits(), "Waits.apply is asynchronous: write it with def"),
        (YieldsAndWaits(), "YieldsAndWaits.snapshot is asynchronous: write it with def"),
    ],
)
def test_what_a_replica_cannot_call_is_refused_as_a_machine(machine: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ReplicaCore(machine)


def test_an_exception_that_cannot_say_its_text_is_a_result_without_text() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            return str(self.args[1])  # There is only one.

    class Odd(Adder):
        def apply(self, command: Command) -> bytes:
            raise Mute(7)

    core = ReplicaCore(Odd())
    assert core.apply(0, command(b"1", "a")) == CommandOutcome(0, b"", "Mute")
    assert core.next_offset == 1


def test_the_clock_of_a_machine_never_goes_back() -> None:
    machine = Adder()
    core = ReplicaCore(machine)
    for offset, ms in enumerate((100, 50, 200)):
        core.apply(offset, command(b"1", str(offset), ms))
    assert [seen.timestamp_ms for seen in machine.seen] == [100, 100, 200]
    assert [seen.seed for seen in machine.seen] == [7, 7, 7]


def test_the_oldest_outcomes_are_forgotten_by_number_and_by_bytes() -> None:
    table = RequestTable(entries_max=3)
    for offset in range(5):
        table.add(str(offset), CommandOutcome(offset, b""))
    assert [table.find(str(offset)) is not None for offset in range(5)] == [False, False, True, True, True]
    assert table.forgotten_through == 1
    heavy = RequestTable(bytes_max=1000)
    for offset in range(5):
        heavy.add(str(offset), CommandOutcome(offset, bytes(500)))
    assert len(heavy) == 1
    assert heavy.forgotten_through == 3


def test_a_retry_that_comes_too_late_is_refused_where_its_id_tells() -> None:
    core = ReplicaCore(machine := Adder())
    core.requests = RequestTable(entries_max=2)
    mine = new_request_id(0, b"\1" * 16)
    assert since_of(mine) == 0
    core.apply(0, command(b"1", mine))
    for offset in range(1, 4):
        core.apply(offset, command(b"1", f"other {offset}"))
    late = core.apply(4, command(b"1", mine))
    assert late is not None
    assert late.is_expired
    assert machine.total == 4, "it was not executed again"
    fresh = new_request_id(core.next_offset, b"\2" * 16)
    executed = core.apply(5, command(b"1", fresh))
    assert executed is not None
    assert not executed.is_expired


def test_replicas_that_apply_the_same_have_the_same_digest_and_others_have_not() -> None:
    def replica(*data: bytes) -> ReplicaCore:
        core = ReplicaCore(Adder())
        for offset, each in enumerate(data):
            core.apply(offset, command(each, str(offset)))
        return core

    assert replica(b"1", b"2").digest() == replica(b"1", b"2").digest()
    assert replica(b"1", b"2").digest() != replica(b"2", b"1").digest(), "the outcomes differ"
    assert replica(b"1").digest() != replica(b"1", b"0").digest()


outcomes = st.builds(
    CommandOutcome,
    st.integers(0, 2**40),
    st.binary(max_size=20),
    st.one_of(st.none(), st.text(min_size=1, max_size=5)),
)


@given(st.dictionaries(st.text(min_size=1, max_size=10), outcomes, max_size=8), st.binary(max_size=8))
def test_a_table_survives_encoding_and_nothing_else_is_one(
    drawn: dict[str, CommandOutcome], junk: bytes
) -> None:
    table = RequestTable()
    for offset, (name, outcome) in enumerate(drawn.items()):
        table.add(name, CommandOutcome(offset, outcome.result, outcome.error))
    data = table.encode()
    decoded = RequestTable.decode_untrusted(data)
    assert decoded.encode() == data
    assert all(decoded.find(name) == table.find(name) for name in drawn)
    for damaged in (data[:-1], data + b"x", junk):
        with pytest.raises(WireError):
            RequestTable.decode_untrusted(damaged)


@given(st.integers(0, 2**63), st.integers(0, 2**64 - 1), st.text(max_size=20), st.binary(max_size=30))
def test_an_envelope_survives_encoding(ms: int, seed: int, request_id: str, data: bytes) -> None:
    envelope = Envelope(timestamp_ms=ms, seed=seed, request_id=request_id, data=data if request_id else b"")
    assert decode_envelope_untrusted(encode_envelope(envelope)) == envelope


def test_the_example_of_the_envelopes_page() -> None:
    envelope = Envelope(timestamp_ms=1_700_000_000_000, seed=5, request_id="a", data=b"+1")
    data = encode_envelope(envelope)
    assert data.hex() == "4c4301010068e5cf8b010000050000000000000001000000612b31"
    for damaged in (
        data[:20],
        b"XX" + data[2:],
        data[:3] + b"\2" + data[4:],
        data[:20] + b"\xff\xff" + data[22:],
    ):
        with pytest.raises(WireError):
            decode_envelope_untrusted(damaged)
    with pytest.raises(WireError):
        decode_envelope_untrusted(data[:24] + b"\xff" + data[25:])


@given(st.lists(st.binary(max_size=40), max_size=5), st.data())
def test_a_snapshot_survives_encoding_and_one_turned_bit_is_found(
    chunks: list[bytes], draw: st.DataObject
) -> None:
    head = SnapshotHead(log="log", incarnation=3, next_offset=17, timestamp_ms=5, requests=2)
    data = b"".join(encode_snapshot(head, [b"tab", b"le"], chunks))
    found = decode_snapshot_untrusted(data)
    assert (found.head, found.requests, list(found.chunks)) == (head, b"table", chunks)
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    cut = draw.draw(st.integers(0, len(data) - 1))
    for wrong in (bytes(damaged), data[:cut], data + b"\0"):
        with pytest.raises(WireError):
            decode_snapshot_untrusted(wrong)


def test_a_snapshot_that_is_a_generator_copies_at_the_call() -> None:
    core = ReplicaCore(Adder())
    core.apply(0, command(b"5", "a"))
    chunks = core.chunks()
    core.apply(1, command(b"1", "b"))
    assert b"".join(chunks) == b"5"


@pytest.mark.parametrize("bad", ["", "x" * 129, "\ud800", 7, None])
def test_what_is_no_request_id_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument):
        check_request_id(bad)
