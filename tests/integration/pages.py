"""The blocks of code on README.md and the pages of docs/, for the tests that run them.

Every block is fenced and names its language. Comments of HTML, which no reader sees, say how a block is run:

- ``<!-- not run: REASON -->`` directly above it: it cannot run in a test.
- ``<!-- before``, some commands, ``-->``: they run before it.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*) -->\n)?(?:^<!-- before\n(?P<before>.*?)^-->\n)?"
    r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@attrs.frozen
class Block:
    page: str
    line: int
    """Of its first line of code."""
    language: str
    code: str
    before: str
    """Commands that run before it; a reader does not see them."""
    not_run: str | None
    """Why it is not run, if it is not."""


def all_pages() -> list[str]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in pages]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in their order: all, or those in these languages."""
    whole = text(page)
    found = [
        Block(
            page,
            whole.count("\n", 0, block.start("code")) + 1,
            block["language"],
            block["code"],
            block["before"] or "",
            block["reason"],
        )
        for block in _BLOCK.finditer(whole)
    ]
    return [block for block in found if not languages or block.language in languages]


def without_blocks(page: str) -> str:
    """The text of a page between its blocks."""
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE)
