"""The protocol versions that a process can speak on the wire, and the names of its features.

HELLO negotiates both for a connection, and a bookie's registration contains both. So a client can choose
bookies that it understands without asking them. Two processes understand each other if their ranges of
versions overlap. If only one of them knows a feature, they still connect, and do not use the feature.
"""

from __future__ import annotations

import attrs

__all__ = ["ProtocolSupport"]


@attrs.frozen
class ProtocolSupport:
    """The versions and features that a process speaks. The default is version 0.1 of ledgerlog."""

    lowest: int = 1
    highest: int = attrs.field(default=attrs.Factory(lambda support: support.lowest, takes_self=True))
    features: tuple[str, ...] = ()
    """The names of the features, sorted."""

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest version of the protocol."""
        return self.lowest, self.highest

    def common(self, other: ProtocolSupport) -> ProtocolSupport | None:
        """Return the one version and the features that both use; None if they have no version in common."""
        version = min(self.highest, other.highest)
        if version < max(self.lowest, other.lowest):
            return None
        return ProtocolSupport(version, version, tuple(sorted({*self.features} & {*other.features})))

    def __str__(self) -> str:
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"
