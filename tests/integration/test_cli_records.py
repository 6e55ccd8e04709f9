"""The commands around records: formats that lose nothing, vacancy, lag, times, statistics, completion."""

from __future__ import annotations

import base64
import io
import json
import os
import pty
from pathlib import Path

import pytest
import trio
from click.shell_completion import get_completion_class
from click.testing import CliRunner
from integration.test_cli_commands import Commands

import ledgerlog
from ledgerlog.cli.lines import LineCutter, Source
from ledgerlog.cli.log_data import Appended, NotVacant, _append, _vacant_epoch
from ledgerlog.cli.main import cli
from ledgerlog.cli.record_formats import FrameCutter, InputRecord, JsonCutter, framed
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.progress_bar import progress_bar

RECORDS = [
    b"",
    b"plain",
    b"two\nlines\n",
    b"\xff\x00\xfe",
    "snow \u2603\u2028".encode(),
    b'{"data": "x"}',
    b"\r",
]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    made = Commands(f"file:{tmp_path}/data")
    made.ok("log", "create", "orders")
    made.ok("log", "create", "copy")
    return made


def write(commands: Commands, records: list[bytes]) -> None:
    async def main() -> None:
        async with ledgerlog.connect(commands.uri) as cluster:
            log = await cluster.open_log("orders")
            async with log.writer() as writer:
                await writer.append_many(records)

    trio.run(main)


@pytest.mark.parametrize(("shown", "taken"), [("--json", "json"), ("--framed", "framed")])
def test_what_is_read_is_appended_without_loss(commands: Commands, shown: str, taken: str) -> None:
    write(commands, RECORDS)
    text = commands.ok("log", "read", "orders", shown)
    done = commands.json("log", "append", "copy", "--format", taken, stdin=text)
    assert done["records"] == len(RECORDS)
    found = [
        each["data"].encode() if "data" in each else base64.b64decode(each["data_base64"])
        for each in commands.lines("log", "read", "copy")
    ]
    assert found == RECORDS
    assert commands.ok("log", "read", "copy", "--framed") == framed(RECORDS)


def test_keys_and_headers_are_appended_shown_and_copied(commands: Commands) -> None:
    commands.ok(
        "log", "append", "orders", "--key", "k", "--header", "a=1", "--header", "a=b=c", stdin=b"x\ny\n"
    )
    packed = b'{"data": "z", "key_base64": "/w==", "headers": [{"name": "b", "value_base64": "/w=="}]}\n'
    commands.ok("log", "append", "orders", "--format", "json", stdin=packed + b'{"data": "plain"}\n')
    shown = commands.lines("log", "read", "orders")
    pairs = [{"name": "a", "value": "1"}, {"name": "a", "value": "b=c"}]
    assert [(each["data"], each.get("key"), each.get("headers")) for each in shown] == [
        ("x", "k", pairs),
        ("y", "k", pairs),
        ("z", None, [{"name": "b", "value_base64": "/w=="}]),
        ("plain", None, None),
    ]
    assert shown[2]["key_base64"] == "/w=="
    commands.ok(
        "log", "append", "copy", "--format", "json", stdin=commands.ok("log", "read", "orders", "--json")
    )
    keep = ("data", "key", "key_base64", "headers")
    assert [{name: each.get(name) for name in keep} for each in commands.lines("log", "read", "copy")] == [
        {name: each.get(name) for name in keep} for each in shown
    ]
    assert "use --json" in commands.fails("log", "read", "orders", "--framed")


@pytest.mark.parametrize(
    "bad",
    [
        b'{"data": "a", "key": 7}',
        b'{"data": "a", "key": "b", "key_base64": "Yg=="}',
        b'{"data": "a", "headers": {"a": "b"}}',
        b'{"data": "a", "headers": [{"name": "a"}]}',
        b'{"data": "a", "headers": [{"value": "a"}]}',
        b'{"data": "a", "headers": [7]}',
    ],
)
def test_a_key_or_a_header_that_is_none_in_json_is_named(bad: bytes) -> None:
    cutter = JsonCutter()
    assert cutter.cut(b'{"data": "a", "key": "k"}\n' + bad + b"\n") == [InputRecord(b"a", b"k")]
    assert "line 2 is not a record in JSON" in str(cutter.failure)


