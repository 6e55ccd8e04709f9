"""The requests of one connection, except adds: they wait in a queue, and a few at a time become tasks.

A read may wait for a disk. A long poll may wait for a writer that is quiet. An add must not wait for either
of them. So requests become tasks in the connection's nursery, and the connection continues reading frames. A
reply carries the number of its request, and replies leave in any order.

**The queue** (``bookie.core.request_queue``). The bookie works on ``limits.BOOKIE_CONNECTION_WORKING``
requests of a connection at the same time, and begins none while the client leaves more than
``limits.BOOKIE_CONNECTION_UNREAD_BYTES`` of replies unread. The other requests wait in the queue as plain
objects, not as tasks.

**Turns.** The bookie works on a request in pieces, and each piece waits for a turn of the client's party
(``fair``). Looking for the runs of a ledger is one piece, and so is each run that is read, listed or checked.
(A run is a frame of entries of one ledger, stored in one piece.) So another client waits for one piece only,
even if a request asks for a lot. Copying a byte costs a quarter of checking it.

**Bounds.** A connection has at most ``limits.BOOKIE_CONNECTION_REQUESTS`` requests under way. Its party, its
principal and the bookie have bounds, too (``fair``). If one more request comes, the bookie answers
TOO_MANY_REQUESTS, and the client waits and asks again. If the bookie stopped reading the connection instead,
the client's adds would have to wait for its long polls. Long polls may not use the last quarter of the
places, so clients can read existing entries even if many long polls wait.

Before it reads, a request takes the bytes that its reply may need, from the budgets of the connection, of its
party, its principal and the bookie. The request gives the bytes back when the reply has been handed to the
network. So these budgets bound the memory of replies, no matter how many clients ask. Fences and recovery
reads are *urgent*: they may use the bookie's reserve.

**Long polls.** A READ with ``wait_ms`` waits until the LAC (the last confirmed entry that the bookie knows)
has reached ``first``. A READ_LAC waits until the LAC is greater than ``first``. Both wait for at most
``limits.LONG_POLL_S``, and then the bookie answers with the present state. So "nothing new" is an ordinary
answer, not an error. A recovery read never waits, because the recoverer decides about the ledger's end and
needs to know which entries are here now. In an answer to READ_LAC, ``last`` is the last entry that is durable
here, confirmed or not. A client that looks for the end of a ledger may wait until the LAC reaches ``last``.
Status UNKNOWN means that the ledger is in *limbo*: the bookie may have lost entries of it. The bookie learned
this LAC after the loss, and may have known a higher LAC before.

A waiting poll is a plain object too, not a task. A new LAC, or the clock (``polls``), puts the poll into the
queue again. So if a client leaves while thousands of its polls wait, the bookie has no tasks to end. Each
answer waits for a turn of its party, so thousands of polls that end together delay no other client.

**Access.** The bookie answers a request only if the client has the right (``access``). The bookie checks the
right of a long poll again before the answer. If the client's rights change, the long poll ends at once.

**Checks.** Only well-formed frames get here (``decode_frame_untrusted``). If a well-formed request makes no
sense (a stride of 0, a range that ends before it starts), the answer is BAD_REQUEST. If a request has a body,
WireError ends the connection, because no request has one. The engine checks everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from types import TracebackType

import attrs
import trio

from bookie.core.access import right_for
from bookie.core.request_queue import Line, RequestQueue
from bookie.core.results import ReadResult
from bookie.server.access import Access
from bookie.server.budget import ByteBudget
from bookie.server.fair import Party, Places
from bookie.server.outbox import Outbox
from bookie.server.shared import Shared
from ledgerlog import limits
from ledgerlog.errors import StorageCorrupt, StorageError, WireError
from ledgerlog.model.access import Right
from ledgerlog.model.codec import encode_record
from ledgerlog.net.transport import Buffer, buffers_bytes
from ledgerlog.wire.frame import (
    HEADER_BYTES,
    RECOVERY,
    REPLY,
    Frame,
    Header,
    Kind,
    Status,
    encode_head,
    encode_pairs,
)
from ledgerlog.wire.ledgers import LEDGERS_MAX, encode_ledgers
from ledgerlog.wire.scrub import encode_scrub

_UNREADABLE = frozenset((Status.CORRUPT, Status.IO_ERROR))
_LIST_PAIRS_MAX = limits.READ_REPLY_BYTES_TARGET // 16


class _Refused(Exception):
    """The bookie refuses a request. ``status`` is the answer."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


