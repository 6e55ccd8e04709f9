"""Whose directory is this: the cookie check that stands before everything a bookie serves.

A bookie answers "no such entry", and recovery counts that answer: enough of them end a ledger. So the
answer of a bookie whose disk was emptied or exchanged is a lie that loses acknowledged entries
(#2612, #4812, scenario BP-46). The *cookie* binds an identity to its data: bookie id, a random *instance*
made when the directory was formatted, and the cluster that it was formatted for. It is kept in the
directory and in the metadata store, and a bookie serves only while the two are equal.

**The order.** Lock the directory; read both cookies; judge; only then open the journal and serve.

    directory      store          judgement
    none, empty    none           format: a new instance; write the directory's cookie, then the store's
    a cookie, no   none           complete: the format before us stopped between its two writes. Nothing
      journal                     can have been served, since serving comes after the second write
    equal          equal          go on
    anything else                 CookieMismatch

What an interrupted format left is no data (``StorageDirectory.has_data``). A directory with a cookie has an
index from its formatting on, and its first journal segment from the first time it was opened for clients.
That the index and the segments are still there is for the storage to check.

**Fixing.** Where a disk was emptied or exchanged an operator may have it served all the same
(``fix_cookie``): under the same id, marked first for the loss of everything (``phase_one``). Before the fix
is written down, that is: an emptied directory is formatted anew, with a new instance, and gets its marks
before its cookie; one with another instance of this bookie is marked and then adopted, and so is one that the
store has forgotten. The store's cookie comes last. A crash in between leaves another mismatch, to be fixed
the same way. Data without a cookie, another bookie's or another cluster's directory stay refused: what they
are is for a person to find out. So is an id under which somebody is registered, since he may be alive.

"Anything else" is told apart in words only, with what an operator can do: an emptied directory, data
without a cookie, a store that forgot the bookie, another instance, another bookie, another cluster.

**Why this order of the two writes.** The other way round, a crash between them would leave a store that
knows an instance which no directory carries: an empty directory whose bookie may never start again.
This way it leaves a directory that can say who it is, and that has no journal. A store that lost its
cookie looks the same as that only while the directory has no journal either, and then nothing is lost.

**Races.** Two processes with one id and two directories may both find nothing in the store. Both create the
store's cookie; one gets NodeExists, looks again, and meets the other's.

**No cluster** is made here: an empty store is one that was mistyped or lost, until an operator says otherwise
(``ledgerlog metadata init``). From its start on the bookie belongs to the cluster of its cookie, and so does
its store (``MetadataStore.belong_to``): what becomes of the store later is told there.

**What it cannot tell** is a copy of a directory from the directory: both carry the cookie, each has a lock of
its own. That two of them do not serve at once is for the registration to see (``registration``), which comes
before the first client. A copy that is served after its original has stopped is an older state of the bookie
under its name, and nothing here finds that: never start one.

**A lost answer** is settled by looking (``meta.settle``): the cookie that is there is ours or not. Where that
cannot be found out it is MetadataOutcomeUnknown, and the next start looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from bookie.core.loss_marks import Marks
from bookie.server.phase_one import marks_after_loss
from bookie.storage.disk.loss_marks import read_marks, write_marks
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.journal.segments import SegmentFiles
from ledgerlog.errors import CookieMismatch, InvalidArgument, StorageCorrupt
from ledgerlog.limits import SESSION_TIMEOUT_S
from ledgerlog.meta.belonging import join_cluster
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import MetadataStore, NodeExists, NodeMissing, VersionConflict, Versioned
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt

logger = logging.getLogger(__name__)

RandomBytes = Callable[[int], bytes]
"""Unguessable bytes, that many."""

_ROLES = ("journal", "index")
_GENERATED_ID_BYTES = 4
_INSTANCE_BYTES = 16

_FORMER_LIFE_S = SESSION_TIMEOUT_S + 2.0
"""By then the registration of a process that is gone has gone with its session."""


async def establish_identity(
    store: MetadataStore,
    directory: StorageDirectory,
    *,
    bookie_id: BookieId | None,
    random_bytes: RandomBytes,
    fix_cookie: bool = False,
) -> Cookie:
    """The cookie of a directory that may be served from now on, formatted where it is new.

    ``fix_cookie``: where the directory was emptied or exchanged, mark it for the loss and take it into
    service.

    ``bookie_id`` is whom the operator expects; None is whoever the directory belongs to, or a new,
    generated id. Raises ClusterNotFound where the store has no cluster in it, CookieMismatch where the two
    sides disagree, StorageCorrupt where the directory's cookie does not decode, MetadataCorrupt where the
    store's does not, InvalidArgument for a malformed id, StorageError, MetadataUnavailable and
    MetadataOutcomeUnknown. Cancelled or failed, it may have formatted the directory, and the next call
    completes that."""
    here = await read_cookie(directory)
    if here is not None and bookie_id is not None and here.bookie_id != bookie_id:
        raise CookieMismatch(
            f"{directory.path} belongs to bookie {here.bookie_id}, not to {bookie_id}: "
            f"start it with --id {here.bookie_id}, or {bookie_id} on its own directory"
        )
    if bookie_id is None:
        bookie_id = here.bookie_id if here else f"bookie-{random_bytes(_GENERATED_ID_BYTES).hex()}"
    check_bookie_id(bookie_id)
    cluster = await join_cluster(store)
    node = await store.get(layout.cookie_path(bookie_id))
    there = None if node is None else Cookie.decode_untrusted(node.value, bookie_id)
    has_data = await _has_data(directory, here)
    problem = judge_cookies(
        here,
        there,
        path=directory.path,
        bookie_id=bookie_id,
        cluster=cluster,
        has_data=has_data,
    )
    fresh = Cookie(
        bookie_id=bookie_id,
        instance=random_bytes(_INSTANCE_BYTES).hex(),
        cluster=cluster,
        directories=_ROLES,
    )
    if problem is not None:
        is_foreign = here is not None and here.cluster != cluster
        if not fix_cookie or is_foreign or (here is None and has_data):
            raise CookieMismatch(problem)
        await _wait_unregistered(store, bookie_id)
        logger.warning("bookie=%s: its cookie is fixed: %s", bookie_id, problem)
        return await _fix(store, directory, here, node, fresh)
    if here is None:
        here = fresh
        await directory.format(here)
    if there is None:
        await _store_cookie(store, directory, here)
    return here


async def _fix(
    store: MetadataStore,
    directory: StorageDirectory,
    here: Cookie | None,
    node: Versioned | None,
    fresh: Cookie,
) -> Cookie:
    """Take a directory that lost data into service: the marks, then its cookie, then the store's."""
    if here is None:
        here = fresh
        await directory.format(here, await marks_after_loss(store, None))
    else:
        marks: Marks | None = await read_marks(directory.disk, directory.path)
        await write_marks(directory.disk, directory.path, await marks_after_loss(store, marks))
    path = layout.cookie_path(here.bookie_id)
    if node is None:
        await _store_cookie(store, directory, here)
        return here
    version = node.version

    async def write(_: bool) -> None:
        try:
            await store.set(path, here.encode(), version=version)
        except (VersionConflict, NodeMissing):
            if await _stored_cookie(store, here.bookie_id) != here:
                raise CookieMismatch(
                    f"the cookie of bookie {here.bookie_id} was changed in the metadata store while it was "
                    f"fixed for {directory.path}: look whether another process serves that id, and start "
                    "again"
                ) from None

    await settle(store, write, what=f"the replacement of the cookie of bookie {here.bookie_id}")
    return here


