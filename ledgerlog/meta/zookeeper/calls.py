"""Requests to a ZooKeeper server, each with its answer, in the form that kazoo takes.

A ``ZookeeperCall`` is made in the trio loop. kazoo's connection thread writes it to the socket and reads its
answer. Then the call is handed back to the loop, once. kazoo needs two interfaces: one for requests
(``serialize``, ``deserialize``) and one for results (``set``, ``set_exception``). ``ZookeeperCall`` has both,
and uses nothing else of kazoo's client. A ``Carrier`` carries calls (``link.KazooLink``).

**What is sent.** A call decides in ``serialize`` whether it is sent. kazoo calls ``serialize`` when it writes
the call, and the call then holds its own lock.

* A *revoked* call is not sent, because its caller has given up. kazoo keeps submitted requests while there is
  no connection. It would send such a call minutes later, although the caller was told that nothing happened.
* A call that is *bound* to a session is sent in that session or not at all. After an expiry, kazoo silently
  opens a new session and would send its queued requests in that session.

A call cannot be removed from kazoo's queue. So a revoked or wrongly bound write sends a harmless request
instead: a transaction of one check that fails on every server.

So every failed call was either not sent (``NotSent``: nothing happened) or not answered (``AnswerLost``: the
outcome is unknown).

**Errors of kazoo** end here. ``ZookeeperCall.result`` returns the answer, or ``Refused`` if the server says
that a step of the request cannot be done, or raises one of the exceptions below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import attrs
from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as wire
from kazoo.security import ACL as KazooAllowed
from kazoo.security import Id as KazooId

from ledgerlog.errors import MetadataUnavailable
from ledgerlog.meta.zookeeper.acl import OPEN, Acl, Allowed, ZkPrincipal
from ledgerlog.meta.zookeeper.clock import boot_clock_ns
from ledgerlog.meta.zookeeper.plan import (
    NO_VERSION,
    CheckZnode,
    DeleteZnode,
    MakeZnode,
    Refusal,
    SetZnode,
    ZnodeOperation,
)

_EPHEMERAL = 1


# --- answers and failures -------------------------------------------------------------------------


@attrs.frozen
class Stat:
    """The properties of a znode, without its value."""

    version: int
    child_count: int
    is_ephemeral: bool


@attrs.frozen
class Refused:
    """A transaction that did nothing: its step ``index`` was the first that the server refused."""

    index: int
    refusal: Refusal


class NotSent(Exception):
    """The call was not sent and never will be, or the server did not do it: nothing happened."""


class WrongSession(Exception):
    """The session that the call was bound to is over: nothing happened."""


class AnswerLost(Exception):
    """The call was sent and no answer came. The outcome of a write is unknown."""


class Unsupported(Exception):
    """The server does not know this request."""


class Denied(Exception):
    """The list of ``znode`` does not allow this process to do that: nothing happened."""

    def __init__(self, znode: str) -> None:
        super().__init__(znode)
        self.znode = znode


class UnknownIdentity(Exception):
    """The server does not know an identity that a list names, or knows no identity of this process.

    Nothing happened.
    """


_REFUSALS: dict[type[Exception], Refusal] = {
    kazoo_errors.NoNodeError: Refusal.NO_NODE,
    kazoo_errors.NodeExistsError: Refusal.NODE_EXISTS,
    kazoo_errors.BadVersionError: Refusal.BAD_VERSION,
    kazoo_errors.NotEmptyError: Refusal.NOT_EMPTY,
    kazoo_errors.NoChildrenForEphemeralsError: Refusal.PARENT_IS_EPHEMERAL,
}

_NEVER_DONE = (
    kazoo_errors.SessionMovedError,
    kazoo_errors.ThrottledOpError,
    kazoo_errors.SessionExpiredError,
)
"""A server that gives one of these answers has not done the request, and may do it if you ask again."""

_UNCERTAIN = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.ConnectionClosedError,  # kazoo itself raises it, although it is a SessionExpiredError.
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.AuthFailedError,  # kazoo's word for calls under way when a login failed.
    kazoo_errors.SystemZookeeperError,
    kazoo_errors.RuntimeInconsistency,
    kazoo_errors.DataInconsistency,
)


class Carrier(Protocol):
    """The object that sends calls."""

    session_id: int | None
    outstanding: set[ZookeeperCall]

    def heard(self, sent_ns: int) -> None:
        """The server has answered something that was sent at ``sent_ns`` (boot-time clock)."""
        ...

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``function`` in the loop."""
        ...


# --- requests -------------------------------------------------------------------------------------


