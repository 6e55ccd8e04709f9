"""Who this process is in a cluster: its secrets, and how the metadata store says that the cluster is closed.

Every real process opens its prover here, next to its network. Bookies and clients inside one process need
none: nothing of them can be reached from outside.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs

from ledgerlog.concurrency.nurseries import background
from ledgerlog.meta.admission import STORED_ADMISSION, follow_admission
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import ClusterUri, SqliteUri
from ledgerlog.model.admission import ProvenBy
from ledgerlog.model.credentials import Credentials
from ledgerlog.net.prover import Prover
from ledgerlog.net.secret_file import exists

__all__ = ["open_prover", "secret_beside", "with_secret_beside"]

logger = logging.getLogger(__name__)


def secret_beside(uri: SqliteUri) -> str:
    """Return where the processes of a machine look for the secret of a cluster in a SQLite file."""
    return f"{uri.path}.secret"


def with_secret_beside(credentials: Credentials, uri: ClusterUri) -> Credentials:
    """Add the secret file beside the SQLite file of a cluster, if it is there and no other proof is given."""
    if credentials.secret_file is not None or credentials.tls is not None or not isinstance(uri, SqliteUri):
        return credentials
    path = secret_beside(uri)
    return attrs.evolve(credentials, secret_file=path) if exists(path) else credentials


@asynccontextmanager
async def open_prover(
    store: MetadataStore, credentials: Credentials, *, level_if_open: int = logging.INFO
) -> AsyncIterator[Prover]:
    """Read the secret file, and follow how the cluster is closed, for the body of the ``async with``.

    Args:
        store: The cluster's metadata store.
        credentials: What this process proves itself with.
        level_if_open: The level of the one line in the log that says that the cluster is open. It is low by
            default, because commands of a person would repeat it each time.

    Raises:
        InvalidArgument: The secret file cannot be used.
        Unauthenticated: The cluster is closed, and this process has nothing to prove itself with.
        MetadataCorrupt: The record of how the cluster is closed is damaged.
        MetadataUnavailable: The metadata store cannot be reached.
    """
    prover = Prover.of(credentials)
    prover.admit(await STORED_ADMISSION.read(store))
    prover.check_own()
    if prover.admission.by is ProvenBy.NOTHING and credentials.tls is None:
        logger.log(
            level_if_open, "this cluster is open: who reaches a bookie can read and write every ledger"
        )
    else:
        logger.info("this cluster is %s", prover.admission)
    async with background(partial(follow_admission, store, prover.admit), name="admission"):
        yield prover
