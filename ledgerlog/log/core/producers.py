"""The table of producers. With it, a numbered record is appended only once (see ``model.producer``).

A producer gives each record a sequence (a number that counts up). Before the leader takes records, it asks
``admit``:

    a sequence beyond the last one    the record is new; without ``gaps`` it must be the next sequence
    a known sequence                  the record was appended before: its offset, or the batch that carries it
    any other                         OutOfSequence: nothing is taken, nothing is guessed

For example, a producer's last sequence is 7. Sequence 8 is new, and 7 is a duplicate. Sequence 10 raises
OutOfSequence unless ``gaps`` is set.

``on_taken`` notes which batch took a record, ``on_sent`` the offset that the record got. Records with a
sequence are never taken back. So every taken record is sent, or the leadership ends and its table is dropped.

**How the next leader gets the table.** Every entry says which of its records belong to which producer. Some
entries are *checkpoints*: the whole table at the checkpoint's offset. The first entry of a ledger is one, and
others follow from time to time (``SentCheckpoint.is_old`` in ``log.core.leadership``). Each entry also names
the newest checkpoint of its ledger. So the next leader reads the last entry of the newest segment with
records, the checkpoint that this entry names, and the entries between the two. That is about
``limits.LOG_CHECKPOINT_BYTES`` (more if the table is large), no matter how long the log is. An entry is in
the log only if all entries before it are, so the table matches exactly the records in the log.

**Bounds.** The table has at most ``Dedupe.max_producers`` producers, each with its last
``limits.LOG_PRODUCER_RUNS_MAX`` runs (ranges of consecutive sequences). A producer that has appended nothing
for ``keep_s`` may be forgotten to make room for another. No producer is forgotten earlier. If there is no
room, a new producer is refused. The leader's clock measures ``keep_s``, and decides nothing else.

A leader forgets only in memory: the log does not say whom it forgot, and the next leader may have other
bounds. So replaying a checkpoint and the entries after it may give more producers than
``limits.LOG_PRODUCERS_MAX``, and no checkpoint could hold them. The replay drops the oldest of them. The
leader that wrote the entries had forgotten them too, because its own table was never larger.

Invariants: ``_states`` is in the order of last use. Every producer with records in flight has a state. A
producer's newest run ends with its last sent sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ledgerlog.errors import OutOfSequence, TooManyProducers
from ledgerlog.limits import LOG_PRODUCER_RUNS_MAX, LOG_PRODUCERS_MAX
from ledgerlog.log.core.append_queue import Batch, BatchState
from ledgerlog.model.producer import Dedupe, NumberedRecords, ProducerState, SequenceRange

__all__ = ["Known", "Producers"]

Known = int | tuple[Batch, int]
"""The place of a record that was appended before: its offset, or the batch and the slot that carry it."""


class Producers:
    """The table of producers for one leadership of one log."""

    def __init__(self, name: str, policy: Dedupe) -> None:
        self._name = name
        self.policy = policy
        self._states: dict[str, ProducerState] = {}
        self._in_flight: dict[str, deque[tuple[SequenceRange, Batch]]] = {}
        """Runs that were taken and are not known to be durable. In these runs, ``first_offset`` is the first
        slot in the batch."""

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, producer_id: str) -> bool:
        """Whether the table knows the producer."""
        return producer_id in self._states

    # --- from the log ---------------------------------------------------------------------------

    def load(self, states: Iterable[ProducerState]) -> None:
        """Start from a checkpoint. If it has more than ``max_producers`` producers, all of them stay until
        they are old."""
        self._states = {state.producer_id: state for state in states}

    def replay(self, numbered: Iterable[NumberedRecords], first_offset: int, timestamp_ms: int) -> None:
        """Apply an entry that follows the checkpoint.

        Args:
            numbered: Which of the entry's records belong to which producer.
            first_offset: The offset of the entry's first record.
            timestamp_ms: The time of the entry.
        """
        for producer_id, slot, count, first_sequence in numbered:
            self._extend(producer_id, SequenceRange(first_sequence, count, first_offset + slot), timestamp_ms)
        while len(self._states) > LOG_PRODUCERS_MAX:
            del self._states[next(iter(self._states))]

    def checkpoint(self, now_ms: int) -> list[ProducerState]:
        """Return the table as of the last sent record, in the order of last use. Forget the producers that
        are old."""
        before_ms = now_ms - round(self.policy.keep_s * 1000)
        for producer_id, in_flight in list(self._in_flight.items()):
            self._retire(producer_id, in_flight)
        for producer_id, state in list(self._states.items()):
            if state.last_ms >= before_ms:
                break
            if producer_id not in self._in_flight:
                del self._states[producer_id]
        return [state for state in self._states.values() if state.runs]

    # --- appends --------------------------------------------------------------------------------

    def admit(self, producer_id: str, first_sequence: int, count: int, now_ms: int) -> list[Known]:
        """Say which of ``count`` records with consecutive sequences were appended before.

        Args:
            producer_id: The producer.
            first_sequence: The sequence of the first record.
            count: How many records there are.
            now_ms: The leader's clock.

        Returns:
            The places (``Known``) of the records that were appended before; these are the first of the
            ``count`` records. The others are new. Take them (``on_taken``) before the next call of ``admit``.

        Raises:
            OutOfSequence: A sequence does not continue the producer's sequences; take none of the records.
            TooManyProducers: The table has no room for this producer; take none of the records.
        """
        last = self._last(producer_id)
        if last is None:
            if producer_id not in self._states:
                self._make_place(now_ms)
            return []
        if first_sequence > last:
            if first_sequence > last + 1 and not self.policy.gaps:
                raise OutOfSequence(
                    self._name, producer_id, first_sequence, last, "records before it are missing"
                )
            return []
        known: list[Known] = []
        for sequence in range(first_sequence, min(first_sequence + count, last + 1)):
            place = self._find(producer_id, sequence)
            if place is None:
                raise OutOfSequence(
                    self._name,
                    producer_id,
                    sequence,
                    last,
                    "it was skipped, or is already in the log at an offset that is no longer remembered",
                )
            known.append(place)
        return known

    def on_taken(
        self, producer_id: str, first_sequence: int, batch: Batch, slot: int, count: int, now_ms: int
    ) -> None:
        """A batch took records.

        Args:
            producer_id: The producer of the records.
            first_sequence: The sequence of the first record.
            batch: The batch that took them.
            slot: The slot of the first record.
            count: How many records.
            now_ms: The leader's clock.
        """
        if producer_id not in self._states:
            self._states[producer_id] = ProducerState(producer_id, now_ms, ())
        in_flight = self._in_flight.get(producer_id)
        if in_flight is None:
            in_flight = self._in_flight[producer_id] = deque()
        while in_flight and in_flight[0][1].state is BatchState.DURABLE:
            in_flight.popleft()
        in_flight.append((SequenceRange(first_sequence, count, slot), batch))
        batch.number(producer_id, slot, count, first_sequence)

    def on_sent(self, numbered: Iterable[NumberedRecords], first_offset: int, now_ms: int) -> None:
        """Note the offsets of a batch's records, because the batch became an entry."""
        self.replay(numbered, first_offset, now_ms)

    # --- inside ---------------------------------------------------------------------------------

    def _last(self, producer_id: str) -> int | None:
        in_flight = self._in_flight.get(producer_id)
        if in_flight:
            return in_flight[-1][0].end_sequence - 1
        state = self._states.get(producer_id)
        return state.runs[-1].end_sequence - 1 if state is not None and state.runs else None

    def _find(self, producer_id: str, sequence: int) -> Known | None:
        in_flight = self._in_flight.get(producer_id)
        if in_flight is not None:
            self._retire(producer_id, in_flight)
            for run, batch in reversed(in_flight):
                if run.first_sequence <= sequence < run.end_sequence:
                    return batch, run.first_offset + sequence - run.first_sequence
        for run in reversed(self._states[producer_id].runs):
            if run.first_sequence <= sequence < run.end_sequence:
                return run.first_offset + sequence - run.first_sequence
        return None

    def _retire(self, producer_id: str, in_flight: deque[tuple[SequenceRange, Batch]]) -> None:
        """Remove durable records from ``in_flight``. Their offsets are in the table."""
        while in_flight and in_flight[0][1].state is BatchState.DURABLE:
            in_flight.popleft()
        if not in_flight:
            self._in_flight.pop(producer_id, None)

    def _extend(self, producer_id: str, run: SequenceRange, now_ms: int) -> None:
        state = self._states.pop(producer_id, None)
        runs = () if state is None else state.runs
        if runs:
            last = runs[-1]
            if (
                last.end_sequence == run.first_sequence
                and last.first_offset + last.length == run.first_offset
            ):
                run = SequenceRange(last.first_sequence, last.length + run.length, last.first_offset)
                runs = runs[:-1]
        self._states[producer_id] = ProducerState(
            producer_id, now_ms, (*runs[-LOG_PRODUCER_RUNS_MAX + 1 :], run)
        )

    def _make_place(self, now_ms: int) -> None:
        """Forget old producers until there is room for one more."""
        before_ms = now_ms - round(self.policy.keep_s * 1000)
        while len(self._states) >= self.policy.max_producers:
            oldest = next(iter(self._states))
            if oldest in self._in_flight:
                self._retire(oldest, self._in_flight[oldest])
            if self._states[oldest].last_ms >= before_ms or oldest in self._in_flight:
                raise TooManyProducers(self._name, self.policy.max_producers)
            del self._states[oldest]
