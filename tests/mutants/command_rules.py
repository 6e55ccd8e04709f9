"""Mutants of the command line: formats of records, appending to a vacant log, the global ``--uri``."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST = "tests/integration/test_cli_records.py"

MUTANTS = (
    mutant(
        "what_is_no_base64_is_dropped_from_a_record",
        "formats",
        "record_formats._bytes_of",
        "base64.b64decode(packed, validate=True)",
        "base64.b64decode(packed)",
        f"{_TEST}::test_a_line_that_is_no_record_is_named_and_those_before_it_are_in_the_log",
    ),
    mutant(
        "a_large_record_does_not_fit_in_json",
        "formats",
        "_JSON_LINE_BYTES_MAX",
        "6 * RECORD_BYTES_MAX + 64 * KIB",
        "RECORD_BYTES_MAX + 64 * KIB",
        f"{_TEST}::test_a_record_of_the_largest_size_fits_in_json_however_it_is_escaped",
    ),
    mutant(
        "a_record_in_json_may_have_any_size",
        "formats",
        "record_formats._record_of",
        "len(data) > RECORD_BYTES_MAX",
        "False",
        f"{_TEST}::test_a_record_of_the_largest_size_fits_in_json_however_it_is_escaped",
    ),
    mutant(
        "a_frame_that_goes_on_in_the_next_chunk_is_dropped",
        "formats",
        "FrameCutter.cut",
        "del held[:at]",
        "held.clear()",
        f"{_TEST}::test_frames_are_cut_wherever_chunks_end",
    ),
    mutant(
        "a_frame_that_is_cut_off_is_dropped_without_a_word",
        "formats",
        "FrameCutter.finish",
        "self._held and self.failure is None",
        "False",
        f"{_TEST}::test_a_frame_that_is_cut_off_or_too_long_is_refused",
    ),
    mutant(
        "a_frame_of_any_length_is_waited_for",
        "formats",
        "FrameCutter.cut",
        "size > RECORD_BYTES_MAX",
        "False",
        f"{_TEST}::test_a_frame_that_is_cut_off_or_too_long_is_refused",
    ),
    mutant(
        "every_log_is_vacant",
        "vacancy",
        "log_data._vacant_epoch",
        "not (await cluster.ledgers.metadata(segment.ledger_id)).is_closed",
        "False",
        f"{_TEST}::test_an_append_that_must_not_depose_anybody_looks_first",
    ),
    mutant(
        "who_leads_between_the_look_and_the_append_is_not_noticed",
        "vacancy",
        "log_data._append",
        "vacant_epoch is not None and writer.epoch != vacant_epoch + 1",
        "False",
        f"{_TEST}::test_an_append_that_must_not_depose_anybody_notices_who_comes_after_its_look",
    ),
    mutant(
        "a_uri_before_a_command_that_takes_none_is_ignored",
        "usage",
        "_refusing_uri.refusing",
        'ctx.find_root().params.get("uri") is not None',
        "False",
        f"{_TEST}::test_a_uri_before_a_command_that_takes_none_is_refused[monitoring alerts-]",
    ),
)
