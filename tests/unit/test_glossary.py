"""docs/GLOSSARY.md names existing code, each term once, and no module uses a name that was given up."""

from __future__ import annotations

import re
from pathlib import Path

from test_protocol_page import resolve

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| (.+?) \| (.+?) \| `([\w.]+)` \|$",
    (ROOT / "docs" / "GLOSSARY.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)

GIVEN_UP = {
    "beside": "concurrency",
    "board": "queue",
    "keeping": "retention",
    "looking": "planning",
    "marks": "loss_marks",
    "mending": "read_repair",
    "patience": "backoff",
    "places": "positions, or destinations",
    "rot": "corruption",
    "sender": "leader",
    "settling": "startup_cleanup",
    "splice": "attach",
    "together": "concurrency",
    "watching": "job_progress",
    "witness": "deletion_oracle",
}
"""Names of modules that were given up because they said little, and their new names."""


def test_every_name_of_the_glossary_exists() -> None:
    assert len(ROWS) > 40
    for _, _, name in ROWS:
        resolve(name if name.startswith("bookie.") else f"ledgerlog.{name}")


def test_every_term_is_explained_once_and_on_one_line() -> None:
    terms = [term for term, _, _ in ROWS]
    assert sorted(set(terms)) == sorted(terms)
    rows = [
        line
        for line in (ROOT / "docs" / "GLOSSARY.md").read_text(encoding="utf-8").splitlines()
        if "|" in line
    ]
    assert len(rows) == len(ROWS) + 2 * 6, (
        "each table has a head of two lines, and every other line is a term"
    )


def test_no_module_goes_by_a_name_that_was_given_up() -> None:
    for package in ("ledgerlog", "bookie"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.stem not in GIVEN_UP, f"{path.relative_to(ROOT)}: it is called {GIVEN_UP[path.stem]}"
