"""A replica's protocol: it applies commands in the order of the log, and executes each request once. Pure.

``ReplicaCore`` drives a user's machine. It gets every record of the log in order, without a gap. Its table of
requests makes a retry harmless.

**Exactly once.** A command carries its request id. When a command with a new id is applied, it is executed
and its outcome is remembered in the table of requests. When a command with a known id is applied, it changes
nothing and has the outcome of the first command with that id. A command comes twice if its proposer tries
again after a time-out or with the next leader. The table is part of the replicated state: it depends only on
the log, and every snapshot has it. The bounds of the table are constants (``limits``) and never options: if
two replicas dropped outcomes at different times, they would execute different commands.

**Forgetting.** The table keeps the newest outcomes, up to a number and a size, and drops the oldest. If a
retry came after its outcome was dropped, the request would be executed again. An id that ``model.command``
made prevents that: it carries an offset, and the request was surely not executed below that offset. If the
table has dropped any outcome at or above that offset, the command is *expired*: it is not executed, and its
proposer gets ``RequestExpired``. For example, if an id was made at offset 700, and the table has dropped all
outcomes up to offset 800, the command expires. An id that the user made carries no offset. Such a request is
recognised only while the table still has its outcome. A proposal without an id gets one without an offset: it
is in the log at most once, because nobody can propose it again.

**An exception is a result.** If ``apply`` raises, the class and the text of the exception are the outcome on
every replica. If the exception's own ``__str__`` raises, the text is empty. The state stays as ``apply`` left
it. ``MemoryError`` and ``RecursionError`` are different: they depend on the process and not on the command.
``ReplicaCore.apply`` raises these two, and everything that is not an ``Exception``. Then the replica has to
stop.

**A wrong return value is no result.** If ``apply`` returns anything but bytes or None, the program is at
fault, and ``ReplicaCore.apply`` raises TypeError: the replica has to stop. Were it a result, the table would
keep it. A corrected program that restores the table would then answer a retry with the failure, although a
replica that applies the whole log has the right result.

**Format of the table**, little endian, in the order of execution: the highest forgotten offset (i64, -1 if
there is none); the number of entries (u32). Each entry: offset (u64), size of the id (u16), size of the error
(u16), size of the result (u32), id, error, result. An error of size 0 means no error.

**Invariants.** ``next_offset`` grows by one with each record. The entries of the table are in the order of
their offsets. The offset of each entry is above ``forgotten_through``.
"""

from __future__ import annotations

import hashlib
import inspect
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.limits import REPLICA_REQUESTS, REPLICA_RESULTS_BYTES
from ledgerlog.model.command import Command, CommandOutcome, Envelope, since_of

__all__ = ["Machine", "ReplicaCore", "RequestTable", "digest_of", "text_of"]

_TABLE_HEAD = struct.Struct("<qI")
_ENTRY = struct.Struct("<QHHI")
_ENTRY_COST_BYTES = 128
"""The cost of an entry besides its id, error and result."""
_PIECE_ENTRIES = 500
"""The most entries in a piece of the encoded table."""
_ERROR_BYTES_MAX = 256
"""How many bytes of the name of an exception's class are kept."""


class Machine(Protocol):
    """The methods that a replica calls on a state machine; see ``ledgerlog.StateMachine``."""

    def apply(self, command: Command) -> bytes | None: ...

    def snapshot(self) -> Iterable[bytes]: ...

    def restore(self, chunks: Iterable[bytes]) -> None: ...


class RequestTable:
    """The newest outcomes, by request id.

    Args:
        entries_max: How many outcomes the table holds at most.
        bytes_max: How many bytes of ids, results and errors the table holds at most. A fixed cost for each
            outcome counts too.
    """

    def __init__(
        self, *, entries_max: int = REPLICA_REQUESTS, bytes_max: int = REPLICA_RESULTS_BYTES
    ) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._outcomes: dict[str, CommandOutcome] = {}
        self._bytes = 0
        self.forgotten_through = -1
        """The highest offset whose outcome was dropped; -1 if there is none."""

    def __len__(self) -> int:
        return len(self._outcomes)

    def find(self, request_id: str) -> CommandOutcome | None:
        """Return the outcome of a request; None if the table does not have it."""
        return self._outcomes.get(request_id)

    def is_expired(self, request_id: str) -> bool:
        """Whether the request may have been executed before, and its outcome dropped. False for every id that
        a user made."""
        since = since_of(request_id)
        return since is not None and since <= self.forgotten_through

    def add(self, request_id: str, outcome: CommandOutcome) -> None:
        """Remember an outcome, and drop the oldest outcomes while the table is beyond a bound. The newest
        outcome always stays."""
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
        """Return the table as bytes."""
        return b"".join(self.pieces()[1])

    def pieces(self) -> tuple[int, Iterator[bytes]]:
        """Return the number of pieces of the encoded table, and the pieces themselves. They show the present
        table, even if the table changes while you read them."""
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
        """Decode a table from exactly these bytes.

        Raises:
            WireError: The bytes are not a table.
        """
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
                outcome = CommandOutcome(offset, result, error or None)
                if name in table._outcomes:
                    raise WireError("a request is twice in the table")
                table._outcomes[name] = outcome
                table._bytes += _cost(name, outcome)
        except (struct.error, UnicodeDecodeError):
            raise WireError("the table of requests does not decode") from None
        if at != len(data):
            raise WireError("something follows the table of requests")
        return table