class _Held:
    """Bytes that a reply holds: the same number in each of several budgets.

    Make the reply in the body of a ``with``. If the body fails, there is no reply, and ``on_failure`` is
    called, which gives the bytes back."""

    __slots__ = ("_budgets", "_count", "_on_failure")

    def __init__(self, count: int, on_failure: Callable[[_Held], object]) -> None:
        self._count = count
        self._on_failure = on_failure
        self._budgets: list[ByteBudget] = []

    def __enter__(self) -> _Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._on_failure(self)

    async def take(self, budget: ByteBudget) -> None:
        """Wait for the bytes in one more budget, and take them."""
        await budget.take(self._count)
        self._budgets.append(budget)

    def become(self, count: int) -> None:
        """Change the number of bytes to ``count`` in each budget."""
        for budget in self._budgets:
            if count > self._count:
                budget.charge(count - self._count)
            else:
                budget.give(self._count - count)
        self._count = count

    def give(self) -> None:
        """Give all bytes back."""
        for budget in self._budgets:
            budget.give(self._count)
        self._budgets.clear()


def _is_urgent(header: Header) -> bool:
    """Whether a request may use the reserve, because a new leader waits for it."""
    return right_for(header.kind, header.flags) is Right.RECOVER


def _line_of(header: Header) -> Line:
    if _is_urgent(header):
        return Line.URGENT
    may_wait = header.wait_ms and header.kind in (Kind.READ, Kind.READ_LAC)
    return Line.POLL if may_wait else Line.USUAL


@attrs.define(eq=False)
class _Request:
    """A request under way. The LAC or the clock wakes a long poll."""

    header: Header
    line: Line
    places: tuple[Places, ...]
    """The ``Places`` in which the request counts."""
    _on_woken: Callable[[_Request], None]
    has_waited: bool = False
    """Whether this is a long poll whose wait is over."""

    def wake(self) -> None:
        self._on_woken(self)


