"""Commands of a replicated state machine, and their outcomes.

A *command* is a record of a log with an envelope around it. The leader that appends it puts a time and random
bits into the envelope, so every replica applies exactly the same command. The proposer names its command by
a *request id*. If it proposes the command again under the same id, the command is executed only once.

``new_request_id`` puts the log's next offset into the id. No earlier offset can hold the command. So a
replica can tell whether its table of requests reaches back far enough to find the request
(``machine.core.replica``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import attrs

from ledgerlog.errors import InvalidArgument

__all__ = ["Command", "Envelope", "CommandOutcome", "check_request_id", "new_request_id", "since_of"]

REQUEST_ID_BYTES_MAX = 128

_OWN_ID = re.compile(r"ll1:([0-9a-f]{1,16}):[0-9a-f]{32}\Z")


class Command(NamedTuple):
    """One command, as ``StateMachine.apply`` gets it. Every replica gets the same commands in the same
    order."""

    data: bytes
    """The bytes that the proposer passed."""
    offset: int
    """The offset of the command in the log. Offsets grow, but the offsets of commands are not consecutive:
    barriers and repeated commands have offsets, too."""
    timestamp_ms: int
    """The leader's wall clock in milliseconds since 1970. It never decreases. A state machine must use no
    other clock."""
    seed: int
    """64 random bits from the leader. A state machine must use no other randomness; use for example
    ``random.Random(command.seed)``."""
    request_id: str
    """The request id, chosen by the proposer or made by the library."""


@attrs.frozen(kw_only=True)
class Envelope:
    """A command with the leader's time and seed. Without a request id it is a barrier: it changes nothing."""

    timestamp_ms: int
    seed: int
    request_id: str = ""
    data: bytes = b""

    @property
    def is_barrier(self) -> bool:
        return not self.request_id


@attrs.frozen
class CommandOutcome:
    """The outcome of a command."""

    offset: int
    """The offset at which the command was first executed."""
    result: bytes
    error: str | None = None
    """The name of the exception that ``apply`` raised; None if it returned. With an error, ``result`` is the
    text of the exception."""
    is_expired: bool = False
    """The command was not executed now, because no replica can tell whether it was executed
    before."""


def check_request_id(value: str) -> str:
    """Return ``value`` if it can name a request: 1 to 128 bytes of UTF-8. Else raise InvalidArgument."""
    if isinstance(value, str):
        try:
            if 1 <= len(value.encode()) <= REQUEST_ID_BYTES_MAX:
                return value
        except UnicodeEncodeError:
            pass
    raise InvalidArgument(f"{value!r} is not a request id: 1 to {REQUEST_ID_BYTES_MAX} bytes of text")


def new_request_id(next_offset: int, token: bytes) -> str:
    """Make a request id that contains ``next_offset``: the command cannot have been executed before that
    offset."""
    return f"ll1:{next_offset:x}:{token.hex():0>32}"


def since_of(request_id: str) -> int | None:
    """Return the offset in a request id, before which the request was never executed; None if the id has
    none."""
    found = _OWN_ID.match(request_id)
    return None if found is None else int(found[1], 16)
