"""Events in the log: their names and fields are those of the page, and both formats show them."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from ledgerlog import event_log
from ledgerlog.cli.main import cli
from ledgerlog.event_log import ENSEMBLE_CHANGED, EVENTS, Event, log_to_stderr, tell

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")


def row(event: Event) -> str:
    fields = ", ".join(f"`{field}`" for field in event.fields)
    return f"| `{event.name}` | {logging.getLevelName(event.level)} | {fields} | {event.meaning} |"


def calls() -> Iterator[ast.Call]:
    for package in ("ledgerlog", "bookie"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id == "tell"
                    and len(node.args) == 3
                ):
                    yield node


def test_the_page_lists_each_event_with_its_fields_and_no_other() -> None:
    table = PAGE.partition("| event | level | fields | means |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [row(event) for event in EVENTS.values()]


def test_every_event_is_told_somewhere_with_all_its_fields_and_its_text_names_only_these() -> None:
    told: Counter[str] = Counter()
    for call in calls():
        name, fields = ast.unparse(call.args[1]), {keyword.arg for keyword in call.keywords}
        found = [getattr(event_log, name)] if name.isupper() else [event_log.DISK_SHORT]
        for event in found:
            told[event.name] += 1
            assert fields == {*event.fields}, event.name
            assert {*re.findall(r"%\((\w+)\)", ast.unparse(call.args[2]))} <= fields, event.name
    for name in ("disk_read_only", "disk_roomy"):
        told[name] += 1  # The same call as disk_short, which chooses one of the three.
    assert told.keys() == EVENTS.keys()


def test_both_formats_show_the_event(capsys: pytest.CaptureFixture[str]) -> None:
    root, logger = logging.getLogger(), logging.getLogger("ledgerlog.test_event_log")
    kept, level = root.handlers[:], root.level
    shown = {}
    for log_format in ("text", "json"):
        root.handlers[:] = []
        try:
            log_to_stderr(logging.INFO, log_format)
            tell(logger, ENSEMBLE_CHANGED, "ledger=%(ledger)d changed", ledger=7, before=["a"], after=["b\n"])
            logger.info("of %d", 1)
        finally:
            root.handlers[:] = kept
            root.setLevel(level)
        shown[log_format] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"\S+ \S+ INFO ledgerlog\.test_event_log: ledger=7 changed event=ensemble_changed", shown["text"][0]
    )
    assert shown["text"][1].endswith("of 1")
    first, second = map(json.loads, shown["json"])
    assert first.pop("time") <= second.pop("time")
    assert first == {
        "level": "INFO",
        "logger": "ledgerlog.test_event_log",
        "event": "ensemble_changed",
        "message": "ledger=7 changed",
        "ledger": 7,
        "before": ["a"],
        "after": ["b\n"],
    }
    assert second == {"level": "INFO", "logger": "ledgerlog.test_event_log", "message": "of 1"}


def test_an_exception_is_in_the_object_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        log_to_stderr(logging.INFO, "json")
        try:
            raise ValueError("boom")
        except ValueError:
            root.exception("it failed")
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: boom" in json.loads(line)["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    ("module", "words"), [("repair", ["repair", "run"]), ("console", ["console"])], ids=["repair", "console"]
)
def test_a_command_that_serves_logs_progress_unasked(
    monkeypatch: pytest.MonkeyPatch, module: str, words: list[str], log_format: str
) -> None:
    def serve(_: object) -> None:
        logging.getLogger("ledgerlog.test_event_log").info("at work")

    monkeypatch.setattr(import_module(f"ledgerlog.cli.{module}"), "run_until_interrupted", serve)
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        ran = CliRunner().invoke(cli, ["--log-format", log_format, *words, "--uri", "sqlite:/none"])
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
    assert (ran.exit_code, ran.stderr.count("at work")) == (0, 1)
