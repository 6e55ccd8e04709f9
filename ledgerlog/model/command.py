"""What a state machine is given, and what became of it.

A *command* is a record of a log with an envelope around it. Time and chance are in the envelope, stamped
by the leader that appended it, so that every replica applies the same thing. A *request id* names a
command for its proposer: proposing one twice executes it once.

Ids that ``new_request_id`` makes carry the offset that the log had reached when they were made. That
bounds from below where the command can have been executed, which is how a replica knows whether its
table of requests still reaches back far enough to tell (``machine.core.replica``)."""

from __future__ import annotations

import re
from typing import NamedTuple

import attrs

from ledgerlog.errors import InvalidArgument

__all__ = ["Command", "Envelope", "Outcome", "check_request_id", "new_request_id", "since_of"]

REQUEST_ID_BYTES_MAX = 128

_OWN_ID = re.compile(r"ll1:([0-9a-f]{1,16}):[0-9a-f]{32}\Z")


class Command(NamedTuple):
    """One command, as every replica sees it."""

    data: bytes
    offset: int
    """Its place in the log: growing, never twice, not dense (barriers and repeats have offsets as well)."""
    timestamp_ms: int
    """The leader's wall clock in milliseconds since 1970, never decreasing. The only clock of a machine."""
    seed: int
    """64 random bits of the leader's. The only chance of a machine: ``random.Random(command.seed)``."""
    request_id: str


@attrs.frozen(kw_only=True)
class Envelope:
    """A command with what the leader stamped on it; without a request id a barrier, which changes nothing."""

    timestamp_ms: int
    seed: int
    request_id: str = ""
    data: bytes = b""

    @property
    def is_barrier(self) -> bool:
        return not self.request_id


@attrs.frozen
class Outcome:
    """What became of a command."""

    offset: int
    """Where it was executed first."""
    result: bytes
    error: str | None = None
    """The name of the exception that ``apply`` raised, None where it returned; ``result`` is its text
    then."""
    is_expired: bool = False
    """It was not executed, because it cannot be known any more whether it was executed before."""


def check_request_id(value: str) -> str:
    """``value`` if it can name a request: 1 to 128 bytes of UTF-8; InvalidArgument otherwise."""
    if isinstance(value, str):
        try:
            if 1 <= len(value.encode()) <= REQUEST_ID_BYTES_MAX:
                return value
        except UnicodeEncodeError:
            pass
    raise InvalidArgument(f"{value!r} is not a request id: 1 to {REQUEST_ID_BYTES_MAX} bytes of text")


def new_request_id(next_offset: int, token: bytes) -> str:
    """An id that tells that its command was first proposed when the log had reached this offset."""
    return f"ll1:{next_offset:x}:{token.hex():0>32}"


def since_of(request_id: str) -> int | None:
    """No execution of this request lies below this offset; None where the id does not say."""
    found = _OWN_ID.match(request_id)
    return None if found is None else int(found[1], 16)
