"""Settings that operators change while everything runs: one record in one node of the metadata store.

If the node is not there, the defaults hold. If the record is damaged, the error names the node and the
command that resets the settings. The settings of a newer version are kept: only that version can reset them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import attrs

from ledgerlog.errors import IncompatibleVersion, MetadataCorrupt
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import MetadataStore, Versioned

__all__ = ["Settings", "StoredSettings"]


class Settings(Protocol):
    """A record that can be written."""

    def encode(self) -> bytes: ...


S = TypeVar("S", bound=Settings)


@attrs.frozen
class StoredSettings(Generic[S]):
    """A kind of settings: the node that holds them, and how to read them."""

    path: str
    what: str
    """The settings, for messages: "the settings of repair"."""
    remedy: str
    """What to do if they are damaged, for messages."""
    default: Callable[[], S]
    decode: Callable[[bytes], S]
    """Raises MetadataCorrupt for damaged bytes, and IncompatibleVersion for bytes of a newer version."""

    async def read(self, store: MetadataStore) -> S:
        """Return the stored settings, or the defaults if none are stored.

        Raises:
            MetadataCorrupt: The stored settings are damaged. The message names the node.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        return self._of(await store.get(self.path))

    async def change(self, store: MetadataStore, change: Callable[[S], S], *, reset: bool = False) -> S:
        """Replace the settings.

        Args:
            store: The metadata store.
            change: Returns the new settings, given the present ones. It may be called several times.
            reset: Give ``change`` the defaults instead of the stored settings. This works even if the stored
                settings are damaged.

        Returns:
            The new settings.

        Raises:
            MetadataCorrupt: The stored settings are damaged, and ``reset`` is not set. The message names the
                node.
            IncompatibleVersion: A newer version wrote the settings. Only that version can change or reset
                them.
            MetadataUnavailable: The metadata store cannot be reached; nothing was changed.
            MetadataOutcomeUnknown: The answer was lost; the settings may have been changed.
        """

        async def write(is_unsure: bool) -> S:
            if not is_unsure:
                await store.sync()
            node = await store.get(self.path)
            try:
                stored = self._of(node)
            except IncompatibleVersion:
                raise
            except MetadataCorrupt:
                if not reset:
                    raise
                stored = self.default()
            wanted = change(self.default() if reset else stored)
            value = wanted.encode()
            if node is None:
                await store.create(self.path, value)
            elif node.value != value:
                await store.set(self.path, value, version=node.version)
            return wanted

        return await settle(store, write, what=f"a change of {self.what}")

    def _of(self, node: Versioned | None) -> S:
        if node is None:
            return self.default()
        try:
            return self.decode(node.value)
        except IncompatibleVersion:
            raise
        except MetadataCorrupt as damage:
            raise MetadataCorrupt(f"{damage} (stored at {self.path}; {self.remedy})") from damage