async def _wait_unregistered(store: MetadataStore, bookie_id: BookieId) -> None:
    """Return once nobody is registered under the id; CookieMismatch if that does not end, because then
    somebody serves it, from the directory that this one is to replace."""
    places = (layout.writable_path(bookie_id), layout.read_only_path(bookie_id))
    with trio.move_on_after(_FORMER_LIFE_S):
        async with store.watch(places[0]) as writable, store.watch(places[1]) as read_only:
            while True:
                if await store.get(places[0]) is not None:
                    await writable.wait()
                elif await store.get(places[1]) is not None:
                    await read_only.wait()
                else:
                    return
    raise CookieMismatch(
        f"bookie {bookie_id} is registered by a process that lives: its directory is in use, and no other "
        "is taken in its place. Stop that process first"
    )


def judge_cookies(
    here: Cookie | None,
    there: Cookie | None,
    *,
    path: str,
    bookie_id: BookieId,
    cluster: str,
    has_data: bool,
) -> str | None:
    """What speaks against serving ``bookie_id`` from the directory ``path``; None where nothing does.

    ``here`` is the directory's cookie, ``there`` the metadata store's, ``cluster`` the store's own id."""
    if here is not None and here.cluster != cluster:
        return (
            f"{path} was formatted for cluster {here.cluster}, and the metadata store is that of cluster "
            f"{cluster}: give --metadata the store that this bookie belongs to"
        )
    if here is None and there is None:
        if has_data:
            return (
                f"{path} has data and no cookie, and the metadata store knows no bookie {bookie_id}: "
                "put the directory's cookie file back, or start on an empty directory"
            )
        return None
    if there is None:
        assert here is not None
        if has_data:
            return (
                f"{path} has data and the cookie of bookie {bookie_id} (instance {here.instance}), and "
                "the metadata store knows no such bookie: it was decommissioned, or the store lost it. "
                "Restore the store, or start under a new --id on an empty directory"
            )
        return None
    if here is None:
        what = "has data and no cookie" if has_data else "is empty"
        return (
            f"{path} {what}, and the metadata store knows bookie {bookie_id} with instance {there.instance}: "
            "its disk was emptied or exchanged, or is not mounted. Mount the right one; if its data is "
            "lost, 'bookie cookie fix' or 'bookie run --fix-cookie' takes the empty one into service, and "
            "what is missing is copied from other bookies"
        )
    if here != there:
        return (
            f"{path} carries instance {here.instance} of bookie {bookie_id}, and the metadata store knows "
            f"instance {there.instance}: this is not the directory that the bookie served from last. "
            "Start it on that one; if that one is lost, 'bookie cookie fix' or 'bookie run --fix-cookie' "
            "takes this one into service, and what is missing is copied from other bookies"
        )
    return None


