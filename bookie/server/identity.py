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

"Anything else" is told apart in words only, with what an operator can do: an emptied directory, data
without a cookie, a store that forgot the bookie, another instance, another bookie, another cluster.

**Why this order of the two writes.** The other way round, a crash between them would leave a store that
knows an instance which no directory carries: an empty directory whose bookie may never start again.
This way it leaves a directory that can say who it is, and that has no journal. A store that lost its
cookie looks the same as that only while the directory has no journal either, and then nothing is lost.

**Races.** Two processes with one id and two directories may both find nothing in the store. Both create the
store's cookie; one gets NodeExists, looks again, and meets the other's. The cluster's id is made the
same way by whoever comes first.

**What it cannot tell** is a copy of a directory from the directory: both carry the cookie, each has a lock of
its own. That two of them do not serve at once is for the registration to see (``registration``), which comes
before the first client. A copy that is served after its original has stopped is an older state of the bookie
under its name, and nothing here finds that: never start one.

**A lost answer** (MetadataOutcomeUnknown) is settled by looking: the cookie that is there is ours or not.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie.storage.directory import StorageDirectory
from bookie.storage.segments import SegmentFiles
from ledgerlog.errors import CookieMismatch, InvalidArgument, MetadataOutcomeUnknown, StorageCorrupt
from ledgerlog.meta.store import MetadataStore, NodeExists
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt

RandomBytes = Callable[[int], bytes]
"""Unguessable bytes, that many."""

_ROLES = ("journal", "index")
_GENERATED_ID_BYTES = 4
_INSTANCE_BYTES = 16


async def establish_identity(
    store: MetadataStore,
    directory: StorageDirectory,
    *,
    bookie_id: BookieId | None,
    random_bytes: RandomBytes,
) -> Cookie:
    """The cookie of a directory that may be served from now on, formatted where it is new.

    ``bookie_id`` is whom the operator expects; None is whoever the directory belongs to, or a new,
    generated id. Raises CookieMismatch where the two sides disagree, StorageCorrupt where the directory's
    cookie does not decode, MetadataCorrupt where the store's does not, InvalidArgument for a malformed id,
    StorageError, and MetadataUnavailable. Cancelled or failed, it may have formatted the directory, and
    the next call completes that."""
    here = await read_cookie(directory)
    if here is not None and bookie_id is not None and here.bookie_id != bookie_id:
        raise CookieMismatch(
            f"{directory.path} belongs to bookie {here.bookie_id}, not to {bookie_id}: "
            f"start it with --id {here.bookie_id}, or {bookie_id} on its own directory"
        )
    if bookie_id is None:
        bookie_id = here.bookie_id if here else f"bookie-{random_bytes(_GENERATED_ID_BYTES).hex()}"
    check_bookie_id(bookie_id)
    cluster = await _establish_cluster(store, random_bytes)
    there = await _stored_cookie(store, bookie_id)
    problem = judge_cookies(
        here,
        there,
        path=directory.path,
        bookie_id=bookie_id,
        cluster=cluster,
        has_data=await _has_data(directory, here),
    )
    if problem is not None:
        raise CookieMismatch(problem)
    if here is None:
        here = Cookie(
            bookie_id=bookie_id,
            instance=random_bytes(_INSTANCE_BYTES).hex(),
            cluster=cluster,
            directories=_ROLES,
        )
        await directory.format(here)
    if there is None:
        await _store_cookie(store, directory, here)
    return here


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
            "lost, decommission the bookie so that its ledgers are repaired, and start under a new --id"
        )
    if here != there:
        return (
            f"{path} carries instance {here.instance} of bookie {bookie_id}, and the metadata store knows "
            f"instance {there.instance}: this is not the directory that the bookie served from last. "
            "Start it on that one, or start this one under a new --id after emptying it"
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
    node = await store.get(layout.cookie_path(bookie_id))
    return None if node is None else Cookie.decode_untrusted(node.value, bookie_id)


async def _store_cookie(store: MetadataStore, directory: StorageDirectory, cookie: Cookie) -> None:
    try:
        await store.create(layout.cookie_path(cookie.bookie_id), cookie.encode())
        return
    except NodeExists:
        pass
    except MetadataOutcomeUnknown:
        await store.sync()
    there = await _stored_cookie(store, cookie.bookie_id)
    if there is None:
        raise MetadataOutcomeUnknown(
            f"the cookie of bookie {cookie.bookie_id} may or may not reach the metadata store; start again"
        )
    if there != cookie:
        raise CookieMismatch(
            f"bookie {cookie.bookie_id} was formatted somewhere else at the same time (instance "
            f"{there.instance}): start the one in {directory.path} under another --id after emptying it"
        )


async def _establish_cluster(store: MetadataStore, random_bytes: RandomBytes) -> str:
    """The cluster's id, made where nobody has made it yet."""
    for _ in range(2):
        node = await store.get(layout.CLUSTER)
        if node is not None:
            break
        try:
            await store.create(layout.CLUSTER, random_bytes(_INSTANCE_BYTES).hex().encode())
        except NodeExists:
            pass
        except MetadataOutcomeUnknown:
            await store.sync()
    else:
        node = await store.get(layout.CLUSTER)
    if node is None:
        raise MetadataOutcomeUnknown("the cluster's id may or may not reach the metadata store; start again")
    try:
        cluster = node.value.decode("ascii")
    except UnicodeDecodeError as cause:
        raise MetadataCorrupt(f"the cluster's id {node.value[:80]!r} is not ASCII text") from cause
    if not 0 < len(cluster) <= 128 or not cluster.isalnum():
        raise MetadataCorrupt(f"the cluster's id {cluster[:80]!r} is not 1 to 128 letters and digits")
    return cluster
