"""Mutants that the simulator must notice: by its faults of people, and by the features of its seeds."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST = "tests/simulation/test_simulated_people.py"
_KEEPS = f"{_TEST}::test_nothing_is_lost_and_every_refusal_says_why"

MUTANTS = (
    mutant(
        "any_store_is_believed_in_the_swarm",
        "A.8",
        "Belonging.judge",
        "self._cluster is None",
        "True",
        f"{_KEEPS}[metadata exchanged]",
    ),
    mutant(
        "an_old_directory_is_believed_in_the_swarm",
        "D27.13",
        "generations.compare_generations",
        "return here.age(there)",
        "return Age.CURRENT",
        f"{_TEST}::test_an_old_copy_that_is_started_instead_of_its_original_denies_nothing",
    ),
    mutant(
        "a_damaged_directory_is_not_marked_in_the_swarm",
        "D27",
        "repairing._mark_all_lost",
        "await marks_after_loss(store, known)",
        "known or await marks_after_loss(store, known)",
        f"{_KEEPS}[damaged and repaired]",
    ),
    mutant(
        "a_full_disk_is_never_roomy_again_in_the_swarm",
        "rule 5",
        "DiskWatch.look",
        "self._set_read_only(is_read_only)",
        "self._set_read_only(True)",
        f"{_KEEPS}[disk filled up]",
    ),
    mutant(
        "ledgers_are_listed_too_few_in_the_swarm",
        "A.8",
        "metadata_check.check_metadata",
        "tuple(forgotten)",
        "tuple(forgotten[1:])",
        f"{_KEEPS}[store restored]",
    ),
    mutant(
        "new_bookie_is_named_before_its_copies_are_durable_in_the_swarm",
        "rule 23, A.5",
        "FragmentRepair._go_on",
        "not self._copies",
        "self._copies is not None",
        "tests/simulation/test_features.py::test_repair_gives_a_place_only_to_who_has_its_entries",
    ),
    mutant(
        "headers_are_lost_in_the_swarm",
        "A.9",
        "_split_attributes",
        "PackedColumn(header_lengths, view[keys_end:])",
        'PackedColumn.of([b""] * count)',
        "tests/simulation/test_features.py::test_records_have_the_keys_and_headers_that_they_were_sent_with",
    ),
    mutant(
        "judge_does_not_look_at_keys",
        "A.9",
        "log_history.judge",
        "(record.key, record.headers) != wanted",
        "record.headers != wanted[1]",
        "tests/simulation/test_workload.py::test_the_judge_finds",
    ),
)
