"""``python -m tests.simulation.planted [name ...] [--feature NAME ...] [--seeds 300] [--cpu 120]``: known
bugs, put back one by one, and simulated until a seed fails.

A net that finds nothing must be shown to find something. Each mutant of ``tests.mutants`` that breaks a rule
which a cluster can notice is applied to a *copy* of the tree (never to the tree itself), and small seeds are
run there, from 0 on, then full ones, until one fails or the bound is reached. Prints a line for each: how
many seeds it took, how much CPU time, and which rule noticed. Mutants that are not found are named; that is
no error, since other tests notice them (``python -m tests.mutants``). Exit 1 if the copy fails without any
mutant, or a mutant is stale.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ledgerlog.testing.features import NAMES
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, Stale
from tests.mutants.runner import ROOT, Copy

FULL_SHARE = 10
"""After every so many small seeds one full one."""

# The list of known schedules (part E of the protocol's rules), the bugs of other systems, and what is of the
# same kind. Left out are mutants of what no simulated cluster has (wrong keys) and of bounds and pace.
PLANTED = (
    # quorums
    "negative_quorum_one_too_small",
    "fence_quorum_over_the_ensemble",
    "coverage_allows_an_ack_quorum_outside",
    "write_set_not_striped",
    "ack_quorum_one_too_small",
    "lafr_at_the_ack_quorum",
    "lac_over_a_hole",
    "striped_quorum_counts_every_slot",
    # owners
    "acks_of_a_replaced_bookie_count",
    "acks_count_while_their_slot_is_being_replaced",
    "change_starts_after_the_last_add_pushed",
    "no_pinning",
    "pinned_by_entries_below_the_write_quorum_alone",
    "replacement_is_not_sent_what_is_pending",
    "closed_at_the_last_add_pushed",
    "acks_count_after_the_close_snapshot",
    "a_change_is_written_again_whatever_the_state",
    "a_change_starts_where_its_first_attempt_did",
    "a_guaranteed_ledger_closes_at_the_ack_quorum",
    "a_close_elsewhere_is_a_success",
    "an_unknown_outcome_is_told_as_a_failure",
    "the_lac_is_told_before_it_is_confirmed",
    # recoverers
    "time_out_is_negative",
    "negatives_counted_over_the_ensemble",
    "one_negative_ends_the_ledger",
    "a_private_change_is_written_during_recovery",
    "reading_starts_at_the_first_entry_of_all",
    "reading_starts_after_the_lac_in_guaranteed_mode",
    "closed_before_the_write_back",
    "guaranteed_recovery_closes_at_the_ack_quorum",
    "recovery_adds_advance_the_lac",
    "recovery_adds_advance_the_lafr",
    "the_loser_of_the_closing_race_writes_again",
    "a_fence_that_timed_out_counts",
    "what_is_read_moves_with_the_private_ensemble",
    "recovery_reads_are_sent_as_ordinary_ones",
    "write_backs_are_sent_with_the_progress_of_recovery",
    "a_read_without_an_answer_is_empty",
    # readers
    "one_negative_is_enough_for_a_reader",
    "damage_is_negative_to_a_reader",
    "an_open_ledger_is_read_beyond_its_lac",
    "bytes_that_changed_on_the_way_are_taken",
    # bookies
    "regular_add_on_a_fenced_ledger",
    "recovery_adds_are_fenced_too",
    "recovery_read_does_not_fence",
    "recovery_read_is_answered_before_the_fence",
    "fence_of_a_never_seen_ledger_is_ignored",
    "fence_is_answered_before_its_sync",
    "second_fencer_is_answered_before_the_first_sync",
    "fence_is_forgotten_by_a_crash",
    "fence_is_forgotten_by_a_clean_stop",
    "acknowledged_before_the_sync",
    "durable_before_the_write_returned",
    "failed_sync_is_taken_for_done",
    "failed_sync_is_tried_again",
    "duplicate_acknowledged_before_the_first_copys_sync",
    "readable_before_it_is_durable",
    "unreadable_entry_is_no_such_entry",
    "damaged_entry_is_given_out",
    "torn_tail_in_the_middle_is_cut",
    "checksum_is_not_looked_at_in_replay",
    "what_was_replayed_is_shown_before_it_is_synced",
    "mark_moves_before_the_index",
    "segment_is_indexed_before_it_is_durable",
    # metadata and logs
    "a_lost_answer_is_taken_for_yes",
    "takeover_recovers_the_last_ledger_only",
    "takeover_fences_without_recovering",
    "list_conflict_reads_only_the_version_anew",
    "second_roll_with_two_ledgers_open",
    "list_with_three_ledgers_open",
    "serving_before_the_list_is_written",
    "epoch_is_not_raised",
    "deposed_leader_goes_on",
    "newer_ledger_counts_though_the_older_lost_some",
    "ledger_is_closed_before_it_is_drained",
    "new_ledger_is_acknowledged_before_the_old",
    "unknown_is_told_as_lost",
    "a_record_that_was_sent_is_taken_back",
    # producers and sweeping
    "repeat_of_a_record_on_its_way_is_written_again",
    "takeover_starts_with_an_empty_table",
    "takeover_does_not_replay_what_follows_the_checkpoint",
    "no_checkpoint_after_the_first",
    "sweep_deletes_what_a_leader_has_made_ahead",
    # bookies that do not sync what they acknowledge
    "a_boot_after_loss_does_not_fence",
    "a_bookie_in_limbo_denies",
    "a_bookie_that_may_have_lost_data_serves_without_phase_one",
    "the_unclean_bit_is_never_set",
)


def hunt(seeds: int, cpu_s: float, features: Sequence[str] = ()) -> dict[str, Any]:
    """In the copy: run seeds until one fails. ``features``: what each seed has. Empty: what it draws."""
    from ledgerlog.testing.minimize import way_of
    from ledgerlog.testing.swarm import Size
    from ledgerlog.testing.workload import run_seed

    logging.disable(logging.CRITICAL)
    began = time.process_time()
    tried = 0
    for seed in range(seeds):
        for size in (Size.SMALL, Size.FULL):
            if size is Size.FULL and seed % FULL_SHARE != FULL_SHARE - 1:
                continue
            tried += 1
            report = run_seed(seed, size=size, features=features or None)
            spent = time.process_time() - began
            if report.failure is not None:
                words = str(report.failure).splitlines()[:1]
                return {
                    "found": tried,
                    "seed": f"{seed}{'' if size is Size.SMALL else ' full'}",
                    "way": way_of(report.failure),
                    "words": words[0][:200] if words else "",
                    "cpu_s": spent,
                }
        if spent > cpu_s:
            break
    return {"found": None, "tried": tried, "cpu_s": spent}


def run_in(copy: Copy, seeds: int, cpu_s: float, features: Sequence[str]) -> dict[str, Any]:
    """``hunt`` in a process of its own."""
    program = (
        "import json; from tests.simulation.planted import hunt; "
        f"print(json.dumps(hunt({seeds}, {cpu_s}, {features!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy.root,
        env={**os.environ, "PYTHONPATH": str(copy.root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return {"found": 1, "seed": "-", "way": lines[-1][:100], "words": "", "cpu_s": 0.0}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def try_mutant(
    copy: Copy, mutant: Mutant, seeds: int, cpu_s: float, features: Sequence[str]
) -> dict[str, Any]:
    """Apply a mutant to the copy, hunt, and take it back. Raises Stale."""
    patched = mutant.patched(copy.root)
    before = {file: (copy.root / file).read_bytes() for file in patched}
    try:
        for file, text in patched.items():
            (copy.root / file).write_text(text, encoding="utf-8")
        return run_in(copy, seeds, cpu_s, features)
    finally:
        for file, data in before.items():
            (copy.root / file).write_bytes(data)


def line_of(mutant: Mutant, result: dict[str, Any]) -> str:
    """A row of a table."""
    if result["found"] is None:
        return f"| {mutant.name} | {mutant.rule} | not in {result['tried']} | {result['cpu_s']:.1f} | |"
    found = f"{result['found']} (seed {result['seed']})"
    return f"| {mutant.name} | {mutant.rule} | {found} | {result['cpu_s']:.1f} | {result['way']} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="the beginnings of the names of those to plant")
    parser.add_argument("--seeds", type=int, default=300, help="so many small seeds at most")
    parser.add_argument("--cpu", type=float, default=120.0, help="so much CPU time at most, in seconds")
    parser.add_argument(
        "--feature", action="append", default=[], choices=NAMES, help="what each seed has; may be repeated"
    )
    arguments = parser.parse_args()
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    names = tuple(arguments.names)
    chosen = [name for name in PLANTED if not names or name.startswith(names)]
    chosen += [name for name in names if name in by_name and name not in chosen]
    if not chosen:
        parser.error("no planted mutant has such a name")
    missed = []
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        copy = Copy.make(ROOT, Path(directory) / "tree")
        copy.check_path()
        clean = run_in(copy, 5, arguments.cpu, arguments.feature)
        if clean["found"] is not None:
            print(f"seed {clean['seed']} fails without any mutant: {clean['words']}", file=sys.stderr)
            return 1
        for name in chosen:
            try:
                result = try_mutant(copy, by_name[name], arguments.seeds, arguments.cpu, arguments.feature)
            except Stale as failure:
                print(failure, file=sys.stderr)
                return 1
            print(line_of(by_name[name], result), flush=True)
            if result["found"] is None:
                missed.append(name)
    print(
        f"\n{len(chosen) - len(missed)} of {len(chosen)} were found; not found: {', '.join(missed) or 'none'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
