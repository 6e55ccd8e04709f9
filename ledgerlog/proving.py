"""Who this process is in a cluster: its secrets, and how the metadata store says that the cluster is closed.

Every real process opens its prover here, next to its network. Bookies and clients inside one process need
none: nothing of them can be reached from outside.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from ledgerlog.concurrency.nurseries import background
from ledgerlog.meta.admission import STORED_ADMISSION, follow_admission
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.credentials import Credentials
from ledgerlog.net.prover import Prover

__all__ = ["open_prover"]

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_prover(store: MetadataStore, credentials: Credentials) -> AsyncIterator[Prover]:
    """Read the secret file, and follow how the cluster is closed, for the body of the ``async with``.

    Args:
        store: The cluster's metadata store.
        credentials: What this process proves itself with.

    Raises:
        InvalidArgument: The secret file cannot be used.
        Unauthenticated: The cluster is closed, and this process has nothing to prove itself with.
        MetadataCorrupt: The record of how the cluster is closed is damaged.
        MetadataUnavailable: The metadata store cannot be reached.
    """
    prover = Prover.of(credentials)
    prover.admit(await STORED_ADMISSION.read(store))
    prover.check_own()
    logger.info("this cluster is %s", prover.admission)
    async with background(partial(follow_admission, store, prover.admit), name="admission"):
        yield prover