def test_a_line_that_is_no_record_is_named_and_those_before_it_are_in_the_log(commands: Commands) -> None:
    for bad in (
        b"[1]",
        b"{",
        b'{"data": 7}',
        b'{"data_base64": "?"}',
        b'{"data": "\\ud800"}',
        b"[" * 100_000,
    ):
        said = commands.fails(
            "log", "append", "orders", "--format", "json", stdin=b'{"data": "a"}\n' + bad + b"\n"
        )
        assert "line 2 is not a record in JSON" in said
        assert "1 record is in the log" in said


@pytest.mark.parametrize("size", [1, 3, 4, 7, 1000])
def test_frames_are_cut_wherever_chunks_end(size: int) -> None:
    text = framed(RECORDS)
    cutter = FrameCutter()
    found = [record for at in range(0, len(text), size) for record in cutter.cut(text[at : at + size])]
    assert cutter.finish() == []
    assert (found, cutter.failure) == (RECORDS, None)


def test_a_frame_that_is_cut_off_or_too_long_is_refused() -> None:
    cutter = FrameCutter()
    assert cutter.cut(framed([b"a", b"bc"])[:-1]) == [b"a"]
    cutter.finish()
    assert "ends within record 2" in str(cutter.failure)
    cutter = FrameCutter()
    assert cutter.cut(framed([b"a"]) + (RECORD_BYTES_MAX + 1).to_bytes(4, "little")) == [b"a"]
    assert "record (number 2)" in str(cutter.failure)


def test_a_record_of_the_largest_size_fits_in_json_however_it_is_escaped() -> None:
    record = b"\x01" * RECORD_BYTES_MAX
    cutter = JsonCutter()
    assert cutter.cut(json.dumps({"data": record.decode()}).encode() + b"\n") == [InputRecord(record)]
    assert cutter.cut(json.dumps({"data": record.decode() + "x"}).encode() + b"\n") == []
    assert "over the limit" in str(cutter.failure)


def test_an_append_that_must_not_depose_anybody_looks_first(commands: Commands, tmp_path: Path) -> None:
    assert commands.json("log", "append", "orders", "--if-vacant", stdin=b"a\n")["epoch"] == 1
    assert commands.json("log", "append", "orders", "--if-vacant", stdin=b"b\n")["epoch"] == 2

    async def die_while_leading() -> None:
        async with ledgerlog.connect(commands.uri) as cluster:
            with trio.CancelScope() as scope:
                async with (await cluster.open_log("orders")).writer() as writer:
                    await writer.append(b"c")
                    scope.cancel()
                    await trio.sleep_forever()

    trio.run(die_while_leading)
    assert "may have a writer" in commands.fails("log", "append", "orders", "--if-vacant", stdin=b"d\n")
    assert commands.json("log", "append", "orders", stdin=b"d\n")["first_offset"] == 3


async def test_an_append_that_must_not_depose_anybody_notices_who_comes_after_its_look() -> None:
    done = Appended()
    async with ledgerlog.connect("memory:?bookies=1") as cluster:
        log = await cluster.create_log("orders")
        epoch = await _vacant_epoch(cluster, log)
        async with log.writer() as writer:
            await writer.append(b"of another")
        with pytest.raises(NotVacant, match="at the same moment"), progress_bar("appending", None) as bar:
            await _append(log, Source(io.BytesIO(b"x\n")), LineCutter(), done, bar, epoch)
        assert (done.records, (await log.info()).next_offset) == (0, 1)


