"""Mutants of campaigns for the lead of a log."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_CORE = "tests/unit/test_campaign_core.py"
_TEST = "tests/shells/test_log_campaign.py"

CAMPAIGN = (
    mutant(
        "a_campaign_gives_up_when_too_few_bookies_are_there",
        "campaigns",
        "campaign._RETRYABLE",
        "errors.NotEnoughBookies",
        "errors.WriteQuorumUnavailable",
        f"{_TEST_CORE}::test_of_every_error_it_is_decided_whether_a_campaign_goes_on",
        f"{_TEST}::test_a_campaign_goes_on_while_too_few_bookies_are_there",
    ),
    mutant(
        "a_campaign_for_a_sealed_log_never_ends",
        "campaigns",
        "CampaignCore.on_ended",
        "self.failure = why",
        "self.pause_s = self._backoff.next_s()",
        f"{_TEST_CORE}::test_a_permanent_error_ends_the_campaign",
    ),
    mutant(
        "leading_for_a_moment_shortens_the_pauses",
        "campaigns",
        "CampaignCore.on_ended",
        "since is not None and now - since >= RECONNECT_DELAY_MAX_S",
        "since is not None",
        f"{_TEST_CORE}::test_leading_for_a_moment_does_not_shorten_the_pauses",
    ),
    mutant(
        "the_pauses_of_a_campaign_never_get_shorter_again",
        "campaigns",
        "CampaignCore.on_ended",
        "self._backoff.reset()",
        "pass",
        f"{_TEST_CORE}::test_a_leadership_that_lasted_ends_the_series_of_failures",
    ),
    mutant(
        "an_unknown_append_of_a_campaign_is_answered_as_not_written",
        "campaigns",
        "campaign.verdict_of_append",
        "isinstance(error, AppendUnknown) or not is_retryable(error)",
        "not is_retryable(error)",
        f"{_TEST_CORE}::test_what_may_be_in_the_log_is_never_answered_as_if_it_were_not",
    ),
    mutant(
        "a_campaign_that_is_left_leaves_its_ledger_open",
        "campaigns",
        "Campaign._leave",
        "self._core.is_leading and not await is_cancelled()",
        "False",
        f"{_TEST}::test_leaving_makes_durable_what_was_taken_and_closes_the_ledger",
    ),
    mutant(
        "a_campaign_goes_on_leading_with_a_writer_that_has_ended",
        "campaigns",
        "Campaign._lead",
        "await writer.wait_over()",
        "await trio.sleep_forever()",
        f"{_TEST}::test_a_body_that_only_waits_notices_that_another_writer_leads",
    ),
    mutant(
        "records_on_their_way_when_a_campaign_is_left_are_lost_without_a_word",
        "campaigns",
        "campaign.campaign",
        "campaigning._left_with is not None",
        "False",
        f"{_TEST}::test_records_on_their_way_when_the_campaign_is_left_are_not_lost_without_a_word",
    ),
    mutant(
        "an_error_of_a_try_comes_out_of_a_campaign_that_is_left",
        "campaigns",
        "Campaign._run",
        """
        if self._is_left:
            return
        """,
        """
        if self._is_left:
            self._left_with = why
            return
        """,
        f"{_TEST}::test_a_try_that_fails_while_the_campaign_is_left_concerns_nobody",
        f"{_TEST}::"
        "test_a_campaign_that_is_left_while_it_steps_down_has_no_error_for_records_that_are_durable",
    ),
    mutant(
        "a_standby_is_named_as_the_leader_that_it_is_not",
        "campaigns",
        "LeaderName.look",
        "leader is not None and leader.candidate != self._election.candidate",
        "False",
        f"{_TEST}::test_a_process_that_does_not_lead_says_who_does",
    ),
)

MUTANTS = CAMPAIGN
