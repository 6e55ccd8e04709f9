"""Who appended what: the table that makes an append count once (protocol-free; see ``model.producer``).

A producer gives each record a sequence. The leader asks ``admit`` before it takes records:

    a sequence beyond the last one    it is new; without ``gaps`` it must be the next
    one that is known                 it is there already: where, or which batch carries it right now
    any other                         OutOfSequence: nothing is taken, nothing is guessed

``on_taken`` notes what was taken, ``on_sent`` where it came to lie. Records with a sequence are never taken
back, so what is taken is sent, or the leadership ends and the table with it.

**How the next leader knows.** Every entry says which of its records are whose, and from time to time an
entry is a *checkpoint*: the whole table as of its offset, the first thing in a ledger among others. Each
entry also names the newest checkpoint of its ledger. So whoever comes next reads the last entry of the
newest segment with records, the checkpoint that it names and what lies between:
``limits.LOG_CHECKPOINT_BYTES`` or so, however long the log is. An entry is in the log only if all before it
are, so the table is exactly that of the records which are there.

**Bounds.** At most ``Dedupe.max_producers`` producers, each with its last ``limits.LOG_PRODUCER_RUNS_MAX``
runs. One that has appended nothing for ``keep_s`` makes place for another; nobody is forgotten earlier, and
a producer for whom there is no place is refused. The clock is the leader's, and only decides what is
forgotten.

Invariants: ``_states`` is in the order of last use; every producer with something in flight has a state; a
run that is the newest of its producer ends with the producer's last sent sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ledgerlog.errors import OutOfSequence, TooManyProducers
from ledgerlog.limits import LOG_PRODUCER_RUNS_MAX
from ledgerlog.log.core.append_queue import Batch, BatchState
from ledgerlog.model.producer import Dedupe, NumberedRecords, ProducerState, Run

__all__ = ["Known", "Producers"]

Known = int | tuple[Batch, int]
"""Where a record is that was appended before: its offset, or the batch and the slot that carry it."""


class Producers:
    """The table of one leadership of one log."""

    def __init__(self, name: str, policy: Dedupe) -> None:
        self._name = name
        self.policy = policy
        self._states: dict[str, ProducerState] = {}
        self._in_flight: dict[str, deque[tuple[Run, Batch]]] = {}
        """What was taken and not known to be durable; ``first_offset`` of these runs is their first slot."""

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, producer_id: str) -> bool:
        """Whether the producer is known."""
        return producer_id in self._states

    # --- from the log ---------------------------------------------------------------------------

    def load(self, states: Iterable[ProducerState]) -> None:
        """Start from a checkpoint. More producers than ``max_producers`` are kept until they are old."""
        self._states = {state.producer_id: state for state in states}

    def replay(self, numbered: Iterable[NumberedRecords], first_offset: int, timestamp_ms: int) -> None:
        """An entry that lies behind the checkpoint."""
        for producer_id, slot, count, first_sequence in numbered:
            self._extend(producer_id, Run(first_sequence, count, first_offset + slot), timestamp_ms)

    def checkpoint(self, now_ms: int) -> list[ProducerState]:
        """The table as of what was sent, without those who may be forgotten. In the order of last use."""
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
        """How many of ``count`` records with consecutive sequences are there already, and where: the first
        ones. The others may be taken, by this leadership's next call.

        OutOfSequence, TooManyProducers: none may."""
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
                    "it was left out, or is in the log already at an offset that is no longer remembered",
                )
            known.append(place)
        return known

    def on_taken(
        self, producer_id: str, first_sequence: int, batch: Batch, slot: int, count: int, now_ms: int
    ) -> None:
        """Records were taken into a batch, from ``slot`` on."""
        if producer_id not in self._states:
            self._states[producer_id] = ProducerState(producer_id, now_ms, ())
        in_flight = self._in_flight.get(producer_id)
        if in_flight is None:
            in_flight = self._in_flight[producer_id] = deque()
        while in_flight and in_flight[0][1].state is BatchState.DURABLE:
            in_flight.popleft()
        in_flight.append((Run(first_sequence, count, slot), batch))
        batch.number(producer_id, slot, count, first_sequence)

    def on_sent(self, numbered: Iterable[NumberedRecords], first_offset: int, now_ms: int) -> None:
        """A batch became an entry: its records have offsets now."""
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

    def _retire(self, producer_id: str, in_flight: deque[tuple[Run, Batch]]) -> None:
        """Forget what is durable: its offset is in the table."""
        while in_flight and in_flight[0][1].state is BatchState.DURABLE:
            in_flight.popleft()
        if not in_flight:
            self._in_flight.pop(producer_id, None)

    def _extend(self, producer_id: str, run: Run, now_ms: int) -> None:
        state = self._states.pop(producer_id, None)
        runs = () if state is None else state.runs
        if runs:
            last = runs[-1]
            if (
                last.end_sequence == run.first_sequence
                and last.first_offset + last.length == run.first_offset
            ):
                run = Run(last.first_sequence, last.length + run.length, last.first_offset)
                runs = runs[:-1]
        self._states[producer_id] = ProducerState(
            producer_id, now_ms, (*runs[-LOG_PRODUCER_RUNS_MAX + 1 :], run)
        )

    def _make_place(self, now_ms: int) -> None:
        """Forget the producers that may be forgotten, as far as one more needs it."""
        before_ms = now_ms - round(self.policy.keep_s * 1000)
        while len(self._states) >= self.policy.max_producers:
            oldest = next(iter(self._states))
            if oldest in self._in_flight:
                self._retire(oldest, self._in_flight[oldest])
            if self._states[oldest].last_ms >= before_ms or oldest in self._in_flight:
                raise TooManyProducers(self._name, self.policy.max_producers)
            del self._states[oldest]