def test_a_cursor_is_listed_with_what_is_behind_it(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\nb\nc\n")
    commands.ok("log", "cursor", "set", "orders", "consumer", "1")
    (place,) = commands.lines("log", "cursor", "list", "orders")
    assert (place["offset"], place["lag"]) == (1, 2)
    assert "lag" in commands.ok("log", "cursor", "list", "orders").decode()


def test_records_are_read_from_a_time(commands: Commands) -> None:
    commands.ok("log", "append", "orders", stdin=b"a\nb\n")
    assert commands.ok("log", "read", "orders", "--raw", "--from-time", "2020-01-01") == b"a\nb\n"
    assert commands.ok("log", "read", "orders", "--raw", "--from-time", "2100-01-01T00:00:00Z") == b""
    assert "is not a time" in commands.misused("log", "read", "orders", "--from-time", "7")
    said = commands.misused("log", "read", "orders", "--from-time", "2020-01-01", "--start", "0")
    assert "exclude each other" in said


def test_the_statistics_of_a_log_count_its_closed_ledgers(commands: Commands) -> None:
    assert commands.json("log", "stats", "orders")["bytes_a_record"] is None
    commands.ok("log", "append", "orders", stdin=b"ab\ncdef\n")
    stats = commands.json("log", "stats", "orders")
    assert (stats["records"], stats["closed_records"], stats["closed_bytes"]) == (2, 2, 6)
    assert stats["bytes_a_record"] == 3
    assert "2 records in 1 ledgers" in commands.ok("log", "stats", "orders").decode()


def test_the_uri_may_stand_before_the_command_and_goes_before_the_environment(commands: Commands) -> None:
    result = CliRunner().invoke(
        cli, ["--uri", commands.uri, "log", "list"], env={"LEDGERLOG_URI": "file:/nowhere/at/all"}
    )
    assert (result.exit_code, result.stdout) == (0, "copy\norders\n")
    result = CliRunner().invoke(cli, ["--uri", "no:such", "log", "list"], env={"LEDGERLOG_URI": commands.uri})
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("demo", ""),
        ("simulate", "--seeds 0:1"),
        ("cluster run", "new"),
        ("access new-secret", "secret"),
        ("monitoring alerts", ""),
    ],
)
def test_a_uri_before_a_command_that_takes_none_is_refused(
    command: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["--uri", "file:./data", *command.split(), *arguments.split()])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'ledgerlog {command}' takes no --uri: leave it out" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["seal", "delete"])
def test_a_person_at_a_terminal_is_asked_before_what_cannot_be_undone(
    commands: Commands, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        assert terminal.isatty()
        for answer, is_done in ((b"n\n", False), (b"y\n", True)):
            keyboard.write(answer)
            with pytest.raises(SystemExit) as ended:
                cli.main(["--uri", commands.uri, "log", verb, "orders"])
            assert (ended.value.code == 0) is is_done
    shown = commands.run("log", "show", "orders", "--json")
    assert json.loads(shown.stdout)["sealed"] if verb == "seal" else shown.exit_code == 1
    commands.ok("log", verb, "copy", "--yes")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes_commands(commands: Commands, shell: str) -> None:
    script = commands.ok("completion", shell).decode()
    kind = get_completion_class(shell)
    assert kind is not None
    assert script == kind(cli, {}, "ledgerlog", "_LEDGERLOG_COMPLETE").source() + "\n"


def test_names_of_logs_are_completed_from_the_cluster(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata"
    assert CliRunner().invoke(cli, ["--uri", uri, "metadata", "init", "--open"]).exit_code == 0
    assert CliRunner().invoke(cli, ["--uri", uri, "log", "create", "orders"]).exit_code == 0

    def completed(*words: str) -> list[str]:
        environment = {
            "_LEDGERLOG_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("ledgerlog", *words)),
            "COMP_CWORD": str(len(words)),
            "LEDGERLOG_URI": uri,
        }
        result = CliRunner().invoke(cli, env=environment, prog_name="ledgerlog")
        return [line.partition(",")[2] for line in result.stdout.splitlines()]

    assert completed("log", "show", "or") == ["orders"]
    assert completed("log", "sh") == ["show"]
