"""A whole bookie in the current event loop: its directory, its storage, its clients, its registration.

The command ``bookie run``, embedded clusters and tests open bookies here and nowhere else. The nesting says
what ends with what:

    disk, directory lock
     listener                       nothing below is begun where the address cannot be had
      cookie check                  nothing below is begun for a directory that is not ours (``identity``)
      phase one                     and nothing while it may have lost data and is not marked (``phase_one``)
        storage (open_engine)       replays the journal; its failure is fatal
          service                   registration; accepting clients
            connections             one for each client
            repair                  phase two, while something is in limbo (``limbo``)
            repair of rot           what scrubbing finds is copied from others (``rot``)
            draining                whether it is to be emptied (``draining``)
            disk watch              whether there is room for more (``disk_watch``)

**Starting.** The listener is opened first of all, behind the lock: a bookie whose address is taken leaves no
cookie and no registration behind, and who finds the registration can reach it. Until the storage is open
who connects is turned away at once, as if nobody listened. Then clients wait, and nobody is answered before
the registration is there: a second process under this identity, which the cookie cannot tell from the
first, is found by it (``registration``).

**Stopping.** Leaving the body stops gracefully: nobody is accepted any more, what clients have begun is
answered within ``limits.BOOKIE_DRAIN_S``, the registration is removed, and the storage flushes and marks a
clean stop. A body that is cancelled stops at once: clients are dropped, the registration is removed if that
goes quickly, and the storage still ends cleanly.

**Failing.** When the storage fails, everything inside is cancelled and the failure is raised: a bookie that
cannot write must not answer (a failed sync is never acknowledged and never retried). What is raised is the
one exception that ended it and not a group around it (``nursery``).

**Coming back after a loss.** Repair needs to recover and read ledgers, which is a client's work and no
storage node's: whoever opens the bookie hands in a ``Peers``. Without one limbo stays as it is, which loses
nothing, and the log says so.

Assertions guard what is acknowledged, so a bookie refuses to start where they are switched off.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from bookie.core.block import NONCE_BYTES
from bookie.server.corruption import RotRepair
from bookie.server.deletion_oracle import MetadataWitness
from bookie.server.disk_watch import DiskWatch
from bookie.server.draining import follow_draining
from bookie.server.identity import RandomBytes, establish_identity
from bookie.server.limbo import LimboRepair, OpenPeers
from bookie.server.phase_one import settle_marks
from bookie.server.registration import Registration
from bookie.server.server import Server
from bookie.storage.disk.disk import Disk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import Indexes
from ledgerlog import limits
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.ids import BookieId
from ledgerlog.net.transport import ConnectionLost, Listener, Network
from ledgerlog.wire.hello import Hello

logger = logging.getLogger(__name__)

_UNREGISTER_S = 2.0
"""A stopping bookie waits so long for the metadata store; after that its session's end does it."""


@attrs.frozen(eq=False)
class Node:
    """A bookie that serves. Given by ``open_bookie``; not to be used after its body."""

    info: BookieInfo
    """What is registered: id, address, instance, labels."""
    cookie: Cookie
    engine: Engine
    server: Server
    repair: LimboRepair
    """Takes ledgers out of limbo, where there are any."""
    rot: RotRepair
    """Copies what is rotten from other bookies."""
    _registration: Registration
    _read_only_for: set[str] = attrs.field(factory=set)
    """Who wants ordinary adds refused; they are taken again when nobody does."""

    @property
    def bookie_id(self) -> BookieId:
        return self.info.bookie_id

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.info.address

    @property
    def is_read_only(self) -> bool:
        """Whether ordinary adds are refused. Setting it also moves the registration, soon."""
        return self.engine.is_read_only

    def set_read_only(self, value: bool, *, wanted_by: str = "operator") -> None:
        """Refuse ordinary adds from now on, or take them again unless somebody else wants them refused;
        recovery's and repair's always pass. The registration moves to the other list soon after."""
        if value:
            self._read_only_for.add(wanted_by)
        else:
            self._read_only_for.discard(wanted_by)
        self.engine.is_read_only = bool(self._read_only_for)
        self._registration.is_read_only = bool(self._read_only_for)


