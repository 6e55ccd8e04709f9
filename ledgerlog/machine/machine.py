"""What a state machine is, for those who write one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ledgerlog.model.command import Command

__all__ = ["StateMachine"]


class StateMachine(ABC):
    """A state that is changed by commands alone, the same way wherever they are applied.

    Everything here is called by one task, one call at a time, in the order of the log. ``apply`` must be
    *deterministic*: what it does may depend on the state and on the command, and on nothing else. No
    clock (``command.timestamp_ms`` is the leader's), no chance (``random.Random(command.seed)``), no
    files, no network, no order of a set or of object ids. ``ledgerlog.testing.check_machine`` looks for
    what breaks that."""

    @abstractmethod
    def apply(self, command: Command) -> bytes | None:
        """Change the state; the result for whoever proposed it (None is ``b""``).

        What it raises is the command's result as well (``CommandFailed`` for the proposer), and the
        state that it leaves is the state, so raise before changing anything. MemoryError and
        RecursionError stop the replica. Keep it short: nothing else runs meanwhile."""

    @abstractmethod
    def snapshot(self) -> Iterable[bytes]:
        """The whole state as it is now, in chunks.

        The call itself should be cheap, and what it gives must not change afterwards: the chunks are
        taken while commands are applied (a generator runs up to its first chunk at once: copy the dict,
        then ``yield`` from the copy). Equal states give equal bytes; replicas compare them."""

    @abstractmethod
    def restore(self, chunks: Iterable[bytes]) -> None:
        """Forget everything and become the state that ``snapshot`` gave as these chunks."""
