"""When a process that campaigns for the lead of a log tries again, and when it gives up.

Pure. ``log.campaign`` stands for election, takes the log over and serves. It tells the core how each try
ended:

    on_leading  the log was taken over; appends are possible from now on
    on_ended    the try is over, with the error that ended it

and reads what to do: ``failure`` (give up; every call raises it) or ``pause_s`` (stay out of the election for
so long, and stand again).

**Give up or try again.** If time helps, or if another process leads, the campaign goes on. If every further
try fails in the same way until a person acts, it is over: a right is missing, the log is sealed or gone, a
record is damaged. The retryable errors are listed, so an error that nobody has thought of ends the campaign
instead of repeating for ever.

**Step down, then pause.** A process that fails to take the log over gives the lead of the election up before
it pauses. So a candidate that reaches more bookies gets its turn. The pauses grow, so that two processes that
take the log from each other, or many that fail, do not keep bookies and the metadata store busy. A leadership
that lasted for as long as the longest pause ends the series.
"""

from __future__ import annotations

from ledgerlog import errors
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import AppendUnknown, LedgerLogError, NotLeader
from ledgerlog.limits import RECONNECT_DELAY_MAX_S, RECONNECT_DELAY_MIN_S

__all__ = ["CampaignCore", "is_retryable", "verdict_of_append"]


_RETRYABLE: tuple[type[LedgerLogError], ...] = (
    errors.AppendUnknown,
    errors.ArchiveUnavailable,
    errors.BookieUnavailable,
    errors.EntryUnavailable,
    errors.LedgerClosed,
    errors.LedgerFenced,
    errors.LostLeadership,
    errors.MetadataOutcomeUnknown,
    errors.MetadataUnavailable,
    errors.NotEnoughBookies,
    errors.RecoveryFailed,
    errors.SessionExpired,
)


def is_retryable(error: LedgerLogError) -> bool:
    """Return whether a campaign goes on after ``error``."""
    return isinstance(error, _RETRYABLE)


def verdict_of_append(error: LedgerLogError, name: str, leader: str | None) -> LedgerLogError:
    """Return what the caller of an append learns, if the log's writer failed it with ``error``.

    A caller has two cases to handle. NotLeader: the record is not in the log, so send it to the leader.
    AppendUnknown: it may be in the log. Other errors say what is wrong with the call or with the log.

    Args:
        error: The error of the writer. All errors but AppendUnknown say that the record is not in the log.
        name: The name of the log.
        leader: The leader's name; None if it is not known.
    """
    if isinstance(error, AppendUnknown) or not is_retryable(error):
        return error
    return NotLeader(name, leader)


class CampaignCore:
    """The tries of one campaign."""

    def __init__(self) -> None:
        self.failure: LedgerLogError | None = None
        """Why the campaign is over; None while it goes on."""
        self.pause_s = 0.0
        """How long to stay out of the election before the next try."""
        self._backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        self._leading_since: float | None = None

    @property
    def is_leading(self) -> bool:
        """Whether the log was taken over and the leadership has not ended."""
        return self._leading_since is not None

    def on_leading(self, now: float) -> None:
        """The log was taken over."""
        assert self.failure is None
        assert self._leading_since is None
        self._leading_since = now

    def on_ended(self, why: LedgerLogError, now: float) -> None:
        """The try is over, before or after the log was taken over."""
        since, self._leading_since = self._leading_since, None
        if not is_retryable(why):
            self.failure = why
            return
        if since is not None and now - since >= RECONNECT_DELAY_MAX_S:
            self._backoff.reset()
        self.pause_s = self._backoff.next_s()
