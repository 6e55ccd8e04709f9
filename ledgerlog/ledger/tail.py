"""Reading a ledger in order, and sharing the work among all tasks that follow its end.

A ``LedgerTail`` waits for entries, reads them and decodes each entry once. It keeps the newest ones for the
other followers of the ledger in this process, up to ``limits.TAIL_KEPT_BYTES``. So a hundred followers cost
the bookies no more than one. In this process, each extra follower costs only the handing out of records.

The tail has no task of its own: the followers do the work. One follower at the end of the ledger waits for
entries, reads them, and hands them out to all that are at the end (``LedgerTail.follow``). The others sleep
meanwhile. A follower wakes up only if it cannot take an entry, or if it has to do the work now: because the
task that did it was cancelled, or because its attempt failed. So an error is raised only in the follower
whose attempt failed, and each of the others makes its own attempt. But if the metadata store was away for too
long, all followers raise that.

If a follower needs entries that are no longer kept, it reads them by itself, as if there were no other
followers, until it has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import attrs
import trio

from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import LedgerLogError, MetadataUnavailable
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.limits import READ_REPLY_BYTES_TARGET, TAIL_KEPT_BYTES

__all__ = ["LedgerTail", "LedgerTails"]

T = TypeVar("T")

_DECODED_BYTES_MAX = 2 * READ_REPLY_BYTES_TARGET
"""About how many decoded bytes one call of ``read`` returns. Decoded entries may be larger than the reply
that brought them."""


class _Turn:
    """A piece of work that only one task does at a time. Its result serves all tasks that wait meanwhile."""

    def __init__(self) -> None:
        self.rounds = 0
        """How often the work was done."""
        self._is_taken = False
        self._over = trio.lowlevel.ParkingLot()

    async def wait_round(self) -> bool:
        """Return True if the caller must do the work now, in the body of ``taken``. Return False after
        another task has done the work."""
        rounds = self.rounds
        while self._is_taken:
            await self._over.park()
        return rounds == self.rounds

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A context manager: do the work in its body. If the body fails, the work does not count as done."""
        assert not self._is_taken
        self._is_taken = True
        try:
            yield
            self.rounds += 1
        finally:
            self._is_taken = False
            self._over.unpark_all()


@attrs.define(eq=False)
class _AtEnd(Generic[T]):
    """A follower that has had all entries."""

    next: int
    """The entry that it waits for."""
    take: Callable[[int, T], bool]
    wakes: trio.Event = attrs.Factory(trio.Event)
    """Set when it has to do something."""
    failure: MetadataUnavailable | None = None
    """Why it cannot go on."""