class ZookeeperCall:
    """One request and its answer. Made in the loop; sent and answered in kazoo's thread, once."""

    type: ClassVar[int]
    session_id: int | None = None
    """The session that the call is bound to; None for any."""
    znode = "/"
    """The znode that the call is about, for messages."""

    def __init__(self) -> None:
        self.deliver: Callable[[ZookeeperCall], None] | None = None
        """Called in the loop with this call once it is answered or has failed; ``result`` says which."""
        self._lock = threading.Lock()
        self._is_revoked = False
        self._is_sent = False
        self._is_finished = False
        self._met_wrong_session = False
        self.carrier: Carrier | None = None
        """Set when the call is submitted."""
        self._sent_ns = 0
        self._answer: Any = None
        self._error: BaseException | None = None

    def revoke(self) -> bool:
        """Give the call up. Return True if it was not sent; then it never will be."""
        with self._lock:
            self._is_revoked = True
            return not self._is_sent

    def result(self) -> Any:
        """Return the answer of a call that was delivered.

        Raises:
            NotSent, WrongSession: Nothing happened.
            AnswerLost: The outcome is unknown.
            Unsupported: The server does not know the request.
            Denied, UnknownIdentity: This process may not do that. Nothing happened.
            MetadataUnavailable: The server refuses, and would refuse again. Nothing happened.
        """
        error = self._error
        if self._met_wrong_session:
            raise WrongSession from error
        if error is None:
            if not isinstance(self._answer, Exception):
                return self._answer
            error = self._answer
        if not self._is_sent:
            raise NotSent from error
        if isinstance(error, Denied):
            raise error
        if isinstance(error, _UNCERTAIN) or not isinstance(error, kazoo_errors.ZookeeperError):
            raise AnswerLost from error
        if isinstance(error, _NEVER_DONE):
            raise NotSent from error
        if isinstance(error, kazoo_errors.UnimplementedError):
            raise Unsupported from error
        if isinstance(error, kazoo_errors.NoAuthError):
            raise Denied(self.znode) from error
        if isinstance(error, kazoo_errors.InvalidACLError):
            raise UnknownIdentity from error
        refusal = _REFUSALS.get(type(error))
        if refusal is not None:
            return Refused(0, refusal)
        raise MetadataUnavailable(
            f"the ZooKeeper server refused ({type(error).__name__}: {type(error).__doc__}); nothing happened"
        ) from error

    # --- in kazoo's thread: kazoo's interface of a request ---------------------------------------

    def _body(self) -> bytes:
        raise NotImplementedError

    def _withheld_body(self) -> bytes:
        return self._body()

    def _read(self, buffer: bytes, offset: int) -> Any:
        raise NotImplementedError

    def serialize(self) -> bytes:
        """Return the bytes of the request; if it must not be sent, the bytes of a harmless request
        instead."""
        carrier = self.carrier
        assert carrier is not None
        with self._lock:
            self._met_wrong_session = self.session_id not in (None, carrier.session_id)
            if self._is_revoked or self._met_wrong_session:
                return self._withheld_body()
            self._is_sent = True
        self._sent_ns = boot_clock_ns()
        return self._body()

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        """Read the server's answer."""
        return self._read(buffer, offset)

    # --- in kazoo's thread: kazoo's interface of a result ----------------------------------------

    def set(self, answer: Any) -> None:
        """Take the answer, and hand the call back to the loop."""
        self._finish(answer, None, answered=True)

    def set_exception(self, error: BaseException) -> None:
        """Take the failure, and hand the call back to the loop."""
        # The server has received a request that it refused. If kazoo gave up, the server may have received
        # nothing.
        answered = isinstance(error, kazoo_errors.ZookeeperError) and not isinstance(
            error,
            kazoo_errors.ConnectionLoss | kazoo_errors.SessionExpiredError | kazoo_errors.AuthFailedError,
        )
        self._finish(None, error, answered=answered)

    def _finish(self, answer: Any, error: BaseException | None, *, answered: bool) -> None:
        carrier = self.carrier
        assert carrier is not None
        with self._lock:
            # kazoo may give up a call twice, if it was given up when kazoo's thread ended.
            if self._is_finished:
                return
            self._is_finished = True
            self._answer, self._error = answer, error
            if error is not None and not self._is_sent:
                # kazoo may report a failure and yet keep the call in its queue. A call that failed unsent is
                # never sent.
                self._is_revoked = True
        carrier.outstanding.discard(self)
        if answered and self._is_sent:
            carrier.heard(self._sent_ns)
        if self.deliver is not None:
            carrier.post(self.deliver, self)


class Get(ZookeeperCall):
    """Read a znode. Answer: the value and its Stat."""

    type = wire.GetData.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self.znode = znode
        self._request = wire.GetData(znode, None)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> tuple[bytes, Stat]:
        value, stat = wire.GetData.deserialize(buffer, offset)
        return bytes(value or b""), _stat(stat)


class Exists(ZookeeperCall):
    """Look for a znode. Answer: its Stat, or None if there is no such znode."""

    type = wire.Exists.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self.znode = znode
        self._request = wire.Exists(znode, None)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> Stat | None:
        stat = wire.Exists.deserialize(buffer, offset)
        return None if stat is None else _stat(stat)


