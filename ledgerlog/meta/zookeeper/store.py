"""Metadata in Apache ZooKeeper, shared by machines: the metadata capability.

The parts, from the outside in: this module (the session, the watches, the link and its replacement), ``tree``
(nodes, listings and counters as requests), ``plan`` (a transaction of ours as one of ZooKeeper's), ``names``
(the paths of znodes), ``conversation`` (deadlines and repetition), ``link`` (kazoo and its threads).

**Lost answers.** If a write was sent and its answer was lost, the call raises ``MetadataOutcomeUnknown``. The
writer settles it: it reads again and looks for its token (rule 14). A request that was surely not done is
tried again here, until ``limits.METADATA_TIMEOUT_S``.

**Reads may be stale** by the time that the answering server lags behind. The reads of one store never go back
in time, not even from one session to the next. After ``sync`` they see at least every write that finished
before it.

**The session** is SUSPENDED if the connection is lost or the lease has run out. It is CONNECTED again if the
same session continues, and LOST if a server says that it is over. kazoo then opens a new session by itself,
and the store shows it as a new object. An ephemeral node is created in the session that the store had at the
call, or not at all: the link sends such a transaction in no other session. While no server answers, it is
unknown whether the session is over, so it stays SUSPENDED.

**Belonging** (``belonging``) is checked on each new connection before it is used. The store watches the node
of the cluster's id, syncs, and then reads the node. All later requests are bound to that session. A session
never moves to another ensemble: that ensemble would answer that the session has expired. If the node changes,
the server reports this before it answers any request that came after the change. Each write also checks that
the node is there, so an emptied chroot is noticed too. The sync also shows the newest transaction of the
ensemble. If the store has seen a newer transaction before, the ensemble has lost data that the store has
read, and is refused too. A refused link is replaced by a new one, because the address may lead to the right
servers later.

**Watches** are ZooKeeper's persistent recursive watches: two for each path (value and directory), shared by
all our watches of that path. ZooKeeper's watches end with the connection. On each new connection all are
added again. When the server has confirmed them, our watches wake, and their owners find any missed change by
looking. Opening a watch waits for the confirmation, so it misses no later change. Without a connection it
does not wait.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs
import trio

from ledgerlog import limits
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
    MetadataUnavailable,
    SessionExpired,
    WrongCluster,
)
from ledgerlog.meta.arguments import check_operations, check_path
from ledgerlog.meta.bases import SingleWrites
from ledgerlog.meta.belonging import Belonging
from ledgerlog.meta.store import Create, Delete, Operation, SessionState, Versioned, Watch
from ledgerlog.meta.watches import WatchSet
from ledgerlog.meta.zookeeper.acl import OPEN, Acl, ZkPrincipal
from ledgerlog.meta.zookeeper.calls import (
    AddWatch,
    AnswerLost,
    Denied,
    Get,
    GetAcl,
    NotSent,
    Refused,
    RemoveWatches,
    Transaction,
    UnknownIdentity,
    Unsupported,
    WrongSession,
    ZookeeperCall,
)
from ledgerlog.meta.zookeeper.conversation import Conversation, SessionOver
from ledgerlog.meta.zookeeper.link import (
    Changed,
    Connected,
    Ended,
    Event,
    Expired,
    KazooLink,
    LoginRefused,
    Suspended,
    Trouble,
)
from ledgerlog.meta.zookeeper.login import Login, check_tls, load_auth
from ledgerlog.meta.zookeeper.names import Names
from ledgerlog.meta.zookeeper.plan import ANY_VERSION, CheckZnode
from ledgerlog.meta.zookeeper.refusals import ZooKeeperDenies, ZooKeeperKnowsNot
from ledgerlog.meta.zookeeper.securing import Secured, count_other_lists, secure
from ledgerlog.meta.zookeeper.session import ZooKeeperSession
from ledgerlog.meta.zookeeper.tree import Tree
from ledgerlog.model.credentials import NO_CREDENTIALS, Credentials
from ledgerlog.model.layout import CLUSTER

__all__ = ["ZooKeeperStore", "open_zookeeper_store"]

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_MIN_S = 2.0
"""kazoo's pings have a jitter of 0.4 s, which is too much for a shorter session."""

_CUT_S = 1.0
"""If a server has not confirmed the end of the session after this time, we cut the connection."""

_NEW_SESSION_S = 3.0
"""If the session of a call is over, how long the call waits for the next session before it raises.

So the caller usually finds the new session when it tries again.
"""

