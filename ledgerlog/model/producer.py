"""Producers: who appends, where every append must count once (see ``log.core.producers``).

A producer numbers its records: each has a *sequence*, a number that grows. What a log keeps of one are its
last
*runs*: stretches of sequences that lie at consecutive offsets. A producer that appends one record after
the other has a single run, however long; one that shares the log with others has a run for each stretch
that nobody else came in between.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LOG_PRODUCER_KEEP_S, LOG_PRODUCERS, LOG_PRODUCERS_MAX, PRODUCER_ID_BYTES_MAX
from ledgerlog.model.checks import positive

__all__ = [
    "Dedupe",
    "NumberedRecords",
    "ProducerState",
    "Run",
    "SEQUENCE_MAX",
    "check_producer_id",
    "check_sequence",
]

SEQUENCE_MAX = 2**63 - 2


class Run(NamedTuple):
    """Records of one producer with consecutive sequences at consecutive offsets."""

    first_sequence: int
    length: int
    first_offset: int

    @property
    def end_sequence(self) -> int:
        return self.first_sequence + self.length


class ProducerState(NamedTuple):
    """What is known of one producer."""

    producer_id: str
    last_ms: int
    """The leader's clock when the producer appended last."""
    runs: tuple[Run, ...]
    """The newest ones, oldest first. Empty only where nothing of it was sent yet."""


class NumberedRecords(NamedTuple):
    """Records of one producer within an entry: ``length`` from ``slot`` on, with consecutive sequences."""

    producer_id: str
    slot: int
    length: int
    first_sequence: int


@attrs.frozen(kw_only=True)
class Dedupe:
    """How a leader remembers producers. Raises InvalidArgument for a bound that is not positive or too
    large."""

    max_producers: int = attrs.field(default=LOG_PRODUCERS, validator=positive)
    """So many are remembered; at most ``limits.LOG_PRODUCERS_MAX``."""
    keep_s: float = attrs.field(default=LOG_PRODUCER_KEEP_S, validator=positive)
    """A producer is remembered for at least so long after its last append. While ``max_producers`` are that
    young, an append of one more is refused with TooManyProducers: nobody is forgotten early."""
    gaps: bool = False
    """Whether a producer may leave sequences out. Otherwise each must be one more than the one before, so
    that a record that got lost on its way here is noticed."""

    def __attrs_post_init__(self) -> None:
        if self.max_producers > LOG_PRODUCERS_MAX:
            raise InvalidArgument(f"max_producers is {self.max_producers}, over {LOG_PRODUCERS_MAX}")


def check_producer_id(value: str) -> str:
    """``value`` if it is 1 to ``limits.PRODUCER_ID_BYTES_MAX`` bytes of UTF-8; InvalidArgument otherwise."""
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= PRODUCER_ID_BYTES_MAX:
        raise InvalidArgument(
            f"{value!r} is not a producer id: text of 1 to {PRODUCER_ID_BYTES_MAX} bytes in UTF-8"
        )
    return value


def check_sequence(value: int, count: int = 1) -> int:
    """``value`` if it may be the sequence of the first of ``count`` records; InvalidArgument otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= SEQUENCE_MAX - count + 1:
        raise InvalidArgument(f"{value!r} is not a sequence (0 to {SEQUENCE_MAX})")
    return value