def _cost(request_id: str, outcome: CommandOutcome) -> int:
    return _ENTRY_COST_BYTES + len(request_id) + len(outcome.result) + len(outcome.error or "")


class ReplicaCore:
    """A machine and its place in the log.

    Raises:
        InvalidArgument: A replica cannot call the methods of ``machine``.
    """

    def __init__(self, machine: Machine) -> None:
        _check_machine(machine)
        self._machine = machine
        self.next_offset = 0
        """The offset of the first record that is not applied."""
        self.timestamp_ms = 0
        """The timestamp of the newest applied record, in milliseconds."""
        self.epoch: int | None = None
        """The epoch of the leader that appended the record before ``next_offset``. No other record ever has
        the same epoch and offset. None: not known, or that record cannot be read any more. ``Replica``
        sets it."""
        self.requests = RequestTable()
        self.executed = 0
        """How many commands this object has executed."""

    def apply(self, offset: int, envelope: Envelope) -> CommandOutcome | None:
        """Apply the record at ``next_offset``.

        Args:
            offset: The offset of the record.
            envelope: The record.

        Returns:
            The outcome; None for a barrier.

        Raises:
            MemoryError: The replica has to stop. The same holds for RecursionError, and for anything that is
                not an Exception.
            TypeError: The machine returned something else than bytes or None. The replica has to stop.
        """
        assert offset == self.next_offset, f"record {offset} , but {self.next_offset} comes next"
        timestamp_ms = max(self.timestamp_ms, envelope.timestamp_ms)
        request_id = envelope.request_id
        outcome: CommandOutcome | None = None
        if not envelope.is_barrier:
            outcome = self.requests.find(request_id)
            if outcome is None and self.requests.is_expired(request_id):
                outcome = CommandOutcome(offset, b"", is_expired=True)
            if outcome is None:
                outcome = self._execute(
                    Command(envelope.data, offset, timestamp_ms, envelope.seed, request_id)
                )
                self.requests.add(request_id, outcome)
        self.next_offset = offset + 1
        self.timestamp_ms = timestamp_ms
        return outcome

    def _execute(self, command: Command) -> CommandOutcome:
        self.executed += 1
        try:
            result = self._machine.apply(command)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            # Any other exception is the command's result, on every replica.
            name = type(error).__name__.encode()[:_ERROR_BYTES_MAX].decode(errors="ignore")
            return CommandOutcome(command.offset, text_of(error).encode(errors="replace"), name)
        if result is not None and not isinstance(result, bytes):
            raise TypeError(f"apply returned {type(result).__name__}, not bytes or None: correct the machine")
        return CommandOutcome(command.offset, result or b"")

    def chunks(self) -> Iterable[bytes]:
        """Return the machine's present state, in chunks that you may read while the machine continues.

        This call takes the first chunk at once. So if ``snapshot`` is a generator, it runs up to its first
        ``yield`` here, and can copy the state before the next command changes the state.
        """
        chunks = iter(self._machine.snapshot())
        return chain([first for first in (next(chunks, None),) if first is not None], chunks)

    def restore(
        self, next_offset: int, timestamp_ms: int, requests: RequestTable, chunks: Sequence[bytes]
    ) -> None:
        """Replace the state by the state in a snapshot.

        Args:
            next_offset: The first record of the log that is not in the snapshot.
            timestamp_ms: The timestamp of the newest record in the snapshot.
            requests: The table of requests.
            chunks: The machine's chunks.
        """
        self._machine.restore(iter(chunks))
        self.next_offset, self.timestamp_ms, self.requests = next_offset, timestamp_ms, requests

    def digest(self) -> str:
        """Return a digest of the whole state.

        Replicas that have applied the same records have the same digest.
        """
        return digest_of(self.next_offset, self.requests.encode(), self._machine.snapshot())


def _check_machine(machine: Machine) -> None:
    """Raise InvalidArgument unless a replica can call the methods of this machine."""
    if isinstance(machine, type):
        raise InvalidArgument(f"{machine.__name__} is a class, not a machine: pass an object of it")
    kind = type(machine).__name__
    for name in ("apply", "snapshot", "restore"):
        method = getattr(machine, name, None)
        if not callable(method):
            raise InvalidArgument(
                f"{kind} has no method {name}: pass an object of a subclass of ledgerlog.StateMachine"
            )
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise InvalidArgument(f"{kind}.{name} is asynchronous: write it with def, not with async def")


def text_of(error: BaseException) -> str:
    """Return the text of an exception that a machine raised; "" if its own ``__str__`` raises.

    Raises:
        MemoryError: ``__str__`` raised it. The same holds for RecursionError.
    """
    try:
        return str(error)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return ""


def digest_of(next_offset: int, requests: bytes, chunks: Iterable[bytes]) -> str:
    """Return a digest of a state. It depends only on the joined bytes of the chunks."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(struct.pack("<QQ", next_offset, len(requests)))
    digest.update(requests)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
