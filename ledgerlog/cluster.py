"""``connect``: from a cluster URI to a cluster that a program can use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from ledgerlog.election.election import Election
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.limits import APPEND_DEADLINE_S, LOG_SWEEP_AGE_S
from ledgerlog.log import log as logs
from ledgerlog.log.log import Log
from ledgerlog.log.sweep import Orphan, sweep
from ledgerlog.loops import refuse_other_loops
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import FileUri, MemoryUri, SqliteUri, ZooKeeperUri, open_store, parse_uri
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.net.tcp import TcpNetwork, own_host_towards


class Cluster:
    """A connected cluster. Made by ``connect``."""

    def __init__(self, uri: str, client: LedgerClient) -> None:
        self.uri = uri
        self._client = client

    @property
    def ledgers(self) -> Ledgers:
        """The lower level: ledgers by their ids."""
        return self._client.ledgers

    @property
    def bookies(self) -> BookieDirectory:
        """The bookies that are registered."""
        return self._client.bookies

    @property
    def store(self) -> MetadataStore:
        """The metadata store, for tools."""
        return self._client.store

    @property
    def client(self) -> LedgerClient:
        """What ``ledgers`` stands on, for tools."""
        return self._client

    async def create_log(
        self,
        name: str,
        *,
        replication: Replication | None = None,
        roll: RollPolicy | None = None,
        retention: RetentionPolicy | None = None,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> Log:
        """A new log; with ``exist_ok`` the one that has the name already, as it is.

        ``replication`` defaults to the cluster's (min(3, N) bookies for an embedded one). What ``retention``
        lets go the log's leader drops while it leads, and ``Log.apply_retention`` on demand. Raises
        LogExists, InvalidArgument, MetadataUnavailable."""
        return await logs.create_log(
            self._client,
            name,
            replication=replication or self._client.default_replication,
            roll=roll or RollPolicy(),
            retention=retention or RetentionPolicy(),
            properties=dict(properties or {}),
            exist_ok=exist_ok,
        )

    async def open_log(self, name: str) -> Log:
        """The log of this name. LogNotFound, MetadataUnavailable."""
        return await logs.open_log(self._client, name)

    async def logs(self, prefix: str = "") -> list[str]:
        """The names of all logs that begin with ``prefix``, sorted; complete, or an error."""
        return await logs.list_logs(self._client, prefix)

    async def delete_log(self, name: str, *, damaged: bool = False) -> None:
        """Delete a log and its ledgers. A writer that is still alive loses its leadership. LogNotFound,
        MetadataUnavailable; MetadataCorrupt where what the metadata store holds of it cannot be read.

        With ``damaged`` it is deleted in that case, too. Which ledgers it listed is not known then: they stay
        until ``sweep`` finds that the log they were made for is gone. A log that can be read is deleted as
        without it."""
        await logs.delete_log(self._client, name, damaged=damaged)

    async def sweep(self, *, min_age_s: float = LOG_SWEEP_AGE_S, delete: bool = True) -> list[Orphan]:
        """Find the ledgers, at least so old, that crashes have left and that no log can name any more, and
        unless told otherwise delete them. MetadataUnavailable, InvalidArgument."""
        return await sweep(self._client, min_age_s=min_age_s, delete=delete)

    def election(self, name: str, *, candidate: str | None = None, listen: str | None = None) -> Election:
        """This process's part in the election of that name; ``async with election.leadership()`` takes part.
        Names are those of logs, and elections and logs of one name have nothing to do with each other.

        ``candidate`` is what this process is called, for people and for clients that look for the leader:
        the address where it serves them, perhaps. ``listen`` is the address (``host:port``; port 0 is any)
        where standbys hear that it lives; it must be one that they can reach. By default it is this
        machine's address as the metadata servers would see it. InvalidArgument."""
        return Election(
            self._client,
            name,
            candidate=candidate,
            listen=self._listen_address() if listen is None else listen,
        )

    def _listen_address(self) -> str | None:
        scheme = self.uri.partition(":")[0].lower()
        parsed = parse_uri(self.uri) if scheme in ("sqlite", "zk") else None
        match parsed:
            case SqliteUri():
                return "127.0.0.1:0"  # Whoever shares the file is on this machine.
            case ZooKeeperUri(servers=servers):
                host = own_host_towards(*servers[0])
                return None if host is None else f"{host}:0"
            case _:
                return "election:0"  # Inside this process.


@asynccontextmanager
async def connect(
    uri: str,
    *,
    default_replication: Replication | None = None,
    append_deadline_s: float = APPEND_DEADLINE_S,
    create: bool = False,
) -> AsyncIterator[Cluster]:
    """A ``Cluster`` for the body of the ``async with``; see docs for the URIs.

    ``memory:`` and ``file:`` clusters run their bookies inside this process, until the body ends, and are
    made where there is none. With ``create`` the others are made too: their metadata, that is; bookies are
    started with ``bookie run``. ``append_deadline_s`` is how long an append may lack its ack quorum before it
    fails.

    Raises InvalidArgument (the URI or an option; entered outside of trio, in an asyncio loop for example:
    call ``ledgerlog.blocking`` from a thread there), ClusterNotFound (there is none, and ``create`` was not
    asked for: perhaps the URI is mistyped), StorageLocked (another process owns a ``file:``
    directory), StorageCorrupt, MetadataUnavailable. From then on the connection is one to that cluster: where
    its store is exchanged or emptied, calls raise WrongCluster until it is back. Leaving the body ends every
    writer that is still open; what was not acknowledged then is unknown (AppendUnknown)."""
    refuse_other_loops("ledgerlog.connect")
    if not append_deadline_s > 0:
        raise InvalidArgument(f"append_deadline_s must be positive, not {append_deadline_s!r}")
    parsed = parse_uri(uri)
    environment = Environment()
    if isinstance(parsed, MemoryUri | FileUri):
        from ledgerlog.embedded import open_embedded  # Only here does the client know bookies.

        async with open_embedded(parsed) as embedded:
            copies = min(3, parsed.bookies)
            replication = default_replication or Replication(
                ensemble=copies, write_quorum=copies, ack_quorum=copies // 2 + 1
            )
            async with open_client(
                embedded.store,
                embedded.network,
                environment=environment,
                default_replication=replication,
                append_deadline_s=append_deadline_s,
            ) as client:
                yield Cluster(uri, client)
        return
    async with (
        open_store(parsed, create=create) as store,
        open_client(
            store,
            TcpNetwork(),
            environment=environment,
            default_replication=default_replication,
            append_deadline_s=append_deadline_s,
        ) as client,
    ):
        yield Cluster(uri, client)
