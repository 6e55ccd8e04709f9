"""What README.md and the pages of docs/ show runs as it stands there.

Every block of Python is one of two things. A **program** brings all that it needs, and is run as it is. A
**fragment** leaves out what the text around it has said, such as an open log; it is run with that. The last
test holds the pages against the list of what is run, so that nobody adds a block that nothing runs. Lines of
a shell run in ``test_shell_of_the_pages.py``; here their commands and options, and those of usages, are held
against those that there are.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import trio

import bookie.server.main
import ledgerlog
from ledgerlog import aio
from ledgerlog.cli.main import cli
from ledgerlog.model import layout
from ledgerlog.testing import NotLinearizable
from ledgerlog.testing.pytest_plugin import Simulated, simulated
from tests.gaps import make_gap
from tests.integration.pages import ROOT, all_pages, blocks, compiled, run_block, text, without_blocks
from tests.waiting import PATIENCE_S

__all__ = ["simulated"]  # The fixture, taken from where the page says that it is to be taken from.

COMMANDS: dict[str, click.Command] = {"ledgerlog": cli, "bookie": bookie.server.main.main}

RUN_HERE = {
    "README.md": 1,
    "docs/ASYNCIO.md": 2,
    "docs/BLOCKING.md": 1,
    "docs/SIMULATION.md": 4,
    "docs/ELECTION.md": 2,
    "docs/LOGS.md": 5,
    "docs/METRICS.md": 1,
}
RUN_ELSEWHERE = {
    "docs/MACHINES.md": 1,  # by the test of that page
    "docs/SPARK.md": 8,  # in spark/test_spark_page.py, on the session and the cluster that those tests share
    "docs/tutorial/1-first-log.md": 3,  # in test_tutorial.py, with what they print
    "docs/tutorial/2-service.md": 2,
    "docs/tutorial/3-cluster.md": 2,
    "docs/tutorial/4-failure.md": 2,
    "docs/ARCHIVE.md": 2,  # as the page on Spark
}


def python(page: str) -> list[str]:
    return [block.code for block in blocks(page, "python")]


def run_program(page: str, number: int = 0) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    run_block(page, number, names)
    return names


async def run_fragment(page: str, number: int, **names: Any) -> dict[str, Any]:
    """With these names known, and awaiting where it does; the names that it leaves."""
    await eval(compiled(page, number), names)
    return names


# --- programs -------------------------------------------------------------------------------------


def test_the_program_about_metrics_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_program("docs/METRICS.md")
    assert 'ledgerlog_log_next_offset{log="orders"} 1.0' in capsys.readouterr().out


def test_the_program_of_the_readme_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ack = "0 b'first'\n1 b'a'\n2 b'b'\n"
    run_program("README.md")
    assert capsys.readouterr().out == ack
    run_program("README.md")
    assert capsys.readouterr().out == ack + "3 b'first'\n4 b'a'\n5 b'b'\n"


def test_the_blocking_program_writes_the_data_that_the_other_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_program("docs/BLOCKING.md")
    assert capsys.readouterr().out == "0 b'first'\n1 b'a'\n2 b'b'\n"
    run_program("README.md")
    assert capsys.readouterr().out.endswith("5 b'b'\n")


def test_the_asyncio_program_writes_the_data_that_the_other_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_program("docs/ASYNCIO.md")
    assert capsys.readouterr().out == "0 b'first'\n1 b'a'\n2 b'b'\n"
    run_program("README.md")
    assert capsys.readouterr().out.endswith("5 b'b'\n")


def test_the_test_of_the_page_on_simulation_passes(simulated: Simulated) -> None:
    assert run_program("docs/SIMULATION.md", 0)["simulated"].__name__ == "simulated"
    run_program("docs/SIMULATION.md", 1)["test_the_service_survives"](simulated)


def test_seeds_draw_faults_as_shown() -> None:
    run_program("docs/SIMULATION.md", 2)


def test_a_history_is_checked_as_shown() -> None:
    program = run_program("docs/SIMULATION.md", 3)
    history, apply = program["history"], program["apply"]
    history.begin(("get",)).answered(8)
    with pytest.raises(NotLinearizable):
        history.check(apply, initial=None)


# --- fragments ------------------------------------------------------------------------------------


async def test_a_service_campaigns_for_its_log_and_writes_as_shown() -> None:
    async with ledgerlog.connect("memory:") as cluster:
        log = await cluster.create_log("orders")
        async with trio.open_nursery() as nursery:
            names = {"NotLeader": ledgerlog.NotLeader, "AppendUnknown": ledgerlog.AppendUnknown}
            nursery.start_soon(
                partial(run_fragment, "docs/ELECTION.md", 0, cluster=cluster, log=log, **names)
            )
            with trio.fail_after(PATIENCE_S):
                async with log.read(until=2, follow=True) as records:
                    assert [record.data async for record in records] == [b"an order"] * 2
            nursery.cancel_scope.cancel()


async def test_a_scheduler_stands_for_the_lead_again_and_again_as_shown() -> None:
    class Served(Exception):
        """Ends the loop, which has no end of its own."""

    terms: list[int] = []

    async def schedule(term: int) -> None:
        terms.append(term)
        if len(terms) == 2:
            raise Served

    async with ledgerlog.connect("memory:") as cluster:
        with pytest.raises(Served):
            await run_fragment("docs/ELECTION.md", 1, cluster=cluster, schedule=schedule)
    assert terms == [1, 2]


def test_an_asyncio_task_that_leads_ends_its_term_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    terms = []

    async def schedule(number: int) -> None:
        terms.append(number)

    async def main() -> None:
        async with aio.connect("memory:") as cluster:
            await run_fragment("docs/ASYNCIO.md", 1, cluster=cluster, schedule=schedule)

    asyncio.run(main())
    assert terms == [1]
    assert capsys.readouterr().out == ""


async def test_records_have_keys_and_headers_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with ledgerlog.connect("memory:") as cluster:
        log = await cluster.create_log("payments")
        async with log.writer() as writer, log.read(until=3, follow=True) as records:
            await run_fragment("docs/LOGS.md", 0, writer=writer, records=records)
    assert capsys.readouterr().out.splitlines() == [
        "b'order 17' (('trace', b'8f2c'),)",
        "b'order 17' ()",
        "None ()",
    ]


async def test_a_trace_goes_with_a_record_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with ledgerlog.connect("memory:") as cluster:
        log = await cluster.create_log("orders")
        async with log.writer() as writer, log.read(until=1, follow=True) as records:
            with trio.move_on_after(PATIENCE_S):
                await run_fragment("docs/LOGS.md", 1, writer=writer, records=records)
    assert capsys.readouterr().out == "b'17 apples'\n"


async def test_a_repeated_sequence_is_a_duplicate_and_a_cursor_moves_as_shown() -> None:
    async with ledgerlog.connect("memory:") as cluster:
        log = await cluster.create_log("billing")
        ack = (await run_fragment("docs/LOGS.md", 2, log=log))["ack"]
        assert (ack.offset, ack.duplicate) == (0, True)
        async with log.writer() as writer:
            await writer.append_many([b"x"] * 1000)
        state = (await run_fragment("docs/LOGS.md", 4, log=log))["state"]
        assert (state.offset, state.pins) == (1000, True)


async def test_a_reader_goes_on_behind_a_gap_as_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ledgerlog.connect(f"file:{tmp_path}/cluster") as cluster:
        log = await cluster.create_log("orders")
        async with log.writer() as writer:
            await writer.append(b"before")
        await make_gap(cluster.client, log.incarnation)
        async with log.writer() as writer:
            behind = await writer.append(b"behind")
        used: list[ledgerlog.Record] = []
        await run_fragment("docs/LOGS.md", 3, log=log, use=used.append, ledgerlog=ledgerlog)
    assert [record.data for record in used] == [b"before", b"behind"]
    assert capsys.readouterr().out == f"offsets 1 to {behind.offset - 1} are lost\n"


# --- what stands on the pages ---------------------------------------------------------------------


def commands(page: str) -> Iterator[list[str]]:
    """The words of each line of a shell or a usage that calls one of ours, without its comment or pipe."""
    for block in blocks(page, "sh", "console", "text"):
        whole_lines = re.sub(r"\\\n *", "", block.code)
        for line in re.findall(r"^(?:\$ |.*\| )?((?:ledgerlog|bookie) .*)", whole_lines, re.MULTILINE):
            yield shlex.split(re.split(r" {2,}(?! )|\||>|#", line)[0])


@pytest.mark.parametrize("page", [page for page in all_pages() if list(commands(page))])
def test_every_command_and_option_of_a_shell_is_there(page: str) -> None:
    for name, *words in commands(page):
        command = COMMANDS[name]
        if words[:1] == ["--uri"]:  # It may stand before the command.
            words = words[2:]
        while isinstance(command, click.Group):
            assert words, f"{name} wants a command"
            assert words[0] in command.commands, f"{name} has no {words[0]}"
            command = command.commands[words.pop(0)]
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        named = {word.strip("[]").split("=")[0] for word in words if word.strip("[").startswith("--")}
        assert named <= known, f"{name} {words}: no {named - known}"


def anchors(page: str) -> set[str]:
    """What the headings of a page, and its anchors of HTML, are called in links."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    named = set(re.findall(r'<a id="([\w-]+)">', without_blocks(page)))
    return named | {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", all_pages())
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    here = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        there = (here.parent / name).resolve() if name else here
        assert there.exists(), link
        assert not anchor or anchor in anchors(str(there.relative_to(ROOT))), link


def test_every_part_of_the_metadata_has_its_place_on_the_page() -> None:
    parts = {
        path.split("/")[0]
        for name, path in vars(layout).items()
        if name.isupper() and not name.startswith("_") and isinstance(path, str)
    }
    parts -= {layout.LEDGER_COUNTER}  # Counters are no nodes; that of logs has the name of a part.
    assert {part for part in parts if f"\n| `{part}" not in text("docs/METADATA.md")} == set()


def test_every_block_of_python_is_run_somewhere() -> None:
    pages = all_pages()
    assert {page: len(python(page)) for page in pages if python(page)} == RUN_HERE | RUN_ELSEWHERE
