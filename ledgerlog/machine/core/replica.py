"""A replica's protocol: commands in the order of the log, each request executed once. Pure.

``ReplicaCore`` drives a user's machine. It is given every record of the log in order, without a gap, and
keeps what makes a retry harmless: the table of requests.

**Exactly once.** A command carries its request id. The first time it is met it is executed and its
outcome remembered; met again (a proposer that retried, after a time-out or with the next leader) it
changes nothing, and its outcome is the one from the first time. The table is part of the replicated
state: it is a function of the log alone, is in every snapshot, and its bounds are constants
(``limits``), never options, since two replicas that forgot at different times would execute different
things.

**Forgetting.** The table keeps the newest outcomes, oldest out, bounded in number and bytes. A retry
that comes after its outcome was forgotten would be executed again. Ids of our own making
(``model.command``) tell the offset below which they were not proposed yet: where the table has forgotten
anything at or above that offset, the command is *expired*, not executed, and its proposer told so. Ids
of the user's own making do not tell, so for them the promise is the window: as many requests as the
table holds.

**An exception is a result.** What ``apply`` raises is remembered as the outcome, its class and text; the
state it leaves is the state, on every replica. ``MemoryError`` and ``RecursionError`` depend on the
process and not on the command, so they, and whatever is no ``Exception``, come out of here: the replica
has to stop.

Format of the table, little endian, in the order of execution: the highest forgotten offset (i64, -1:
none); number of entries (u32); each: offset (u64), size of the id (u16), size of the error (u16), size
of the result (u32), id, error, result. An error of size 0 is none.

Invariants: ``next_offset`` grows by one with each record; the table's entries are in growing order of offset;
every entry's offset is above ``forgotten_through``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from ledgerlog.errors import WireError
from ledgerlog.limits import REPLICA_REQUESTS, REPLICA_RESULTS_BYTES
from ledgerlog.model.command import Command, Envelope, Outcome, since_of

__all__ = ["Machine", "ReplicaCore", "RequestTable", "digest_of"]

_TABLE_HEAD = struct.Struct("<qI")
_ENTRY = struct.Struct("<QHHI")
_ENTRY_COST_BYTES = 128
_PIECE_ENTRIES = 500
_ERROR_BYTES_MAX = 256


class Machine(Protocol):
    """What a replica asks of a state machine; see ``ledgerlog.StateMachine``."""

    def apply(self, command: Command) -> bytes | None: ...

    def snapshot(self) -> Iterable[bytes]: ...

    def restore(self, chunks: Iterable[bytes]) -> None: ...


class RequestTable:
    """The newest outcomes by request id."""

    def __init__(
        self, *, entries_max: int = REPLICA_REQUESTS, bytes_max: int = REPLICA_RESULTS_BYTES
    ) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._outcomes: dict[str, Outcome] = {}
        self._bytes = 0
        self.forgotten_through = -1
        """The highest offset whose outcome is not here any more."""

    def __len__(self) -> int:
        return len(self._outcomes)

    def find(self, request_id: str) -> Outcome | None:
        return self._outcomes.get(request_id)

    def is_expired(self, request_id: str) -> bool:
        """Whether the request may have been executed and forgotten, as far as its id tells."""
        since = since_of(request_id)
        return since is not None and since <= self.forgotten_through

    def add(self, request_id: str, outcome: Outcome) -> None:
        """Remember, and forget the oldest beyond the bounds; the newest always stays."""
        assert request_id not in self._outcomes
        self._outcomes[request_id] = outcome
        self._bytes += _cost(request_id, outcome)
        while len(self._outcomes) > 1 and (
            len(self._outcomes) > self._entries_max or self._bytes > self._bytes_max
        ):
            oldest = next(iter(self._outcomes))
            forgotten = self._outcomes.pop(oldest)
            self._bytes -= _cost(oldest, forgotten)
            assert forgotten.offset > self.forgotten_through
            self.forgotten_through = forgotten.offset

    def encode(self) -> bytes:
        return b"".join(self.pieces()[1])

    def pieces(self) -> tuple[int, Iterator[bytes]]:
        """The table as it is now, in pieces that may be made while it goes on, and how many there are."""
        outcomes = list(self._outcomes.items())
        head = _TABLE_HEAD.pack(self.forgotten_through, len(outcomes))
        stretches = range(0, len(outcomes), _PIECE_ENTRIES)

        def made() -> Iterator[bytes]:
            yield head
            for at in stretches:
                parts: list[bytes] = []
                for request_id, outcome in outcomes[at : at + _PIECE_ENTRIES]:
                    name, error = request_id.encode(), (outcome.error or "").encode()
                    parts.append(_ENTRY.pack(outcome.offset, len(name), len(error), len(outcome.result)))
                    parts += (name, error, outcome.result)
                yield b"".join(parts)

        return 1 + len(stretches), made()

    @classmethod
    def decode_untrusted(cls, data: bytes) -> RequestTable:
        """The table in exactly these bytes. Raises WireError."""
        table = cls()
        try:
            table.forgotten_through, count = _TABLE_HEAD.unpack_from(data)
            at = _TABLE_HEAD.size
            last = table.forgotten_through
            for _ in range(count):
                offset, name_size, error_size, result_size = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size
                end = at + name_size + error_size + result_size
                if end > len(data) or offset <= last:
                    raise WireError("the table of requests is cut off or out of order")
                name = data[at : at + name_size].decode()
                error = data[at + name_size : at + name_size + error_size].decode()
                result = data[end - result_size : end]
                at, last = end, offset
                outcome = Outcome(offset, result, error or None)
                if name in table._outcomes:
                    raise WireError("a request is twice in the table")
                table._outcomes[name] = outcome
                table._bytes += _cost(name, outcome)
        except (struct.error, UnicodeDecodeError):
            raise WireError("the table of requests does not decode") from None
        if at != len(data):
            raise WireError("something follows the table of requests")
        return table


def _cost(request_id: str, outcome: Outcome) -> int:
    return _ENTRY_COST_BYTES + len(request_id) + len(outcome.result) + len(outcome.error or "")


class ReplicaCore:
    """A machine and its place in the log."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.next_offset = 0
        """The first record that is not applied."""
        self.timestamp_ms = 0
        """Of the newest command that was applied."""
        self.requests = RequestTable()
        self.executed = 0
        """How many commands the machine was given by this object."""

    def apply(self, offset: int, envelope: Envelope) -> Outcome | None:
        """Apply the record at ``next_offset``; its outcome, None of a barrier."""
        assert offset == self.next_offset, f"record {offset} where {self.next_offset} comes next"
        timestamp_ms = max(self.timestamp_ms, envelope.timestamp_ms)
        request_id = envelope.request_id
        outcome: Outcome | None = None
        if not envelope.is_barrier:
            outcome = self.requests.find(request_id)
            if outcome is None and self.requests.is_expired(request_id):
                outcome = Outcome(offset, b"", is_expired=True)
            if outcome is None:
                outcome = self._execute(
                    Command(envelope.data, offset, timestamp_ms, envelope.seed, request_id)
                )
                self.requests.add(request_id, outcome)
        self.next_offset = offset + 1
        self.timestamp_ms = timestamp_ms
        return outcome

    def _execute(self, command: Command) -> Outcome:
        self.executed += 1
        try:
            result = self._machine.apply(command)
            if result is not None and not isinstance(result, bytes):
                raise TypeError(f"apply returned {type(result).__name__}, not bytes")
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            # Whatever a command makes of the machine is its result, on every replica.
            name = type(error).__name__.encode()[:_ERROR_BYTES_MAX].decode(errors="ignore")
            return Outcome(command.offset, str(error).encode(errors="replace"), name)
        return Outcome(command.offset, result or b"")

    def chunks(self) -> Iterable[bytes]:
        """The machine's state now; to be taken while it goes on.

        The first chunk is asked for at once: a ``snapshot`` that is written as a generator runs up to its
        first ``yield`` here, and copies what it has to copy before anything changes."""
        chunks = iter(self._machine.snapshot())
        return chain([first for first in (next(chunks, None),) if first is not None], chunks)

    def restore(
        self, next_offset: int, timestamp_ms: int, requests: RequestTable, chunks: Sequence[bytes]
    ) -> None:
        """Become what a snapshot says."""
        self._machine.restore(iter(chunks))
        self.next_offset, self.timestamp_ms, self.requests = next_offset, timestamp_ms, requests

    def digest(self) -> str:
        """A digest of the whole state: equal for replicas that have applied the same records."""
        return digest_of(self.next_offset, self.requests.encode(), self._machine.snapshot())


def digest_of(next_offset: int, requests: bytes, chunks: Iterable[bytes]) -> str:
    """A digest that depends on the bytes of the chunks and not on where one ends."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(struct.pack("<QQ", next_offset, len(requests)))
    digest.update(requests)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
