"""The commands over an embedded cluster: what they print, how they fail, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result
from running_cluster import LEDGERLOG

from ledgerlog import limits
from ledgerlog.cli.lines import UNTERMINATED
from ledgerlog.cli.main import cli
from ledgerlog.cluster import connect
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.versions import SPOKEN
from tests.waiting import PATIENCE_S


class Commands:
    """The command line, against one cluster."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def run(self, *args: str, stdin: bytes | None = None, uri: bool = True) -> Result:
        environment = {"LEDGERLOG_URI": self.uri if uri else None}
        return CliRunner().invoke(cli, args, input=stdin, env=environment)

    def ok(self, *args: str, stdin: bytes | None = None) -> bytes:
        """Standard output of a command that succeeds and says nothing else."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout_bytes

    def json(self, *args: str, stdin: bytes | None = None) -> Any:
        """Return the one JSON object that a command prints."""
        return json.loads(self.ok(*args, "--json", stdin=stdin))

    def lines(self, *args: str) -> list[Any]:
        """The objects that a command prints, one a line."""
        return [json.loads(line) for line in self.ok(*args, "--json").splitlines()]

    def fails(self, *args: str, stdin: bytes | None = None, uri: bool = True) -> str:
        """Return the one line of error of a command that fails."""
        result = self.run(*args, stdin=stdin, uri=uri)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr
        assert "ExceptionGroup" not in result.stderr
        return result.stderr

    def misused(self, *args: str, uri: bool = True) -> str:
        result = self.run(*args, uri=uri)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        return result.stderr


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    made = Commands(f"file:{tmp_path}/cluster")
    made.ok("log", "create", "orders")
    return made


def test_lines_are_appended_read_and_shown_with_the_shapes_that_scripts_rely_on(commands: Commands) -> None:
    appended = commands.json("log", "append", "orders", stdin=b"first\n\xff\n\nlast\n")
    assert appended == {"records": 4, "first_offset": 0, "last_offset": 3, "epoch": 1}

    records = commands.lines("log", "read", "orders")
    assert [record["offset"] for record in records] == [0, 1, 2, 3]
    assert [record.get("data") for record in records] == ["first", None, "", "last"]
    assert records[1]["data_base64"] == "/w=="
    assert records[0]["epoch"] == 1
    assert records[0]["position"].count(":") == 2

    shown = commands.json("log", "show", "orders")
    assert shown["name"] == "orders"
    assert (shown["epoch"], shown["first_offset"], shown["next_offset"]) == (1, 0, 4)
    assert shown["sealed"] is False
    (ledger,) = shown["ledgers"]
    assert ledger["state"] == "CLOSED"
    assert ledger["first_offset"] == 0
    assert (ledger["ensemble_size"], ledger["write_quorum"], ledger["ack_quorum"]) == (1, 1, 1)
    assert ledger["guaranteed"] is False
    assert ledger["fragments"] == [{"first_entry": 0, "bookies": ["bookie-1"]}]

    assert commands.lines("log", "list") == [{"name": "orders"}]
    assert commands.lines("ledger", "list") == [{"id": ledger["id"]}]
    shown_ledger = commands.json("ledger", "show", str(ledger["id"]))
    assert shown_ledger["last_entry"] == ledger["last_entry"]
    assert shown_ledger["custom"]["log-name"] == {"data": "orders"}
    verified = commands.json("ledger", "verify", str(ledger["id"]))
    assert verified["ledger"] == ledger["id"]
    assert verified["entries"] == ledger["last_entry"] + 1
    assert verified["under_replicated"] == verified["unreadable"] == []
    assert commands.json("ledger", "recover", str(ledger["id"]))["state"] == "CLOSED"
    entries = commands.lines("ledger", "read", str(ledger["id"]))
    assert [entry["entry"] for entry in entries] == list(range(verified["entries"]))
    (bookie,) = commands.lines("bookie", "list")
    assert (bookie["id"], bookie["state"]) == ("bookie-1", "writable")
    assert (bookie["protocol"], bookie["features"]) == (list(SPOKEN.range), list(SPOKEN.features))
    assert (bookie["journal_write_data"], bookie["ledgers_in_limbo"]) == (True, 0)


def test_a_part_of_a_log_is_read_by_offset_position_time_and_word(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\nb\nc\nd\n")
    assert commands.ok("log", "read", "orders", "--raw", "--start", "1", "--until", "3") == b"b\nc\n"
    position = commands.lines("log", "read", "orders")[2]["position"]
    assert commands.ok("log", "read", "orders", "--raw", "--start", position) == b"c\nd\n"
    assert commands.ok("log", "read", "orders", "--raw", "--start", "latest") == b""
    assert commands.ok("log", "read", "orders", "--raw", "--start", "2001-01-01T00:00:00Z") == b"a\nb\nc\nd\n"
    assert commands.ok("log", "read", "orders", "--raw", "--start", "2999-01-01T00:00:00Z") == b""


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n\n", b"a\n\nb", b"\r\n\0\n\xfe"])
def test_raw_gives_back_the_file_byte_for_byte(commands: Commands, text: bytes, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(text)
    commands.ok("log", "append", "orders", "--input", str(tmp_path / "text"))
    assert commands.ok("log", "read", "orders", "--raw") == text


def test_a_missing_last_newline_is_remembered_in_a_property_and_separates_once_more_follows(
    commands: Commands,
) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\nb")
    assert commands.json("log", "show", "orders")["properties"] == {UNTERMINATED: "1"}
    commands.ok("log", "append", "orders", stdin=b"c\n")
    assert commands.ok("log", "read", "orders", "--raw") == b"a\nb\nc\n"
    assert commands.ok("log", "read", "orders", "--raw", "--until", "2") == b"a\nb"


def test_a_property_of_a_user_is_not_taken_for_the_place_of_a_missing_newline(commands: Commands) -> None:
    async def spoil() -> None:
        async with connect(commands.uri) as cluster:
            await (await cluster.open_log("orders")).set_properties({UNTERMINATED: "soon"})

    commands.ok("log", "append", "orders", stdin=b"a\nb\n")
    trio.run(spoil)
    assert commands.ok("log", "read", "orders", "--raw") == b"a\nb\n"


def test_nothing_to_append_is_not_an_error(commands: Commands) -> None:
    appended = commands.json("log", "append", "orders", stdin=b"")
    assert appended == {"records": 0, "first_offset": None, "last_offset": None, "epoch": 1}


def test_a_line_over_the_limit_is_refused_by_its_number_and_what_stands_before_it_is_appended(
    commands: Commands,
) -> None:
    long = b"x" * (RECORD_BYTES_MAX + 1)
    error = commands.fails("log", "append", "orders", stdin=b"a\nb\n" + long + b"\nc\n")
    assert "line 3" in error
    assert str(RECORD_BYTES_MAX) in error
    assert "2 records are in the log, at offsets 0 to 1" in error
    assert commands.ok("log", "read", "orders", "--raw") == b"a\nb\n"


def test_a_log_is_truncated_sealed_and_deleted(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\nb\nc\n")
    assert commands.json("log", "truncate", "orders", "--before", "2")["first_offset"] == 2
    assert "first offset is 2" in commands.fails("log", "read", "orders", "--start", "0")
    assert commands.ok("log", "read", "orders", "--raw") == b"c\n"
    sealed = commands.json("log", "seal", "orders")
    assert (sealed["sealed"], sealed["next_offset"]) == (True, 3)
    assert "sealed" in commands.fails("log", "append", "orders", stdin=b"d\n")
    assert commands.ok("log", "read", "orders", "--raw", "--follow") == b"c\n", "a sealed log has an end"
    assert commands.json("log", "delete", "orders") == {"name": "orders", "deleted": True}
    assert commands.lines("log", "list") == []
    assert commands.lines("ledger", "list") == []


def test_replication_is_chosen_when_a_log_is_made(tmp_path: Path) -> None:
    commands = Commands(f"file:{tmp_path}/three?bookies=3")
    commands.ok(
        "log", "create", "g", "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2", "--guaranteed"
    )
    commands.ok("log", "append", "g", stdin=b"a\n")
    (ledger,) = commands.json("log", "show", "g")["ledgers"]
    assert (ledger["ensemble_size"], ledger["write_quorum"], ledger["ack_quorum"]) == (3, 3, 2)
    assert ledger["guaranteed"] is True


@pytest.mark.parametrize(("bookies", "copies"), [(1, 1), (2, 2), (4, 3)])
def test_a_guaranteed_log_has_the_numbers_of_the_cluster_where_none_is_given(
    tmp_path: Path, bookies: int, copies: int
) -> None:
    commands = Commands(f"file:{tmp_path}/cluster?bookies={bookies}")
    plain = commands.json("log", "create", "plain")["replication"]
    assert plain["guaranteed"] is False
    assert plain["write_quorum"] == copies
    assert commands.json("log", "create", "g", "--guaranteed")["replication"] == plain | {"guaranteed": True}


def test_what_was_chosen_for_a_log_is_shown_before_it_has_a_ledger(tmp_path: Path) -> None:
    commands = Commands(f"file:{tmp_path}/three?bookies=3")
    commands.ok("log", "create", "g", "--guaranteed", "--roll-age", "1h", "--retain-bytes", "2g")
    shown = commands.json("log", "show", "g")
    assert shown["replication"] == {
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "guaranteed": True,
    }
    assert shown["roll"] == {"max_bytes": 2**30, "max_records": None, "max_age_s": 3600.0}
    assert shown["retention"] == {"max_bytes": 2**31, "max_age_s": None}
    words = commands.ok("log", "show", "g").decode()
    assert "offsets: none, next 0" in words
    assert "new ledgers: 3/3/2 guaranteed" in words
    assert "rolls at 1073741824 bytes, 3600 s; keeps 2147483648 bytes" in words


def test_a_ledger_is_read_up_to_its_end_and_not_from_beyond_it(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\n")
    commands.ok("log", "append", "orders", stdin=b"")
    assert len(commands.lines("ledger", "read", "0")) == 1
    assert commands.lines("ledger", "read", "0", "--first", "1") == [], "what comes next is not there yet"
    assert "has no entry 2: the last entry that can be read is 0" in commands.fails(
        "ledger", "read", "0", "--first", "2"
    )
    assert "has no entry 7" in commands.fails("ledger", "read", "0", "--last", "7")
    assert "has no entry 0: no entry can be read yet" in commands.fails("ledger", "read", "1", "--last", "0")
    assert "after --last 3" in commands.misused("ledger", "read", "0", "--first", "5", "--last", "3")


def test_a_recovery_prints_the_same_shape_whether_or_not_it_accepts_a_loss(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\n")
    plain = commands.json("ledger", "recover", "0")
    accepting = commands.json("ledger", "recover", "0", "--accept-loss")
    assert {key: accepting[key] for key in plain} == plain


def test_people_get_words_and_tables(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"text\n\x1b[2Jescape\n")
    assert commands.ok("log", "list") == b"orders\n"
    shown = commands.ok("log", "show", "orders").decode()
    assert "epoch 1" in shown
    assert "bookie-1" in shown
    read = commands.ok("log", "read", "orders")
    assert b"0  text\n" in read
    assert b"\x1b" not in read, "a record does not get at the terminal"
    for command in (("ledger", "show", "0"), ("ledger", "verify", "0"), ("bookie", "list")):
        assert commands.ok(*command)
    verified = commands.ok("ledger", "verify", "0").decode()
    assert "unreadable: none\n" in verified
    assert "fewer copies than the write quorum: none\n" in verified
    assert commands.ok("log", "sweep") == b"nothing to sweep\n"
    one = commands.ok("log", "append", "orders", stdin=b"third\n")
    assert one == b"orders: 1 record is in the log, at offset 2 (epoch 2)\n"


def test_what_others_have_stored_is_shown_as_it_is_and_does_not_get_at_the_terminal(
    commands: Commands,
) -> None:
    async def label() -> None:
        async with connect(commands.uri) as cluster:
            await (await cluster.open_log("labelled")).set_properties({"odd": "\x1b]0;x\x07 [/x]"})

    commands.ok("log", "create", "labelled")
    trio.run(label)
    commands.ok("log", "cursor", "set", "labelled", "c", "0", "--property", r"p=^\[a-z]+$ [/x] b:b:\n\x9b")
    commands.ok("log", "cursor", "set", "labelled", "d", "0", "--property", "p=\x1b[2J a:b:c")
    assert r"property odd: \x1b]0;x\x07 [/x]" in commands.ok("log", "show", "labelled").decode()
    listed = commands.ok("log", "cursor", "list", "labelled").decode()
    assert r"p=^\[a-z]+$ [/x] b:b:" in listed
    assert r"p=\x1b[2J a:b:c" in listed
    assert commands.json("log", "show", "labelled")["properties"]["odd"] == "\x1b]0;x\x07 [/x]"


@pytest.mark.parametrize(
    ("command", "what", "next_step"),
    [
        (("log", "show", "nothing"), "no log named 'nothing'", "log list"),
        (("log", "create", "orders"), "exists already", "another name"),
        (("log", "delete", "nothing"), "no log named", "log list"),
        (("log", "truncate", "orders", "--before", "9"), "ends at offset 0", ""),
        (("ledger", "show", "77"), "ledger 77 does not exist", "ledger list"),
    ],
)
def test_a_fault_is_one_line_that_says_what_and_what_to_try(
    commands: Commands, command: tuple[str, ...], what: str, next_step: str
) -> None:
    error = commands.fails(*command, stdin=b"")
    assert error.startswith("ledgerlog: ")
    assert what in error
    assert next_step in error


def test_a_cluster_that_is_not_there_is_not_made_by_looking_at_it(tmp_path: Path) -> None:
    for uri in (f"sqlite:{tmp_path}/none.sqlite", f"file:{tmp_path}/none"):
        assert "no cluster at" in Commands(uri).fails("log", "list")
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_is_made_once_and_only_when_that_is_asked_for(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/new/metadata.sqlite"
    commands = Commands(uri)
    for refused in (("log", "create", "orders"), ("log", "append", "orders"), ("bookie", "list")):
        error = commands.fails(*refused, stdin=b"x")
        assert f"there is no cluster at {uri}" in error
        assert f"'ledgerlog metadata init --uri {uri}'" in error
    assert list(tmp_path.iterdir()) == []
    assert commands.ok("metadata", "init").decode().startswith(f"{uri}: made cluster ")
    made = commands.json("metadata", "init")
    there = {"uri": uri, "cluster": made["cluster"], "made": False, "mode": "closed", "other_lists": 0}
    assert made == there
    assert (
        f"cluster {made['cluster']} is there already; nothing was changed"
        in commands.ok("metadata", "init").decode()
    )
    assert commands.ok("log", "list") == b""


@pytest.mark.parametrize("uri", ["memory:", "file:x"])
def test_a_cluster_inside_a_process_is_not_made_by_itself(uri: str) -> None:
    assert "is made when it is opened" in Commands(uri).misused("metadata", "init")


def test_a_directory_in_place_of_its_file_is_told_with_the_uri_that_would_do(tmp_path: Path) -> None:
    Commands(f"file:{tmp_path}/cluster").ok("log", "create", "orders")
    error = Commands(f"sqlite:{tmp_path}/cluster").fails("log", "list")
    assert f"{tmp_path}/cluster is a directory, write sqlite:{tmp_path}/cluster/metadata.sqlite" in error
    error = Commands(f"sqlite:{tmp_path}").fails("log", "list")
    assert f"{tmp_path} is a directory, and it has no metadata.sqlite" in error


def test_the_placement_policy_is_set_for_a_new_cluster_and_changed_later(tmp_path: Path) -> None:
    commands = Commands(f"sqlite:{tmp_path}/metadata.sqlite")
    error = commands.misused("metadata", "init", "--strict", "--min-racks", "1")
    assert "a strict placement needs a min_racks of 2 or more" in error
    assert not (tmp_path / "metadata.sqlite").exists()
    commands.ok("metadata", "init", "--strict", "--min-racks", "3")
    strict = {"min_racks": 3, "strict": True, "racks": {}, "without_rack": []}
    assert commands.json("metadata", "placement") == strict
    commands.ok("metadata", "init")
    assert commands.json("metadata", "placement") == strict, "a cluster that is there keeps its policy"
    said = commands.ok("metadata", "placement", "--no-strict").decode()
    assert said == "min_racks: 3\nstrict: False\n"
    assert "min_racks of 2 or more" in commands.misused(
        "metadata", "placement", "--strict", "--min-racks", "1"
    )
    assert commands.json("metadata", "placement", "--reset")["min_racks"] == 2


def test_metadata_that_may_not_be_written_to_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster" / "metadata.sqlite"
    Commands(f"file:{tmp_path}/cluster").ok("log", "create", "orders")
    allowed = os.access
    for refused in (path, path.parent):
        monkeypatch.setattr(
            os, "access", lambda asked, mode, at=refused: asked != at and allowed(asked, mode)
        )
        error = Commands(f"sqlite:{path}").fails("log", "list")
        assert f"this user must be able to write to {path} and to its directory" in error


def test_no_zookeeper_server_says_so_and_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.5)
    error = Commands("zk://127.0.0.1:1").fails("log", "list")
    assert "no ZooKeeper server of 127.0.0.1:1 answered within 0.5 s (127.0.0.1:1: " in error
    assert "); is it running?" in error


def test_a_cluster_with_zookeeper_says_what_to_install_where_there_is_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    error = Commands("").fails("cluster", "run", str(tmp_path / "c"), "--metadata", "zookeeper")
    assert f"JAVA_HOME is {tmp_path / 'nowhere'}, but there is no program" in error


def test_a_cluster_is_not_started_with_metadata_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").touch()
    error = Commands("").fails("cluster", "run", str(tmp_path), "--metadata", "zookeeper")
    assert "is in sqlite, not in zookeeper" in error


@pytest.mark.parametrize(
    "command",
    [
        ("log", "create"),
        ("log", "create", "no good name"),
        ("log", "create", "x", "--ensemble", "2", "--write-quorum", "3"),
        ("log", "create", "x", "--uri", "nonsense"),
        ("log", "read", "orders", "--start", "somewhere"),
        ("log", "read", "orders", "--raw", "--json"),
        ("log", "append", "orders", "--input", "/nonexistent"),
        ("log", "truncate", "orders"),
        ("access", "mode", "--force"),
        ("access", "mode", "--reset"),
        ("spark", "archive", "orders", "--to", "x", "--merge-bytes", "1m"),
        ("spark", "archive", "orders", "--to", "x", "--merge", "--merge-bytes", "none"),
        ("spark", "compact", "orders", "--to", "x", "--tombstones-after", "1d"),
        ("log", "sweep", "--min-age", "nan"),
        ("repair", "settings", "--grace", "nan"),
        ("repair", "settings", "--bookie-check", "inf"),
        ("bench", "write", "--rate", "nan"),
        ("bench", "write", "--seconds", "inf"),
        ("ledger", "show", "-1"),
        ("ledger", "show", "x"),
        ("demo", "--records", "0"),
        ("bench", "write", "--size", "0"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_told_apart_from_failure(command: tuple[str, ...]) -> None:
    assert "Usage: ledgerlog" in Commands("file:/nonexistent").misused(*command)


def test_a_command_without_a_cluster_says_how_to_name_one() -> None:
    error = Commands("").misused("log", "list", uri=False)
    assert "--uri" in error
    assert "LEDGERLOG_URI" in error


def test_what_is_no_number_is_told_so_in_plain_words() -> None:
    commands = Commands("file:/nonexistent")
    assert "'x' is not a valid integer." in commands.misused("ledger", "show", "x")
    assert "'nan' is not a finite number" in commands.misused("log", "sweep", "--min-age", "nan")


def test_an_error_of_the_operating_system_names_the_file_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = Commands("").fails("cluster", "run", str(tmp_path / "file" / "cluster"))
    assert error == f"ledgerlog: {tmp_path}/file/cluster: Not a directory\n"


def in_a_shell(line: str, *args: str, uri: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process, in a shell line that has "$@" in its place. Its output is buffered, no
    matter what the environment says."""
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", *LEDGERLOG, *args, "--uri", uri],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
def test_a_full_disk_is_told_by_the_name_of_standard_output(commands: Commands) -> None:
    for args in (("log", "list"), ("log", "read", "orders")):
        commands.ok("log", "append", "orders", stdin=b"a\n")
        ran = in_a_shell('exec "$@" > /dev/full', *args, uri=commands.uri)
        assert (ran.returncode, ran.stderr) == (
            1,
            "ledgerlog: standard output: No space left on device\n",
        )


