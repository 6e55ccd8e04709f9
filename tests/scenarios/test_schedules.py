"""The schedules of part E of the protocol, played on the production cores with and without their rules.

Each schedule breaks a build that lacks one rule. On production code as it is, some step of the schedule does
not happen, and everything ends well. Without the rule (``mutants``), all steps happen and end in the named
violations, each first seen after the named step. So each test also shows that its check can fail.

T09, T11 and T30 are about how a bookie boots after it lost data, C01 to C05 about logs. The tests of those
parts play them.
"""

from __future__ import annotations

import attrs
import pytest

from tests.model.configuration import Configuration
from tests.scenarios import mutants
from tests.scenarios.stage import Outcome, Stage


@attrs.frozen
class Schedule:
    name: str
    title: str
    shape: tuple[int, int, int]
    bookies: int
    mutant: mutants.Mutant
    violations: dict[str, int]
    """The violations that the mutant ends in, with their steps."""
    stops: tuple[int, str] | None
    """The step that does not happen in right code, and words of the reason. None: all steps may happen and do
    no harm.
    """
    ends: tuple[str, int]
    """In right code, after everything under way has arrived: the metadata, and the last acknowledged entry.
    """
    steps: str
    guaranteed: bool = False
    crash: int = 0

    def stage(self) -> Stage:
        return Stage(
            Configuration(
                self.shape,
                entries=4,
                bookies=self.bookies,
                guaranteed=self.guaranteed,
                recoverers=2,
                close=True,
                crash=self.crash,
            )
        )

    def __str__(self) -> str:
        return f"{self.name} {self.title}"


