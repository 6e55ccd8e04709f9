"""A whole bookie in the current event loop: its directory, storage, clients and registration.

The command ``bookie run``, embedded clusters and tests all open bookies here. The nesting shows which parts
end together:

    disk, directory lock
     listener                       if the address is taken, nothing below starts
      cookie check                  if the directory is not this bookie's, nothing below starts
                                    (``identity``); if it was rolled back, it is marked (``generations``)
      phase one                     if the bookie may have lost data, that is marked before anything below
                                    starts (``phase_one``)
        storage (open_engine)       replays the journal; its failure is fatal
          service                   registration; accepting clients
            connections             one for each client
            repair                  phase two, while a ledger is in limbo (``limbo``)
            corruption              replaces the damaged entries that scrubbing finds with copies from other
                                    bookies (``corruption``)
            draining                watches whether an operator wants the bookie emptied (``draining``)
            disk watch              watches whether the disk has room (``disk_watch``)
            generations             counts, so that a rolled-back directory is noticed (``generations``)

**Starting.** The bookie first takes the directory lock and then opens the listener. If the address is taken,
the bookie has written no cookie and no registration yet. So every client that finds the registration can
reach the bookie. Until the storage is open, the bookie closes each new connection at once, as if it did not
listen. After that, clients can connect, but the bookie answers them only once it is registered. The bookie
looks for a second process with the same identity before it changes anything, and again when it registers. For
example, such a process may run on a copy of the directory, with the same cookie (``registration``).

**Stopping.** If you leave the body, the bookie stops gracefully. It accepts no more clients, answers the
requests under way within ``limits.BOOKIE_DRAIN_S``, and removes its registration. Then the storage flushes
and marks a clean stop, and the bookie counts a last generation. If the body is cancelled, the bookie stops at
once: it drops its clients, and removes the registration if that takes at most ``_UNREGISTER_S``. For the
storage this is a crash: the next start replays the journal, and without the journal's copy of the entries
(``journal_write_data``) it marks a loss.

**Failing.** If the storage fails, everything inside is cancelled and the failure is raised. A bookie that
cannot write must not answer: a failed sync is never acknowledged and never retried. You get the one exception
that ended the bookie, not a group around it (``ledgerlog.concurrency.nurseries``).

**Repair after a loss.** Repair recovers and reads ledgers. That is the work of a client, and a storage node
imports no client. So the code that opens the bookie passes ``OpenPeers``. Without ``OpenPeers``, ledgers in
limbo stay in limbo. Nothing is lost by that, and the log says so.

Assertions guard the acknowledgements. If assertions are switched off, a bookie refuses to start.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from bookie.core.block import NONCE_BYTES
from bookie.core.fullness import DiskSpace
from bookie.server.access import AccessControl
from bookie.server.corruption import CorruptionRepair
from bookie.server.deletion_oracle import MetadataDeletionOracle
from bookie.server.disk_watch import DiskWatch
from bookie.server.draining import DrainingWatch
from bookie.server.generations import Generations, RandomBytes
from bookie.server.identity import establish_identity
from bookie.server.limbo import LimboRepair, OpenPeers
from bookie.server.phase_one import settle_marks
from bookie.server.registration import Registration
from bookie.server.repairing import heal_index, repair_directory, restore_cookie
from bookie.server.server import BookieServer
from bookie.storage.disk.disk import Disk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory, open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import Indexes
from bookie.storage.upkeep.salvage import drop_set_aside, find_set_aside
from ledgerlog import limits
from ledgerlog.concurrency.nurseries import holds_cancellation, open_nursery
from ledgerlog.errors import InvalidArgument
from ledgerlog.event_log import BOOKIE_SERVING, BOOKIE_STOPPING, tell
from ledgerlog.meta.outside_store import OutsideStore
from ledgerlog.meta.session_counts import SessionCounts
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.ids import BookieId
from ledgerlog.model.principal import Principal, PrincipalKind
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import ConnectionLost, Listener, Network
from ledgerlog.versions import THIS, Version
from ledgerlog.wire.hello import Hello

logger = logging.getLogger(__name__)

_UNREGISTER_S = 2.0
"""A stopping bookie waits this long for the metadata store. After that, the end of its session removes the
registration."""


@attrs.frozen(eq=False)
class BookieNode:
    """A bookie that serves. ``open_bookie`` yields it; do not use it after the body."""

    info: BookieInfo
    """The registration: id, address, instance, labels."""
    cookie: Cookie
    """The identity of the bookie's directory."""
    engine: Engine
    """The bookie's storage."""
    server: BookieServer
    """The server that accepts clients."""
    repair: LimboRepair
    """Takes ledgers out of limbo, if there are any."""
    listens_at: str
    """The address that the server listens at. ``address`` may differ."""
    has_sound_index: bool
    """False if the index was found damaged and could not be rebuilt."""
    corruption_repair: CorruptionRepair
    """Copies damaged entries from other bookies."""
    access: AccessControl
    """Decides which requests clients may make."""
    disk_watch: DiskWatch
    """How full the disks are."""
    sessions: SessionCounts
    """The sessions with the metadata store."""
    _registration: Registration
    _read_only_for: set[str] = attrs.field(factory=set)
    """The parts that want ordinary adds refused, for example "disk". If this is empty, the bookie takes
    ordinary adds."""

    @property
    def bookie_id(self) -> BookieId:
        """The bookie's id."""
        return self.info.bookie_id

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return self.info.address

    @property
    def is_read_only(self) -> bool:
        """Whether the bookie refuses ordinary adds."""
        return self.engine.is_read_only

    @property
    def read_only_for(self) -> frozenset[str]:
        """The parts that want ordinary adds refused: any of "operator", "disk" and "draining"."""
        return frozenset(self._read_only_for)

    @property
    def is_registered(self) -> bool:
        """Whether the bookie is registered in the metadata store, as far as this process knows."""
        return self._registration.is_registered

    def set_read_only(self, value: bool, *, wanted_by: str = "operator") -> None:
        """Ask the bookie to refuse ordinary adds, or withdraw that request.

        The bookie takes ordinary adds again once no part wants them refused. It always takes the adds of
        recovery and repair. The registration moves to the other list soon after.

        Args:
            value: Whether ``wanted_by`` wants ordinary adds refused.
            wanted_by: The part that asks. For example, if the "operator" and the "disk" want adds refused,
                both must withdraw that before the bookie takes adds again.
        """
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
    repair_damage: bool = False,
    heals_index: bool = False,
    peers: OpenPeers | None = None,
    connections_max: int | None = None,
    version: Version = THIS,
    prover: Prover | None = None,
) -> AsyncIterator[BookieNode]:
    """Serve the directory ``path`` as a bookie for the body of the ``async with``.

    Args:
        path: The bookie's directory. It is made if it does not exist.
        store: The cluster's metadata store. It stays yours and must outlive the body.
        bookie_id: The id that you expect. None: the id that the directory has, or a generated one if the
            directory is new.
        network: The network to listen on.
        listen: The address to listen at, in the form of ``network``.
        random_bytes: Makes ids and secrets; ``os.urandom`` is one.
        config: The settings of the storage. None: the defaults.
        labels: The labels to register, for example the zone.
        advertise: The address to register, if clients reach the bookie at an address other than ``listen``.
        find_place: Returns ``BookieInfo.place``; called once the directory is locked. If None, the bookie
            waits until the registration of a killed process has expired.
        disk: The disk of the directory. None: the real one.
        indexes: Opens the index. None: on the real disk.
        journal_directory: The directory of the journal, if it is not in ``path``.
        fix_cookie: Take a directory that was emptied or exchanged into service (see ``identity``).
        repair_damage: If the directory is so damaged that the bookie cannot start, salvage it (see
            ``repairing``). In any case, begin to scrub at once.
        heals_index: The index was found damaged: make it again from the files (see ``healing``).
        peers: Opens the access to other bookies, for the repair to copy missing entries. None: the bookie
            repairs nothing.
        connections_max: Serve at most this many connections. None: ``limits.BOOKIE_CONNECTIONS_MAX``.
        version: The versions of frames and records that the bookie uses.
        prover: Proves the identity of this process and verifies its peers. From now on the prover acts as
            this bookie. None: the process has no identity, and the cluster is open.

    Yields:
        The bookie, while it serves.

    Raises:
        StorageLocked: Another process serves the directory.
        CookieMismatch: The directory is not this bookie's, or a live process is registered under its id.
        StorageCorrupt: The directory is damaged. The error names file and offset.
        DiskFull: The disk is full.
        StorageError: The storage failed in another way. This may also happen at any later time: then the body
            is cancelled, and the error is raised here.
        InvalidArgument: An argument is malformed, or assertions are switched off.
        ConnectionLost: The address is taken.
        ClusterNotFound: The metadata store has no cluster in it.
        MetadataUnavailable: The metadata store could not be reached.
        MetadataOutcomeUnknown: The cookie may or may not be in the metadata store; the next start checks.
        MetadataCorrupt: A record in the metadata store is damaged.
    """
    if not __debug__:
        raise InvalidArgument("a bookie does not run without its assertions: start Python without -O")
    store = OutsideStore(store)
    async with (
        open_directory(
            path,
            disk=disk,
            indexes=indexes,
            journal_directory=journal_directory,
            index="" if config is None else config.index,
        ) as directory,
        _open_door(network, listen) as door,
    ):
        # Call ``find_place`` only now: while the directory is locked, no other process has the same place.
        place = find_place() if find_place is not None else ""
        if repair_damage:
            await restore_cookie(store, directory, place=place)
        cookie = await establish_identity(
            store,
            directory,
            bookie_id=bookie_id,
            random_bytes=random_bytes,
            place=place,
            fix_cookie=fix_cookie,
        )
        if prover is not None:
            prover.act_as(Principal(PrincipalKind.BOOKIE, cookie.bookie_id))
        generations = Generations(store, directory, cookie, random_bytes)
        engine_config = config or StorageConfig()
        has_sound_index = True
        if heals_index:
            has_sound_index = await heal_index(
                store, directory, random_bytes=random_bytes, may_salvage=repair_damage
            )
        elif repair_damage:
            await repair_directory(store, directory, random_bytes=random_bytes, config=engine_config)
        marks = await settle_marks(store, directory)
        new_nonce = partial(random_bytes, NONCE_BYTES)
        # A bookie starts even if payloads are damaged. Scrub at once, because until the damage is found,
        # other bookies may lose their copies.
        was_damaged = repair_damage or bool(await find_set_aside(directory))
        async with open_engine(
            directory,
            engine_config,
            new_nonce=new_nonce,
            marks=marks,
            oracle=MetadataDeletionOracle(store),
            scrubs_at_once=was_damaged,
        ) as engine:
            listener = await door.unlock()
            access = AccessControl(store, engine.knows)
            server = BookieServer(
                engine,
                Hello.of(cookie.bookie_id, cookie.instance, cookie.cluster, version.speaks),
                connections_max=connections_max,
                access=access,
                listing_key=random_bytes(limits.LEDGER_KEY_BYTES),
                prover=prover,
            )
            info = BookieInfo(
                bookie_id=cookie.bookie_id,
                address=advertise or listener.address,
                instance=cookie.instance,
                labels=dict(labels or {}),
                journal_write_data=engine_config.journal_write_data,
                place=place,
                # Only phase one raises this id, and phase one is over.
                fences_through=marks.now.fenced_through,
                speaks=version.speaks,
                listing_key=server.listing_key,
                unknown=version.new_keys,
            )
            registration = Registration(store, info, generations.claim)
            repair = LimboRepair(cookie.bookie_id, engine, peers, bytes_per_s=engine_config.limbo_bytes_per_s)
            corruption_repair = CorruptionRepair(cookie.bookie_id, engine, peers)
            watch = DiskWatch(
                cookie.bookie_id,
                engine,
                directory.disk,
                directory.written_paths,
                policy=engine_config.fullness_policy(),
                interval_s=engine_config.disk_watch_interval_s,
                set_read_only=lambda value: node.set_read_only(value, wanted_by="disk"),
            )
            node = BookieNode(
                info,
                cookie,
                engine,
                server,
                repair,
                listener.address,
                has_sound_index,
                corruption_repair,
                access,
                watch,
                SessionCounts(),
                registration,
            )

            def spaces() -> Collection[DiskSpace]:
                return watch.spaces.values()  # Each look makes a new dictionary.

            server.tell_spaces(spaces)
            beside = (
                partial(_drop_when_healed, repair, directory),
                generations.run,
                access.run,
                partial(node.sessions.follow, store),
            )
            async with _serving(node, listener, store, watch, beside):
                yield node
        await generations.stop()