@asynccontextmanager
async def open_bookie(
    path: str,
    store: MetadataStore,
    *,
    bookie_id: BookieId | None,
    network: Network,
    listen: str,
    random_bytes: RandomBytes,
    config: StorageConfig | None = None,
    labels: Mapping[str, str] | None = None,
    advertise: str | None = None,
    find_place: Callable[[], str] | None = None,
    disk: Disk | None = None,
    indexes: Indexes | None = None,
    journal_directory: str | None = None,
    fix_cookie: bool = False,
    peers: OpenPeers | None = None,
    connections_max: int | None = None,
) -> AsyncIterator[Node]:
    """A bookie that serves the directory ``path`` for the body of the ``async with``.

    ``bookie_id`` None is whoever the directory belongs to, or a generated id for a new one. ``listen`` is
    an address of ``network``, and ``advertise`` what is registered in its place where clients see another.
    ``find_place`` is asked once the directory is locked (``BookieInfo.place``); without it, what a killed
    process has left in the store is waited out. ``random_bytes`` makes ids and secrets (``os.urandom``).
    The ``store`` stays the caller's and must outlive the body. Without ``disk`` and ``indexes`` the
    directory is a real one. ``journal_directory`` is where the journal lies, if not in it. ``fix_cookie``
    takes a directory that was emptied or exchanged into service (``identity``), and ``peers`` is what copies
    to it what is missing. It serves ``connections_max`` connections at most, by default
    ``limits.BOOKIE_CONNECTIONS_MAX``.

    The directory is made where there is none. Raises StorageLocked if another process serves it,
    CookieMismatch if it is not that bookie's, or if another process that lives is registered under its id,
    StorageCorrupt naming file and offset, DiskFull and other StorageErrors; InvalidArgument for arguments and
    where assertions are off; ConnectionLost if the address is taken; MetadataUnavailable and MetadataCorrupt.
    A StorageError may also come at any time later: the body is cancelled and it is raised from here."""
    if not __debug__:
        raise InvalidArgument("a bookie does not run without its assertions: start Python without -O")
    async with (
        open_directory(path, disk=disk, indexes=indexes, journal_directory=journal_directory) as directory,
        _open_door(network, listen) as door,
    ):
        cookie = await establish_identity(
            store, directory, bookie_id=bookie_id, random_bytes=random_bytes, fix_cookie=fix_cookie
        )
        marks = await settle_marks(store, directory)
        engine_config = config or StorageConfig()
        new_nonce = partial(random_bytes, NONCE_BYTES)
        async with open_engine(
            directory, engine_config, new_nonce=new_nonce, marks=marks, witness=MetadataWitness(store)
        ) as engine:
            listener = await door.unlock()
            server = Server(
                engine,
                Hello(cookie.bookie_id, cookie.instance, cookie.cluster),
                connections_max=connections_max,
            )
            info = BookieInfo(
                bookie_id=cookie.bookie_id,
                address=advertise or listener.address,
                instance=cookie.instance,
                labels=dict(labels or {}),
                journal_write_data=engine_config.journal_write_data,
                # Only now: what is locked has a place that is nobody else's.
                place=find_place() if find_place is not None else "",
                # It grows in phase one only, which is over.
                fences_through=marks.now.fenced_through,
            )
            registration = Registration(store, info)
            repair = LimboRepair(cookie.bookie_id, engine, peers, bytes_per_s=engine_config.limbo_bytes_per_s)
            rot = RotRepair(cookie.bookie_id, engine, peers)
            node = Node(info, cookie, engine, server, repair, rot, registration)
            watch = DiskWatch(
                cookie.bookie_id,
                engine,
                directory.disk,
                directory.written_paths,
                policy=engine_config.fullness_policy(),
                interval_s=engine_config.disk_watch_interval_s,
                set_read_only=partial(node.set_read_only, wanted_by="disk"),
            )
            async with _serving(node, listener, store, watch):
                yield node


class _Door:
    """A listener, and the task that turns everybody away from it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._turning_away = trio.CancelScope()
        self._is_unlocked = trio.Event()

    async def unlock(self) -> Listener:
        """The listener; who connects from now on is the caller's to accept."""
        self._turning_away.cancel()
        await self._is_unlocked.wait()
        return self._listener

    async def turn_away(self) -> None:
        """A client goes on elsewhere at once, where it would wait for an answer in vain otherwise."""
        try:
            with self._turning_away:
                while True:
                    (await self._listener.accept()).close()
        except ConnectionLost as broken:
            logger.debug("%s", broken)  # Whoever serves there will meet it.
        finally:
            self._is_unlocked.set()


@asynccontextmanager
async def _open_door(network: Network, address: str) -> AsyncIterator[_Door]:
    """Listen at ``address``, and turn everybody away until the door is unlocked."""
    listener = await network.listen(address)
    try:
        async with open_nursery() as nursery:
            door = _Door(listener)
            nursery.start_soon(door.turn_away)
            yield door
            nursery.cancel_scope.cancel()
    finally:
        listener.close()


@asynccontextmanager
async def _serving(
    node: Node, listener: Listener, store: MetadataStore, watch: DiskWatch
) -> AsyncIterator[None]:
    server, registration = node.server, node._registration
    served, kept, keeping = trio.Event(), trio.Event(), trio.CancelScope()

    async def serve() -> None:
        await server.serve(listener)
        served.set()

    async def keep_registered() -> None:
        try:
            with keeping:
                await registration.run()
        finally:
            kept.set()

    try:
        await watch.look()  # Who starts on a full disk is never seen as writable.
        await registration.register()
    except BaseException:
        listener.close()
        with trio.move_on_after(_UNREGISTER_S, shield=True):
            await registration.unregister()
        raise
    async with open_nursery() as service:
        service.start_soon(serve)
        service.start_soon(keep_registered)
        service.start_soon(node.repair.run)
        service.start_soon(node.rot.run)
        service.start_soon(watch.run)
        service.start_soon(
            follow_draining, store, node.cookie, partial(node.set_read_only, wanted_by="draining")
        )
        logger.info("bookie=%s: serving at %s", node.bookie_id, node.address)
        is_cancelled = False
        try:
            yield
        except trio.Cancelled:
            is_cancelled = True
            raise
        finally:
            if not is_cancelled:
                await _drain(node, served)
            keeping.cancel()
            with trio.move_on_after(_UNREGISTER_S, shield=True):
                await kept.wait()
                await registration.unregister()
            service.cancel_scope.cancel()


async def _drain(node: Node, served: trio.Event) -> None:
    logger.info("bookie=%s: stopping; clients=%d", node.bookie_id, node.server.connections)
    with trio.move_on_after(limits.BOOKIE_DRAIN_S) as patience:
        node.server.stop()
        await served.wait()
    if patience.cancelled_caught:
        logger.warning(
            "bookie=%s: not finished within %g s and dropped: clients=%d",
            node.bookie_id,
            limits.BOOKIE_DRAIN_S,
            node.server.connections,
        )