class LedgerTail(Generic[T]):
    """The entries of a ledger in order, for one task or for several.

    Args:
        reader: Reads the ledger.
        decode: Turns an entry's id and payload into the item that ``read`` returns, and its size in bytes.
        kept_bytes_max: How many bytes of decoded entries to keep for other followers.
    """

    def __init__(
        self, reader: LedgerReader, decode: Callable[[int, bytes], tuple[T, int]], *, kept_bytes_max: int = 0
    ) -> None:
        self.reader = reader
        self.followers = 0
        self._decode = decode
        self._kept_bytes_max = kept_bytes_max
        self._kept: deque[tuple[T, int]] = deque()
        """The newest decoded entries, with their sizes."""
        self._kept_bytes = 0
        self._next = 0
        """The entry after the last kept one."""
        self._raw: deque[bytes] = deque()
        """The payloads from ``_next`` on that were read but are not decoded yet."""
        self._at_end: dict[_AtEnd[T], None] = {}
        self._polled: int | None = None
        """The first of the entries that one of those at the end waits for, or hands out. None: none does."""
        self._reading = _Turn()

    async def follow(self, first: int, take: Callable[[int, T], bool]) -> int:
        """Wait at the end of the ledger, and pass each new entry to ``take`` at once.

        Args:
            first: The first entry that the caller needs, at least 0.
            take: Called with the id and the item of each entry, in order, in any of the followers' tasks. It
                returns whether it has taken the entry. It must not raise.

        Returns:
            The first entry that was not taken. It is ``first`` if an entry can be read already, if
            ``LedgerReader.wait_beyond`` returned without a new one, and if all others at the end need only
            later entries.

        Raises:
            LedgerLogError: The errors of ``LedgerReader.wait_beyond`` and of ``read``. Entries that were
                taken before stay taken.
        """
        reader = self.reader
        if reader.is_closed or reader.readable >= first:
            await trio.lowlevel.checkpoint()
            return first
        if self._polled is not None and first < self._polled:
            # The place of another follower was found by a reader that knew more than this one.
            await reader.wait_beyond(first - 1)
            return first
        me = _AtEnd(first, take)
        self._at_end[me] = None
        try:
            while me in self._at_end:
                if self._polled is not None:
                    me.wakes = trio.Event()
                    await me.wakes.wait()
                else:
                    await self._poll(me)
        finally:
            self._at_end.pop(me, None)
            if self._polled is None and self._at_end:
                next(iter(self._at_end)).wakes.set()  # It does the work now.
        if me.failure is not None:
            raise fresh(me.failure)
        return me.next

    async def _poll(self, me: _AtEnd[T]) -> None:
        """Wait for entries and hand them out, until a poll brings nothing or ``me`` cannot take an entry."""
        try:
            while me in self._at_end:
                self._polled = first = min(follower.next for follower in self._at_end)
                try:
                    last = await self.reader.wait_beyond(first - 1)
                except MetadataUnavailable as away:
                    # All of them have waited for the store. If each tried it anew, they would end one by one.
                    for follower in self._at_end:
                        follower.failure = away
                    self._send_away(*self._at_end)
                    return
                if last < first:
                    self._send_away(*self._at_end)
                else:
                    self._hand_out(first, await self.read(first, last))
        finally:
            self._polled = None

    def _hand_out(self, first: int, items: list[T]) -> None:
        for follower in [*self._at_end]:
            for item in items[follower.next - first :]:
                if not follower.take(follower.next, item):
                    self._send_away(follower)
                    break
                follower.next += 1

    def _send_away(self, *followers: _AtEnd[T]) -> None:
        """Let followers go on by themselves."""
        for follower in followers:
            del self._at_end[follower]
            follower.wakes.set()

    async def read(self, first: int, last: int) -> list[T]:
        """Return decoded entries from ``first`` on: at least one, and none after ``last``.

        Args:
            first: The first entry, at least 0.
            last: The last entry that may be returned. It can be read.

        Raises:
            LedgerLogError: The errors of ``LedgerReader.read_batch``, and the errors of ``decode`` for the
                entry ``first``.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            kept_first = self._next - len(self._kept)
            if kept_first <= first < self._next:
                return self._take_kept(first - kept_first, last - first + 1)
            if first < self._next:
                return await self._read_alone(first, min(last, kept_first - 1))
            if await self._reading.wait_round():
                with self._reading.taken():
                    return await self._read_for_all(first, last)

    def _take_kept(self, at: int, count: int) -> list[T]:
        kept = self._kept
        return [kept[index][0] for index in range(at, min(len(kept), at + count))]

    async def _read_alone(self, first: int, last: int) -> list[T]:
        payloads = await self.reader.read_batch(first, last, bytes_max=READ_REPLY_BYTES_TARGET)
        found, _ = self._decoded(first, deque(payloads))
        return [item for item, _ in found]

    async def _read_for_all(self, first: int, last: int) -> list[T]:
        if first != self._next or not self._raw:
            payloads = await self.reader.read_batch(first, last, bytes_max=READ_REPLY_BYTES_TARGET)
            if first != self._next:
                self._kept.clear()
                self._kept_bytes = 0
            self._next, self._raw = first, deque(payloads)
        found, size = self._decoded(first, self._raw, last)
        self._next += len(found)
        if self._kept_bytes_max:
            self._kept.extend(found)
            self._kept_bytes += size
            while self._kept_bytes > self._kept_bytes_max:
                self._kept_bytes -= self._kept.popleft()[1]
        return [item for item, _ in found]

    def _decoded(
        self, first: int, payloads: deque[bytes], last: int | None = None
    ) -> tuple[list[tuple[T, int]], int]:
        """Remove payloads from ``payloads`` and decode them: at least one, and at most about
        ``_DECODED_BYTES_MAX``."""
        found: list[tuple[T, int]] = []
        size = 0
        while payloads and size < _DECODED_BYTES_MAX and (last is None or first + len(found) <= last):
            try:
                item = self._decode(first + len(found), payloads[0])
            except LedgerLogError:
                if not found:
                    payloads.clear()
                    raise
                break  # The next call, which begins with this entry, raises.
            payloads.popleft()
            found.append(item)
            size += item[1]
        return found, size


class LedgerTails:
    """The tails that several followers in this process share."""

    def __init__(self) -> None:
        self._tails: dict[Hashable, LedgerTail[Any]] = {}

    @contextmanager
    def follow(
        self,
        ledger_id: int,
        kind: Hashable,
        reader: LedgerReader,
        decode: Callable[[int, bytes], tuple[T, int]],
    ) -> Iterator[LedgerTail[T]]:
        """Share the tail of a ledger with all its followers in this process, for the body of the ``with``.

        Args:
            ledger_id: The ledger.
            kind: The kind of objects that ``decode`` returns. Followers with equal kinds share a tail.
            reader: Reads the ledger. It is used only if the ledger has no follower of this kind yet.
            decode: As for ``LedgerTail``. It is used only if the ledger has no follower of this kind yet.
        """
        key = (ledger_id, kind)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = LedgerTail(reader, decode, kept_bytes_max=TAIL_KEPT_BYTES)
        tail.followers += 1
        try:
            yield tail
        finally:
            tail.followers -= 1
            if not tail.followers:
                del self._tails[key]
