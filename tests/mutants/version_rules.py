"""Mutants of what keeps processes of several versions together in one cluster."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_SHELLS = "tests/shells/test_versions.py"
_TEST_KEYS = "tests/unit/test_kept_keys.py"
_TEST_SUPPORT = "tests/unit/test_protocol_support.py"

MUTANTS = (
    mutant(
        "a_bookie_of_another_version_is_chosen",
        "versions",
        "BookieDirectory.writable",
        "[info for info in self._writable.values() if understands(info, self._speaks)]",
        "list(self._writable.values())",
        f"{_TEST_SHELLS}::test_a_bookie_of_another_version_is_not_chosen",
    ),
    mutant(
        "who_was_left_out_for_its_version_is_not_told",
        "versions",
        "BookieDirectory._why_few",
        "info.bookie_id not in taken and not understands(info, self._speaks)",
        "False",
        f"{_TEST_SHELLS}::test_too_few_bookies_of_this_version_says_which_were_left_out",
    ),
    mutant(
        "a_read_only_bookie_of_another_version_makes_up_for_a_missing_one",
        "versions",
        "BookieDirectory._why_few",
        "info.bookie_id not in {*self._writable, *taken} and understands(info, self._speaks)",
        "info.bookie_id not in {*self._writable, *taken}",
        f"{_TEST_SHELLS}::test_a_read_only_bookie_of_another_version_makes_up_for_nothing",
    ),
    mutant(
        "a_bookie_of_another_version_is_called",
        "versions",
        "BookieDirectory.resolve",
        "check_understood(info, self._speaks)",
        "",
        f"{_TEST_SHELLS}::test_a_bookie_of_another_version_is_not_called",
    ),
    mutant(
        "a_late_view_refuses_a_bookie_that_was_upgraded",
        "versions",
        "BookieDirectory.resolve",
        "info = await self._look_up(bookie_id)",
        "info = info or await self._look_up(bookie_id)",
        f"{_TEST_SHELLS}::test_a_bookie_that_was_upgraded_is_called_before_the_view_says_so",
    ),
    mutant(
        "the_lower_of_two_versions_is_not_used",
        "versions",
        "ProtocolSupport.common",
        "min(self.highest, other.highest)",
        "max(self.highest, other.highest)",
        _TEST_SUPPORT,
    ),
    mutant(
        "a_feature_of_one_side_alone_is_used",
        "versions",
        "ProtocolSupport.common",
        "{*self.features} & {*other.features}",
        "{*self.features} | {*other.features}",
        _TEST_SUPPORT,
    ),
    mutant(
        "keys_of_a_later_version_are_dropped",
        "versions",
        "encode_record",
        "{**cbor2.loads(unknown), **fields}",
        "fields",
        _TEST_KEYS,
    ),
    mutant(
        "a_kept_key_wins_over_one_that_is_written",
        "versions",
        "encode_record",
        "{**cbor2.loads(unknown), **fields}",
        "{**fields, **cbor2.loads(unknown)}",
        f"{_TEST_KEYS}::test_a_key_that_this_version_writes_wins_over_one_that_was_kept",
    ),
    mutant(
        "a_key_of_a_later_version_makes_another_record",
        "versions",
        "kept_unknown",
        'attrs.field(default=b"", eq=False, repr=False, kw_only=True)',
        'attrs.field(default=b"", repr=False, kw_only=True)',
        f"{_TEST_KEYS}::test_a_cookie_that_a_later_version_wrote_to_one_place_alone_is_the_same_cookie",
    ),
    mutant(
        "a_cursor_forgets_the_keys_of_a_later_version",
        "versions",
        "cursors.Cursor.move",
        'expected.unknown if expected is not None else b""',
        'b""',
        f"{_TEST_SHELLS}::test_moving_a_cursor_keeps_the_keys_of_a_later_version",
    ),
    mutant(
        "a_list_of_snapshots_forgets_the_keys_of_a_later_version",
        "versions",
        "SnapshotList.change.write",
        "encode_snapshot_list(changed, unknown=unknown)",
        "encode_snapshot_list(changed)",
        f"{_TEST_SHELLS}::test_a_change_of_the_list_of_snapshots_keeps_the_keys_of_a_later_version",
    ),
    mutant(
        "a_newer_file_is_looked_for_too_late",
        "versions",
        "open_engine",
        "await refuse_newer(directory)",
        "",
        "tests/storage/test_newer_files.py",
    ),
    mutant(
        "a_start_writes_marks_before_it_finds_a_newer_file",
        "versions",
        "establish_identity",
        "await refuse_newer(directory)",
        "",
        "tests/storage/test_newer_files.py::test_a_bookies_start_on_a_newer_entry_log_writes_nothing",
    ),
)
