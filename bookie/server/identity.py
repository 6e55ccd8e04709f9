"""The cookie check, before a bookie serves: does this directory belong to this bookie?

If a bookie lacks an entry, it answers "no such entry". Recovery counts these answers, and with enough of them
it ends the ledger before that entry. If the disk of a bookie was emptied or exchanged, that answer is false
and loses acknowledged entries (#2612, #4812, scenario BP-46). The *cookie* ties an identity to its data. It
holds the bookie id, a random *instance* made when the directory was formatted, and the cluster that it was
formatted for. One copy is in the directory and one in the metadata store. A bookie serves only if the two are
equal.

**The order.** Lock the directory, read both cookies, judge them. Only then open the journal and serve.

    directory      store          judgement
    none, empty    none           format: make a new instance; write the directory's cookie, then the store's
    a cookie, no   none           complete the format: an earlier one stopped between its two writes. The
      journal                     directory was never served, because serving comes after the second write
    equal          equal          continue, and count a generation (``generations``)
    anything else                 CookieMismatch

The files of an interrupted format do not count as data (``StorageDirectory.has_data``). Formatting makes the
index, and the first opening for clients makes the first journal segment. The storage checks that the index
and the segments are still there.

**Fixing.** If a disk was emptied or exchanged, an operator may put it into service anyway (``fix_cookie``).
The bookie keeps its id, but is first marked as if it had lost everything (``phase_one``). The marks are
written before the fix:

* If the directory was emptied, it is formatted with a new instance. The marks are written before the cookie.
* If the directory has another instance of this bookie, the directory is marked and then adopted.
* If the store has forgotten the directory's bookie, the directory is marked and then adopted, too.

The store's cookie is written last. A crash before that leaves another mismatch, and you fix that mismatch in
the same way. If neither side has a cookie, there is nothing to fix: the id may be mistyped, so the fix
refuses it and makes no new bookie. The bookie still refuses three kinds of directories, because a person must
find out what they are: data without a cookie (``repairing`` may restore it), another bookie's directory,
another cluster's directory. If a process is registered under the id, the bookie refuses the id too, because
that process may be alive.

The error messages distinguish the following cases of "anything else", and say what an operator can do: an
emptied directory, data without a cookie, a store that forgot the bookie, another instance, another bookie,
another cluster.

**Why the directory's cookie comes first.** If the store's cookie came first, a crash between the two writes
would leave an instance in the store that no directory has. The bookie could then never start again on its
empty directory. With this order, the crash leaves a directory that knows its identity and has no journal. The
state is the same if the store lost the cookie of a directory that was never used. No entries are lost then
either.

**Races.** Two processes with one id and two directories may both find nothing in the store. Both try to
create the store's cookie. One process gets NodeExists, looks again, and finds the cookie of the other.

**Clusters.** The bookie never creates a cluster; an operator does (``ledgerlog metadata init``). If the store
is empty, the bookie assumes that the address was mistyped or that the content was lost. After its start, the
bookie accepts only a store of the cluster that its cookie names. ``MetadataStore.belong_to`` describes what
happens if the store is exchanged later.

**Rolled-back directories, and copies of a directory,** have the right identity. See ``generations`` for how
the bookie notices them.

**A lost answer.** If the answer to the write of the store's cookie is lost, the bookie checks whether the
cookie in the store is its own (``meta.settle``). If it cannot find out, it raises MetadataOutcomeUnknown, and
the next start checks again.
"""

from __future__ import annotations

import logging

import attrs

from bookie.core.loss_marks import LossMarks
from bookie.server.generations import RandomBytes, compare_generations, count_generation, new_token
from bookie.server.phase_one import marks_after_loss
from bookie.server.registration import wait_unregistered
from bookie.storage.disk.loss_marks import read_marks, write_marks
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.engine.opening import refuse_newer
from bookie.storage.journal.segments import SegmentFiles
from ledgerlog.errors import CookieMismatch, IncompatibleVersion, InvalidArgument, StorageCorrupt
from ledgerlog.meta.belonging import join_cluster
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import MetadataStore, NodeExists, Versioned
from ledgerlog.model import layout
from ledgerlog.model.bookie import Age, Cookie
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt

logger = logging.getLogger(__name__)


_ROLES = ("journal", "index")
_GENERATED_ID_BYTES = 4
_INSTANCE_BYTES = 16


