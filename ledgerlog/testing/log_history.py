"""Check from outside that one log explains the actions of its users and the answers that they got.

A workload fills a ``LogHistory`` while it runs. ``judge`` compares the history with the whole log, which is
read after every fault is healed. ``judge`` knows nothing of the inside of a log. It takes time linear in the
number of records, and checks:

* Two complete reads are equal. Everything that a reader saw earlier is a part of them, without holes.
* From the truncation on, offsets are dense. No record is in the log twice. Every record in the log was sent.
* Each record has the key and the headers that it was sent with.
* Every acknowledged record that was not truncated is in the log, at the offset of its Ack. If an append
  failed definitely, its record is not in the log. If the outcome is unknown, the record may or may not be
  there.
* The log begins where it was truncated: not before the last truncation that succeeded, and not after the
  highest offset of any requested truncation.
* Nothing that was sent after the log was sealed is acknowledged.
* If a call sent several records, only the first few of them may be in the log, in order and without a hole.
* Epochs and timestamps never decrease along the log.
* Real time: if a record was acknowledged before another record was sent, the acknowledged record comes first
  in the log. Since records are unique and the log gives their order, this makes the appends linearizable. The
  check also finds two leaders that interleave.
* No leader gets an acknowledgement at or after the offset at which a newer leadership began.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs

from ledgerlog.model.attributes import Headers
from ledgerlog.model.record import Ack, Record
from ledgerlog.testing.invariants import Violation

__all__ = ["AppendCall", "LogHistory", "judge"]


@attrs.define(eq=False)
class AppendCall:
    """One append of one or more records."""

    names: list[bytes]
    sent_at: int
    """The place of the send in the order of all events."""
    answered_at: int | None = None
    acks: list[Ack] = attrs.Factory(list)
    is_refused: bool = False
    """The call failed definitely: none of its records is in the log."""


@attrs.define(eq=False)
class LogHistory:
    """The actions of all users of a log, and the answers that they got."""

    calls: list[AppendCall] = attrs.Factory(list)
    marks: dict[bytes, tuple[bytes | None, Headers]] = attrs.Factory(dict)
    """The key and the headers of each record that was sent with some, by the record."""
    reads: list[list[Record]] = attrs.Factory(list)
    """The records that each reader saw, from the beginning of the log."""
    begun: dict[int, int] = attrs.Factory(dict)
    """The offset at which each leadership began, by epoch."""
    truncated_to: int = 0
    """The log was certainly truncated up to this offset."""
    truncation_asked: int = 0
    """The log may have been truncated up to this offset."""
    seal_asked: bool = False
    sealed_at: int | None = None
    """The place in the order of all events at which the log was certainly sealed."""
    _clock: int = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def on_leader(self, epoch: int, next_offset: int) -> None:
        """A leadership began."""
        if epoch in self.begun:
            raise Violation(f"two leaders got the epoch {epoch}")
        self.begun[epoch] = next_offset

    def on_send(self, names: list[bytes]) -> AppendCall:
        """A call begins. Return it, to report its outcome later."""
        call = AppendCall(names, self._tick())
        self.calls.append(call)
        return call

    def on_acks(self, call: AppendCall, acks: Sequence[Ack]) -> None:
        """The call succeeded."""
        call.answered_at = self._tick()
        call.acks = list(acks)
        if len(acks) != len(call.names):
            raise Violation(f"{len(acks)} acknowledgements for {len(call.names)} records")
        if self.sealed_at is not None and call.sent_at > self.sealed_at:
            raise Violation(f"{call.names} was sent after the log was sealed, and is acknowledged as {acks}")
        for ack in acks:
            for epoch, offset in self.begun.items():
                if epoch > ack.epoch and offset <= ack.offset:
                    raise Violation(
                        f"the leader of epoch {ack.epoch} was told offset {ack.offset}, and epoch {epoch} "
                        f"began at {offset}"
                    )

    def on_refused(self, call: AppendCall) -> None:
        """The call failed definitely."""
        call.is_refused = True

    def on_truncated(self, before_offset: int) -> None:
        """A truncation succeeded; ``truncation_asked`` was set before it began."""
        self.truncated_to = max(self.truncated_to, before_offset)

    def on_sealed(self) -> None:
        """Sealing succeeded."""
        if self.sealed_at is None:
            self.sealed_at = self._tick()

    @property
    def acked(self) -> int:
        """How many records were acknowledged."""
        return sum(len(call.acks) for call in self.calls)

    @property
    def confirmed_end(self) -> int:
        """The offset after the last acknowledged record."""
        return max((ack.offset + 1 for call in self.calls for ack in call.acks), default=0)

    @property
    def open_ends(self) -> int:
        """How many sent records have an unknown outcome."""
        return sum(len(call.names) for call in self.calls if not call.acks and not call.is_refused)


def judge(
    history: LogHistory, final: list[Record], again: list[Record], *, first_offset: int | None = None
) -> None:
    """Check that the final log explains the history.

    Args:
        history: The actions of the users, and the answers that they got.
        final: A complete read of the log.
        again: Another complete read of the log.
        first_offset: The first offset, as the log reports it. None: the offset of the first record.

    Raises:
        Violation: The log does not explain the history.
    """
    if final != again:
        raise Violation("two complete reads of a log differ, although no process writes it")
    base = first_offset
    if base is None:
        base = final[0].offset if final else history.truncated_to
    if not history.truncated_to <= base <= history.truncation_asked:
        raise Violation(
            f"the log begins at offset {base}; it was truncated at {history.truncated_to}, and the highest "
            f"requested truncation is {history.truncation_asked}"
        )
    for index, record in enumerate(final):
        if record.offset != base + index:
            raise Violation(f"the record at place {base + index} has offset {record.offset}")
    _never_decreasing("epoch", [record.epoch for record in final])
    _never_decreasing("timestamp", [record.timestamp for record in final])
    at: dict[bytes, int] = {}
    for record in final:
        if at.setdefault(record.data, record.offset) != record.offset:
            raise Violation(f"{record.data!r} is in the log twice: at {at[record.data]} and {record.offset}")
    sent = {name for call in history.calls for name in call.names}
    for name in at:
        if name not in sent:
            raise Violation(f"{name!r} is in the log, but no user sent it")
    for record in final:
        wanted = history.marks.get(record.data, (None, ()))
        if (record.key, record.headers) != wanted:
            raise Violation(
                f"{record.data!r} at offset {record.offset} has key and headers {record.key!r} and "
                f"{record.headers}, and was sent with {wanted[0]!r} and {wanted[1]}"
            )
    sent_at, answered_at = [0] * len(final), [0] * len(final)
    for call in history.calls:
        _judge_call(call, at, final, base)
        for name in call.names:
            if name in at:
                sent_at[at[name] - base] = call.sent_at
                answered_at[at[name] - base] = call.answered_at or 0
    latest = 0
    for record, sent_then, answered in zip(final, sent_at, answered_at, strict=True):
        latest = max(latest, sent_then)
        if answered and answered < latest:
            raise Violation(
                f"{record.data!r} at offset {record.offset} is behind a record that was sent only after "
                "the first one was acknowledged"
            )
    for seen in history.reads:
        _judge_read(seen, final, base)


def _judge_read(seen: list[Record], final: list[Record], base: int) -> None:
    for before, record in itertools.pairwise(seen):
        if record.offset != before.offset + 1:
            raise Violation(f"a reader saw {record} right after {before}")
    for record in seen:
        place = record.offset - base
        if place >= 0 and (place >= len(final) or record != final[place]):
            raise Violation(f"a reader saw {record} at {record.offset}, which is not what the log has there")


def _judge_call(call: AppendCall, at: dict[bytes, int], final: list[Record], base: int) -> None:
    for name, ack in zip(call.names, call.acks, strict=False):
        if ack.offset < base:
            continue  # Truncated away.
        if name not in at:
            raise Violation(f"{name!r} was acknowledged at offset {ack.offset} and is lost")
        record = final[at[name] - base]
        if (record.offset, record.position, record.epoch) != (ack.offset, ack.position, ack.epoch):
            raise Violation(f"{name!r} was acknowledged as {ack}, and the log has it as {record}")
    if call.is_refused:
        for name in call.names:
            if name in at:
                raise Violation(f"the append of {name!r} failed definitely, and it is at offset {at[name]}")
    places = [at.get(name) for name in call.names]
    if base and base in places:
        places = places[places.index(base) :]  # Records before it may have been truncated.
    there = [place for place in places if place is not None]
    if places[: len(there)] != there or there != sorted(there):
        raise Violation(f"of the records of one call, {call.names}, these places are in the log: {places}")


def _never_decreasing(what: str, values: Sequence[Any]) -> None:
    for index, (before, after) in enumerate(itertools.pairwise(values)):
        if after < before:
            raise Violation(f"the {what} decreases at place {index + 1}: {before} and then {after}")
