"""The whole system under seeded faults keeps its promises, and the checks of the simulator notice broken
rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from bookie.core.ledger import BookieLedger
from bookie.storage.disk.disk import File
from ledgerlog.cli.main import cli
from ledgerlog.cli.simulate import parse_seeds
from ledgerlog.cluster import Cluster
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.model.ids import Position
from ledgerlog.model.record import Ack, Record, moment
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing import invariants, loss_rules, wire_rules
from ledgerlog.testing.disk import SimDisk
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.log_history import LogHistory, judge
from ledgerlog.testing.minimize import way_of
from ledgerlog.testing.people import People
from ledgerlog.testing.repairers import Repairers
from ledgerlog.testing.shrink import shrink
from ledgerlog.testing.swarm import ALL_FAULTS, Size, Swarm
from ledgerlog.testing.workload import WORKLOADS, Report, lacking, run_seed, vacuity
from ledgerlog.wire.frame import Status

SMALL = range(50)
FULL = (*range(4), 910237, 921395, 923065, 924306)
"""The last four once failed. A reader found nothing of a log whose ledger was fenced before it was closed. A
deposed leader replayed a log that its successor had truncated meanwhile. A bookie that restored a rotten run
asked others for entries behind the end of the ledger. And a bookie confirmed a late fence of a ledger that it
knew to be gone, of which it had no record."""

FOUND: tuple[tuple[int, Size], ...] = ((2001, Size.SMALL), (2080, Size.SMALL), (1513, Size.FULL))
"""Seeds that once failed; they stay for ever. They run without faults of people, which are newer than these
seeds and would change their runs."""

WITH_PEOPLE: tuple[int, ...] = (6, 16, 79, 296, 2057)
"""Small seeds that run with faults of people. In 6 versions are mixed; the others once failed."""

WITH_FEATURES_FULL: tuple[int, ...] = (10000096, 10000165)
"""Full seeds that run with the features that they draw. These once failed. A writer died after it had closed
a ledger, and before it filed the copies that were lost. And a reader of an open log ended before the last
records, because the bookies that answered did not know them."""

WITH_FEATURES: tuple[int, ...] = (300240,)
"""Small seeds that run with the features that they draw. In this one a writer dies, and before recovery a
reader cannot yet see its last record. A rule of the simulator wanted the reader to see it."""


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return [
        *(run_seed(seed, size=Size.SMALL) for seed in SMALL),
        *(run_seed(seed, features=()) for seed in FULL),
        *(run_seed(seed, size=size, people=False, features=()) for seed, size in FOUND),
        *(run_seed(seed, size=Size.SMALL, people=True, features=()) for seed in WITH_PEOPLE),
        *(run_seed(seed, size=Size.SMALL) for seed in WITH_FEATURES),
        *(run_seed(seed) for seed in WITH_FEATURES_FULL),
    ]


def test_the_system_keeps_its_promises_under_faults(reports: list[Report]) -> None:
    for report in reports:
        if report.failure is not None:
            raise report.failure


def test_the_batch_is_not_vacuous(reports: list[Report]) -> None:
    assert not vacuity(reports)
    faults = Counter(kind for report in reports for kind in report.faults)
    assert sum(faults.values()) > len(reports)
    # These peers count like any other.
    assert faults.keys() >= set(ALL_FAULTS) - {"depose", "reset at a fence", "cut off"}
    workloads = {name for report in reports for name in report.features.workloads_of(report.swarm)}
    assert workloads == set(WORKLOADS)


def test_every_rule_is_looked_at(reports: list[Report]) -> None:
    looked = Counter[str]()
    for report in reports:
        looked.update(report.checks)
    pages = f"{invariants.__doc__}{wire_rules.__doc__}{loss_rules.__doc__}"
    rules = re.findall(r"^    ([A-Z][A-Za-z]+)  +\w", pages, flags=re.MULTILINE)
    assert len(rules) >= 30
    # What decoding checks, and what is said of another rule's check.
    told_by_others = {"ConfigOK", "AckOrder", "AckedReadable"}
    assert not [rule for rule in rules if not looked[rule] and rule not in told_by_others]


def test_the_same_seed_is_the_same_run_and_looking_closer_does_not_change_it(reports: list[Report]) -> None:
    for report in reports[:3]:
        again = run_seed(report.seed, size=Size.SMALL)
        assert (again.trace_hash, again.events, again.counts) == (
            report.trace_hash,
            report.events,
            report.counts,
        )
        strict = run_seed(report.seed, size=Size.SMALL, is_strict=True)
        assert (strict.events, strict.counts) == (report.events, report.counts)


def test_leaving_faults_out_changes_nothing_of_what_the_others_draw() -> None:
    whole = run_seed(14, size=Size.SMALL, features=())
    assert len(whole.plan) > 3
    kept = whole.plan[0].number
    part = run_seed(14, size=Size.SMALL, features=(), only=[kept])
    assert [fault.number for fault in part.plan] == [kept]
    assert part.told == whole.told[: len(part.told)]
    assert not run_seed(14, size=Size.SMALL, features=(), only=[]).told


# --- determinism ------------------------------------------------------------------------------------


def hashes_in_another_process(hash_seed: str, seeds: range) -> list[str]:
    """The trace hashes of small runs, as a process of its own finds them."""
    program = (
        "from ledgerlog.testing.swarm import Size\n"
        "from ledgerlog.testing.workload import run_seed\n"
        f"for seed in {seeds!r}: print(run_seed(seed, size=Size.SMALL).trace_hash)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.processes
def test_the_runs_are_the_same_in_another_process_with_another_hash_seed(reports: list[Report]) -> None:
    assert hashes_in_another_process("4711", SMALL[:12]) == [report.trace_hash for report in reports[:12]]


@pytest.mark.soak
def test_a_hundred_runs_are_the_same_in_two_processes_with_other_hash_seeds() -> None:
    seeds = range(100)
    first, second = (hashes_in_another_process(hash_seed, seeds) for hash_seed in ("1", "2"))
    assert len(set(first)) == len(seeds)
    assert first == second


@pytest.mark.soak
@pytest.mark.parametrize("start", range(1000, 2000, 50))
def test_many_more_seeds(start: int) -> None:
    batch = [run_seed(seed) for seed in range(start, start + 50)]
    assert not [(report.seed, report.failure) for report in batch if not report.is_ok]
    assert not vacuity(batch)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(10_000, 12_000, 200))
def test_many_more_small_seeds(start: int) -> None:
    batch = [run_seed(seed, size=Size.SMALL) for seed in range(start, start + 200)]
    assert not [(report.seed, report.failure) for report in batch if not report.is_ok]
    assert not vacuity(batch)


# --- planted bugs: what finds nothing must be shown to find something -------------------------------


def seeds_until_found(most: int = 300) -> int:
    """How many seeds it takes until one fails by a Violation."""
    for seed in range(most):
        failure = run_seed(seed, size=Size.SMALL, people=False, features=()).failure
        if isinstance(failure, Violation):
            return seed + 1
        assert failure is None or isinstance(failure, Exception), failure
    raise AssertionError(f"not found in {most} seeds")


def test_a_fence_that_does_not_refuse_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BookieLedger.add_refusal

    def lenient(self: BookieLedger, key: bytes, is_recovery: bool) -> Status | None:
        refusal = original(self, key, is_recovery)
        return None if refusal is Status.FENCED else refusal

    monkeypatch.setattr(BookieLedger, "add_refusal", lenient)
    assert seeds_until_found() <= 30


async def lying(self: SimDisk, file: File, offset: int, view: memoryview) -> None:
    """A ``write_sync`` that only writes."""
    self.incarnation.check()
    inode = file.inode
    self.platter.begin_write(inode, offset, bytes(view))
    await self.take_time(is_queued=True)


def test_a_disk_that_lies_about_its_syncs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "write_sync", lying)
    assert seeds_until_found() == 1


def test_the_way_of_a_failure_names_only_lines_of_the_users_own_code() -> None:
    @contextmanager
    def checked() -> Iterator[None]:
        yield
        raise AssertionError("wrong")

    with pytest.raises(AssertionError) as failed, checked():
        pass
    kind, *places = way_of(failed.value).split()
    assert kind == "AssertionError"
    assert {place.rpartition(":")[0] for place in places} == {__file__}


def test_a_failing_run_is_shrunk_to_the_faults_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_seed(14, size=Size.SMALL, features=())
    needed = {whole.plan[1].number, whole.plan[-1].number}

    def run(numbers: tuple[int, ...]) -> Report:
        failure = Violation("Rule: broken") if needed <= set(numbers) else Violation("Other: broken")
        return attrs.evolve(whole, failure=failure if numbers else None)

    failed = attrs.evolve(whole, failure=Violation("Rule: broken, in words that differ"))
    shrunk = shrink(failed, run=run)
    assert set(shrunk.numbers) == needed
    assert shrunk.is_minimal
    assert shrunk.result.failure is not None
    assert way_of(shrunk.result.failure) == "Rule"
    assert shrunk.attempts < 100
    few = shrink(failed, run=run, attempts_max=2)
    assert needed <= set(few.numbers)
    assert not few.is_minimal


def test_a_writer_that_asks_for_one_copy_less_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PendingAdds.__init__

    def careless(self: PendingAdds, *args: object, **fields: object) -> None:
        original(self, *args, **fields)
        replication = self.replication
        self.replication = attrs.evolve(replication, ack_quorum=max(1, replication.ack_quorum - 1))

    monkeypatch.setattr(PendingAdds, "__init__", careless)
    assert seeds_until_found() <= 30


# --- the judge --------------------------------------------------------------------------------------


def record(offset: int, data: bytes, epoch: int = 1, **marks: Any) -> Record:
    return Record(offset, Position(1, offset, 0), data, moment(1000 + offset), epoch, **marks)


def ack(found: Record) -> Ack:
    return Ack(found.offset, found.position, found.epoch)


def two_records() -> tuple[LogHistory, list[Record]]:
    history, final = LogHistory(), [record(0, b"a"), record(1, b"b")]
    for each in final:
        history.on_acks(history.on_send([each.data]), [ack(each)])
    return history, final


def refuse_one(history: LogHistory, final: list[Record]) -> None:
    history.on_refused(history.calls[1])


def read_something_else(history: LogHistory, final: list[Record]) -> None:
    history.reads.append([record(0, b"a"), record(1, b"c")])


def truncate_too_much(history: LogHistory, final: list[Record]) -> None:
    history.truncation_asked = 0
    del final[0]


def truncate_too_little(history: LogHistory, final: list[Record]) -> None:
    history.truncation_asked = 1
    history.on_truncated(1)


def seal_and_go_on(history: LogHistory, final: list[Record]) -> None:
    history.on_sealed()
    found = record(2, b"c")
    history.on_acks(history.on_send([b"c"]), [ack(found)])


def swap(history: LogHistory, final: list[Record]) -> None:
    final[:] = [record(0, b"b"), record(1, b"a")]
    for call, found in zip(history.calls, reversed(final), strict=True):
        call.acks = [ack(found)]


def give_a_key(history: LogHistory, final: list[Record]) -> None:
    final[0] = record(0, b"a", key=b"k")


def give_headers(history: LogHistory, final: list[Record]) -> None:
    history.marks[b"a"] = b"k", (("h", b"1"), ("h", b"2"))
    final[0] = record(0, b"a", key=b"k", headers=(("h", b"2"), ("h", b"1")))


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (give_a_key, "was sent with None"),
        (give_headers, "was sent with b'k'"),
        (lambda history, final: final.pop(), "is lost"),
        (lambda history, final: final.append(record(2, b"a")), "twice"),
        (lambda history, final: final.append(record(2, b"z")), "no user sent"),
        (lambda history, final: final.append(record(3, b"z")), "has offset"),
        (lambda history, final: final.insert(0, final.pop()), "begins at offset 1"),
        (lambda history, final: final.__setitem__(0, record(0, b"a", 7)), "epoch decreases"),
        (refuse_one, "failed definitely"),
        (read_something_else, "a reader saw"),
        (swap, "is behind a record"),
        (truncate_too_much, "begins at offset 1"),
        (truncate_too_little, "begins at offset 0"),
        (seal_and_go_on, "after the log was sealed"),
    ],
)
def test_the_judge_finds(break_it: Callable[[LogHistory, list[Record]], object], words: str) -> None:
    history, final = two_records()
    judge(history, final, list(final))

    def break_and_judge() -> None:
        break_it(history, final)
        judge(history, final, list(final))

    with pytest.raises(Violation, match=words):
        break_and_judge()


def test_a_log_that_may_have_been_truncated_to_its_end_has_lost_nothing() -> None:
    history, _ = two_records()
    history.truncation_asked = 2  # The process that asked was killed before it got the answer.
    judge(history, [], [], first_offset=2)
    with pytest.raises(Violation, match="is lost"):
        judge(history, [], [], first_offset=0)


def test_the_judge_knows_deposed_leaders_unknown_outcomes_and_prefixes() -> None:
    history, final = two_records()
    history.on_send([b"unknown"])
    judge(history, final, list(final))
    judge(history, [*final, record(2, b"unknown")], [*final, record(2, b"unknown")])
    with pytest.raises(Violation, match="differ"):
        judge(history, final, final[:1])
    history.on_send([b"x", b"y"])
    with pytest.raises(Violation, match="one call"):
        judge(history, [*final, record(2, b"y")], [*final, record(2, b"y")])
    history.on_leader(2, 5)
    with pytest.raises(Violation, match="epoch 2 began at 5"):
        history.on_acks(history.on_send([b"late"]), [ack(record(5, b"late"))])


# --- long runs ------------------------------------------------------------------------------------------


def test_only_long_runs_are_stretched() -> None:
    for size in Size:
        swarms = [Swarm.draw(Random(seed), size) for seed in range(300)]
        ages = {swarm.roll.max_age_s / swarm.stretch for swarm in swarms if swarm.roll.max_age_s}
        assert ages == {0.5 if size is Size.SMALL else 3.0}
        assert all((swarm.stretch > 1) == (size is Size.LONG) for swarm in swarms)
        assert all((swarm.fault_s > 40) == (size is Size.LONG) for swarm in swarms)


def test_no_long_run_lacks_a_restored_store() -> None:
    def lacks(size: Size) -> bool:
        return any(what.startswith("store restored") for what in lacking(Counter(), 200, size))

    assert [lacks(size) for size in Size] == [True, True, False]

    def restores(size: Size) -> bool:
        swarm = Swarm.draw(Random(0), size)
        return any(People.draw(Random(seed), swarm, wanted=True).restores for seed in range(100))

    assert [restores(size) for size in Size] == [True, True, False]


@pytest.mark.long
def test_a_cluster_lives_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[RepairSettings] = []
    original = Repairers.judge

    async def note_settings(self: Repairers, client: Cluster) -> None:
        settings.append(await RepairQueue(client.client).settings())
        await original(self, client)

    monkeypatch.setattr(Repairers, "judge", note_settings)
    report = run_seed(34, size=Size.LONG)
    assert [each.bookie_check_ms <= 2000 for each in settings] == [True], (
        "as in a full run, once all is healed"
    )
    assert report.failure is None
    assert report.simulated_s > report.swarm.trouble_s == 4 * 3600
    assert report.counts["ledgers repaired"] > 0
    assert sum(report.faults.values()) > 10
    assert report.counts["acked"] > 100


# --- the command ------------------------------------------------------------------------------------


def test_the_command_prints_a_line_for_each_seed_and_a_summary(reports: list[Report]) -> None:
    done = CliRunner().invoke(cli, ["simulate", "--seeds", "0:2", "--small", "--json"])
    assert done.exit_code == 0, done.output
    first, second, summary = map(json.loads, done.stdout.splitlines())
    assert [first["seed"], second["seed"]] == [0, 1]
    assert first["ok"] is second["ok"] is True
    assert first["trace_hash"] == reports[0].trace_hash
    assert first["faults"] == sum(reports[0].faults.values())
    assert first["events"] == reports[0].events
    assert (summary["seeds"], summary["failed"]) == (2, [])


def test_the_command_tells_where_a_failure_without_a_text_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_silently(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(SimDisk, "write_sync", fail_silently)
    done = CliRunner().invoke(cli, ["simulate", "--seeds", "4", "--small"])
    assert done.exit_code == 1
    assert "in fail_silently" in done.stderr


def test_the_command_tells_of_a_failing_seed_and_shrinks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "write_sync", lying)
    done = CliRunner().invoke(cli, ["simulate", "--seeds", "4", "--small", "--shrink"])
    assert done.exit_code == 1
    assert "seed 4: FAILED" in done.stdout
    assert "ledgerlog simulate --seeds 4 --small" in done.stderr
    assert "Violation: " in done.stderr
    assert "not durable there" in done.stderr
    assert "last events:" in done.stderr
    assert "it takes 0 faults; each of them is needed" in done.stderr
    assert "ledgerlog simulate --seeds 4 --small --only ''" in done.stderr


def test_several_processes_run_the_same_seeds_as_one(reports: list[Report]) -> None:
    done = CliRunner().invoke(cli, ["simulate", "--seeds", "0:3", "--small", "--jobs", "2", "--json"])
    assert done.exit_code == 0, done.output
    *lines, summary = map(json.loads, done.stdout.splitlines())
    lines.sort(key=lambda line: line["seed"])
    assert [line["trace_hash"] for line in lines] == [report.trace_hash for report in reports[:3]]
    assert (summary["seeds"], summary["failed"]) == (3, [])
    assert summary["events"] == sum(report.events for report in reports[:3])


FAILED = {
    "seed": 4,
    "ok": False,
    "trace_hash": "0f",
    "events": 1,
    "faults": 0,
    "acknowledged": 0,
    "takeovers": 0,
    "simulated_s": 1.0,
    "cpu_s": 0.1,
    "counts": {},
    "faults_by_kind": {},
    "checks_by_rule": {},
}


def pretend(program: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shell script take the place of the processes that run seeds."""
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_what_a_process_says_of_its_failing_seed_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "echo 'run it again with: ledgerlog simulate --seeds 4' >&2; echo 'ledgerlog: 1 of 1 failed' >&2"
    pretend(f"echo '{json.dumps(FAILED)}'; {said}; exit 1", tmp_path / "python", monkeypatch)
    command = ["simulate", "--seeds", "4", "--hours", "10", "--jobs", "1", "--fail-fast"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1
    assert "seed 4: FAILED" in done.stdout
    assert "1 seeds, 1 failed" in done.stdout
    assert "run it again with: ledgerlog simulate --seeds 4\n" in done.stderr
    assert "1 of 1 seeds failed: 4" in done.stderr
    assert "ledgerlog: 1 of 1 failed" not in done.stderr


def test_a_process_that_ends_before_its_seeds_are_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend("kill -9 $$", tmp_path / "python", monkeypatch)
    done = CliRunner().invoke(cli, ["simulate", "--seeds", "0:30", "--jobs", "3"])
    assert done.exit_code == 1
    assert re.search(r"the seeds \d+:\d+ ended after 0 of them, with -9", done.stderr)


def test_a_size_is_handed_on_to_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(f'echo "$@" >> {tmp_path}/told; kill -9 $$', tmp_path / "python", monkeypatch)
    for size, seeds in (("--small", "40:80"), ("--long", "40:41")):
        CliRunner().invoke(cli, ["simulate", "--seeds", "40:10000", "--hours", "9", "--jobs", "1", size])
        assert f"simulate --json {size} --seeds {seeds}" in (tmp_path / "told").read_text()
    assert CliRunner().invoke(cli, ["simulate", "--seeds", "1", "--small", "--long"]).exit_code == 2


def test_one_seed_can_be_run_with_a_part_of_its_faults() -> None:
    done = CliRunner().invoke(cli, ["simulate", "--seeds", "3", "--small", "--only", "1,2", "--json"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(cli, ["simulate", "--seeds", "3:5", "--only", "1"]).exit_code == 2
    assert CliRunner().invoke(cli, ["simulate", "--seeds", "3", "--only", "x"]).exit_code == 2
    assert CliRunner().invoke(cli, ["simulate", "--seeds", "3", "--only", "1", "--jobs", "2"]).exit_code == 2
    assert CliRunner().invoke(cli, ["simulate"]).exit_code == 2


@pytest.mark.parametrize("text", ["", "a", "1:", ":2", "5:5", "6:5", "-1", "1:2:3"])
def test_what_is_no_range_of_seeds_is_wrong_usage(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_seeds(text)
    assert CliRunner().invoke(cli, ["simulate", "--seeds", text]).exit_code == 2


def test_ranges_of_seeds() -> None:
    assert parse_seeds("3:6") == range(3, 6)
    assert parse_seeds("7") == range(7, 8)
