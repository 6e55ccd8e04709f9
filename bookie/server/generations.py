"""Generations: a bookie notices that its directory was rolled back.

An operator may restore an older copy of the directory, for example a snapshot of a virtual machine. The copy
has the right identity (``identity``), but lacks the entries that the bookie acknowledged later. So the
directory's cookie and the store's cookie both count *generations*, and each generation has a random name, its
token. A bookie counts a new generation

- at each start, before it opens the journal,
- every ten minutes while it serves,
- at each clean stop, after the journal is closed.

So a restored copy is noticed if the bookie has counted after the copy was made.

**Counting** takes two steps:

    1  write the new token into the directory's cookie, as a generation that was begun
    2  count it in the store's cookie, by compare-and-set

The directory is *current* (not older than the store) after a crash at any point. After a crash between the
two steps, the last generation that the directory counted is also the last one that the store counted. After a
crash after step 2, the directory has begun the generation that the store counted last. So no crash sends the
ledgers of a sound directory into limbo. In a directory of version 0.1, and in its cookie in the store, the
generation is 0.

**At a start** the bookie waits until no other process is registered under its id, and then compares the two
cookies. If the directory is behind the store (older than it), the bookie marks the directory as if a disk was
lost (``phase_one``), and then counts a generation. If the bookie crashes after the marking, the next start
marks the directory again.

If the directory is ahead of the store, the bookie trusts the directory: the store was restored from an older
backup. If both were rolled back, their generations may be equal, and the bookie notices nothing.

**Copies of a directory.** If a process starts on a copy while the original serves, the new process is refused
before it counts, so the original is not harmed. If two processes start on two copies at the same time, one of
them is refused before it serves a client: by the compare-and-set, or when it registers (``registration``). If
a copy is served after its original has stopped, the store counts the generations of the copy. If the original
starts later, it is behind the store. Never start a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from bookie.storage.engine.directory import StorageDirectory
from ledgerlog.errors import CookieMismatch, LedgerLogError, StorageError
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Check, MetadataStore, NodeMissing, VersionConflict, Versioned
from ledgerlog.model import layout
from ledgerlog.model.bookie import Age, Cookie
from ledgerlog.model.ledger import MetadataCorrupt

logger = logging.getLogger(__name__)

RandomBytes = Callable[[int], bytes]
"""Returns the given number of unguessable bytes."""

_TOKEN_BYTES = 8

_INTERVAL_S = 600.0
"""A serving bookie counts a generation this often. So a copy that is older than this is always noticed."""

_STOP_S = 2.0
"""A clean stop waits at most this many seconds for the store to count."""


def new_token(random_bytes: RandomBytes) -> str:
    """Return a name for a new generation."""
    return random_bytes(_TOKEN_BYTES).hex()


async def compare_generations(directory: StorageDirectory, here: Cookie, there: Cookie) -> Age:
    """Compare the directory with the store.

    Args:
        directory: The directory.
        here: The directory's cookie.
        there: The store's cookie of this bookie.

    Returns:
        BEHIND if the directory or the journal's own directory is behind the store; else the age of ``here``.
    """
    data = await directory.read_journal_cookie()
    if data is not None and Cookie.decode_untrusted(data, here.bookie_id).age(there) is Age.BEHIND:
        return Age.BEHIND
    return here.age(there)


async def count_generation(
    store: MetadataStore, directory: StorageDirectory, here: Cookie, node: Versioned, token: str
) -> Cookie:
    """Count a generation: first in the directory, then in the store by compare-and-set.

    Args:
        store: The cluster's metadata store.
        directory: The locked directory.
        here: The directory's cookie.
        node: The store's cookie of this bookie, as it was read for the comparison.
        token: The name of the new generation. If ``here`` has this name already, the directory was just
            formatted, and ``here`` is the cookie to store.

    Returns:
        The cookie that the store has now.

    Raises:
        CookieMismatch: Another process changed the store's cookie since ``node`` was read.
        StorageError: The directory's cookie cannot be written.
        MetadataOutcomeUnknown: The generation may have been counted. The directory is current.
        MetadataUnavailable, SessionExpired: The generation was not counted. The directory is current.
    """
    path = layout.cookie_path(here.bookie_id)
    there = Cookie.decode_untrusted(node.value, here.bookie_id)
    is_formatted = here.generation_token == token
    begun = here if is_formatted else here.begin_generation(there if here == there else None, token)
    if not is_formatted:
        await directory.replace_cookie(begun)

    async def write(is_again: bool) -> Cookie:
        nonlocal node, there
        if is_again:
            again = await store.get(path)
            now = None if again is None else Cookie.decode_untrusted(again.value, here.bookie_id)
            if again is None or now is None:
                raise _counted_elsewhere(directory, here)
            if now == begun and now.generation_token == token:
                return now
            if again != node and (now != begun or begun.age(now) is not Age.CURRENT):
                raise _counted_elsewhere(directory, here)
            node, there = again, now
        counted = here if is_formatted else begun.counted(there, token)
        try:
            await store.set(path, counted.encode(), version=node.version)
        except (VersionConflict, NodeMissing):
            if is_again:
                raise  # ``settle`` then calls ``write`` again, and that call reads the cookie.
            return await write(True)
        return counted

    return await settle(store, write, what=f"counting a generation of bookie {here.bookie_id}")


def _counted_elsewhere(directory: StorageDirectory, here: Cookie) -> CookieMismatch:
    return CookieMismatch(
        f"the cookie of bookie {here.bookie_id} in the metadata store is not the one that {directory.path} "
        "counted last: check whether another process serves that id, for example from a copy of the "
        "directory, then start again"
    )


class Generations:
    """Counts the generations of a serving bookie's directory."""

    def __init__(
        self, store: MetadataStore, directory: StorageDirectory, cookie: Cookie, random_bytes: RandomBytes
    ) -> None:
        """Create the counter. The directory's generation was counted at its start.

        Args:
            store: The cluster's metadata store.
            directory: The locked directory.
            cookie: The identity of the directory.
            random_bytes: Makes the names of generations.
        """
        self._store = store
        self._directory = directory
        self._cookie = cookie
        self._random_bytes = random_bytes
        self._mark: bytes | None = None
        """The value at ``layout.CLUSTER`` at the start. It changes if the store is restored."""

    async def run(self) -> None:
        """Count a generation every ten minutes until you cancel this. If counting fails, log it and
        continue."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self._count()

    async def claim(self) -> Check | None:
        """Make sure that no other data has been served under the bookie's id since this process started. Call
        it before each write of the registration: this process may have been cut off from the store for long.

        If the store was restored since the start, its cookie may be older than the directory, so this only
        logs a difference.

        Returns:
            The check that the store's cookie is still the same. None if the store has no cookie of the
            bookie.

        Raises:
            CookieMismatch: The store's cookie names other data, or another process counted a generation.
            MetadataUnavailable: The store cannot be reached.
            SessionExpired: The session ended.
        """
        path = layout.cookie_path(self._cookie.bookie_id)
        cluster, node = await self._store.get(layout.CLUSTER), await self._store.get(path)
        mark = None if cluster is None else cluster.value
        if self._mark is None:
            self._mark = mark
        if node is None:
            return None  # ``DrainingWatch`` makes the bookie read-only.
        if await self._is_elsewhere(node):
            other = _counted_elsewhere(self._directory, self._cookie)
            if mark == self._mark:
                raise other
            logger.warning("bookie=%s: the metadata store was restored: %s", self._cookie.bookie_id, other)
        return Check(path, node.version)

    async def _is_elsewhere(self, node: Versioned) -> bool:
        """Whether the store's cookie is surely not the one that this process counted last."""
        bookie_id = self._cookie.bookie_id
        try:
            there = Cookie.decode_untrusted(node.value, bookie_id)
            if there.instance != self._cookie.instance:
                return True
            here = await self._directory.read_cookie()
            return here is not None and Cookie.decode_untrusted(here, bookie_id).age(there) is Age.BEHIND
        except (StorageError, MetadataCorrupt) as trouble:
            logger.warning("bookie=%s: its generation cannot be compared now: %s", bookie_id, trouble)
            return False

    async def stop(self) -> None:
        """Count a last generation, after the journal is closed. Wait at most two seconds for it."""
        with trio.move_on_after(_STOP_S, shield=True):
            await self._count()

    async def _count(self) -> None:
        bookie_id = self._cookie.bookie_id
        try:
            here = await self._directory.read_cookie()
            node = await self._store.get(layout.cookie_path(bookie_id))
            if here is None or node is None:
                return  # The bookie was decommissioned, or its cookie file removed. The next start says so.
            mine = Cookie.decode_untrusted(here, bookie_id)
            there = Cookie.decode_untrusted(node.value, bookie_id)
            if there != mine or mine.age(there) is Age.BEHIND:
                raise _counted_elsewhere(self._directory, mine)
            await count_generation(self._store, self._directory, mine, node, new_token(self._random_bytes))
        except LedgerLogError as trouble:
            logger.warning("bookie=%s: a generation was not counted: %s", bookie_id, trouble)