async def establish_identity(
    store: MetadataStore,
    directory: StorageDirectory,
    *,
    bookie_id: BookieId | None,
    random_bytes: RandomBytes,
    place: str = "",
    fix_cookie: bool = False,
) -> Cookie:
    """Return the cookie of a directory that may now be served. If the directory is new, format it.

    Args:
        store: The cluster's metadata store.
        directory: The locked directory.
        bookie_id: The id that the operator expects. None: the id that the directory has, or a generated one
            if the directory is new.
        random_bytes: Makes the instance and a generated id.
        place: Our place (``BookieInfo.place``). A registration with the same place was left by a process of
            this directory that was killed. If it is "", wait until any registration has expired.
        fix_cookie: If the directory was emptied or exchanged, mark it for the loss and take it into service.

    Returns:
        The cookie that the directory and the store both have now.

    Raises:
        ClusterNotFound: The store has no cluster in it.
        CookieMismatch: The directory's cookie and the store's disagree, or a live process is registered under
            the id.
        IncompatibleVersion: A newer version wrote the directory's cookie or one of its files. Nothing was
            changed.
        StorageCorrupt: The directory's cookie does not decode.
        StorageError: The directory cannot be read or written.
        InvalidArgument: The id is malformed. Or ``fix_cookie`` is given, but no bookie of this id ever served
            the cluster, or the directory is empty and no id is given. Nothing was written.
        MetadataCorrupt: The store's cookie does not decode.
        MetadataUnavailable: The store could not be reached.
        MetadataOutcomeUnknown: The store's cookie may or may not be written.

    After a cancellation or an error, the directory may be formatted already. The next call completes the
    format.
    """
    await refuse_newer(directory)  # Before the cookies and the marks are written.
    here = await read_cookie(directory)
    if here is not None and bookie_id is not None and here.bookie_id != bookie_id:
        raise CookieMismatch(
            f"{directory.path} belongs to bookie {here.bookie_id}, not to {bookie_id}: "
            f"start it with --id {here.bookie_id}, or {bookie_id} on its own directory"
        )
    if bookie_id is None:
        if here is None and fix_cookie:
            raise InvalidArgument(f"{directory.path} does not name its bookie: give --id")
        bookie_id = here.bookie_id if here else f"bookie-{random_bytes(_GENERATED_ID_BYTES).hex()}"
    check_bookie_id(bookie_id)
    cluster = await join_cluster(store)
    store.belong_to(cluster, through_restores=True)
    await store.sync()  # If we read an old state of the store, a rolled-back directory may look current.
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
    ).counted(there, new_token(random_bytes))
    is_foreign = here is not None and here.cluster != cluster
    if problem is not None and (not fix_cookie or is_foreign or (here is None and has_data)):
        raise CookieMismatch(problem)
    if fix_cookie and here is None and node is None:
        raise InvalidArgument(
            f"no bookie {bookie_id} has ever served this cluster, or it was decommissioned, so there is no "
            f"cookie to fix in {directory.path}: give the --id of the bookie that lost its data. To make a "
            "new bookie, start 'bookie run' without --fix-cookie"
        )
    await wait_unregistered(store, bookie_id, place)  # Call this before anything is changed.
    if problem is not None:
        logger.warning("bookie=%s: its cookie is fixed: %s", bookie_id, problem)
        return await _fix(store, directory, here, node, fresh)
    if here is None:
        await directory.format(fresh)
        await _store_cookie(store, directory, fresh)
        return fresh
    if node is None or there is None:
        # Complete an earlier format. The generation is the same as at the formatting, because the bookie has
        # never served from this directory.
        counted = attrs.evolve(here, begun_tokens=())
        await _store_cookie(store, directory, counted)
        return counted
    if await compare_generations(directory, here, there) is Age.BEHIND:
        logger.warning(
            "bookie=%s: rolled back: %s has generation %d, but the bookie was at %d: an older copy was "
            "restored, and acknowledged entries may be lost. The loss is marked, and missing entries are "
            "copied from other bookies",
            bookie_id,
            directory.path,
            here.generation,
            there.generation,
        )
        await _mark_loss(store, directory)
    elif here.age(there) is Age.AHEAD:
        logger.warning(
            "bookie=%s: %s has generation %d, but the metadata store is at %d: the store was restored from "
            "an older backup, so the directory's generation counts",
            bookie_id,
            directory.path,
            here.generation,
            there.generation,
        )
    return await count_generation(store, directory, here, node, fresh.generation_token)


