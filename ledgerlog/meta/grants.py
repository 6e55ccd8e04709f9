"""The grants of all principals in the metadata store: reading and changing them.

A process that may write the store's nodes may change grants. So the store's own access control guards the
grants, not the bookies.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import MetadataCorrupt
from ledgerlog.meta.settings import StoredSettings
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.access import Grant, Grants
from ledgerlog.model.layout import GRANTS, grants_path, principal_of
from ledgerlog.model.principal import Principal

__all__ = ["change_grants", "grant_at_first", "list_grants", "read_grants"]

_ASKED_AT_ONCE = 64


def _stored(principal: str) -> StoredSettings[Grants]:
    return StoredSettings(
        grants_path(principal),
        f"the grants of {principal}",
        f"'ledgerlog access revoke {principal} --reset' replaces them with an empty record",
        lambda: Grants(principal),
        lambda data: Grants.decode_untrusted(data, principal),
    )


async def read_grants(store: MetadataStore, principal: Principal) -> Grants:
    """Return the grants of one principal; an empty record if there is none.

    Raises:
        MetadataCorrupt: The record is damaged. The message names the node.
        MetadataUnavailable: The metadata store cannot be reached.
    """
    return await _stored(str(principal)).read(store)


async def change_grants(
    store: MetadataStore, principal: Principal, change: Callable[[Grants], Grants], *, reset: bool = False
) -> Grants:
    """Replace the grants of one principal, by compare-and-set.

    Args:
        store: The metadata store.
        principal: The principal.
        change: Returns the new record, given the present one. It may be called several times.
        reset: Give ``change`` an empty record. This works even if the stored record is damaged.

    Returns:
        The new record.

    Raises:
        MetadataCorrupt: The record is damaged, and ``reset`` is not set.
        IncompatibleVersion: A newer version wrote the record.
        MetadataUnavailable: The metadata store cannot be reached; nothing was changed.
        MetadataOutcomeUnknown: The answer was lost; the grants may have been changed.
    """
    return await _stored(str(principal)).change(store, change, reset=reset)


async def grant_at_first(store: MetadataStore, principal: Principal, grant: Grant) -> None:
    """Grant something to a principal that has no record. If it has a record, change nothing: an operator has
    decided already.

    Raises:
        MetadataUnavailable: The metadata store cannot be reached; nothing was changed.
        MetadataOutcomeUnknown: The answer was lost; the grant may have been given.
    """
    if await store.get(grants_path(str(principal))) is None:
        await change_grants(store, principal, lambda now: now.granted(grant))


async def list_grants(store: MetadataStore) -> list[Grants | MetadataCorrupt]:
    """Return the grants of all principals that have a record, sorted by principal.

    If a record cannot be read, the list has the error in its place, because the other records still count.

    Raises:
        MetadataUnavailable: The metadata store cannot be reached.
    """
    await store.sync()
    found: dict[str, Grants | MetadataCorrupt] = {}

    async def read(component: str) -> None:
        principal = principal_of(component)
        try:
            found[principal] = await _stored(principal).read(store)
        except MetadataCorrupt as damage:
            found[principal] = damage

    await gather_each(await store.children(GRANTS), read, at_once=_ASKED_AT_ONCE)
    return [found[principal] for principal in sorted(found)]
