"""``log.core.campaign``: when a process that campaigns for a log tries again, and when it gives up."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerlog import errors
from ledgerlog.errors import (
    AppendUnknown,
    LedgerLogError,
    LogSealed,
    LostLeadership,
    MetadataUnavailable,
    NotEnoughBookies,
    NotLeader,
    OffsetMismatch,
    PermissionDenied,
)
from ledgerlog.limits import RECONNECT_DELAY_MAX_S, RECONNECT_DELAY_MIN_S
from ledgerlog.log.core.campaign import CampaignCore, is_retryable, verdict_of_append


def _names(text: str) -> set[str]:
    return set(text.split())


RETRYABLE = _names(
    """
    AppendUnknown ArchiveUnavailable BookieReadOnly BookieUnavailable EntryUnavailable LedgerClosed
    LedgerFenced LostLeadership MetadataOutcomeUnknown MetadataUnavailable NotEnoughBookies NotEnoughRacks
    RecoveryFailed SessionExpired WriteQuorumUnavailable WrongCluster
    """
)
PERMANENT = _names(
    """
    ArchiveCorrupt ArchiveSupportMissing ClusterNotFound ConnectionClosed CookieMismatch DiskFull EntryCorrupt
    EntryNotFound IncompatibleVersion InvalidArgument LedgerNotFound LogListFull LogNotFound LogSealed
    LossUndecided MetadataCorrupt PermissionDenied StorageCorrupt StorageError StorageLocked Unauthenticated
    Unauthorized WireError WrongProcess
    """
)
OF_ONE_CALL = _names(
    """
    CommandFailed CursorConflict LedgerExists LedgerLogError LogExists MetadataError NotLeader OffsetMismatch
    OutOfSequence PropertiesConflict RecordTooLarge RecordsLost ReplicaStopped RequestExpired TooManyProducers
    Truncated TruncationPinned
    """
)
"""They end no leadership, or are base classes that nobody raises."""


def made(name: str) -> LedgerLogError:
    kind: Any = getattr(errors, name)
    return kind.__new__(kind)


def test_of_every_error_it_is_decided_whether_a_campaign_goes_on() -> None:
    decided = RETRYABLE | PERMANENT | OF_ONE_CALL
    assert decided == set(errors.__all__)
    assert {name for name in errors.__all__ if is_retryable(made(name))} == RETRYABLE


def test_a_campaign_that_fails_pauses_longer_each_time_up_to_a_bound() -> None:
    core = CampaignCore()
    pauses = []
    for _ in range(12):
        core.on_ended(NotEnoughBookies("of three, one"), now=0.0)
        pauses.append(core.pause_s)
    assert pauses[0] == RECONNECT_DELAY_MIN_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == RECONNECT_DELAY_MAX_S
    assert core.failure is None


def test_leading_for_a_moment_does_not_shorten_the_pauses() -> None:
    core = CampaignCore()
    for number in range(10):
        core.on_leading(now=float(number))
        assert core.is_leading
        core.on_ended(LostLeadership("log"), now=number + 0.01)
        assert not core.is_leading
    assert core.pause_s == RECONNECT_DELAY_MAX_S


def test_a_leadership_that_lasted_ends_the_series_of_failures() -> None:
    core = CampaignCore()
    for _ in range(10):
        core.on_ended(MetadataUnavailable("away"), now=0.0)
    core.on_leading(now=0.0)
    core.on_ended(LostLeadership("log"), now=RECONNECT_DELAY_MAX_S)
    assert core.pause_s == RECONNECT_DELAY_MIN_S


@pytest.mark.parametrize("name", sorted(PERMANENT))
def test_a_permanent_error_ends_the_campaign(name: str) -> None:
    core = CampaignCore()
    core.on_leading(now=0.0)
    error = made(name)
    core.on_ended(error, now=1.0)
    assert core.failure is error
    assert not core.is_leading


def test_a_record_that_is_not_in_the_log_because_another_leads_is_answered_with_the_leader() -> None:
    for error in (LostLeadership("log", 7), NotEnoughBookies("one of three")):
        verdict = verdict_of_append(error, "log", "10.0.0.7:8080")
        assert isinstance(verdict, NotLeader)
        assert verdict.leader == "10.0.0.7:8080"


def test_what_may_be_in_the_log_is_never_answered_as_if_it_were_not() -> None:
    unknown = AppendUnknown("sent")
    assert verdict_of_append(unknown, "log", None) is unknown


def test_what_is_wrong_with_a_call_or_with_the_log_is_said_as_it_is() -> None:
    for error in (LogSealed("log"), PermissionDenied("no"), OffsetMismatch("log", 1, 2)):
        assert verdict_of_append(error, "log", "another") is error