async def _drop_when_healed(repair: LimboRepair, directory: StorageDirectory) -> None:
    """Once no ledger is in limbo, remove the files that a repair has set aside."""
    await repair.wait_done()
    if count := await drop_set_aside(directory):
        logger.info("%s: nothing is missing now; set-aside files removed: %d", directory.path, count)


class _Door:
    """A listener, and the task that closes each new connection until the door is unlocked."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._turning_away = trio.CancelScope()
        self._is_unlocked = trio.Event()

    async def unlock(self) -> Listener:
        """Stop turning clients away. Return the listener; from now on you accept the clients."""
        self._turning_away.cancel()
        await self._is_unlocked.wait()
        return self._listener

    async def turn_away(self) -> None:
        """Close each new connection at once, so that the client tries another bookie and does not wait for
        this one."""
        try:
            with self._turning_away:
                while True:
                    (await self._listener.accept()).close()
        except ConnectionLost as broken:
            logger.debug("%s", broken)  # The server accepts next, and its ``accept`` raises the same error.
        finally:
            self._is_unlocked.set()


@asynccontextmanager
async def _open_door(network: Network, address: str) -> AsyncIterator[_Door]:
    """Listen at ``address``, and close each new connection until the door is unlocked."""
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
    node: BookieNode,
    listener: Listener,
    store: MetadataStore,
    watch: DiskWatch,
    beside: Sequence[Callable[[], Awaitable[None]]],
) -> AsyncIterator[None]:
    server, registration = node.server, node._registration
    served, kept, keeping = trio.Event(), trio.Event(), trio.CancelScope()
    draining = DrainingWatch(store, node.cookie, partial(node.set_read_only, wanted_by="draining"))

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
        await watch.look()  # So a bookie that starts on a full disk is never registered as writable.
        await draining.begin()
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
        for task in beside:
            service.start_soon(task)
        service.start_soon(node.corruption_repair.run)
        service.start_soon(watch.run)
        service.start_soon(draining.run)
        tell(
            logger,
            BOOKIE_SERVING,
            "bookie=%(bookie)s: serving at %(address)s",
            bookie=node.bookie_id,
            address=node.address,
        )
        is_cancelled = False
        try:
            yield
        except BaseException as error:
            is_cancelled = holds_cancellation(error)
            raise
        finally:
            try:
                if not is_cancelled:
                    await _drain(node, served)
            finally:
                keeping.cancel()
                with trio.move_on_after(_UNREGISTER_S, shield=True):
                    await kept.wait()
                    await registration.unregister()
                service.cancel_scope.cancel()


async def _drain(node: BookieNode, served: trio.Event) -> None:
    tell(
        logger,
        BOOKIE_STOPPING,
        "bookie=%(bookie)s: stopping; clients=%(clients)d",
        bookie=node.bookie_id,
        clients=node.server.connections,
    )
    with trio.move_on_after(limits.BOOKIE_DRAIN_S) as patience:
        node.server.stop()
        await served.wait()
    if patience.cancelled_caught:
        logger.warning(
            "bookie=%s: connections dropped that did not finish within %g s: clients=%d",
            node.bookie_id,
            limits.BOOKIE_DRAIN_S,
            node.server.connections,
        )
