"""How this process proves its identity in a cluster: its secrets, and the record that says how the cluster is
closed.

Every process that uses a network opens its prover here. Bookies and clients inside one process need no
prover: nothing outside of the process can reach them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from ledgerlog.concurrency.nurseries import background
from ledgerlog.durable_directories import make_directories
from ledgerlog.errors import ClusterNotFound, MetadataUnavailable
from ledgerlog.meta.admission import STORED_ADMISSION, follow_admission
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import (
    ClusterUri,
    SqliteUri,
    StoreAccess,
    make_cluster_at,
    open_store,
    refuse_directory,
)
from ledgerlog.model.admission import Admission, ProvenBy
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.placement import DEFAULT_PLACEMENT, PlacementPolicy
from ledgerlog.net.prover import Prover
from ledgerlog.net.secret_file import ensure_secret_file, exists

__all__ = [
    "make_closed_cluster",
    "make_cluster_with",
    "open_prover",
    "secret_beside",
    "with_secret_beside",
    "with_secret_named",
]

logger = logging.getLogger(__name__)


def secret_beside(uri: SqliteUri) -> str:
    """Return the path of the secret file of a cluster in a SQLite file, where all processes of the machine
    look."""
    return f"{uri.path}.secret"


def with_secret_beside(credentials: Credentials, uri: ClusterUri) -> Credentials:
    """Add the secret file beside the SQLite file of a cluster, if that file exists and no other proof is
    given."""
    if credentials.secret_file is not None or credentials.tls is not None or not isinstance(uri, SqliteUri):
        return credentials
    path = secret_beside(uri)
    return attrs.evolve(credentials, secret_file=path) if exists(path) else credentials


def with_secret_named(credentials: Credentials, admission: Admission) -> Credentials:
    """Add the secret file that the cluster's record names, if that file exists and no other proof is given.

    In an open cluster no proof is needed, so the file of a former mode is left alone."""
    if credentials.secret_file is not None or credentials.tls is not None or not exists(admission.file):
        return credentials
    if admission.by is ProvenBy.NOTHING:
        return credentials
    return attrs.evolve(credentials, secret_file=admission.file)


async def make_closed_cluster(
    uri: ClusterUri,
    credentials: Credentials,
    *,
    by: ProvenBy,
    access: StoreAccess | None = None,
    names_file: bool = False,
    placement: PlacementPolicy = DEFAULT_PLACEMENT,
) -> tuple[str, bool]:
    """Make a cluster that serves only processes that prove who they are, unless the store holds a cluster.

    Args:
        uri: Where to make the cluster.
        credentials: The secrets or certificates with which this process proves its identity. If ``by`` is a
            secret and the secret file that they name does not exist, the file is made before the cluster. If
            the cluster exists already, no file is made. If another process makes the cluster at the same
            time, the file stays, because that process may use it too; a warning says so.
        by: How processes prove their identity.
        access: The other users that may use the tree in ZooKeeper. None: no other users.
        names_file: Whether all processes run on this machine, so that the cluster may name the file to them.
        placement: The placement policy of the new cluster.

    Returns:
        The cluster's id, and whether this call made the cluster.

    Raises:
        InvalidArgument: The secret file cannot be read or made, or ``access`` is given but has no effect.
        ClusterNotFound: A ``sqlite:`` URI leads to a directory.
        MetadataUnavailable: The directory of the SQLite file cannot be made.
        LedgerLogError: As for ``open_store``.
    """
    refuse_directory(uri)  # Before a secret is made beside it.
    file = ""
    if by is ProvenBy.SECRET and not await _has_cluster(uri, credentials):
        assert credentials.secret_file is not None
        if isinstance(uri, SqliteUri):
            try:
                await trio.to_thread.run_sync(make_directories, Path(uri.path).parent)
            except OSError as error:
                raise MetadataUnavailable(
                    f"cannot make the directory of the metadata file {uri.path}: {error}"
                ) from error
        file = ensure_secret_file(credentials.secret_file)
    admission = Admission(by, file=file if names_file else "")
    cluster, is_new = await make_cluster_at(
        uri, credentials=credentials, access=access, admission=admission, placement=placement
    )
    # All processes share the file beside a SQLite file.
    is_shared = isinstance(uri, SqliteUri) and credentials.secret_file == secret_beside(uri)
    if file and not is_new and not is_shared:
        logger.warning(
            "another process made the cluster at %s at the same time. Unless it used %s too, the secret in "
            "this file is not the secret of the cluster",
            uri,
            file,
        )
    return cluster, is_new


async def make_cluster_with(uri: ClusterUri, credentials: Credentials) -> Credentials:
    """Make a cluster unless the store holds one. The new cluster asks for the kind of proof that this process
    has.

    If this process has no proof, a cluster in a SQLite file gets a secret beside the file. A cluster in
    ZooKeeper is then open: other machines would not find a secret that was made here.

    Returns:
        The credentials, with the secret file that was made.

    Raises:
        InvalidArgument: The secret file cannot be read or made.
        MetadataUnavailable: The directory of the SQLite file cannot be made.
        LedgerLogError: As for ``open_store``.
    """
    if credentials.tls is not None:
        await make_closed_cluster(uri, credentials, by=ProvenBy.TLS)
        return credentials
    wanted = credentials
    if wanted.secret_file is None and isinstance(uri, SqliteUri):
        wanted = attrs.evolve(credentials, secret_file=secret_beside(uri))
    if wanted.secret_file is not None:
        await make_closed_cluster(uri, wanted, by=ProvenBy.SECRET)
        return with_secret_beside(credentials, uri)
    _, is_new = await make_cluster_at(uri, credentials=credentials)
    if is_new:
        logger.warning(
            "the new cluster at %s is open: every process that reaches a bookie can read and write every "
            "ledger. 'ledgerlog access new-secret' and 'access mode' close it",
            uri,
        )
    return credentials


async def _has_cluster(uri: ClusterUri, credentials: Credentials) -> bool:
    try:
        async with open_store(uri, credentials=credentials):
            return True
    except ClusterNotFound:
        return False


@asynccontextmanager
async def open_prover(
    store: MetadataStore, credentials: Credentials, *, level_if_open: int = logging.INFO
) -> AsyncIterator[Prover]:
    """Read the secret file, and follow how the cluster is closed, for the body of the ``async with``.

    Args:
        store: The cluster's metadata store.
        credentials: The secrets or certificates with which this process proves its identity.
        level_if_open: The level of the log line that says that the cluster is open. It is low by default,
            because otherwise each command that a person runs would repeat the line.

    Raises:
        InvalidArgument: The secret file cannot be used.
        Unauthenticated: The cluster is closed, and this process has nothing to prove itself with.
        MetadataCorrupt: The record of how the cluster is closed is damaged.
        MetadataUnavailable: The metadata store cannot be reached.
    """
    admission = await STORED_ADMISSION.read(store)
    prover = Prover.of(with_secret_named(credentials, admission))
    prover.admit(admission)
    prover.check_own()
    if prover.admission.by is ProvenBy.NOTHING and credentials.tls is None:
        logger.log(
            level_if_open,
            "this cluster is open: every process that reaches a bookie can read and write every ledger",
        )
    else:
        logger.info("this cluster is %s", prover.admission)
    async with background(partial(follow_admission, store, prover.admit), name="admission"):
        yield prover
