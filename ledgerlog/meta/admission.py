"""Read, change and follow the record in the metadata store that says how the cluster is closed
(``model.admission``).

A process that may write the store may open the cluster. So the store's own access control guards this
record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from ledgerlog.meta.settings import StoredSettings
from ledgerlog.meta.settle import follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.admission import OPEN, Admission
from ledgerlog.model.layout import ADMISSION

__all__ = ["STORED_ADMISSION", "follow_admission"]

logger = logging.getLogger(__name__)

STORED_ADMISSION = StoredSettings(
    ADMISSION,
    "how the cluster is closed",
    "'ledgerlog access mode MODE --reset' writes a new record",
    lambda: OPEN,
    Admission.decode_untrusted,
)


async def follow_admission(store: MetadataStore, tell: Callable[[Admission], None]) -> NoReturn:
    """Call ``tell`` with the present admission, and again after each change.

    While the store cannot be reached, or the record is damaged, the last valid admission holds.
    """

    async def look() -> None:
        tell(await STORED_ADMISSION.read(store))

    what = "it is not known how the cluster is closed"
    await follow(store, ADMISSION, look, what=what, log=logger)
