"""When a process that campaigns for the lead of a log tries again, and when it gives up.

Pure: this module does no I/O. ``log.campaign`` stands for election, takes the log over and serves. It tells
the core how each try went:

    on_leading  the log was taken over; appends are possible from now on
    on_ended    the try is over, with the error that ended it

Then it reads its next action: ``failure`` (give up; every call raises this error) or ``pause_s`` (stay out of
the election for this many seconds, and stand again).

**Give up or try again.** If waiting may help, or if another process leads, the campaign continues. If every
further try would fail in the same way until a person acts, the campaign is over: a right is missing, the log
is sealed or gone, a record is damaged. The retryable errors are listed here. So an error that is not listed
ends the campaign instead of repeating forever.

**Step down, then pause.** If a process fails to take the log over, it gives up the lead of the election
before it pauses. So a candidate that reaches more bookies gets its turn. The pauses grow with each try. So if
two processes take the log from each other, or if many processes fail, they do not keep bookies and the
metadata store busy. After a leadership that lasted for at least the longest pause, the pauses begin small
again.
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
    """Return whether a campaign continues after ``error``."""
    return isinstance(error, _RETRYABLE)


def verdict_of_append(error: LedgerLogError, name: str, leader: str | None) -> LedgerLogError:
    """Return the error to raise for an append, if the log's writer raised ``error`` for it.

    A caller has two cases to handle. NotLeader: the record is not in the log, so send it to the leader.
    AppendUnknown: the record may be in the log. Other errors say what is wrong with the call or with the log.

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
        """Why the campaign is over; None while it continues."""
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
