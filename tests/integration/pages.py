"""The blocks of code on README.md and the pages of docs/, for the tests that run them.

Every block is fenced and names its language. Comments of HTML, which no reader sees, say how a block is run:

- ``<!-- not run: REASON -->`` directly above it: it cannot run in a test.
- ``<!-- before``, some commands, ``-->``: they run before it.
"""

from __future__ import annotations

import ast
import re
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType
from typing import Any

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


def compiled(page: str, number: int, **instead: str) -> CodeType:
    """Compile a block of Python that awaits. Evaluate it and await the result.

    Args:
        page: The page.
        number: The number of the block among those in Python, from 0.
        instead: By the end of a path or an address in the block, what to put in place of the whole text.
    """
    tree = ast.parse(blocks(page, "python")[number].code)
    replaced = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for end, other in instead.items():
                if node.value.endswith(f"/{end}"):
                    node.value = other
                    replaced.add(end)
    assert replaced == instead.keys(), f"{page} says it otherwise now"
    return compile(tree, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def run_block(page: str, number: int, names: dict[str, Any], **instead: str) -> None:
    """Run a block that awaits nothing, with these names known, and add its own. See ``compiled``."""
    code = compiled(page, number, **instead)
    assert not code.co_flags & CO_COROUTINE, "it awaits outside of a function"
    exec(code, names)


def without_blocks(page: str) -> str:
    """The text of a page between its blocks."""
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE)
