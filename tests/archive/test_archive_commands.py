"""The archive and compact commands, without Spark. Each test has its own cluster."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ledgerlog.cli import options
from ledgerlog.cli.main import cli
from ledgerlog.errors import MetadataUnavailable
from ledgerlog.model.credentials import Credentials


class Commands:
    def __init__(self, where: Path) -> None:
        self.uri = f"file:{where}?bookies=3"

    def run(self, *words: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, words, input=stdin, env={"LEDGERLOG_URI": self.uri})

    def lines(self, *words: str, stdin: bytes | None = None) -> list[Any]:
        result = self.run(*words, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_destination_without_its_marker_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    where = tmp_path / "archive"
    archive = ("spark", "archive", "orders", "--to", str(where), "--master", "none")
    commands.lines("log", "create", "orders")
    for _ in range(2):  # Each leader has its own ledger.
        assert commands.run("log", "append", "orders", stdin=b"one\ntwo\n").exit_code == 0
    assert commands.lines(*archive)[-1]["steps"] == {"copied": 2, "published": 1}
    (marker,) = where.glob("_ledgerlog-archive-*")
    marker.unlink()
    refused = commands.run(*archive)
    assert refused.exit_code == 1
    assert marker.name in refused.stderr
    assert "--accept-destination" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(where.glob("_ledgerlog-archive-*")) == []
    assert commands.lines(*archive, "--accept-destination", "--keep-copies", "0")[-1]["steps"] == {
        "given up": 1
    }
    (made,) = where.glob("_ledgerlog-archive-*")
    assert made != marker
    assert commands.lines(*archive, "--keep-copies", "0")[-1]["steps"] == {}
    read = commands.run("log", "read", "orders").stdout.split()
    assert read == ["0", "one", "1", "two", "2", "one", "3", "two"]


def test_a_destination_that_is_accepted_again_keeps_its_marker(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    where = tmp_path / "archive"
    archive = ("spark", "archive", "orders", "--to", str(where), "--master", "none")
    commands.lines("log", "create", "orders")
    assert commands.run("log", "append", "orders", stdin=b"one\n").exit_code == 0
    assert commands.lines(*archive, "--accept-destination")[-1]["steps"] == {"copied": 1, "published": 1}
    (marker,) = where.glob("_ledgerlog-archive-*")
    assert commands.lines(*archive, "--accept-destination")[-1]["steps"] == {}
    assert list(where.glob("_ledgerlog-archive-*")) == [marker]


def test_a_job_without_the_option_names_the_command_that_accepts_a_new_destination(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    wrong, right = str(tmp_path / "arhcive"), str(tmp_path / "archive")
    archive = ("spark", "archive", "orders", "--master", "none", "--keep-copies", "0", "--destination")
    commands.lines("log", "create", "orders")
    for _ in range(3):
        assert commands.run("log", "append", "orders", "--key", "k", stdin=b"one\n").exit_code == 0
    commands.lines(*archive, wrong)
    compact = ("spark", "compact", "orders", "--master", "none", "--destination", right)
    refused = commands.run(*compact)
    assert refused.exit_code == 1
    assert "`ledgerlog spark archive NAME --destination WHERE --accept-destination`" in refused.stderr
    refused = commands.run(*archive, right, "--merge")
    assert refused.exit_code == 1
    assert "--accept-destination" in refused.stderr
    steps = commands.lines(*archive, right, "--merge", "--accept-destination")[-1]["steps"]
    assert steps["merged"] == 1
    assert commands.lines(*compact)[-1]["steps"]["compacted"] == 1


def test_a_table_can_be_left_out_and_one_that_is_damaged_is_made_anew_by_an_option(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    where = tmp_path / "archive"
    archive = ("spark", "archive", "orders", "--destination", str(where), "--master", "none")
    commands.lines("log", "create", "orders")
    assert commands.run("log", "append", "orders", stdin=b"one\n").exit_code == 0
    assert commands.lines(*archive, "--catalog", "none")[-1]["steps"] == {"copied": 1}
    assert not list(where.rglob("metadata"))
    refused = commands.run(*archive, "--catalog", "none", "--new-table")
    assert refused.exit_code == 2
    assert "--new-table: name a catalog" in refused.output
    assert commands.lines(*archive)[-1]["steps"] == {"published": 1}
    for path in where.rglob("*.metadata.json"):
        path.write_bytes(b"{")
    refused = commands.run(*archive)
    assert refused.exit_code == 1
    assert "--new-table" in refused.output
    assert commands.lines(*archive, "--new-table")[-1]["steps"] == {"published": 1}


def test_files_that_are_kept_for_a_table_name_the_command_that_removes_both(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    where = tmp_path / "archive"
    options = ("--master", "none", "--destination", str(where))
    for name in ("orders", "users"):
        commands.lines("log", "create", name)
        assert commands.run("log", "append", name, stdin=b"one\n").exit_code == 0
        commands.lines("spark", "archive", name, *options, "--namespace", "company")
    commands.lines("log", "delete", "orders", "--yes")
    (step, counts) = commands.lines("spark", "archive", "users", *options, "--catalog", "none")
    assert counts["steps"] == {"skipped": 1}
    named = re.search(
        "`ledgerlog (spark archive NAME .*--catalog CATALOG --namespace NAMESPACE)`", step["why"]
    )
    assert named is not None
    words = named[1].replace("NAMESPACE", "company").replace("NAME", "users").split()
    assert where.as_uri() in words
    words.remove("--catalog")
    words.remove("CATALOG")  # The table is in the default catalog.
    assert commands.lines(*words, "--master", "none")[-1]["steps"] == {"retired": 1}
    assert len(list(where.rglob("*.parquet"))) == 1


def test_an_archive_is_moved_by_one_command(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    archive = ("spark", "archive", "orders", "--master", "none", "--keep-copies", "0", "--destination")
    commands.lines("log", "create", "orders")
    for _ in range(2):
        assert commands.run("log", "append", "orders", stdin=b"one\ntwo\n").exit_code == 0
    commands.lines(*archive, one)
    before = commands.run("log", "read", "orders").stdout
    (tmp_path / "one").rename(two)
    refused = commands.run(*archive, two)
    assert refused.exit_code == 1
    assert "ledgerlog archive move FROM TO" in refused.stderr
    assert commands.lines("archive", "move", one, two)[-1] == {"archive": two, "steps": {"moved": 2}}
    assert commands.run("log", "read", "orders").stdout == before
    assert commands.lines(*archive, two, "--new-table")[-1]["steps"] == {"published": 1}
    (tmp_path / "two").rename(one)
    refused = commands.run("archive", "move", two, str(tmp_path / "three"))
    assert refused.exit_code == 1
    assert "marker" in refused.stderr
    (marker,) = (tmp_path / "one").glob("_ledgerlog-archive-*")
    marker.rename(tmp_path / "kept")
    (tmp_path / "one").rename(tmp_path / "three")
    refused = commands.run("archive", "move", two, str(tmp_path / "three"))
    assert "accept it once: `ledgerlog archive move FROM TO --accept-destination`" in refused.stderr
    next((tmp_path / "three").rglob("*.parquet")).unlink()
    refused = commands.run("archive", "move", two, str(tmp_path / "three"), "--accept-destination")
    assert refused.exit_code == 1
    assert "it is missing; put it back where it was" in refused.stdout
    assert "1 of 1 steps failed; each says why. Mend the cause, then run it again" in refused.stderr


def test_archives_are_listed_with_what_they_hold_also_after_a_move(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    one, other = tmp_path / "one", tmp_path / "other"
    for name in ("orders", "users"):
        commands.lines("log", "create", name)
        assert commands.run("log", "append", name, stdin=b"one\ntwo\n").exit_code == 0
        commands.lines("spark", "archive", name, "--to", str(one), "--master", "none", "--catalog", "none")
    size = sum(path.stat().st_size for path in one.rglob("*.parquet"))
    held = {"logs": 2, "files": 2, "records": 4, "byte_count": size}
    assert commands.lines("archive", "list") == [{"url": one.as_uri(), "moved_to": "", **held}]
    shutil.copytree(one, other)
    commands.lines("archive", "move", str(one), str(other))
    nothing = {"logs": 0, "files": 0, "records": 0, "byte_count": 0}
    assert commands.lines("archive", "list") == [
        {"url": one.as_uri(), "moved_to": other.as_uri(), **nothing},
        {"url": other.as_uri(), "moved_to": "", **held},
    ]
    shown = commands.run("archive", "list")
    assert shown.exit_code == 0
    assert str(other) in shown.stdout


@pytest.mark.parametrize("command", [("archive", "list"), ("archive", "move", "a", "b")])
def test_the_credentials_of_the_command_line_are_used(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Credentials] = []

    def note(uri: str, credentials: Credentials) -> Any:
        given.append(credentials)
        raise MetadataUnavailable("not here")

    monkeypatch.setattr(options, "open_cluster", note)
    secret = tmp_path / "secret"
    assert Commands(tmp_path).run(*command, "--secret-file", str(secret)).exit_code == 1
    assert [each.secret_file for each in given] == [str(secret)]


@pytest.mark.parametrize(
    "command",
    [
        ("archive", "orders", "--keep-copies", "7"),
        ("compact", "orders", "--tombstones", "empty", "--tombstones-after", "7"),
    ],
)
def test_an_age_of_a_job_needs_a_unit(tmp_path: Path, command: tuple[str, ...]) -> None:
    commands = Commands(tmp_path / "cluster")
    refused = commands.run("spark", *command, "--to", str(tmp_path / "archive"), "--master", "none")
    assert refused.exit_code == 2
    assert "number with s, m, h or d" in " ".join(refused.stderr.split())
    assert not (tmp_path / "archive").exists()
