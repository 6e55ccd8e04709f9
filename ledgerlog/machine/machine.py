"""The base class of state machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ledgerlog.model.command import Command

__all__ = ["StateMachine"]


class StateMachine(ABC):
    """A state that only commands change, in the same way on every replica. Subclass this class.

    A replica calls these methods from one task, one call at a time, in the order of the log. ``apply`` must
    be *deterministic*: it may depend only on the state and on the command. ``apply`` must not use a clock
    (use ``command.timestamp_ms``, the leader's clock), chance (use ``random.Random(command.seed)``), files,
    the network, or the order of a set or of object ids. ``ledgerlog.testing.check_machine`` looks for
    violations.

    Example:
        ```python
        class Counter(ledgerlog.StateMachine):
            def __init__(self):
                self.total = 0

            def apply(self, command):
                self.total += int(command.data)
                return b"%d" % self.total

            def snapshot(self):
                yield b"%d" % self.total

            def restore(self, chunks):
                self.total = int(b"".join(chunks))
        ```
    """

    @abstractmethod
    def apply(self, command: Command) -> bytes | None:
        """Change the state by one command.

        Keep this method fast, because the event loop waits until it returns.

        Args:
            command: The command, with its offset, timestamp and seed.

        Returns:
            The result for the proposer. None counts as ``b""``. If it is anything but bytes or None, the
            replica stops: correct the machine, and start the replica again.

        Raises:
            Exception: The exception is the result of the command: the proposer gets ``CommandFailed``. The
                state stays as ``apply`` left it, so raise before you change anything.
            MemoryError: The replica stops, because this error depends on the process and not on the command.
            RecursionError: The replica stops, for the same reason.
        """

    @abstractmethod
    def snapshot(self) -> Iterable[bytes]:
        """Return the whole present state, in chunks.

        The call should be cheap. The replica takes the chunks while it applies further commands, so the
        commands must not change the chunks. If this method is a generator, it runs up to its first ``yield``
        at once: for example, copy the dict and then ``yield`` from the copy. Equal states must give equal
        bytes, because replicas compare them.
        """

    @abstractmethod
    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by one that ``snapshot`` returned.

        Args:
            chunks: The chunks that ``snapshot`` returned, in order.

        Raises:
            Exception: The replica stops, because the machine may have only a part of the state.
        """
