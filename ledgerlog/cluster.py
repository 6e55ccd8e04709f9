"""Connect to a cluster: ``connect`` turns a cluster URI into a ``Cluster``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from ledgerlog.election.election import Election
from ledgerlog.errors import ConnectionClosed
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
from ledgerlog.metrics.client import client_measurements, session_measurements
from ledgerlog.metrics.families import MetricSample, samples
from ledgerlog.model.checks import check_kind, check_positive
from ledgerlog.model.credentials import TLS, Credentials, FilePath
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.net.tcp import own_host_towards
from ledgerlog.net.tls import network_of
from ledgerlog.proving import make_cluster_with, open_prover, with_secret_beside


class Cluster:
    """A connected cluster: its logs, ledgers and elections. You get one from ``connect``.

    Every method that reads or writes metadata can also raise WrongCluster, a kind of MetadataUnavailable.
    This happens while the store at the URI is not the store that this process connected to.
    """

    def __init__(self, uri: str, client: LedgerClient) -> None:
        self.uri = uri
        """The URI that was passed to ``connect``. It may hold a password."""
        self._client = client

    @property
    def ledgers(self) -> Ledgers:
        """The lower level: create, open and delete ledgers by their ids."""
        return self._client.ledgers

    @property
    def bookies(self) -> BookieDirectory:
        """The bookies that are registered in the cluster."""
        return self._client.bookies

    @property
    def store(self) -> MetadataStore:
        """The metadata store, for tools. Programs do not need it."""
        return self._client.store

    @property
    def client(self) -> LedgerClient:
        """The ledger client that ``ledgers`` uses, for tools. Programs do not need it."""
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
        """Create an empty log, or open the existing one if ``exist_ok`` is true.

        Args:
            name: 1 to 255 letters, digits and ``. _ - /``, for example ``"billing/orders"``. It starts with a
                letter, a digit or ``_`` and has no empty components.
            replication: The ensemble size and the quorums of the log's ledgers, for example ``Replication(3,
                3, 2)``. The default is the default of the connection, see ``connect``.
            roll: When the log's leader continues in a new ledger. The default is ``RollPolicy()``.
            retention: Which old ledgers may be dropped. The log's leader drops them while it leads;
                ``Log.apply_retention`` drops them on demand. The default, ``RetentionPolicy()``, keeps
                everything.
            properties: Text of your own that the log carries, at most ``limits.LOG_PROPERTIES_BYTES_MAX`` (64
                KiB) in all.
            exist_ok: Return the existing log of this name instead of raising LogExists. The existing log
                keeps its own settings; the other arguments are ignored.

        Returns:
            The log.

        Raises:
            LogExists: A log has this name already, and ``exist_ok`` is false.
            InvalidArgument: The name or another argument is out of its range. No log was created.
            MetadataUnavailable: The metadata store did not answer. No log was created.
            MetadataOutcomeUnknown: The store's answer was lost. The log may have been created; with
                ``exist_ok`` you can call again.
            MetadataCorrupt: The node of this name in the metadata store does not decode.
        """
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
        """Open the log of this name.

        This only reads metadata. It fences no ledger and does not disturb the log's writer.

        Args:
            name: The name of the log.

        Returns:
            The log.

        Raises:
            LogNotFound: No log has this name.
            InvalidArgument: ``name`` is not well-formed as the name of a log.
            MetadataUnavailable: The metadata store did not answer.
            MetadataCorrupt: The node of this name in the metadata store does not decode.
        """
        return await logs.open_log(self._client, name)

    async def logs(self, prefix: str = "") -> list[str]:
        """List the names of all logs that begin with ``prefix``.

        Args:
            prefix: The beginning of the names, for example ``"billing/"``. The default lists all logs.

        Returns:
            The names, sorted. The list is complete.

        Raises:
            MetadataUnavailable: The metadata store did not answer. You never get a part of the list.
        """
        return await logs.list_logs(self._client, prefix)

    async def delete_log(self, name: str, *, damaged: bool = False) -> None:
        """Delete a log, its ledgers, its cursors, and the snapshots of a state machine that lie in ledgers.

        If a writer still leads the log, it loses its leadership. The records that it acknowledged are deleted
        with the rest.

        If the metadata store goes away after the log's record was deleted, ledgers may stay until ``sweep``
        finds them.

        Args:
            name: The name of the log.
            damaged: Delete the log even if its metadata cannot be read. In that case it is unknown which
                ledgers it listed. They stay until ``sweep`` finds that their log is gone. If the log can be
                read, ``damaged`` changes nothing.

        Raises:
            LogNotFound: No log has this name.
            MetadataUnavailable: The metadata store did not answer. The log was not deleted.
            MetadataOutcomeUnknown: The store's answer was lost. The log may be deleted.
            MetadataCorrupt: The log's metadata cannot be read, and ``damaged`` is false. The log was not
                deleted.

        Cancelling: the log may or may not be deleted, and ledgers may stay until ``sweep`` finds them.
        """
        await logs.delete_log(self._client, name, damaged=damaged)

    async def sweep(self, *, min_age_s: float = LOG_SWEEP_AGE_S, delete: bool = True) -> list[Orphan]:
        """Find ledgers that crashes left over and that no log can list, and delete them.

        A ledger counts as left over only if the metadata proves that no log can ever list it again.

        Args:
            min_age_s: Skip ledgers that are younger than this, in seconds by the wall clock. The default is
                one hour.
            delete: Delete the ledgers that are found. If false, only report them.

        Returns:
            The ledgers that were found.

        Raises:
            InvalidArgument: ``min_age_s`` is not a number at or above 0.
            MetadataUnavailable: The metadata store did not answer. No ledger was deleted.
            MetadataOutcomeUnknown: The metadata store failed on the way. Some ledgers are deleted or may be
                deleted, and others were not checked. Call again to continue.
        """
        return await sweep(self._client, min_age_s=min_age_s, delete=delete)

    def election(self, name: str, *, candidate: str | None = None, listen: str | None = None) -> Election:
        """Return this process's part in an election. Enter its ``leadership()`` to take part.

            election = cluster.election("scheduler", candidate="host-7:8080")
            async with election.leadership() as term:
                ...  # this process leads, until the body ends or is cancelled

        Args:
            name: The name of the election, by the rules for names of logs. An election and a log of the same
                name have nothing to do with each other.
            candidate: The name of this process for people, and for clients that look for the leader. For
                example, pass the address at which it serves clients. The default is a random name.
            listen: The address (``host:port``; port 0 picks a free one) at which this process listens for
                standbys and sends them heartbeats while it leads. The standbys must be able to reach it. With
                ZooKeeper, the default is the address from which this machine reaches the first ZooKeeper
                server. With ``sqlite:``, the default is 127.0.0.1.

        Returns:
            The election.

        Raises:
            InvalidArgument: ``name`` or ``candidate`` is not well-formed.
        """
        return Election(
            self._client,
            name,
            candidate=candidate,
            listen=partial(default_listen_address, self.uri) if listen is None else listen,
        )

    def metrics(self) -> list[MetricSample]:
        """Return the figures of this process about its work with the cluster: appends, takeovers,
        connections, sessions, and the logs that it leads.

        This reads counts that the library keeps anyway, and sends no request. ``docs/METRICS.md`` lists the
        names. To have Prometheus read them, put a ``ledgerlog.metrics.prometheus.ClusterCollector`` into the
        registry of your program.

        Returns:
            The samples: name, labels and value of each number.

        Raises:
            ConnectionClosed: The connection is closed.
        """
        if self._client.sessions.is_over:
            raise ConnectionClosed("the connection is closed")
        measurements = (*client_measurements(self._client), *session_measurements(self._client.sessions))
        return [sample for measurement in measurements for sample in samples(measurement)]


async def default_listen_address(uri: str) -> str | None:
    """Return the address on which a candidate listens for standbys: of this machine, as they reach it.

    Args:
        uri: The cluster's URI.

    Returns:
        The address, with port 0; None if this machine has no way to the metadata store now.
    """
    scheme = uri.partition(":")[0].lower()
    match parse_uri(uri) if scheme in ("sqlite", "zk", "zks") else None:
        case SqliteUri():
            return "127.0.0.1:0"  # Only processes of this machine can share the file.
        case ZooKeeperUri(servers=servers):
            host = await own_host_towards(*servers[0])
            return None if host is None else f"{host}:0"
        case _:
            return "election:0"  # A name inside this process, not a TCP address.


@asynccontextmanager
async def connect(
    uri: str,
    *,
    default_replication: Replication | None = None,
    append_deadline_s: float = APPEND_DEADLINE_S,
    create: bool = False,
    tls: TLS | None = None,
    secret_file: FilePath | None = None,
    zk_auth_file: FilePath | None = None,
) -> AsyncIterator[Cluster]:
    """Connect to a cluster for the body of an ``async with``.

        async with ledgerlog.connect("file:./data?bookies=3") as cluster:
            log = await cluster.create_log("orders", exist_ok=True)

    The URI says where the cluster's metadata is:

        memory:[?bookies=N]             bookies in this process, nothing on disk
        file:PATH[?bookies=N]           bookies in this process, in a directory that this process owns
        sqlite:PATH                     a SQLite file that the processes of one machine share
        zk://HOST[:PORT],...[/CHROOT]   an ensemble of ZooKeeper servers; zks:// by TLS

    ``memory:`` and ``file:`` clusters run their bookies inside this process until the body ends. Such a
    cluster is made if it does not exist. For the other two kinds, start bookies with ``bookie run``.

    The connection belongs to the cluster that it found first. If the metadata store is exchanged or emptied,
    calls raise WrongCluster until the right store is back.

    Leaving the body ends every writer that is still open. If an append is not acknowledged by then, it raises
    AppendUnknown: its record may or may not be in the log.

    Args:
        uri: The cluster URI.
        default_replication: The replication of logs and ledgers that are created without one. The default is
            ``Replication()``. For a ``memory:`` or ``file:`` cluster of N bookies, the default is min(3, N)
            copies with a majority as the ack quorum.
        append_deadline_s: An append fails if it has not reached its ack quorum after this many seconds. It
            must be above 0; the default is 20.
        create: Create the cluster's metadata if there is none. This starts no bookies. The new cluster is
            closed: a process must prove who it is, with a certificate if this program has one, otherwise with
            the secret. If this program has no certificate and no secret, ``sqlite:`` makes a secret in
            ``PATH.secret``. With ``zk://``, the cluster is then open to every process that reaches its
            bookies, and a warning in the log says so.
        tls: The certificate, the key and the authorities of this program. With it, every connection to a
            bookie is encrypted, and both ends prove who they are. The default is in the environment variables
            ``LEDGERLOG_TLS_CERT``, ``LEDGERLOG_TLS_KEY`` and ``LEDGERLOG_TLS_CA``. ``memory:`` and ``file:``
            clusters use no network, so they ignore this and the next two arguments.
        secret_file: The file with the cluster's shared secret, or with the secret of one principal. The
            default is in ``LEDGERLOG_SECRET_FILE``, and then ``PATH.secret`` for a cluster at
            ``sqlite:PATH``.
        zk_auth_file: The file with the credentials for ZooKeeper. The default is in
            ``LEDGERLOG_ZK_AUTH_FILE``.

    Yields:
        The cluster.

    Raises:
        InvalidArgument: The URI or an option is not valid, or you are not in a task of trio. In an asyncio
            program, use ``ledgerlog.aio``.
        ClusterNotFound: There is no cluster at the URI, and ``create`` is false. The URI may be mistyped. Or
            a ``sqlite:`` URI leads to a directory.
        StorageLocked: Another process owns the directory of a ``file:`` cluster.
        StorageCorrupt: A file of a ``file:`` cluster is damaged.
        CookieMismatch: A bookie's directory of a ``file:`` cluster belongs to another bookie or another
            cluster.
        Unauthenticated: The cluster is closed, and you gave no secret and no certificate.
        MetadataUnavailable: The metadata store cannot be reached.
        Unauthenticated: The certificate of this program cannot prove who it is: it has expired, for example,
            or is for another cluster. Or ZooKeeper refused it.
    """
    credentials = Credentials.completed(
        os.environ, tls=tls, secret_file=secret_file, zk_auth_file=zk_auth_file
    )
    async with open_cluster(
        uri,
        credentials,
        default_replication=default_replication,
        append_deadline_s=append_deadline_s,
        create=create,
    ) as cluster:
        yield cluster


@asynccontextmanager
async def open_cluster(
    uri: str,
    credentials: Credentials,
    *,
    default_replication: Replication | None = None,
    append_deadline_s: float = APPEND_DEADLINE_S,
    create: bool = False,
) -> AsyncIterator[Cluster]:
    """Connect like ``connect``, but with exactly these credentials: the environment is not used."""
    refuse_other_loops("ledgerlog.connect")
    check_positive(append_deadline_s, "append_deadline_s")
    if default_replication is not None:
        check_kind(default_replication, Replication, "default_replication", "a ledgerlog.Replication or None")
    parsed = parse_uri(uri)
    environment = Environment()
    if isinstance(parsed, MemoryUri | FileUri):
        from ledgerlog.embedded import open_embedded  # Programs that use a real cluster never load bookies.

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
    credentials = with_secret_beside(credentials, parsed)
    if create:
        credentials = await make_cluster_with(parsed, credentials)
    async with (
        open_store(parsed, credentials=credentials) as store,
        open_prover(store, credentials) as prover,
        open_client(
            store,
            network_of(credentials, cluster=store.cluster),
            environment=environment,
            default_replication=default_replication,
            append_deadline_s=append_deadline_s,
            credentials=credentials,
            prover=prover,
        ) as client,
    ):
        yield Cluster(uri, client)