@pytest.mark.processes
def test_a_command_does_its_work_where_its_standard_streams_are_closed(commands: Commands) -> None:
    ran = in_a_shell('exec "$@" <&- >&- 2>&-', "log", "seal", "orders", uri=commands.uri)
    assert ran.returncode == 0
    assert commands.json("log", "show", "orders")["sealed"] is True
    ran = in_a_shell('exec "$@" >&-', "log", "read", "orders", uri=commands.uri)
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = in_a_shell('exec "$@" <&- 2>&-', "log", "show", "nothing", uri=commands.uri)
    assert ran.returncode == 1


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_simulation_is_interrupted_without_a_trace(number: signal.Signals) -> None:
    command = [*LEDGERLOG, "simulate", "--seeds", "0:1000000", "--small"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("seed 0: ok")
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (128 + number, f"ledgerlog: interrupted by {number.name}\n")


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_hours_of_simulation_with_their_summary(number: signal.Signals) -> None:
    command = [*LEDGERLOG, "simulate", "--hours", "10", "--jobs", "2", "--small"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert ": ok" in process.stdout.readline()
            of_threads = Path(f"/proc/{process.pid}/task").glob("*/children")
            children = [child for listed in of_threads for child in listed.read_text().split()]
            process.send_signal(number)
            told, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (128 + number, f"ledgerlog: interrupted by {number.name}\n")
    assert " seeds, 0 failed; " in told
    assert len(children) == 2
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_an_audit_says_whether_it_asked_bookies_for_entries(commands: Commands) -> None:
    hint = b"bookies were not asked for entries"
    assert hint in commands.ok("repair", "audit", "--dry-run")
    assert hint not in commands.ok("repair", "audit", "--dry-run", "--entries", "all")
