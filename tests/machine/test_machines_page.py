"""The program in docs/MACHINES.md runs, and every limit and event that the pages name exists."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import ledgerlog
from ledgerlog import limits
from ledgerlog.machine.events import EventKind
from ledgerlog.testing import check_machine

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("MACHINES", "ELECTION", "BLOCKING")
}


async def test_the_machine_of_the_page_is_one_and_runs_as_shown() -> None:
    program = re.findall(r"```python\n(.*?)```", PAGES["MACHINES"], re.DOTALL)[0]
    machine, use = program.split("\nasync with", 1)
    shown: dict[str, object] = {"ledgerlog": ledgerlog, "uri": "memory:"}
    body = "async with" + use
    main = f"async def main():\n{textwrap.indent(body, '    ')}        return replica.statistics().executed\n"
    exec(compile(f"{machine}\n{main}", "MACHINES.md", "exec"), shown)
    counter, run = shown["Counter"], shown["main"]
    assert isinstance(counter, type)
    check_machine(counter, [b"1", b"2", b"x"], hash_seeds=())
    assert callable(run)
    assert await run() == 1


def test_every_limit_and_event_that_the_pages_name_is_there() -> None:
    for name, page in PAGES.items():
        for limit in re.findall(r"`limits\.(\w+)`", page):
            assert hasattr(limits, limit), (name, limit)
    for kind in EventKind:
        assert f"`{kind.name}`" in PAGES["MACHINES"], kind
