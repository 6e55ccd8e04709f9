"""Standing for election: what a candidate claims, when it claims, and when its leadership is over."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import pairwise

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from ledgerlog.election.core.candidacy import Candidacy, ElectionNeed, _successor
from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.limits import ELECTION_TENURE_MAX_S, ELECTION_TENURE_S
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.election import ElectionState, check_candidate
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.reach import OutOfReach
from ledgerlog.wire.beats import BEAT_FRAME_BYTES, Beat, BeatKind

OTHER = ElectionState(
    term=7, holder="other", candidate="b", address="b:1", tenure_ms=round(ELECTION_TENURE_S * 1000)
)


def look(
    core: Candidacy, record: ElectionState | None, version: int, candidates: Collection[str], now: float
) -> None:
    """Carry out a whole look, during which nothing changes."""
    core.on_looking()
    core.on_looked(record, version, candidates, now)


def registered(record: ElectionState | None, *candidates: str, now: float = 0.0) -> Candidacy:
    """Return a candidate that is registered and has looked."""
    core = Candidacy(candidate="a", address="a:1")
    core.on_session("s", is_connected=True)
    look(core, ElectionState(), 0, (), now)
    core.on_registered("me", 0, "s")
    look(core, record, 3, ("me", *candidates), now)
    return core


def lead(core: Candidacy, now: float = 0.0) -> int:
    core.claim(now)
    core.on_claimed(4)
    assert core.leading is not None
    return core.leading


def test_a_candidate_makes_the_record_registers_and_claims_what_nobody_has() -> None:
    core = Candidacy(candidate="a", address="a:1")
    assert core.need(0) is ElectionNeed.WAIT, "not connected"
    core.on_session("s", is_connected=True)
    assert core.need(0) is ElectionNeed.LOOK
    look(core, None, -1, (), 0)
    assert core.need(0) is ElectionNeed.CREATE
    look(core, ElectionState(), 0, (), 0)
    assert core.need(0) is ElectionNeed.REGISTER
    core.on_registered("me", 0, "s")
    assert core.need(0) is ElectionNeed.LOOK, "what was seen before may have changed"
    look(core, ElectionState(), 0, ("me",), 0)
    assert core.need(0) is ElectionNeed.CLAIM
    claim = core.claim(0)
    assert (claim.term, claim.holder, claim.candidate, claim.address) == (1, "me", "a", "a:1")
    core.on_claimed(1)
    assert core.leading == 1
    assert core.wake_at == math.inf


def test_a_leader_whose_session_lives_and_who_is_heard_is_left_alone() -> None:
    core = registered(OTHER, "other")
    assert core.watched == (7, "other", "b:1")
    assert core.need(1e9) is ElectionNeed.WAIT
    assert core.wake_at == math.inf


def test_a_term_whose_holder_is_not_registered_any_more_is_claimed_at_once() -> None:
    assert registered(OTHER).need(0) is ElectionNeed.CLAIM
    assert registered(OTHER.vacated(), "other").need(0) is ElectionNeed.CLAIM


def test_a_term_that_an_earlier_candidacy_of_ones_own_has_is_claimed_at_once() -> None:
    core = registered(ElectionState())
    core.is_strict = True
    lead(core)
    core.on_session("s", is_connected=False)
    assert core.lost is not None
    core.leave()
    core.me = None
    core.on_session("s", is_connected=True)
    look(core, core.record, 4, ("me", "other"), 1)
    core.on_registered("me again", 0, "s")
    look(core, core.record, 4, ("me", "me again", "other"), 1)
    assert core.need(1) is ElectionNeed.CLAIM
    assert core.claim(1).holder == "me again"


def test_a_term_that_its_holder_says_is_over_is_claimed_at_once_and_no_other() -> None:
    core = registered(OTHER, "other")
    core.on_ended(6)
    assert core.need(0) is ElectionNeed.WAIT
    core.on_ended(7)
    assert core.need(0) is ElectionNeed.CLAIM


def test_suspicion_waits_for_the_tenure_and_ends_with_a_beat() -> None:
    core = registered(OTHER, "other", now=100.0)
    core.on_beat(7)
    core.on_silence(7)
    assert core.need(100.0) is ElectionNeed.WAIT
    assert core.wake_at == 100.0 + ELECTION_TENURE_S
    core.on_beat(7)
    assert core.need(200.0) is ElectionNeed.WAIT
    core.on_silence(7)
    assert core.need(200.0) is ElectionNeed.CLAIM
    look(core, attrs_term(8), 4, ("me", "other"), 200.0)
    assert core.need(300.0) is ElectionNeed.WAIT, "the suspicion was of another term"


def test_a_leader_that_was_never_heard_is_not_suspected() -> None:
    core = registered(OTHER, "other")
    core.on_silence(7)
    assert core.need(1e9) is ElectionNeed.WAIT
    assert core.wake_at == math.inf
    core.on_beat(6)
    assert core.need(1e9) is ElectionNeed.WAIT, "heard in another term"


def attrs_term(term: int) -> ElectionState:
    return ElectionState(term=term, holder="other", candidate="b", address="b:1", tenure_ms=500)


def test_the_tenure_is_counted_from_when_the_term_was_first_seen() -> None:
    core = registered(OTHER, "other", now=100.0)
    look(core, OTHER, 3, ("me", "other"), 100.4)
    look(core, OTHER, 4, ("me", "other"), 100.5)  # An offer was written, or taken back.
    core.on_beat(7)
    core.on_silence(7)
    assert core.wake_at == 100.0 + ELECTION_TENURE_S


def test_two_candidates_that_depose_one_another_do_it_ever_more_seldom() -> None:
    now, times = 0.0, []
    a, b = registered(ElectionState(), "b"), Candidacy(candidate="b")
    lead(a)
    b.on_session("t", is_connected=True)
    record, version = a.record, 1
    leader, rival, names = a, b, {id(a): "me", id(b): "b"}
    look(b, record, version, ("me", "b"), now)
    b.on_registered("b", 0, "t")
    for _ in range(12):
        assert record is not None
        look(rival, record, version, ("me", "b"), now)
        rival.on_beat(record.term)
        rival.on_silence(record.term)
        now = max(now, rival.wake_at)
        times.append(now)
        record = rival.claim(now)
        version += 1
        rival.on_claimed(version)
        look(leader, record, version, ("me", "b"), now)
        assert leader.lost is not None
        leader.leave()
        assert record.holder == names[id(rival)]
        leader, rival = rival, leader
    gaps = [late - early for early, late in pairwise(times[1:])]
    assert all(late == min(2 * early, ELECTION_TENURE_MAX_S) for early, late in pairwise(gaps))
    assert gaps[-1] == ELECTION_TENURE_MAX_S


def test_a_long_tenure_does_not_keep_the_session_from_telling() -> None:
    long = ElectionState(term=7, holder="other", candidate="b", address="b:1", tenure_ms=60_000)
    assert registered(long).need(0) is ElectionNeed.CLAIM
    core = registered(long)
    assert core.claim(0).tenure_ms == ELECTION_TENURE_S * 1000, "and the duel is over"


@pytest.mark.parametrize(
    "how", ["suspended", "lost", "succeeded", "deposed", "unregistered", "deleted", "given up"]
)
def test_a_leadership_ends_with_the_first_proof_and_a_strict_one_with_the_first_doubt(how: str) -> None:
    core = registered(ElectionState())
    core.is_strict = how == "suspended"
    term = lead(core)
    mine = core.record
    assert mine is not None
    look(core, mine, 4, ("me",), 1.0)
    assert core.leading == term
    match how:
        case "suspended":
            core.on_session("s", is_connected=False)
        case "lost":
            core.on_session("s", is_connected=False, is_lost=True)
        case "succeeded":
            core.on_session("t", is_connected=True)
        case "deposed":
            look(core, OTHER, 9, ("me", "other"), 2.0)
        case "unregistered":
            look(core, mine, 4, (), 2.0)
        case "deleted":
            look(core, None, -1, ("me",), 2.0)
        case "given up":
            look(core, mine.vacated(), 5, ("me",), 2.0)
    assert core.leading is None
    assert core.lost
    assert core.need(3.0) is ElectionNeed.WAIT, "until it is left"


def test_a_leadership_outlasts_a_store_that_is_away_as_long_as_the_session_may() -> None:
    core = registered(ElectionState())
    term = lead(core)
    mine = core.record
    core.on_session("s", is_connected=False)
    assert core.leading == term
    assert core.need(1000.0) is ElectionNeed.WAIT
    assert core.wake_at == math.inf
    core.on_session("s", is_connected=True)
    assert core.need(1000.0) is ElectionNeed.LOOK, "another may have been faster"
    look(core, mine, 4, ("me",), 1000.0)
    assert core.leading == term
    assert core.lost is None


def test_a_leader_that_was_deposed_while_the_store_was_away_learns_it_with_the_next_look() -> None:
    core = registered(ElectionState())
    lead(core)
    core.on_session("s", is_connected=False)
    core.on_session("s", is_connected=True)
    look(core, OTHER, 9, ("me", "other"), 20.0)
    assert core.leading is None
    assert core.lost == _successor(OTHER)


@pytest.mark.parametrize("news", ["a change", "a new connection"])
def test_what_changes_during_a_look_needs_another_look(news: str) -> None:
    core = registered(OTHER, "other")
    core.on_stale()
    core.on_looking()
    if news == "a change":
        core.on_stale()
    else:
        core.on_session("s", is_connected=False)
        core.on_session("s", is_connected=True)
    core.on_looked(OTHER, 3, ("me", "other"), 1.0)
    assert core.need(1.0) is ElectionNeed.LOOK
    look(core, OTHER, 3, ("me", "other"), 1.0)
    assert core.need(1.0) is ElectionNeed.WAIT


def test_a_claim_whose_answer_was_lost_is_found_in_the_record() -> None:
    core = registered(ElectionState())
    claim = core.claim(0)
    core.on_unsettled()
    assert core.need(0) is ElectionNeed.LOOK
    look(core, claim, 4, ("me",), 0)
    assert core.leading == 1


def test_a_claim_that_is_found_while_the_session_is_suspended_is_followed_by_the_next_term() -> None:
    core = registered(ElectionState())
    claim = core.claim(0)
    core.on_unsettled()
    core.on_session("s", is_connected=False)
    look(core, claim, 4, ("me",), 0)
    assert core.leading is None
    assert core.lost is None
    core.on_session("s", is_connected=True)
    look(core, claim, 4, ("me",), 1)
    assert core.leading is None
    assert core.claim(1).term == 2
    core.on_claimed(5)
    assert core.leading == 2


def test_a_claim_that_lost_the_race_waits_for_the_winner() -> None:
    core = registered(ElectionState(), "other")
    core.claim(0)
    core.on_unsettled()
    look(core, OTHER, 4, ("me", "other"), 0)
    assert core.leading is None
    assert core.need(0) is ElectionNeed.WAIT


def test_a_claim_that_took_effect_after_the_session_ended_is_worth_nothing() -> None:
    core = registered(ElectionState())
    core.claim(0)
    core.on_session("t", is_connected=True)
    core.on_claimed(4)
    assert core.leading is None


def test_a_term_of_ours_that_was_left_is_followed_by_a_new_one_and_not_resumed() -> None:
    core = registered(ElectionState())
    assert lead(core) == 1
    core.on_session("s", is_connected=False)
    vacated = core.leave()
    assert vacated is not None
    assert (vacated.term, vacated.holder) == (1, None)
    core.on_session("s", is_connected=True)
    look(core, core.record, 4, ("me",), 1.0)
    assert core.leading is None
    assert core.claim(1.0).term == 2


def test_a_new_session_needs_a_new_registration() -> None:
    core = registered(OTHER, "other")
    core.on_session("t", is_connected=True)
    look(core, OTHER, 3, ("other",), 0)
    assert core.need(0) is ElectionNeed.REGISTER
    core.on_registered("again", 0, "s")
    assert core.me is None, "it was made for the session before"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *("session", "look", "silence", "ended", "beat", "register", "claim", "leave"),
                    *("reach", "offer", "better"),
                ]
            ),
            st.integers(0, 5),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_whatever_happens_terms_are_led_once_and_only_while_registered_and_if_strict_connected(
    steps: list[tuple[str, int]], is_strict: bool
) -> None:
    core = Candidacy(candidate="a")
    core.is_strict = is_strict
    record, version, now = ElectionState(), 0, 0.0
    session, connected, me, led = 0, False, "me0", []
    for what, n in steps:
        now += n / 4
        match what:
            case "session":
                session, connected = n // 2, n % 2 == 0
                core.on_session(str(session), is_connected=connected, is_lost=n == 5)
                assert n < 5 or core.leading is None
            case "look":
                if n == 5:
                    record, version = OTHER.__class__(term=record.term + 1, holder="other"), version + 1
                look(core, record, version, ("other", me) if n % 2 else (me,), now)
            case "silence":
                core.on_silence(record.term)
            case "ended":
                core.on_ended(record.term)
            case "beat":
                core.on_beat(record.term)
            case "register":
                if core.need(now) is ElectionNeed.REGISTER:
                    me = f"me{now}-{session}"
                    core.on_registered(me, 0, str(session))
            case "claim":
                if core.need(now) is ElectionNeed.CLAIM:
                    claim = core.claim(now)
                    if core.version == version:
                        record, version = claim, version + 1
                        if n % 2:
                            core.on_claimed(version)
                        else:
                            core.on_unsettled()
                    else:
                        core.on_unsettled()
            case "leave":
                core.leave()
            case "reach":
                core.on_reach(OutOfReach((f"b{n}",), 1) if n else None)
            case "better":
                core.on_better(record.term, OutOfReach((f"b{n}",), 1))
            case "offer":
                if core.need(now) is ElectionNeed.OFFER:
                    offered = core.offer_record()
                    assert offered.term == core.leading
                    if core.version == version:
                        record, version = offered, version + 1
                        if n % 2:
                            core.on_offered(record, version)
                        else:
                            core.on_unsettled()
                    else:
                        core.on_unsettled()
        if core.leading is not None:
            assert connected or not is_strict
            assert core.me is not None
            if not led or led[-1] != core.leading:
                led.append(core.leading)
    assert led == sorted(set(led))


def test_the_record_survives_encoding_and_damage_is_told() -> None:
    for record in (ElectionState(), OTHER, OTHER.vacated()):
        assert ElectionState.decode_untrusted(record.encode(), "x") == record
    with pytest.raises(MetadataCorrupt, match="election x"):
        ElectionState.decode_untrusted(b"\xa0", "x")
    with pytest.raises(InvalidArgument):
        check_candidate("")


# --- offers ----------------------------------------------------------------------------------------

LACK = OutOfReach(("b1", "b2"), 1)
OFFERED = OTHER.offered(LACK)


def test_a_leader_that_reaches_no_ack_quorum_offers_its_term_while_another_candidate_waits() -> None:
    core = registered(ElectionState())
    lead(core)
    look(core, core.record, 4, ("me",), 1)
    core.on_reach(LACK)
    assert core.need(1) is ElectionNeed.WAIT, "nobody could take it"
    look(core, core.record, 4, ("me", "other"), 1)
    assert core.need(1) is ElectionNeed.OFFER
    record = core.offer_record()
    assert record.on_offer == LACK
    core.on_offered(record, 5)
    assert core.need(1) is ElectionNeed.WAIT
    assert core.leading == 1, "it goes on trying"
    core.on_reach(None)
    assert core.need(2) is ElectionNeed.OFFER
    assert core.offer_record().on_offer is None


def test_an_offer_ends_with_the_last_standby() -> None:
    core = registered(ElectionState(), "other")
    lead(core)
    look(core, core.record, 4, ("me", "other"), 1)
    core.on_reach(LACK)
    core.on_offered(core.offer_record(), 5)
    look(core, core.record, 5, ("me",), 1)
    assert core.need(1) is ElectionNeed.OFFER
    assert core.offer_record().on_offer is None


def test_a_strict_leader_offers_nothing() -> None:
    core = registered(ElectionState(), "other")
    core.is_strict = True
    lead(core)
    look(core, core.record, 4, ("me", "other"), 1)
    core.on_reach(LACK)
    assert core.need(1) is ElectionNeed.WAIT


def test_who_reaches_enough_of_what_the_holder_misses_takes_the_term_and_nobody_else() -> None:
    core = registered(OFFERED, "other")
    assert core.offer_to_answer == (7, LACK)
    assert core.need(1e9) is ElectionNeed.WAIT
    core.on_better(6, LACK)
    assert core.need(1e9) is ElectionNeed.WAIT, "that was another offer"
    core.on_better(7, LACK)
    assert core.need(0) is ElectionNeed.CLAIM
    claim = core.claim(0)
    assert (claim.term, claim.holder, claim.on_offer) == (8, "me", None)


def test_a_term_that_is_offered_no_more_is_not_taken() -> None:
    core = registered(OFFERED, "other")
    core.on_better(7, LACK)
    look(core, OTHER, 4, ("me", "other"), 0)
    assert core.need(1e9) is ElectionNeed.WAIT
    assert core.offer_to_answer is None
    core.on_better(7, LACK)
    assert core.need(1e9) is ElectionNeed.WAIT, "the bookies answered too late"


def test_an_answer_to_one_offer_is_none_to_a_later_offer_of_the_same_term() -> None:
    core = registered(OFFERED, "other")
    core.on_better(7, LACK)
    assert core.need(0) is ElectionNeed.CLAIM
    later = OutOfReach(("b1", "b2", "b3"), 2)
    look(core, OTHER.offered(later), 5, ("me", "other"), 0)
    assert core.offer_to_answer == (7, later)
    assert core.need(1e9) is ElectionNeed.WAIT
    core.on_better(7, LACK)
    assert core.need(1e9) is ElectionNeed.WAIT, "it was asked before the later offer was seen"
    core.on_better(7, later)
    assert core.need(0) is ElectionNeed.CLAIM


@pytest.mark.parametrize("how", ["loses the bookies", "leaves"])
def test_an_answer_to_an_offer_lasts_only_as_long_as_it_is_true(how: str) -> None:
    """While the store is away, nobody takes the term. Then it is too late."""
    core = registered(OFFERED, "other")
    core.on_better(7, LACK)
    assert core.need(0) is ElectionNeed.CLAIM
    if how == "leaves":
        core.leave()
    else:
        core.on_no_better()
    assert core.need(1e9) is ElectionNeed.WAIT


def test_an_answer_to_an_offer_is_none_once_the_same_offer_is_made_again() -> None:
    core = registered(OFFERED, "other")
    core.on_better(7, LACK)
    look(core, OFFERED, 3, ("me", "other"), 0)
    assert core.need(0) is ElectionNeed.CLAIM
    look(core, OFFERED, 5, ("me", "other"), 0)
    assert core.need(1e9) is ElectionNeed.WAIT
    core.on_better(7, LACK)
    assert core.need(0) is ElectionNeed.CLAIM


def test_whoever_was_deposed_by_an_offer_does_not_take_the_next_term() -> None:
    core = registered(ElectionState(), "other")
    lead(core)
    look(core, core.record, 4, ("me", "other"), 1)
    core.on_reach(LACK)
    core.on_offered(core.offer_record(), 5)
    taken = ElectionState(term=2, holder="other", candidate="b", tenure_ms=500)
    look(core, taken, 6, ("me", "other"), 2)
    assert core.lost == "b leads in term 2"
    core.leave()
    core.me = None
    look(core, taken, 6, ("other",), 2)
    core.on_registered("me again", 0, "s")
    look(core, taken, 6, ("me again", "other"), 2)
    assert core.need(1e9) is ElectionNeed.WAIT


def test_an_offer_of_an_older_term_that_another_version_copied_is_none() -> None:
    copied = attrs.evolve(OFFERED, term=8)
    assert copied.on_offer is None
    assert attrs.evolve(OFFERED, holder=None).on_offer is None
    assert OFFERED.vacated().offer is None


@pytest.mark.parametrize(
    "change",
    [
        {"offer_bookies": None},
        {"offer_bookies": [1]},
        {"offer_bookies": ["no id/"]},
        {"offer_bookies": ["b"] * 129},
        {"offer_needed": 0},
        {"offer_needed": None},
        {"offer_term": "x"},
    ],
)
def test_a_damaged_offer_is_told(change: dict[str, object]) -> None:
    assert ElectionState.decode_untrusted(OFFERED.encode(), "e") == OFFERED
    assert "offer_term" not in decode_record_untrusted(OTHER.encode(), "e", MetadataCorrupt)._value
    fields = {**decode_record_untrusted(OFFERED.encode(), "e", MetadataCorrupt)._value, **change}
    with pytest.raises(MetadataCorrupt, match="election e"):
        ElectionState.decode_untrusted(encode_record(fields), "e")


# --- heartbeats ------------------------------------------------------------------------------------


def test_a_heartbeat_has_32_bytes_and_nothing_else_is_one() -> None:
    beat = Beat(BeatKind.BEAT, 7, bytes(range(16)))
    data = beat.encode()
    assert data.hex() == "4c4c48420102000007000000000000000001020304" + "05060708090a0b0c0d0e0f"
    assert Beat.decode_untrusted(data) == beat
    for damaged in (
        data[:-1],
        data + b"\0",
        b"X" + data[1:],
        data[:5] + b"\x09" + data[6:],
        data[:6] + b"\1" + data[7:],
    ):
        with pytest.raises(WireError):
            Beat.decode_untrusted(damaged)
    assert len(data) == BEAT_FRAME_BYTES