_LAPSED_S = 0.05
"""Pause between two checks of a lease that has run out: an answer to an earlier request may extend it."""

_REFUSED_PAUSE_S = 2.0
"""Pause before a refused link is replaced. Each new link costs the servers there a session."""

_LINK_PAUSE_S = 0.5
"""Pause before a link whose thread ended unexpectedly is replaced."""


def open_zookeeper_store(
    hosts: str,
    *,
    chroot: str = "",
    is_tls: bool = False,
    credentials: Credentials = NO_CREDENTIALS,
    new_acl: Acl = OPEN,
    session_timeout_s: float = limits.SESSION_TIMEOUT_S,
) -> AbstractAsyncContextManager[ZooKeeperStore]:
    """Open a store in a ZooKeeper ensemble for the body of the ``async with``.

    Leaving the body ends the session and removes its ephemeral nodes.

    Args:
        hosts: The servers: "h1:2181,h2:2181".
        chroot: The znode above everything in the store: "" or "/a/b". It is made at the first write below it.
        is_tls: Whether the servers speak TLS at these ports.
        credentials: The files with which this process proves who it is. The files are read again each time
            that the servers refused this process.
        new_acl: The list of each znode that is made while the store holds no cluster.
        session_timeout_s: The session timeout to ask for, at least 2 s and at most
            ``limits.SESSION_TIMEOUT_MAX_S``. The ensemble keeps it within its own bounds, which are 2 to 20
            times its tick. The death of a process is noticed after this time.

    Raises:
        InvalidArgument: ``session_timeout_s`` is out of range, or a file of the credentials is missing,
            damaged or readable by others.
        Unauthenticated: The servers and this process do not identify each other, or it has no credentials and
            the cluster is not open.
        PermissionDenied: The servers know this process, and the lists of the znodes give it no right.
        MetadataUnavailable: No server answered within ``limits.METADATA_TIMEOUT_S``, or the servers are older
            than ZooKeeper 3.6.
    """
    shortest, longest = SESSION_TIMEOUT_MIN_S, limits.SESSION_TIMEOUT_MAX_S
    if not shortest <= session_timeout_s <= longest:
        raise InvalidArgument(
            f"session_timeout_s must be from {shortest:g} to {longest:g}, not {session_timeout_s}"
        )
    if is_tls and credentials.tls is None:
        raise InvalidArgument(
            f"ZooKeeper at {hosts} is reached over TLS (zks://), which needs --tls-cert, --tls-key and "
            "--tls-ca"
        )
    return _open(
        ZooKeeperStore(
            hosts,
            Names(chroot),
            session_timeout_s,
            is_tls=is_tls,
            credentials=credentials,
            new_acl=new_acl,
        )
    )


@asynccontextmanager
async def _open(store: ZooKeeperStore) -> AsyncIterator[ZooKeeperStore]:
    await store._read_login()
    store._start_link()
    try:
        await store._reach()
        async with open_serving_nursery() as nursery:
            nursery.start_soon(store._keep_link)
            nursery.start_soon(store._watch_lease)
            yield store
    finally:
        await store._close()


@attrs.define(eq=False)
class _Attached:
    """The server's watches for one path."""

    users: int = 0
    """How many open watches use the server's watches."""
    settled: trio.Event = attrs.Factory(trio.Event)
    """Set when the server has confirmed or refused its watches, or if there is no connection."""
    refusal: MetadataUnavailable | None = None
    is_given_out: bool = False
    """Whether a task has a watch that may not be confirmed yet. A confirmation then wakes the watch."""


