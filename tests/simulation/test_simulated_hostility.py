"""Hostile peers in closed clusters, by seed: bookies refuse all their requests, and the run notices a broken
rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from bookie.server.access import Access
from ledgerlog.net.prover import Prover
from ledgerlog.testing import hostile
from ledgerlog.testing.hostile import ROLES, Hostility
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import Report, run_seed
from ledgerlog.wire.frame import RECOVERY, Header, Kind, Status
from ledgerlog.wire.hello import Claim
from ledgerlog.wire.proof import BookieProof
from tests.simulation.violations import first_violation


def only(monkeypatch: pytest.MonkeyPatch, *roles: str) -> None:
    """Let all peers of a run have one of these roles, and connect often."""

    def draw(random: Random, trouble_s: float, *, wanted: bool | None = None) -> Hostility:
        return Hostility(roles=roles if wanted else (), gap_s=trouble_s / 20)

    monkeypatch.setattr(Hostility, "draw", draw)


def numbers_of(reports: list[Report]) -> Counter[str]:
    numbers = Counter[str]()
    for report in reports:
        for each in (report.counts, report.checks):
            numbers.update(each)
    return numbers


def test_hostile_peers_reach_nothing_and_the_cluster_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *ROLES)
    reports = [run_seed(seed, size=Size.SMALL, features=(), hostile=True) for seed in range(2)]
    for report in reports:
        if report.failure is not None:
            raise report.failure
    numbers = numbers_of(reports)
    wanted = (
        "acked",
        "hostile adds",
        "hostile requests",
        "hostile guesses",
        "hostile replays",
        "HostileRefused",
    )
    assert [what for what in wanted if not numbers[what]] == []


def test_every_role_is_drawn_and_most_runs_have_none() -> None:
    drawn = [Hostility.draw(Random(seed), 3.0) for seed in range(300)]
    assert {role for each in drawn for role in each.roles} == {*ROLES}
    assert 20 < sum(bool(each.roles) for each in drawn) < 100


def test_without_hostile_peers_a_seed_keeps_its_swarm_and_its_plan() -> None:
    without = run_seed(5, size=Size.SMALL, features=(), hostile=False)
    beside = run_seed(5, size=Size.SMALL, features=(), hostile=True)
    assert not without.hostility.roles
    assert beside.hostility.roles
    assert (without.swarm, without.plan) == (beside.swarm, beside.plan)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(40_000, 42_000, 100))
def test_two_thousand_seeds(start: int) -> None:
    reports = [
        run_seed(seed, size=Size.SMALL, features=(), hostile=True) for seed in range(start, start + 100)
    ]
    assert not [(report.seed, report.failure) for report in reports if not report.is_ok]


# --- planted bugs -----------------------------------------------------------------------------------


def violation_of_some_seed() -> str:
    return first_violation(run_seed(seed, size=Size.SMALL, features=(), hostile=True) for seed in range(20))


def unchecked(monkeypatch: pytest.MonkeyPatch, is_forgotten: Callable[[Header], bool]) -> None:
    """Let bookies check no grants of some requests."""
    check: Callable[[Access, Header], Awaitable[Status | None]] = Access.check

    async def forgetful(access: Access, header: Header) -> Status | None:
        return None if is_forgotten(header) else await check(access, header)

    monkeypatch.setattr(Access, "check", forgetful)


def test_grants_that_are_not_checked_on_recovery_adds_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "nobody")
    unchecked(monkeypatch, lambda header: header.kind == Kind.ADD and bool(header.flags & RECOVERY))
    assert "HostileRefused: nobody: its adds" in violation_of_some_seed()


def test_a_role_that_stays_after_its_revocation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "revoked")
    unchecked(monkeypatch, lambda header: header.kind == Kind.LIST)
    assert "HostileRefused: revoked: its LIST" in violation_of_some_seed()


def test_a_proof_that_is_not_compared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "stranger")
    monkeypatch.setattr(hostile, "_WAYS", ("replay", "guess"))
    on_proof = BookieProof.on_proof

    def believe(proof: BookieProof, said: bytes) -> bytes | None:
        answer = on_proof(proof, said)
        return bytes(32) if answer is None else answer

    monkeypatch.setattr(BookieProof, "on_proof", believe)
    assert "is answered with PROOF" in violation_of_some_seed()


def test_a_nonce_that_repeats_lets_a_replay_in_and_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "stranger")
    monkeypatch.setattr(hostile, "_WAYS", ("replay",))
    verify = Prover.verify

    def forgetful(prover: Prover, claim: Claim) -> BookieProof | None:
        prover._random_bytes = bytes
        return verify(prover, claim)

    monkeypatch.setattr(Prover, "verify", forgetful)
    assert "a replay is answered with PROOF" in violation_of_some_seed()