class GetChildren(ZookeeperCall):
    """List a znode. Answer: the names of the znodes directly below it, in no order."""

    type = wire.GetChildren.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self.znode = znode
        self._request = wire.GetChildren(znode, None)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> list[str]:
        names: list[str] = wire.GetChildren.deserialize(buffer, offset)
        return names


class Transaction(ZookeeperCall):
    """Do all operations or none. Answer: the new version for each (0 if it has none), or ``Refused``.

    Args:
        operations: What to do.
        session_id: The session that it must be sent in; None for any.
        acl: The list of each znode that it makes.
    """

    type = wire.Transaction.type

    def __init__(
        self, operations: Sequence[ZnodeOperation], *, session_id: int | None = None, acl: Acl = OPEN
    ) -> None:
        super().__init__()
        self.session_id = session_id
        self._operations = operations
        kazoos_acl = _acl_of_kazoo(acl)
        self._request = wire.Transaction([_of_kazoo(operation, kazoos_acl) for operation in operations])

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _withheld_body(self) -> bytes:
        return bytes(wire.Transaction([wire.CheckVersion("/", NO_VERSION)]).serialize())

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        # kazoo walks over the answer of a transaction to remove its chroot. A list of one keeps ours intact.
        return [self._read(buffer, offset)]

    def set(self, answer: Any) -> None:
        super().set(answer[0])

    def _read(self, buffer: bytes, offset: int) -> list[int] | Refused | Exception:
        versions = []
        for index, result in enumerate(wire.Transaction.deserialize(buffer, offset)):
            # The steps before the refused one report that they were rolled back, and those after it report
            # that they were not tried.
            if isinstance(result, kazoo_errors.RolledBackError):
                continue
            if isinstance(result, kazoo_errors.NoAuthError):
                return Denied(self._operations[index].znode)
            if isinstance(result, Exception):
                refusal = _REFUSALS.get(type(result))
                return result if refusal is None else Refused(index, refusal)
            versions.append(getattr(result, "version", 0))
        return versions


class GetAcl(ZookeeperCall):
    """Read the access control list of a znode. Answer: an ``Acl``."""

    type = wire.GetACL.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self.znode = znode
        self._request = wire.GetACL(znode)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> Acl:
        entries, _ = wire.GetACL.deserialize(buffer, offset)
        return tuple(
            Allowed(ZkPrincipal(entry.id.scheme or "", entry.id.id or ""), entry.perms) for entry in entries
        )


class SetAcl(ZookeeperCall):
    """Replace the list of a znode, without a check of the present list. Answer: None."""

    type = wire.SetACL.type
    _ANY_VERSION = -1

    def __init__(self, znode: str, acl: Acl) -> None:
        super().__init__()
        self.znode = znode
        self._acl = _acl_of_kazoo(acl)

    def _body(self) -> bytes:
        return bytes(wire.SetACL(self.znode, self._acl, self._ANY_VERSION).serialize())

    def _withheld_body(self) -> bytes:
        return bytes(wire.SetACL("/", self._acl, NO_VERSION).serialize())

    def _read(self, buffer: bytes, offset: int) -> None:
        return None


class AddWatch(ZookeeperCall):
    """A persistent recursive watch on a znode, until the connection ends. Answer: None.

    The znode need not exist.
    """

    type = 106
    _RECURSIVE = 1

    def __init__(self, znode: str) -> None:
        super().__init__()
        self.znode = znode

    def _body(self) -> bytes:
        return bytes(wire.write_string(self.znode) + wire.int_struct.pack(self._RECURSIVE))

    def _read(self, buffer: bytes, offset: int) -> None:
        return None


class RemoveWatches(ZookeeperCall):
    """Remove this connection's watches on a znode. Answer: None."""

    type = 18
    _ANY = 3

    def __init__(self, znode: str) -> None:
        super().__init__()
        self.znode = znode

    def _body(self) -> bytes:
        return bytes(wire.write_string(self.znode) + wire.int_struct.pack(self._ANY))

    def _read(self, buffer: bytes, offset: int) -> None:
        return None


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.numChildren, stat.ephemeralOwner != 0)


def _acl_of_kazoo(acl: Acl) -> list[Any]:
    return [
        KazooAllowed(each.permissions, KazooId(each.principal.scheme, each.principal.identity))
        for each in acl
    ]


def _of_kazoo(operation: ZnodeOperation, acl: list[Any]) -> Any:
    match operation:
        case MakeZnode(znode=znode, value=value, is_ephemeral=is_ephemeral):
            return wire.Create(znode, value, acl, _EPHEMERAL if is_ephemeral else 0)
        case SetZnode(znode=znode, value=value, version=version):
            return wire.SetData(znode, value, version)
        case DeleteZnode(znode=znode, version=version):
            return wire.Delete(znode, version)
        case CheckZnode(znode=znode, version=version):
            return wire.CheckVersion(znode, version)