async def read_cookie(directory: StorageDirectory) -> Cookie | None:
    """The directory's cookie, None where there is none; StorageCorrupt where it does not decode."""
    data = await directory.read_cookie()
    if data is None:
        return None

    def corrupt(why: str) -> StorageCorrupt:
        return StorageCorrupt(f"{directory.path}/cookie", None, why)

    try:
        bookie_id = decode_record_untrusted(data, "cookie", corrupt).get("id", str)
        return Cookie.decode_untrusted(data, check_bookie_id(bookie_id))
    except (MetadataCorrupt, InvalidArgument) as cause:
        raise corrupt(str(cause)) from cause


async def _has_data(directory: StorageDirectory, here: Cookie | None) -> bool:
    if here is None:
        return await directory.has_data()
    return bool(await SegmentFiles(directory.disk, directory.journal_path, here.instance).numbers())


async def _stored_cookie(store: MetadataStore, bookie_id: BookieId) -> Cookie | None:
    await store.sync()
    node = await store.get(layout.cookie_path(bookie_id))
    return None if node is None else Cookie.decode_untrusted(node.value, bookie_id)


async def _store_cookie(store: MetadataStore, directory: StorageDirectory, cookie: Cookie) -> None:
    async def write(_: bool) -> None:
        try:
            await store.create(layout.cookie_path(cookie.bookie_id), cookie.encode())
        except NodeExists:
            there = await _stored_cookie(store, cookie.bookie_id)
            if there is None:
                raise  # It has gone since.
            if there != cookie:
                raise CookieMismatch(
                    f"bookie {cookie.bookie_id} was formatted somewhere else at the same time (instance "
                    f"{there.instance}): start the one in {directory.path} under another --id after "
                    "emptying it"
                ) from None

    await settle(store, write, what=f"the writing of the cookie of bookie {cookie.bookie_id}")
