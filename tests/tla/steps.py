"""A recorded run, as steps of a module."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tests.model.messages import Message
from tests.tla.log_views import LogMessage
from tests.tla.values import View


@attrs.frozen
class Step:
    """One step of the module."""

    event: str
    """The action of the module; see ``Does`` in LedgerTrace.tla and LogTrace.tla."""
    arguments: View
    out: tuple[Message | LogMessage, ...] = ()
    """Exactly the messages that the action sends."""
    seen: tuple[View, ...] = ()
    """The states of components after it."""

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in self.arguments.items()]
        return f"{self.event}({', '.join(told)}){' -> ' if self.out else ''}{', '.join(map(str, self.out))}"


Run = Sequence[Step]
