"""The unanswered adds of one connection, and the notifications when answers come.

**Numbers.** Both ends number the ADDs of a connection from 1 (``wire.frame``); an ADD itself carries no
number. ``UnansweredAdds`` keeps a queue of the adds sent, oldest first; the head is add ``answered + 1``:

    1 ... answered | unanswered: sink, first, last | None (refused) | sink, first, last | ... | sent

A *sink* is a sender of adds. An acknowledgement "through n" removes all adds up to n from the queue and
notifies their sinks, except for adds that were refused before. A refusal notifies the sink of the add and
leaves None in the add's place. A None at the head is removed at once: a fenced bookie may refuse every add,
and then no acknowledgement would ever remove it. Answers that a correct bookie never gives raise WireError:
an acknowledgement or refusal of an add that was never sent, and a refusal of an add that was already
answered. If an acknowledgement is repeated, or lower than an earlier one, it is true but not new, and is
ignored.

**Merging.** If frames of one sink are adjacent, on the wire and in their entry ids, one call reports them
all. The ids must be adjacent too. For example, a sink may send the frames 0..4 and 6..9, and resend entry 5
later. One call for 0..9 would confirm entry 5 although the bookie has not acknowledged it.

**Bursts.** One receive may bring many answers, and cause many calls to the same few sinks. Each sink should
act only once, after all these calls. Its data should leave in one system call for each connection. So all
connections of a pool share a ``Burst``. While it is active, frames to send are only queued. At its end, each
sink that was called gets an ``on_batch_end``, and then the connections send their queues. No other task runs
in between.

This module does no I/O and never waits.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Protocol

from ledgerlog.errors import WireError
from ledgerlog.model.ids import BookieId
from ledgerlog.wire.frame import Status

__all__ = ["AddSink", "Attachment", "Burst", "Flushable", "UnansweredAdds"]


class AddSink(Protocol):
    """A sender of adds over a connection. It is notified of the adds' outcome.

    The connection's task calls these synchronous methods, which may call the methods of any connection. A
    sink is compared by identity and must be hashable. An exception in a sink is a bug and ends the pool."""

    def on_add_ok(self, bookie_id: BookieId, first: int, last: int, /) -> object:
        """The adds that this sink sent for entries ``first`` to ``last`` are durable at the bookie.

        ``first`` and ``last`` are as given to ``send_add``, except that adjacent frames are merged. The
        caller ignores the return value."""
        ...

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status, /) -> None:
        """The bookie did not store this add. ``status`` says why; it is never OK."""
        ...

    def on_bookie_lost(self, bookie_id: BookieId, why: str, /) -> None:
        """The connection broke, or could not be made.

        Every unanswered add of this sink has an unknown outcome. This is called once for each loss and for
        each failed attempt."""
        ...

    def on_bookie_connected(self, bookie_id: BookieId, /) -> None:
        """Adds can be sent, for the first time or again. The connection does not resend anything by
        itself."""
        ...

    def on_batch_end(self) -> None:
        """Called once after a burst of the calls above. Act on them now."""
        ...


class Attachment:
    """One attachment of a sink to a connection. If a sink is detached and attached again, it gets a new
    attachment."""

    __slots__ = ("is_touched", "sink")

    def __init__(self, sink: AddSink) -> None:
        self.sink: AddSink | None = sink
        """None after the sink is detached: then no call reaches it."""
        self.is_touched = False


class Flushable(Protocol):
    """A session, as the burst sees it."""

    def flush(self) -> None:
        """Send everything that gathered during the burst."""
        ...


class Burst:
    """The context manager of a burst; see the module docstring. Bursts never overlap, because they do not
    wait."""

    __slots__ = ("_corked", "_touched", "is_active")

    def __init__(self) -> None:
        self.is_active = False
        self._touched: list[Attachment] = []
        self._corked: list[Flushable] = []

    def cork(self, sender: Flushable) -> None:
        """Flush ``sender`` at the end of the burst. Call it once for each sender and burst."""
        self._corked.append(sender)

    def touch(self, attachment: Attachment) -> None:
        """Call the sink's ``on_batch_end`` at the end of the burst."""
        if not attachment.is_touched:
            attachment.is_touched = True
            self._touched.append(attachment)

    def __enter__(self) -> None:
        assert not self.is_active, "a burst inside a burst: a sink was called from a sink"
        self.is_active = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        touched, self._touched = self._touched, []
        for attachment in touched:
            attachment.is_touched = False
        try:
            for attachment in touched:
                if attachment.sink is not None:
                    attachment.sink.on_batch_end()
        finally:
            self.is_active = False
            corked, self._corked = self._corked, []
            for sender in corked:
                sender.flush()


class UnansweredAdds:
    """The numbering of one connection's adds. The queue has ``sent - answered`` items."""

    __slots__ = ("_bookie_id", "_burst", "_queue", "answered", "refused", "sent")

    def __init__(self, bookie_id: BookieId, burst: Burst) -> None:
        self._bookie_id = bookie_id
        self._burst = burst
        self._queue: deque[tuple[Attachment, int, int] | None] = deque()
        self.sent = 0
        """The number of the last add sent."""
        self.answered = 0
        """All adds up to this number are answered: acknowledged or refused."""
        self.refused = 0
        """How many adds were refused."""

    def append(self, attachment: Attachment, first: int, last: int) -> None:
        """Count an add that was sent."""
        self._queue.append((attachment, first, last))
        self.sent += 1

    def on_acknowledged(self, through: int) -> None:
        """The bookie says that all adds up to ``through`` are durable, except adds that it refused.

        Raises:
            WireError: One of these adds was never sent.
        """
        count = through - self.answered
        if count <= 0:
            return
        if through > self.sent:
            raise WireError(f"it acknowledged add {through}, but only {self.sent} were sent")
        self.answered = through
        popleft = self._queue.popleft
        current: Attachment | None = None
        first = last = 0
        for _ in range(count):
            add = popleft()
            if add is None:
                continue
            attachment, its_first, its_last = add
            if attachment is current and its_first == last + 1:
                last = its_last
            else:
                if current is not None:
                    self._tell_ok(current, first, last)
                current, first, last = attachment, its_first, its_last
        if current is not None:
            self._tell_ok(current, first, last)
        if self._queue:
            self._pop_refused()

    def on_refused(self, number: int, status: Status) -> None:
        """The bookie refused one add.

        Raises:
            WireError: The add was never sent, or has an answer already.
        """
        index = number - self.answered - 1
        if status is Status.OK or not 0 <= index < len(self._queue):
            raise WireError(f"it refused add {number} ({status.name}): {self._range()}")
        add = self._queue[index]
        if add is None:
            raise WireError(f"it refused add {number} twice")
        self._queue[index] = None
        self.refused += 1
        self._pop_refused()
        attachment, first, last = add
        if attachment.sink is not None:
            self._burst.touch(attachment)
            attachment.sink.on_add_refused(self._bookie_id, first, last, status)

    def _tell_ok(self, attachment: Attachment, first: int, last: int) -> None:
        if attachment.sink is not None:
            self._burst.touch(attachment)
            attachment.sink.on_add_ok(self._bookie_id, first, last)

    def _pop_refused(self) -> None:
        queue = self._queue
        while queue and queue[0] is None:
            queue.popleft()
            self.answered += 1

    def _range(self) -> str:
        return f"{self.sent} were sent, all up to {self.answered} are answered"