class ZooKeeperStore(SingleWrites):
    """The metadata capability (``store.MetadataStore``) on ZooKeeper; see ``open_zookeeper_store``.

    Versions are ZooKeeper's: 0 at creation, one more at each write, 0 again if a path is created again.

    Cancelling: a call whose request was not sent yet has changed nothing. After that the request continues,
    and is applied or not.
    """

    def __init__(
        self,
        hosts: str,
        names: Names,
        session_timeout_s: float,
        *,
        is_tls: bool,
        credentials: Credentials,
        new_acl: Acl,
    ) -> None:
        self._names = names
        self._timeout_s = session_timeout_s
        self._is_tls = is_tls
        self._credentials = credentials
        self._new_acl = new_acl
        self._conversation = Conversation(hosts, self._begin_proof)
        self._tree = Tree(names, self._conversation)
        self._belonging = Belonging(f"{hosts}{names.root}".rstrip("/"))
        self._connection: int | None = None
        """The session of the present connection, whether the connection is usable or not."""
        self._proof: object | None = None
        """The running check of the connection's cluster; None if there is none."""
        self._zxid_floor = 0
        """The newest transaction that was seen in a session that was used."""
        self._is_refused_us = False
        """Whether the log already says that the servers refuse this process."""
        self._link_number = 0
        self._link_ended = trio.Event()
        self._session: ZooKeeperSession | None = None
        self._watches = WatchSet()
        self._attached: dict[str, _Attached] = {}

    # --- the capability --------------------------------------------------------------------------

    @property
    def session(self) -> ZooKeeperSession:
        """The current session. It is LOST only until the ensemble has given a new one."""
        assert self._session is not None, "a store is given out once it has a session"
        return self._session

    @property
    def cluster(self) -> str | None:
        return self._belonging.cluster

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        is_new = self.cluster is None
        self._belonging.belong_to(cluster, through_restores=through_restores)
        if is_new:
            self._begin_proof()

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        return await self._conversation.within_deadline(lambda _: self._tree.get(path))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._conversation.within_deadline(lambda _: self._tree.children(path))

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        check_operations(operations)
        # Take the session that the store had when it was called. If that session ends meanwhile, the new
        # session must not own the ephemeral node: the caller knows only the old one.
        session = self._session
        assert session is not None
        is_bound = any(isinstance(operation, Create) and operation.ephemeral for operation in operations)
        if not operations:
            await self._conversation.checkpoint()
            return []
        try:
            versions = await self._conversation.within_deadline(
                partial(self._tree.transact, operations, session if is_bound else None)
            )
        except SessionOver:
            with trio.move_on_after(_NEW_SESSION_S):
                while self._session is session:
                    await self._conversation.wait_news()
            raise SessionExpired(
                f"metadata session {session.session_id} is over; nothing was written"
            ) from None
        for operation in operations:
            if isinstance(operation, Delete):
                self._tree.prune_above(self._names.value(operation.path))
        return versions

    async def next_id(self, counter: str) -> int:
        check_path(counter)
        return await self._conversation.within_deadline(partial(self._tree.next_id, counter))

    async def highest_id(self, counter: str) -> int:
        check_path(counter)
        return await self._conversation.within_deadline(partial(self._tree.highest_id, counter))

    async def skip_ids(self, counter: str, through: int) -> None:
        check_path(counter)
        await self._conversation.within_deadline(partial(self._tree.skip_ids, counter, through))

    async def sync(self) -> None:
        await self._conversation.within_deadline(self._tree.sync)

    @asynccontextmanager
    async def _watch(self, path: str) -> AsyncIterator[Watch]:
        async with self._watches.open(path) as watch:
            attached = self._attached.get(path)
            if attached is None:
                attached = self._attached[path] = _Attached()
                self._add_watches(path, attached)
            attached.users += 1
            try:
                with trio.move_on_after(limits.METADATA_TIMEOUT_S):
                    await attached.settled.wait()
                if attached.refusal is not None:
                    raise attached.refusal
                attached.is_given_out = True
                yield watch
            finally:
                attached.users -= 1
                if not attached.users:
                    del self._attached[path]
                    self._remove_watches(path)

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        """Watch a node and everything below it for the body of the ``async with``.

        Raises:
            MetadataUnavailable: A server refuses the watch. Without a connection, opening a watch does not
                raise.
        """
        return self._watch(path)

    async def secure(
        self,
        *,
        all_of: Iterable[ZkPrincipal] = (),
        readers: Iterable[ZkPrincipal] = (),
        with_root: bool = False,
    ) -> Secured:
        """Give every znode the list that admits only these principals; see ``securing``."""
        return await secure(
            self._conversation, self._names, all_of=all_of, readers=readers, with_root=with_root
        )

    async def count_other_lists(self) -> int:
        """Return how many znodes have another list than the cluster's node; see ``securing``."""
        return await count_other_lists(self._conversation, self._names)

    # --- watches ---------------------------------------------------------------------------------

    def _znodes_watched(self, path: str) -> Iterable[str]:
        return self._names.value(path), self._names.directory(path)

    def _add_watches(self, path: str, attached: _Attached) -> None:
        """Ask the server to watch ``path``, and set ``attached.settled`` when it has answered."""
        if not self._conversation.is_connected:
            attached.settled.set()
            return
        settled = attached.settled = trio.Event()
        attached.refusal = None
        missing = 0

        def added(call: ZookeeperCall) -> None:
            nonlocal missing
            missing -= 1
            if settled is not attached.settled or settled.is_set():
                return  # The connection of this request has ended.
            try:
                call.result()
            except (NotSent, AnswerLost):
                # A connection without one of the watches is useless. End it; the next connection adds all of
                # them.
                self._conversation.link.cut()
                return
            except (MetadataUnavailable, Unsupported, Denied, UnknownIdentity) as refusal:
                attached.refusal = MetadataUnavailable(f"metadata path {path!r} cannot be watched: {refusal}")
            if not missing:
                settled.set()
                if attached.is_given_out:
                    self._watches.changed([path])

        for znode in self._znodes_watched(path):
            missing += 1
            call = AddWatch(znode)
            call.deliver = added
            self._conversation.link.submit(call)

    def _remove_watches(self, path: str) -> None:
        if self._conversation.is_connected:
            for znode in self._znodes_watched(path):
                self._conversation.link.submit(RemoveWatches(znode))

    # --- the link and the session ----------------------------------------------------------------

    async def _read_login(self) -> None:
        """Read the files of the credentials."""
        credentials = self._credentials
        tls = credentials.tls if self._is_tls else None

        def read() -> Login:
            if tls is not None:
                check_tls(tls)
            file = credentials.zk_auth_file
            return Login(auth=None if file is None else load_auth(file), tls=tls)

        self._conversation.login = await trio.to_thread.run_sync(read)

    def _start_link(self) -> None:
        self._link_number += 1
        self._link_ended = trio.Event()
        self._conversation.link = KazooLink(
            self._conversation.hosts,
            self._timeout_s,
            login=self._conversation.login,
            on_event=partial(self._on_event, self._link_number),
        )
        self._conversation.link.start()

    def _on_event(self, link_number: int, event: Event) -> None:
        if link_number != self._link_number or self._conversation.is_closed:
            return
        match event:
            case Changed(znode=znode):
                path = self._names.logical(znode)
                if path == CLUSTER and self.cluster is not None:
                    self._begin_proof()
                if path is not None:
                    self._watches.changed([path])
            case Connected(session_id=number):
                self._connection = number
                self._begin_proof()
            case Suspended():
                self._lose_contact(SessionState.SUSPENDED)
            case Expired():
                self._conversation.link.give_up_unsent()
                self._lose_contact(SessionState.LOST)
            case Trouble(why=why):
                self._conversation.trouble = why
            case LoginRefused(why=why):
                self._be_refused(
                    ZooKeeperKnowsNot(
                        f"ZooKeeper ({self._conversation.hosts}) and this process, "
                        f"{self._conversation.login}, do not identify each other: {why}"
                    )
                )
            case Ended(why=why):
                logger.error("metadata link to %s ended and is replaced: %s", self._conversation.hosts, why)
                self._lose_contact(SessionState.LOST)
                self._link_ended.set()

    def _begin_proof(self) -> None:
        """Find out which store the connection leads to. The connection is not used before."""
        number = self._connection
        self._conversation.doubt()
        if number is None:
            return
        proof = self._proof = object()
        sync = Transaction([CheckZnode(self._names.root, ANY_VERSION)])
        place = self._names.value(CLUSTER)
        calls: list[ZookeeperCall] = [sync, GetAcl(place)]
        if self.cluster is not None:
            # Keep this order. The watch then reports every change after the read, and the read is no older
            # than the sync. The list is no older than the node's version, which each write checks: no write
            # is done with a list that was replaced before (``securing``).
            calls = [AddWatch(place), sync, Get(place), GetAcl(place)]

        def answered(_: ZookeeperCall) -> None:
            if proof is self._proof:
                self._proof = None
                self._judge(number, calls)

        calls[-1].deliver = answered
        for call in calls:
            call.session_id = number
            self._conversation.link.submit(call)

    def _judge(self, number: int, calls: Sequence[ZookeeperCall]) -> None:
        """Use the connection, or refuse it."""
        link = self._conversation.link
        try:
            answers = [call.result() for call in calls]
        except Denied as denied:
            self._be_refused(self._conversation.denial(denied.znode))
            return
        except (NotSent, AnswerLost, WrongSession, MetadataUnavailable, Unsupported, UnknownIdentity):
            link.cut()  # The check is repeated on the next connection.
            return
        check = None
        acl = self._new_acl if isinstance(answers[-1], Refused) else answers[-1]
        if self.cluster is not None:
            self._raise_floor(link)
            found = None if isinstance(answers[-2], Refused) else answers[-2]
            try:
                if link.zxid_of(number) < self._zxid_floor:
                    raise self._belonging.refuse_older()
                self._belonging.judge(None if found is None else found[0])
            except WrongCluster as wrong:
                self._be_refused(wrong)
                return
            assert found is not None, "it was judged"
            check = CheckZnode(self._names.value(CLUSTER), found[1].version)
        self._tree.forget_generations()
        self._use_session(number)
        self._is_refused_us = False
        self._conversation.use(number, check, acl)
        for path, attached in self._attached.items():
            self._add_watches(path, attached)

    def _be_refused(self, refusal: LedgerLogError) -> None:
        """Make every call raise ``refusal`` until another link finds a store that is right and lets us in."""
        if isinstance(refusal, ZooKeeperDenies | ZooKeeperKnowsNot) and not self._is_refused_us:
            self._is_refused_us = True
            logger.error("%s", refusal)
        self._lose_contact(SessionState.LOST)
        self._conversation.refuse(refusal)
        self._link_ended.set()

    def _raise_floor(self, link: KazooLink) -> None:
        if self._session is not None:
            self._zxid_floor = max(self._zxid_floor, link.zxid_of(self._session.number))

    def _use_session(self, number: int) -> None:
        ended = self._session
        if ended is not None and ended.number == number:
            ended.become(SessionState.CONNECTED)
            return
        self._session = ZooKeeperSession(number, self._conversation.link)
        if ended is not None:
            ended.become(SessionState.LOST)
            logger.info("metadata session=%s follows session=%s", self._session.session_id, ended.session_id)

    def _lose_contact(self, state: SessionState) -> None:
        if self._session is not None:
            self._session.become(state)
        self._connection = self._proof = None
        self._conversation.rest()
        for attached in self._attached.values():
            attached.settled.set()

    async def _reach(self) -> None:
        """Return once there is a session with a server that supports the watches that we need."""
        hosts = self._conversation.hosts
        with trio.move_on_after(limits.METADATA_TIMEOUT_S):
            try:
                await self._conversation.read(partial(AddWatch, self._names.counters))
            except Unsupported:
                raise MetadataUnavailable(
                    f"the ZooKeeper servers {hosts} are older than 3.6 and lack the watches that are needed"
                ) from None
            self._conversation.link.submit(RemoveWatches(self._names.counters))
            return
        raise MetadataUnavailable(f"{self._conversation.silence()}; is it running?")

    async def _keep_link(self) -> None:
        while True:
            await self._link_ended.wait()
            ended = self._conversation.link
            self._raise_floor(ended)
            self._link_number += 1  # Ignore its later events.
            await self._stop_link(ended)
            await trio.sleep(_REFUSED_PAUSE_S if self._conversation.is_refused else _LINK_PAUSE_S)
            if self._conversation.is_refused:
                with contextlib.suppress(InvalidArgument):  # Half of a change: the former login is used.
                    await self._read_login()
            self._start_link()

    async def _watch_lease(self) -> None:
        while True:
            session = self.session
            left_s = session.lease_left_s
            if left_s > 0:
                if self._conversation.is_connected:
                    session.become(SessionState.CONNECTED)  # A late answer has extended the lease.
                await trio.sleep(left_s)
            else:
                # Wake the waiting tasks here: kazoo may not have noticed the end yet, or may still be waking
                # up.
                session.become(SessionState.SUSPENDED)
                await trio.sleep(_LAPSED_S)

    async def _stop_link(self, link: KazooLink) -> None:
        """End a link and its threads. Shielded. If a server is silent, its connection is cut."""
        stopped = trio.Event()

        async def stop() -> None:
            try:
                await trio.to_thread.run_sync(link.stop, limiter=trio.CapacityLimiter(1))
            except Exception as error:
                logger.warning("metadata link to %s did not end cleanly: %r", self._conversation.hosts, error)
            stopped.set()

        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop)
                while not stopped.is_set():
                    with trio.move_on_after(_CUT_S):
                        await stopped.wait()
                    if not stopped.is_set():
                        link.cut()

    async def _close(self) -> None:
        self._conversation.close()
        await self._stop_link(self._conversation.link)
        if self._session is not None:
            self._session.become(SessionState.LOST)
