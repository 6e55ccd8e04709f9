"""The commands that decide what a log keeps: policies, retention, cursors, the sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.test_cli_commands import Commands


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    commands = Commands(f"file:{tmp_path}/data")
    commands.ok("log", "create", "orders")
    return commands


def test_policies_are_changed_one_by_one_and_retention_is_applied(commands: Commands) -> None:
    shown = commands.json("log", "configure", "orders", "--roll-records", "40", "--retain-bytes", "1k")
    assert shown["roll"]["max_records"] == 40
    shown = commands.json("log", "configure", "orders", "--retain-age", "7d", "--roll-bytes", "none")
    assert shown["roll"] == {"max_bytes": None, "max_records": 40, "max_age_s": None}
    assert shown["retention"] == {"max_bytes": 1024, "max_age_s": 604_800.0}
    assert "keeps 604800 s, 1024 bytes" in commands.ok("log", "configure", "orders").decode()
    for _ in range(2):
        commands.ok("log", "append", "orders", stdin=(b"x" * 99 + b"\n") * 20)
    assert commands.json("log", "retain", "orders") == {"name": "orders", "dropped": 20, "first_offset": 20}
    (ledger,) = commands.json("log", "show", "orders")["ledgers"]
    assert ledger["kept_because"] == "retention keeps 604800 s; retention keeps 1024 bytes"
    assert (ledger["records"], ledger["bytes"]) == (20, 1980)
    assert "kept because" in commands.ok("log", "show", "orders").decode()


def test_a_log_is_made_with_its_policies(commands: Commands) -> None:
    commands.ok("log", "create", "other", "--roll-age", "1h", "--retain-bytes", "2g")
    shown = commands.json("log", "configure", "other")
    assert shown["roll"] == {"max_bytes": 2**30, "max_records": None, "max_age_s": 3600.0}
    assert shown["retention"] == {"max_bytes": 2**31, "max_age_s": None}


@pytest.mark.parametrize(
    "option", [("--retain-bytes", "x"), ("--retain-age", "7y"), ("--roll-bytes", "0"), ("--roll-age", "-1s")]
)
def test_a_policy_that_makes_no_sense_is_wrong_usage(commands: Commands, option: tuple[str, str]) -> None:
    assert option[1] in commands.misused("log", "configure", "orders", *option)


@pytest.mark.parametrize(
    "option", [("--roll-bytes", "99999999999t"), ("--roll-records", str(2**63)), ("--retain-age", "1e300d")]
)
def test_a_number_that_the_record_of_a_log_cannot_hold_is_wrong_usage_and_costs_no_log(
    commands: Commands, option: tuple[str, str]
) -> None:
    before = commands.json("log", "show", "orders")
    assert "must be a" in commands.misused("log", "configure", "orders", *option)
    assert "must be a" in commands.misused("log", "create", "other", *option)
    assert commands.json("log", "show", "orders") == before
    assert commands.lines("log", "list") == [{"name": "orders"}]


def test_cursors_are_set_listed_and_deleted_and_what_they_pin_stays(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\nb\nc\n")
    made = commands.json("log", "cursor", "set", "orders", "billing", "1", "--pin", "--property", "by=me=you")
    assert (made["offset"], made["pins"], made["properties"]) == (1, True, {"by": "me=you"})
    assert commands.lines("log", "cursor", "list", "orders") == [{**made, "lag": 2}]
    assert "billing" in commands.ok("log", "cursor", "list", "orders").decode()
    assert "cursor 'billing' pins" in commands.fails("log", "truncate", "orders", "--before", "2")
    moved = commands.json("log", "cursor", "set", "orders", "billing", "2")
    assert (moved["offset"], moved["pins"], moved["properties"]) == (2, True, {"by": "me=you"})
    commands.ok("log", "truncate", "orders", "--before", "2")
    commands.ok("log", "truncate", "orders", "--before", "3", "--ignore-pins")
    shown = commands.json("log", "show", "orders")
    assert shown["cursors"] == [{"name": "billing", "offset": 2, "pins": True}]
    commands.ok("log", "cursor", "delete", "orders", "billing")
    assert commands.lines("log", "cursor", "list", "orders") == []
    assert "KEY=VALUE" in commands.misused("log", "cursor", "set", "orders", "c", "1", "--property", "x")
    assert "name of a cursor" in commands.misused("log", "cursor", "set", "orders", "//", "1")


def test_a_sweep_finds_nothing_where_nothing_was_left(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\n")
    assert commands.lines("log", "sweep", "--min-age", "0") == []
    assert commands.lines("log", "sweep", "--min-age", "0", "--dry-run") == []
