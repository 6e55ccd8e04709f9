"""Producers: writers whose records must count once, even if they are sent several times
(``log.core.producers``).

A producer numbers its records. Each record has a *sequence*, a number that grows. The log keeps the last
*runs* of each producer. A run is a range of sequences whose records have consecutive offsets. If no other
producer appends to the log, a producer has a single run, no matter how long it is. A producer that shares the
log has one run for each range between the records of other producers.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LOG_PRODUCER_KEEP_S, LOG_PRODUCERS, LOG_PRODUCERS_MAX, PRODUCER_ID_BYTES_MAX
from ledgerlog.model.checks import positive
from ledgerlog.model.policies import AGE_MAX_S

__all__ = [
    "Dedupe",
    "NumberedRecords",
    "ProducerState",
    "SequenceRange",
    "SEQUENCE_MAX",
    "check_producer_id",
    "check_sequence",
]

SEQUENCE_MAX = 2**63 - 2


class SequenceRange(NamedTuple):
    """Records of one producer with consecutive sequences at consecutive offsets."""

    first_sequence: int
    length: int
    first_offset: int

    @property
    def end_sequence(self) -> int:
        return self.first_sequence + self.length


class ProducerState(NamedTuple):
    """The log's memory of one producer."""

    producer_id: str
    last_ms: int
    """The leader's clock at the producer's last append, in milliseconds since 1970."""
    runs: tuple[SequenceRange, ...]
    """The newest runs, in order: the oldest of them is first. Empty only if no record of the producer was
    sent yet."""


class NumberedRecords(NamedTuple):
    """Records of one producer in an entry: ``length`` records from ``slot`` on with consecutive sequences."""

    producer_id: str
    slot: int
    length: int
    first_sequence: int


@attrs.frozen(kw_only=True)
class Dedupe:
    """How a leader remembers producers, to recognize a record that is sent again.

        async with log.writer(dedupe=Dedupe(keep_s=3600)) as writer:
            ...

    The constructor raises InvalidArgument if a bound is not positive, if ``max_producers`` is above
    ``limits.LOG_PRODUCERS_MAX`` (32,768), or if ``keep_s`` is above the longest ``max_age_s`` of a policy.
    """

    max_producers: int = attrs.field(default=LOG_PRODUCERS, validator=positive)
    """How many producers the leader remembers, 1 to ``limits.LOG_PRODUCERS_MAX``."""
    keep_s: float = attrs.field(default=LOG_PRODUCER_KEEP_S, validator=positive)
    """The leader remembers a producer for at least this many seconds after its last append. If
    ``max_producers`` producers have appended within this time, an append of a new producer raises
    TooManyProducers."""
    gaps: bool = False
    """Whether a producer may skip sequences. If false, each sequence must be the previous one plus 1. The log
    then notices a record that was lost on its way to the log."""

    def __attrs_post_init__(self) -> None:
        if self.max_producers > LOG_PRODUCERS_MAX:
            raise InvalidArgument(f"max_producers is {self.max_producers}, over {LOG_PRODUCERS_MAX}")
        if self.keep_s > AGE_MAX_S:
            raise InvalidArgument(f"keep_s is over {AGE_MAX_S:.3g} seconds")


def check_producer_id(value: str) -> str:
    """Return ``value`` if it is a well-formed producer id; else raise InvalidArgument.

    An id is 1 to ``limits.PRODUCER_ID_BYTES_MAX`` (64) bytes of UTF-8.
    """
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
    """Return ``value`` if it may be the first of ``count`` sequences; else raise InvalidArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= SEQUENCE_MAX - count + 1:
        raise InvalidArgument(f"{value!r} is not a sequence (0 to {SEQUENCE_MAX})")
    return value