async def _mark_loss(store: MetadataStore, directory: StorageDirectory) -> None:
    marks: LossMarks | None = await read_marks(directory.disk, directory.path)
    await write_marks(directory.disk, directory.path, await marks_after_loss(store, marks))


async def _fix(
    store: MetadataStore,
    directory: StorageDirectory,
    here: Cookie | None,
    node: Versioned | None,
    fresh: Cookie,
) -> Cookie:
    """Take a directory that lost data into service: write its marks, then its cookie, then the store's
    cookie."""
    token = fresh.generation_token
    if here is None:
        here = fresh
        await directory.format(here, await marks_after_loss(store, None))
    else:
        await _mark_loss(store, directory)
    if node is not None:
        return await count_generation(store, directory, here, node, token)
    begun = here.begin_generation(None, token)
    await directory.replace_cookie(begun)
    counted = begun.counted(None, token)
    await _store_cookie(store, directory, counted)
    return counted


def judge_cookies(
    here: Cookie | None,
    there: Cookie | None,
    *,
    path: str,
    bookie_id: BookieId,
    cluster: str,
    has_data: bool,
) -> str | None:
    """Return the reason not to serve ``bookie_id`` from the directory ``path``; None if there is none.

    Args:
        here: The directory's cookie, if it has one.
        there: The store's cookie of ``bookie_id``, if it has one.
        path: The directory, for the message.
        bookie_id: The id to serve.
        cluster: The id of the store's cluster.
        has_data: Whether the directory has data; if it has a cookie, whether it has a journal segment.
    """
    if here is not None and here.cluster != cluster:
        return (
            f"{path} was formatted for cluster {here.cluster}, but the metadata store belongs to cluster "
            f"{cluster}: give --metadata the store that this bookie belongs to"
        )
    if here is None and there is None:
        if has_data:
            return (
                f"{path} has data but no cookie, and the metadata store knows no bookie {bookie_id}: "
                "put the directory's cookie file back, or start on an empty directory"
            )
        return None
    if there is None:
        assert here is not None
        if has_data:
            return (
                f"{path} has data and the cookie of bookie {bookie_id} (instance {here.instance}), but the "
                f"metadata store knows no such bookie: it was decommissioned, or the store lost it. If it "
                "was decommissioned, start under a new --id on an empty directory. If the store lost it, "
                "'bookie cookie fix' or 'bookie run --fix-cookie' takes the directory into service"
            )
        return None
    if here is None:
        if has_data:
            return (
                f"{path} has data but no cookie, and the metadata store knows bookie {bookie_id} with "
                f"instance {there.instance}: if no disk was replaced, 'bookie repair' restores the cookie"
            )
        return (
            f"{path} is empty, but the metadata store knows bookie {bookie_id} with instance "
            f"{there.instance}: its disk was emptied or replaced, or is not mounted. Mount the right one; "
            f"if its data is lost, 'bookie cookie fix' or 'bookie run --fix-cookie' takes the empty one "
            f"into service, and missing entries are copied from other bookies"
        )
    if here != there:
        return (
            f"{path} has instance {here.instance} of bookie {bookie_id}, but the metadata store knows "
            f"instance {there.instance}: this is not the directory that the bookie served from last. "
            "Start it on that one; if that one is lost, 'bookie cookie fix' or 'bookie run --fix-cookie' "
            "takes this one into service, and missing entries are copied from other bookies"
        )
    return None


async def read_cookie(directory: StorageDirectory) -> Cookie | None:
    """Return the directory's cookie, or None if it has none.

    Raises:
        StorageCorrupt: The cookie does not decode.
    """
    data = await directory.read_cookie()
    if data is None:
        return None

    def corrupt(why: str) -> StorageCorrupt:
        return StorageCorrupt(f"{directory.path}/cookie", None, why)

    try:
        bookie_id = decode_record_untrusted(data, "cookie", corrupt).get("id", str)
        return Cookie.decode_untrusted(data, check_bookie_id(bookie_id))
    except IncompatibleVersion as newer:
        raise IncompatibleVersion(f"{directory.path}/cookie", newer.theirs, newer.ours) from newer
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
                raise  # The cookie disappeared again.
            if there != cookie:
                raise CookieMismatch(
                    f"bookie {cookie.bookie_id} was formatted in another place at the same time (instance "
                    f"{there.instance}): empty {directory.path}, then start that bookie with another --id"
                ) from None

    await settle(store, write, what=f"the writing of the cookie of bookie {cookie.bookie_id}")
