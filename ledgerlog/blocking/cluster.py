"""``connect``, and the cluster that it gives, for ordinary threads."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ledgerlog import cluster
from ledgerlog.blocking.ledgers import Ledgers
from ledgerlog.blocking.logs import Log
from ledgerlog.blocking.portal import Held, Portal
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.redact import redact

__all__ = ["Cluster", "connect"]


class Cluster:
    """A connected cluster; see ``ledgerlog.Cluster``. Close it, or use it in a ``with``; what is still open
    then is left in order, and the thread ends. For any number of threads."""

    def __init__(self, portal: Portal, inner: cluster.Cluster, held: Held[cluster.Cluster]) -> None:
        self._portal = portal
        self._cluster = inner
        self._held = held

    def __repr__(self) -> str:
        return f"<blocking cluster {redact(self.uri)!r}>"

    @property
    def uri(self) -> str:
        return self._cluster.uri

    @property
    def ledgers(self) -> Ledgers:
        """The lower level: ledgers by their ids."""
        self._check()
        return Ledgers(self._portal, self._cluster.ledgers)

    def create_log(
        self,
        name: str,
        *,
        replication: Replication | None = None,
        roll: RollPolicy | None = None,
        retention: RetentionPolicy | None = None,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> Log:
        """A new log; with ``exist_ok`` the one that has the name already, as it is."""
        self._check()
        made = self._portal.run(
            lambda: self._cluster.create_log(
                name,
                replication=replication,
                roll=roll,
                retention=retention,
                properties=properties,
                exist_ok=exist_ok,
            )
        )
        return Log(self._portal, made)

    def open_log(self, name: str) -> Log:
        """The log of this name. LogNotFound."""
        self._check()
        return Log(self._portal, self._portal.run(lambda: self._cluster.open_log(name)))

    def logs(self, prefix: str = "") -> list[str]:
        """The names of all logs that begin with ``prefix``, sorted."""
        self._check()
        return self._portal.run(lambda: self._cluster.logs(prefix))

    def delete_log(self, name: str, *, damaged: bool = False) -> None:
        """Delete a log and its ledgers; with ``damaged`` also one whose metadata cannot be read, of which the
        ledgers are left for a sweep."""
        self._check()
        self._portal.run(lambda: self._cluster.delete_log(name, damaged=damaged))

    def close(self) -> None:
        """Leave what is still open, disconnect, end the thread. Idempotent. Raises what leaving raises."""
        self._portal.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._portal.close()
        except Exception:
            if error is None:
                raise

    def _check(self) -> None:
        self._portal.check()
        self._held.check()


def connect(uri: str, **options: Any) -> Cluster:
    """Connect to a cluster; options and errors as for ``ledgerlog.connect``. A ``memory:`` or ``file:``
    cluster lives in the thread of this connection, and ends with it.

    InvalidArgument inside of trio, and where an asyncio loop runs in the calling thread: in an asyncio
    program, and in a notebook. Call it from another thread there: ``await asyncio.to_thread(connect, uri)``.

    The program may end without closing: what is open is left in order by then."""
    manager = cluster.connect(uri, **options)
    portal = Portal(refuses_asyncio=True)
    try:
        inner, held = portal.enter(manager)
    except BaseException:
        portal.close()
        raise
    return Cluster(portal, inner, held)