class Requests:
    """The requests under way of one connection."""

    __slots__ = (
        "_all_answered",
        "_budget",
        "_held",
        "_is_draining",
        "_nursery",
        "_outbox",
        "_peer",
        "_polls",
        "_queue",
        "_shared",
        "access",
        "party",
        "under_way",
    )

    def __init__(self, shared: Shared, party: Party, outbox: Outbox, peer: str) -> None:
        self._shared = shared
        self.party = party
        """The party of the client. It may change once, before the first request."""
        self._peer = peer
        self.access: Access | None = None
        """Decides which requests the client may make. Set it before the first request."""
        self._outbox = outbox
        self._budget = ByteBudget(limits.BOOKIE_CONNECTION_REPLY_BYTES)
        self._held: dict[_Held, None] = {}
        """One ``_Held`` for each reply that holds bytes of budgets."""
        self._polls: dict[_Request, None] = {}
        """The waiting long polls."""
        self._is_draining = False
        self._all_answered = trio.Event()
        self._queue: RequestQueue[_Request] = RequestQueue(
            urgent_max=limits.BOOKIE_CONNECTION_URGENT,
            polls_max=limits.BOOKIE_CONNECTION_WORKING,
            usual_max=limits.BOOKIE_CONNECTION_WORKING,
            unread_bytes_max=limits.BOOKIE_CONNECTION_UNREAD_BYTES,
        )
        self._nursery: trio.Nursery | None = None
        """The nursery for the tasks of requests. None before the first request, and after ``close``."""
        self.under_way = 0

    def begin(self, frame: Frame, nursery: trio.Nursery) -> None:
        """Queue a request, to be answered in a task of the nursery. Raises WireError if the frame is not a
        request."""
        header = frame.header
        if header.kind not in _ANSWERS:
            raise WireError(f"a message of kind {header.kind} is not a request")
        if len(frame.raw) != HEADER_BYTES:
            raise WireError(f"a request of kind {header.kind} has a body")
        line = _line_of(header)
        is_poll = line is Line.POLL
        bound = limits.BOOKIE_CONNECTION_REQUESTS - (limits.BOOKIE_CONNECTION_REQUESTS // 4 if is_poll else 0)
        places = self.party.request_places(is_poll=is_poll, is_urgent=_is_urgent(header))
        if self.under_way >= bound or places is None:
            self._refuse(header, Status.TOO_MANY_REQUESTS)
            return
        self.under_way += 1
        for each in places:
            each.requests += 1
        self._nursery = nursery
        self._queue.add(_Request(header, line, places, self._on_woken), line)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the requests of the queue that may begin now."""
        nursery = self._nursery
        if nursery is None or nursery.cancel_scope.cancel_called:
            return  # The connection ends, and ``close`` forgets the waiting requests.
        while (request := self._queue.begin()) is not None:
            nursery.start_soon(self._work_on, request)

    async def _work_on(self, request: _Request) -> None:
        """Answer a request, or let a long poll wait."""
        try:
            await self._answer(request)
        finally:
            self._queue.end(request.line)
        self._begin_waiting()

    async def _answer(self, request: _Request) -> None:
        header = request.header
        waits = False
        try:
            if request.has_waited:
                await self._pace(limits.TURN_REQUEST_BYTES)
            await self._check(header)  # Long polls get here twice, and the right may be lost meanwhile.
            waits = request.line is Line.POLL and self._begin_wait(request)
            if not waits:
                async with self.party.working[request.line]:
                    await _ANSWERS[header.kind](self, header)
        except _Refused as refusal:
            self._refuse(header, refusal.status)
        except StorageError as error:
            # The read failed: the reply must not say that the entries are absent (rule 8). A failed write
            # never gets here, because such a failure ends the engine, which cancels this task.
            self._shared.complaints.tell(f"ledger={header.ledger_id}: {error}")
            is_damage = isinstance(error, StorageCorrupt)
            self._refuse(header, Status.CORRUPT if is_damage else Status.IO_ERROR)
        finally:
            if not waits:
                self._forget(request)

    def _forget(self, request: _Request) -> None:
        self.under_way -= 1
        for each in request.places:
            each.requests -= 1
        if not self.under_way:
            self._all_answered.set()

    async def _check(self, header: Header) -> None:
        """Raise _Refused unless the client may make this request."""
        access = self.access
        assert access is not None
        status = await access.check(header)
        if status is not None:
            self._shared.tell_refused(self._peer, access, header, status)
            raise _Refused(status)

    # --- long polls -----------------------------------------------------------------------------

    def _begin_wait(self, request: _Request) -> bool:
        """Let a long poll wait for the LAC. Return False if the poll has nothing to wait for, or has waited
        already."""
        header = request.header
        if request.has_waited or self._is_draining or not _makes_sense(header):
            return False
        entry_id = header.first if header.kind == Kind.READ else header.first + 1
        if not self._shared.engine.await_lac(header.ledger_id, entry_id, request):
            return False
        self._shared.polls.add(request, min(header.wait_ms / 1000, limits.LONG_POLL_S))
        self._polls[request] = None
        return True

    def _end_wait(self, request: _Request) -> None:
        del self._polls[request]
        self._shared.polls.remove(request)
        self._shared.engine.forget_lac(request.header.ledger_id, request)

    def _on_woken(self, request: _Request) -> None:
        """The LAC has come, or the time is up."""
        self._end_wait(request)
        request.has_waited = True
        self._queue.add(request, request.line)
        self._begin_waiting()

    def end_polls(self) -> None:
        """End the wait of every long poll, so that it is answered now."""
        for request in list(self._polls):
            request.wake()

    # --- the end --------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """End the wait of every long poll now. Long polls that come later do not wait."""
        self._is_draining = True
        self.end_polls()

    async def wait_all_answered(self) -> None:
        """Return once no request is under way."""
        while self.under_way:
            self._all_answered = trio.Event()
            await self._all_answered.wait()

    def close(self) -> None:
        """Give back the places of waiting requests, and the bytes of replies that were not sent. Call this
        when the connection has ended. The access refers to this object, so this object forgets the access. If
        each still referred to the other, only the garbage collector could free them."""
        self._nursery = None
        self.access = None
        polls = list(self._polls)
        for request in polls:
            self._end_wait(request)
        for request in (*polls, *self._queue.clear()):
            self._forget(request)
        held, self._held = self._held, {}
        for each in held:
            each.give()

    # --- each kind ------------------------------------------------------------------------------

    async def _read(self, header: Header) -> None:
        if not _makes_sense(header):
            self._refuse(header, Status.BAD_REQUEST)
            return
        stride = header.entry_count
        bytes_max = min(header.argument, limits.READ_REPLY_BYTES_TARGET)
        with await self._take(bytes_max, header) as held:
            engine = self._shared.engine
            read = partial(engine.recovery_read, key=header.key) if header.flags & RECOVERY else engine.read
            result = await read(
                header.ledger_id,
                first=header.first,
                last=header.last,
                stride=stride,
                bytes_max=bytes_max,
                pace=self._pace,
            )
            if result.status in _UNREADABLE:
                self._shared.complaints.tell(
                    f"ledger={header.ledger_id}: entries after entry {result.through} cannot be read: "
                    f"{Status(result.status).name}"
                )
            self._reply(_encode_read_reply(header, result), held)

    async def _fence(self, header: Header) -> None:
        result = await self._shared.engine.fence(header.ledger_id, header.key)
        self._reply([_encode_reply(header, result.status, lac=result.lac, lafr=result.lafr)])

    async def _read_lac(self, header: Header) -> None:
        engine = self._shared.engine
        lac, lafr = engine.lac(header.ledger_id)
        last = engine.last_durable(header.ledger_id)
        # If the ledger is in limbo, the last entry here may not be the last one that clients sent (A.3).
        status = Status.UNKNOWN if engine.loss_marks.now.denies_nothing(header.ledger_id) else Status.OK
        self._reply([_encode_reply(header, status, last=last, lac=lac, lafr=lafr)])

    async def _list(self, header: Header) -> None:
        last = header.last or limits.ENTRY_ID_MAX  # Some clients do not give an end.
        if not 0 <= header.first <= last:
            self._refuse(header, Status.BAD_REQUEST)
            return
        with await self._take(16 * _LIST_PAIRS_MAX, header) as held:
            result = await self._shared.engine.list_entries(
                header.ledger_id, first=header.first, last=last, pairs_max=_LIST_PAIRS_MAX, pace=self._pace
            )
            assert len(result.pairs) <= _LIST_PAIRS_MAX
            body = encode_pairs(result.pairs)
            self._reply([_encode_reply(header, result.status, argument=result.through, body=body)], held)

    async def _scrub(self, header: Header) -> None:
        classes = header.entry_count
        is_sensible = 0 <= header.first <= header.last and 1 <= classes <= limits.SCRUB_BLOCK_ENTRIES
        if not is_sensible or header.argument < 1:
            self._refuse(header, Status.BAD_REQUEST)
            return
        with await self._take(limits.READ_REPLY_BYTES_TARGET, header) as held:
            async with self.party.scrubbing:  # The engine does one scrub at a time.
                result = await self._shared.engine.scrub(
                    header.ledger_id,
                    first=header.first,
                    last=header.last,
                    classes=classes,
                    bytes_max=min(header.argument, limits.SCRUB_BYTES),
                    pace=self._pace,
                )
            body = encode_scrub(result.report)
            assert len(body) <= limits.READ_REPLY_BYTES_TARGET
            self._reply([_encode_reply(header, result.status, argument=result.through, body=body)], held)

    async def _ledgers(self, header: Header) -> None:
        if not compare_digest(header.key, self._shared.listing_key):
            self._refuse(header, Status.UNAUTHORIZED)
            return
        with await self._take(32 * LEDGERS_MAX, header) as taken:
            engine = self._shared.engine
            # Look at the marks first: if limbo ends during the listing, the list may lack what was copied.
            status = Status.UNKNOWN if engine.loss_marks.now.limbo else Status.OK
            held, through = await engine.list_ledgers(header.ledger_id, LEDGERS_MAX)
            body = encode_ledgers(held)
            self._reply([_encode_reply(header, status, argument=through, body=body)], taken)

    async def _info(self, header: Header) -> None:
        await self._pace(
            2 * limits.TURN_REQUEST_BYTES
        )  # Encoding all figures costs as much as three requests.
        body = encode_record(self._shared.figures())
        self._reply([_encode_reply(header, Status.OK, body=body)])

    # --- parts ----------------------------------------------------------------------------------

    async def _pace(self, cost: int) -> None:
        """Wait until the client's party may do ``cost`` bytes of work."""
        fair = self._shared.fair
        if not fair.take(self.party, cost):
            await fair.turn(self.party, cost, self)

    async def _take(self, count: int, header: Header) -> _Held:
        """Take the bytes that a reply may need."""
        held = _Held(count, self._give)
        self._held[held] = None
        with held:
            await held.take(self._budget)
            for budget in self.party.reply_budgets(count, is_urgent=_is_urgent(header)):
                await held.take(budget)
        return held

    def _give(self, held: _Held) -> None:
        if held in self._held:  # Otherwise ``close`` has given the bytes back.
            del self._held[held]
            held.give()

    def _reply(self, buffers: list[Buffer], held: _Held | None = None) -> None:
        """Send a reply. If it holds bytes of budgets (``held``), correct their number to the size of the
        reply. Most replies are smaller than expected. A reply of one entry may be larger."""
        if held is None:
            self._outbox.reply(buffers)
            return
        count = buffers_bytes(buffers)
        held.become(count)
        self._queue.hold(count)

        def on_sent() -> None:
            self._queue.release(count)
            self._give(held)
            self._begin_waiting()

        self._outbox.reply(buffers, on_sent)

    def _refuse(self, header: Header, status: Status) -> None:
        self._shared.count_refused(status)
        # The bookie looked at no entry, so ``argument`` (the last id that the reply covers) is below the
        # first one. The client must not conclude that entries missing from this reply are absent (rule 8).
        self._outbox.reply([_encode_reply(header, status, argument=header.first - 1)])


_ANSWERS = {
    Kind.FENCE.value: Requests._fence,
    Kind.READ.value: Requests._read,
    Kind.READ_LAC.value: Requests._read_lac,
    Kind.LIST.value: Requests._list,
    Kind.INFO.value: Requests._info,
    Kind.SCRUB.value: Requests._scrub,
    Kind.LEDGERS.value: Requests._ledgers,
}


def _makes_sense(header: Header) -> bool:
    """Whether a READ or a READ_LAC can be answered."""
    if header.kind == Kind.READ_LAC:
        return True
    return 0 <= header.first <= header.last and header.entry_count >= 1 and header.argument >= 1


def _encode_reply(
    header: Header,
    status: int,
    *,
    last: int | None = None,
    lac: int = -1,
    lafr: int = -1,
    argument: int = 0,
    body: bytes = b"",
) -> bytes:
    """Encode a reply without entries. It repeats the request's ledger and range. ``last``, if given, replaces
    the end of the range."""
    return encode_head(
        header.kind | REPLY,
        status=status,
        request=header.request,
        ledger_id=header.ledger_id,
        first=header.first,
        last=header.last if last is None else last,
        lac=lac,
        lafr=lafr,
        argument=argument,
        index=body,
    )


def _encode_read_reply(header: Header, result: ReadResult) -> list[Buffer]:
    entries = result.entries
    if not len(entries):
        head = _encode_reply(header, result.status, lac=result.lac, lafr=result.lafr, argument=result.through)
        return [head]
    assert len(entries) <= limits.FRAME_ENTRIES_MAX, "a reply's entries fit a frame"
    head = encode_head(
        Kind.READ | REPLY,
        flags=entries.flags,
        status=result.status,
        count=len(entries),
        request=header.request,
        ledger_id=header.ledger_id,
        first=entries.first,
        last=entries.last,
        lac=result.lac,
        lafr=result.lafr,
        argument=result.through,
        index=entries.index_part(),
        payload_bytes=len(entries.payload),
    )
    return [head, entries.payload]