SCHEDULES = [
    Schedule(
        "T01",
        "recovery reads do not fence",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.recovery_reads_do_not_fence,
        violations={"FenceBeforeReply": 7, "NegativeReadFinal": 9, "NoTruncation": 9},
        stops=(9, "b2 refuses e0"),
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) b1 stores e0, acks W. (3) R0: metadata -> IN_RECOVERY, fence
            requests out. (4) R0 fences b0; R0 fences b1. (5) R0 sends recovery read e0. (6) b0 answers R0
            read e0: NoSuchEntry. (7) b2 answers R0 read e0: NoSuchEntry. (8) R0 closes, last=-1. (9) b2
            stores e0, acks W.
        """,
    ),
    Schedule(
        "T02",
        "negative quorum counted over the ensemble (E>WQ)",
        (3, 2, 2),
        bookies=3,
        mutant=mutants.recovery_reads_ask_the_whole_ensemble,
        violations={"RecoveryTargets": 5, "NegativeReadFinal": 7, "NoTruncation": 8},
        stops=(7, "R0 does not ask b2 for e0"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b1 stores e0, acks W. (4) R0: metadata ->
            IN_RECOVERY, fence requests out. (5) R0 fences b1; R0 fences b2. (6) R0 sends recovery read e0.
            (7) b2 answers R0 read e0: NoSuchEntry. (8) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T03",
        "negative quorum one too small",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.negative_quorum_is_one_too_small,
        violations={"NegativeReadFinal": 7, "NoTruncation": 8},
        stops=(8, "still reading"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b1 stores e0, acks W. (4) R0: metadata ->
            IN_RECOVERY, fence requests out. (5) R0 fences b1; R0 fences b2. (6) R0 sends recovery read e0.
            (7) b2 answers R0 read e0: NoSuchEntry. (8) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T04",
        "time-out / unknown counted as negative",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.time_outs_are_negative,
        violations={"NegativeReadFinal": 8, "NoTruncation": 9},
        stops=(9, "still reading"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b1 stores e0, acks W. (4) R0: metadata ->
            IN_RECOVERY, fence requests out. (5) R0 fences b1; R0 fences b2. (6) R0 sends recovery read e0.
            (7) b2 answers R0 read e0: NoSuchEntry. (8) read e0 on b0 times out. (9) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T05",
        "writer closes at last-pushed",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.closing_at_the_last_add_pushed,
        violations={"ClosedAtAckQuorum": 3, "FailedMeansAbsent": 3},
        stops=(2, "W closes at -1"),
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) W fixes close value 0. (3) W: closing CAS succeeds, last=0.
        """,
    ),
    Schedule(
        "T06",
        "acks still counted after the close snapshot",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.acknowledging_after_the_end_was_fixed,
        violations={"NoTruncation": 5},
        stops=None,
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) W fixes close value -1. (3) b0 stores e0, acks W. (4) b1 stores e0,
            acks W. (5) W: closing CAS succeeds, last=-1.
        """,
    ),
    Schedule(
        "T07",
        "LAC from non-contiguous acks",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.a_gap_is_acknowledged_over,
        violations={
            "AckedAtAckQuorum": 4,
            "AckedReadable": 4,
            "WriterAckCount": 4,
            "NegativeReadFinal": 9,
            "NoTruncation": 10,
        },
        stops=None,
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) W sends e1 (LAC -1). (3) b0 stores e1, acks W. (4) b1 stores e1,
            acks W. (5) R0: metadata -> IN_RECOVERY, fence requests out. (6) R0 fences b0; R0 fences b1. (7)
            R0 sends recovery read e0. (8) b0 answers R0 read e0: NoSuchEntry. (9) b1 answers R0 read e0:
            NoSuchEntry. (10) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T08",
        "fence not durable",
        (3, 3, 2),
        bookies=3,
        crash=1,
        mutant=mutants.fence_is_answered_before_it_is_durable,
        violations={
            "FenceBeforeReply": 4,
            "FenceCoverage": 4,
            "FenceDurable": 13,
            "NegativeReadFinal": 14,
            "NoTruncation": 14,
        },
        stops=(13, "b1 refuses e1"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W; b1 stores e0, acks W. (3) R0: metadata ->
            IN_RECOVERY, fence requests out. (4) R0 fences b0; R0 fences b1. (5) R0 sends recovery read e0.
            (6) b0 answers R0 read e0: OK. (7) b0 stores e0, acks R0; b1 stores e0, acks R0. (8) R0 sends
            recovery read e1. (9) b0 answers R0 read e1: NoSuchEntry; b1 answers R0 read e1: NoSuchEntry.
            (10) R0 closes, last=0. (11) b1 crashes and reboots. (12) W sends e1 (LAC 0).
            (13) b1 stores e1, acks W. (14) b2 stores e1, acks W.
        """,
    ),
    Schedule(
        "T10",
        "limbo bookie answers NoSuchEntry",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.limbo_is_negative,
        violations={"NegativeReadFinal": 9, "NoTruncation": 10},
        stops=(10, "still reading"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b2 stores e0, acks W. (4) b0 crashes,
            loses everything, reboots. (5) R0: metadata -> IN_RECOVERY, fence requests out. (6) R0 fences
            b0; R0 fences b1. (7) R0 sends recovery read e0. (8) b0 answers R0 read e0: Unknown. (9) b1
            answers R0 read e0: NoSuchEntry. (10) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T12",
        "ensemble change persisted during recovery",
        (2, 2, 2),
        bookies=3,
        mutant=mutants.private_changes_are_published_at_once,
        violations={
            "FragmentsFrozenInRecovery": 7,
            "AckedAtAckQuorum": 7,
            "NegativeReadFinal": 11,
            "NoTruncation": 12,
        },
        stops=(9, "no Fence (client R1, bookie b2)"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W; b1 stores e0, acks W. (3) R0: metadata ->
            IN_RECOVERY, fence requests out. (4) R0 fences b0. (5) R0 sends recovery read e0. (6) b0 answers
            R0 read e0: OK. (7) R0: b0 failed, private ensemble (b2,b1). (8) R1: metadata -> IN_RECOVERY,
            fence requests out. (9) R1 fences b2. (10) R1 sends recovery read e0. (11) b2 answers R1 read
            e0: NoSuchEntry. (12) R1 closes, last=-1.
        """,
    ),
    Schedule(
        "T14",
        "acks of a replaced bookie keep counting",
        (3, 3, 2),
        bookies=4,
        mutant=mutants.confirmations_outlive_their_bookie,
        violations={"WriterAckCount": 6, "AckedAtAckQuorum": 6, "NegativeReadFinal": 11, "NoTruncation": 12},
        stops=None,
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) W sends e1 (LAC -1). (3) b0 stores e0, acks W. (4) W: b0 failed,
            starts change to (b3,b1,b2). (5) W: ensemble CAS succeeds. (6) b1 stores e0, acks W. (7) R0:
            metadata -> IN_RECOVERY, fence requests out. (8) R0 fences b3; R0 fences b2. (9) R0 sends
            recovery read e0. (10) b3 answers R0 read e0: NoSuchEntry. (11) b2 answers R0 read e0:
            NoSuchEntry. (12) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T15",
        "commit while the ensemble-change CAS is in flight",
        (3, 3, 2),
        bookies=4,
        mutant=mutants.confirmations_are_stripped_after_the_write,
        violations={"AckedAtAckQuorum": 6, "NegativeReadFinal": 11, "NoTruncation": 12},
        stops=None,
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) W sends e1 (LAC -1). (3) b0 stores e0, acks W. (4) W: b0 failed,
            starts change to (b3,b1,b2). (5) b1 stores e0, acks W. (6) W: ensemble CAS succeeds. (7) R0:
            metadata -> IN_RECOVERY, fence requests out. (8) R0 fences b3; R0 fences b2. (9) R0 sends
            recovery read e0. (10) b3 answers R0 read e0: NoSuchEntry. (11) b2 answers R0 read e0:
            NoSuchEntry. (12) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T16",
        "GWQ without pinning",
        (3, 3, 2),
        bookies=4,
        guaranteed=True,
        mutant=mutants.nobody_is_pinned,
        violations={"PinRespected": 5, "AckedAtAckQuorum": 6, "NegativeReadFinal": 11, "NoTruncation": 12},
        stops=(5, "W may replace slots [] alone"),
        ends=("OPEN last=-", 1),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b1 stores e0, acks W. (4) W sends e1 (LAC
            0). (5) W: b0 failed, starts change to (b3,b1,b2). (6) W: ensemble CAS succeeds. (7) R0:
            metadata -> IN_RECOVERY, fence requests out. (8) R0 fences b3; R0 fences b2. (9) R0 sends
            recovery read e0. (10) b3 answers R0 read e0: NoSuchEntry. (11) b2 answers R0 read e0:
            NoSuchEntry. (12) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T17",
        "GWQ recovery starts at LAC+1",
        (3, 3, 2),
        bookies=3,
        guaranteed=True,
        mutant=mutants.guaranteed_recovery_starts_after_the_lac,
        violations={"GwqClosed": 11},
        stops=(8, "started after e-1"),
        ends=("CLOSED last=1", 1),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b1 stores e0, acks W. (4) W sends e1 (LAC
            0). (5) b0 stores e1 for W (reply lost). (6) R0: metadata -> IN_RECOVERY, fence requests out.
            (7) R0 fences b0; R0 fences b2. (8) R0 sends recovery read e1. (9) b1 answers R0 read e1:
            NoSuchEntry. (10) b2 answers R0 read e1: NoSuchEntry. (11) R0 closes, last=0.
        """,
    ),
    Schedule(
        "T19",
        "recovery closes before write-back quorum",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.recovery_closes_before_its_write_backs_are_confirmed,
        violations={"ClosedAtAckQuorum": 10},
        stops=(10, "e0 is not settled"),
        ends=("CLOSED last=0", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0 for W (reply lost). (3) R0: metadata -> IN_RECOVERY,
            fence requests out. (4) R0 fences b0; R0 fences b1. (5) R0 sends recovery read e0. (6) b0
            answers R0 read e0: OK. (7) R0 sends recovery read e1. (8) b1 answers R0 read e1: NoSuchEntry.
            (9) b2 answers R0 read e1: NoSuchEntry. (10) R0 closes, last=0.
        """,
    ),
    Schedule(
        "T20",
        "two recoverers, close without CAS",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.the_closing_race_is_won_by_the_last,
        violations={"ClosedImmutable": 15},
        stops=(15, "R0 finds the ledger CLOSED last=0"),
        ends=("CLOSED last=0", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0 for W (reply lost). (3) R0: metadata -> IN_RECOVERY,
            fence requests out. (4) R1: metadata -> IN_RECOVERY, fence requests out. (5) R0 fences b1; R0
            fences b2. (6) R0 sends recovery read e0. (7) b1 answers R0 read e0: NoSuchEntry; b2 answers R0
            read e0: NoSuchEntry. (8) R1 fences b0; R1 fences b1. (9) R1 sends recovery read e0. (10) b0
            answers R1 read e0: OK. (11) b0 stores e0, acks R1; b1 stores e0, acks R1. (12) R1 sends
            recovery read e1. (13) b1 answers R1 read e1: NoSuchEntry; b2 answers R1 read e1: NoSuchEntry.
            (14) R1 closes, last=0. (15) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T21",
        "recovery start floor is -1 (v4.13 defect 2)",
        (2, 2, 2),
        bookies=4,
        mutant=mutants.reading_starts_below_the_last_fragment,
        violations={"RecoveryTargets": 7, "NegativeReadFinal": 9, "NoTruncation": 10},
        stops=(8, "started after e0"),
        ends=("CLOSED last=1", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W; b1 stores e0, acks W. (3) W sends e1 (LAC 0).
            (4) W: b0,b1 failed, starts change to (b2,b3). (5) W: ensemble CAS succeeds. (6) R0: metadata ->
            IN_RECOVERY, fence requests out. (7) R0 fences b2. (8) R0 sends recovery read e0. (9) b2
            answers R0 read e0: NoSuchEntry. (10) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T22",
        "writer re-CASes its ensemble change without re-checking state",
        (2, 2, 2),
        bookies=4,
        mutant=mutants.the_owner_writes_whatever_it_reads,
        violations={"ClosedImmutable": 8, "NegativeReadFinal": 10},
        stops=(8, "W fails: LedgerClosed"),
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) R0: metadata -> IN_RECOVERY, fence requests out. (3) R0 fences b0.
            (4) R0 sends recovery read e0. (5) b0 answers R0 read e0: NoSuchEntry. (6) R0 closes, last=-1.
            (7) W: b0,b1 failed, starts change to (b2,b3). (8) W: ensemble CAS succeeds. (9) b2 stores e0,
            acks W. (10) b3 stores e0, acks W.
        """,
    ),
    Schedule(
        "T23",
        "regular add accepted on a fenced ledger",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.regular_adds_pass_the_fence,
        violations={"FenceDurable": 8, "NegativeReadFinal": 9, "NoTruncation": 9},
        stops=(8, "b0 refuses e0"),
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) R0: metadata -> IN_RECOVERY, fence requests out. (3) R0 fences b0;
            R0 fences b1. (4) R0 sends recovery read e0. (5) b0 answers R0 read e0: NoSuchEntry. (6) b1
            answers R0 read e0: NoSuchEntry. (7) R0 closes, last=-1. (8) b0 stores e0, acks W. (9) b1 stores
            e0, acks W.
        """,
    ),
    Schedule(
        "T24",
        "fence ignored for a ledger the bookie never saw",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.fence_of_an_unknown_ledger_is_forgotten,
        violations={"FenceBeforeReply": 3, "FenceCoverage": 3, "NegativeReadFinal": 9, "NoTruncation": 9},
        stops=(8, "b0 refuses e0"),
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) R0: metadata -> IN_RECOVERY, fence requests out. (3) R0 fences b0;
            R0 fences b1. (4) R0 sends recovery read e0. (5) b0 answers R0 read e0: NoSuchEntry. (6) b1
            answers R0 read e0: NoSuchEntry. (7) R0 closes, last=-1. (8) b0 stores e0, acks W. (9) b1 stores
            e0, acks W.
        """,
    ),
    Schedule(
        "T25",
        "recovery adds advance the LAC",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.write_backs_carry_the_progress_of_recovery,
        violations={"LacIsCommitted": 13, "LacWithinClosedLedger": 14},
        stops=None,
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) W sends e1 (LAC -1). (3) b0 stores e0 for W (reply lost); b0 stores
            e1 for W (reply lost). (4) R1: metadata -> IN_RECOVERY, fence requests out. (5) R0: metadata ->
            IN_RECOVERY, fence requests out. (6) R0 fences b1; R0 fences b2. (7) R0 sends recovery read e0.
            (8) b1 answers R0 read e0: NoSuchEntry; b2 answers R0 read e0: NoSuchEntry. (9) R1 fences b0; R1
            fences b1. (10) R1 sends recovery read e0; b0 answers R1 read e0: OK. (11) b0 stores e0, acks
            R1; b1 stores e0, acks R1. (12) R1 sends recovery read e1; b0 answers R1 read e1: OK. (13) b2
            stores e1 for R1 (reply lost). (14) R0 closes, last=-1.
        """,
    ),
    Schedule(
        "T26",
        "fence quorum = QC counted over a striped ensemble",
        (4, 2, 2),
        bookies=4,
        mutant=mutants.coverage_is_a_negative_quorum_of_the_ensemble,
        violations={"FenceCoverage": 3},
        stops=(4, "it is fencing"),
        ends=("CLOSED last=-1", -1),
        steps="""
            (1) W sends e0 (LAC -1). (2) R0: metadata -> IN_RECOVERY, fence requests out. (3) R0 fences b0.
            (4) R0 sends recovery read e0.
        """,
    ),
    Schedule(
        "T27",
        "limbo + positive threshold AQ: recovery can never finish",
        (3, 3, 2),
        bookies=3,
        mutant=mutants.an_ack_quorum_of_copies_is_wanted,
        violations={},
        stops=(10, "R0 does not ask b2 for e0"),
        ends=("CLOSED last=0", 0),
        steps="""
            (1) W sends e0 (LAC -1). (2) b0 stores e0, acks W. (3) b1 stores e0, acks W. (4) b0 crashes,
            loses everything, reboots. (5) R0: metadata -> IN_RECOVERY, fence requests out. (6) R0 fences
            b1; R0 fences b2. (7) R0 sends recovery read e0. (8) b0 answers R0 read e0: Unknown. (9) b1
            answers R0 read e0: OK. (10) b2 answers R0 read e0: NoSuchEntry.
        """,
    ),
    Schedule(
        "T31",
        "recovery adds advance the LAC: next recoverer skips a privately recovered entry",
        (2, 2, 2),
        bookies=3,
        mutant=mutants.write_backs_carry_the_progress_of_recovery,
        violations={"LacIsCommitted": 10, "ClosedAtAckQuorum": 15},
        stops=(13, "R1 reads no e1"),
        ends=("CLOSED last=1", 1),
        steps="""
            (1) W sends e0 (LAC -1); W sends e1 (LAC -1). (2) b0 stores e0 for W (reply lost); b0 stores e1
            for W (reply lost). (3) R0: metadata -> IN_RECOVERY, fence requests out. (4) R0 fences b0. (5)
            R0 sends recovery read e0. (6) b0 answers R0 read e0: OK. (7) R0: b1 failed, private ensemble
            (b0,b2). (8) b2 stores e0, acks R0; b0 stores e0, acks R0. (9) R0 sends recovery read e1; b0
            answers R0 read e1: OK. (10) b0 stores e1 for R0 (reply lost). (11) R1: metadata -> IN_RECOVERY,
            fence requests out. (12) R1 fences b0. (13) R1 sends recovery read e1. (14) b1 answers R1 read
            e1: NoSuchEntry. (15) R1 closes, last=0.
        """,
    ),
    Schedule(
        "T32",
        "GWQ recovery adds advance the LAFR: same skip",
        (2, 2, 2),
        bookies=3,
        guaranteed=True,
        mutant=mutants.write_backs_carry_the_progress_of_recovery,
        violations={"LacIsCommitted": 10, "LafrTruth": 10, "ClosedAtAckQuorum": 15, "GwqClosed": 15},
        stops=(13, "R1 reads no e1"),
        ends=("CLOSED last=1", 1),
        steps="""
            (1) W sends e0 (LAC -1); W sends e1 (LAC -1). (2) b0 stores e0 for W (reply lost); b0 stores e1
            for W (reply lost). (3) R0: metadata -> IN_RECOVERY, fence requests out. (4) R0 fences b0. (5)
            R0 sends recovery read e0. (6) b0 answers R0 read e0: OK. (7) R0: b1 failed, private ensemble
            (b0,b2). (8) b2 stores e0, acks R0; b0 stores e0, acks R0. (9) R0 sends recovery read e1; b0
            answers R0 read e1: OK. (10) b0 stores e1 for R0 (reply lost). (11) R1: metadata -> IN_RECOVERY,
            fence requests out. (12) R1 fences b0. (13) R1 sends recovery read e1. (14) b1 answers R1 read
            e1: NoSuchEntry. (15) R1 closes, last=0.
        """,
    ),
]


def play(schedule: Schedule) -> tuple[Stage, Outcome]:
    stage = schedule.stage()
    return stage, stage.play(schedule.steps)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_production_code_does_not_take_the_step_that_breaks_a_ledger(schedule: Schedule) -> None:
    stage, outcome = play(schedule)
    assert outcome.violations == {}
    if schedule.stops is None:
        assert outcome.stopped_at is None, outcome.why
    else:
        step, why = schedule.stops
        assert (outcome.stopped_at, why in outcome.why) == (step, True), outcome
    stage.finish()
    assert stage.outcome.violations == {}
    assert (stage.metadata, stage.node("W").core.lac) == schedule.ends


T29 = """
    (1) W sends e0 (LAC -1); W sends e1 (LAC -1). (2) b0 stores e0, acks W; b2 stores e0, acks W. (3) b1
    stores e1, acks W; b2 stores e1, acks W; b0 stores e1, acks W. (4) W: b1 failed, starts change to
    (b0,b3,b2). (5) W: ensemble CAS succeeds. (6) b3 stores e0, acks W; b3 stores e1, acks W. (7) W fixes
    close value 1. (8) W: closing CAS succeeds, last=1.
"""


def test_t29_full_pinning_blocks_the_owner_for_ever_and_relaxed_pinning_lets_it_finish() -> None:
    stage = Stage(Configuration((3, 3, 2), entries=2, bookies=4, guaranteed=True, close=True))
    outcome = stage.play(T29)
    assert outcome == Outcome()
    assert stage.metadata == "CLOSED last=1"
    configuration = Configuration((3, 3, 2), entries=2, bookies=4, guaranteed=True, full_pinning=True)
    outcome = Stage(configuration).play(T29)
    assert outcome.violations == {}
    assert (outcome.stopped_at, outcome.why) == (4, "W may replace slots [] alone")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_without_the_rule_the_very_same_schedule_ends_in_the_violation(schedule: Schedule) -> None:
    with schedule.mutant():
        _, outcome = play(schedule)
    assert outcome.stopped_at is None, outcome.why
    assert outcome.violations == schedule.violations
