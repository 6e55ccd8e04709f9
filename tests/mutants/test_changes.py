"""What a mutant's change finds in the code, and when it is stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Change, Mutant, Stale

CODE = '''\
LIMIT = 3 + 4


class Ship:
    """Nothing that sails."""

    def load(self, boxes: int, *, ümlaut: str = "ä") -> int:
        if boxes > LIMIT:
            raise ValueError(ümlaut)
        elif boxes < 0:
            boxes = 0
        self.boxes = boxes
        self.check()
        return boxes + boxes

    def check(self) -> None:
        self.boxes += 1
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bookie" / "deep").mkdir(parents=True)
    (tmp_path / "bookie" / "ship.py").write_text(CODE, encoding="utf-8")
    return tmp_path


def changed(root: Path, symbol: str, old: str, new: str) -> str:
    (text,) = Mutant("some", "", (Change(symbol, old, new),), ()).patched(root).values()
    return text


@pytest.mark.parametrize(
    ("symbol", "old", "new", "before", "after"),
    [
        ("Ship.load", "boxes > LIMIT", "boxes > 0 or not boxes", "boxes > LIMIT", "(boxes > 0 or not boxes)"),
        ("Ship.load", "boxes>LIMIT", "True", "boxes > LIMIT", "(True)"),
        ("Ship.load", "self.check()", "", "self.check()", "pass"),
        ("Ship.load", "self.boxes", "self.crates", "self.boxes", "(self.crates)"),
        (
            "ship.Ship.load",
            "self.boxes = boxes\nself.check()",
            "\n    self.check()\n    self.boxes = boxes\n",
            "self.boxes = boxes\n        self.check()",
            "self.check()\n        self.boxes = boxes",
        ),
        (
            "load",
            "if boxes < 0:\n    boxes = 0",
            "boxes = 1",
            "elif boxes < 0:\n            boxes = 0",
            "else:\n            boxes = 1",
        ),
        ("LIMIT", "3 + 4", "9", "3 + 4", "(9)"),
        ("LIMIT", "LIMIT = 3 + 4", "LIMIT = 9", "LIMIT = 3 + 4", "LIMIT = 9"),
        ("bookie.ship", "ValueError(ümlaut)", "TypeError", "ValueError(ümlaut)", "(TypeError)"),
    ],
)
def test_an_expression_or_statements_of_a_symbol_are_replaced(
    root: Path, symbol: str, old: str, new: str, before: str, after: str
) -> None:
    assert changed(root, symbol, old, new) == CODE.replace(before, after, 1)


def test_code_that_moves_or_is_formatted_anew_takes_its_mutants_along(root: Path) -> None:
    (root / "bookie" / "ship.py").rename(root / "bookie" / "deep" / "boat.py")
    spread = CODE.replace("boxes > LIMIT", "(\n            boxes\n            > LIMIT\n        )")
    (root / "bookie" / "deep" / "boat.py").write_text(spread, encoding="utf-8")
    assert "(True)" in changed(root, "Ship.load", "boxes > LIMIT", "True")


@pytest.mark.parametrize(
    ("symbol", "old", "new", "why"),
    [
        ("Boat.load", "boxes", "0", "names: none"),
        ("Ship.load", "boxes", "0", "this 6 times, not once"),
        ("Ship.check", "boxes > LIMIT", "0", "this 0 times, not once"),
        ("Ship.load", "self.check()", "return (", "does not compile"),
    ],
)
def test_a_change_that_fits_nowhere_or_twice_is_stale(
    root: Path, symbol: str, old: str, new: str, why: str
) -> None:
    with pytest.raises(Stale, match=why):
        changed(root, symbol, old, new)


def test_a_symbol_that_is_there_twice_is_stale_until_it_is_named_in_full(root: Path) -> None:
    (root / "bookie" / "deep" / "boat.py").write_text(CODE, encoding="utf-8")
    with pytest.raises(Stale, match=r"bookie\.deep\.boat\.Ship\.load, bookie\.ship\.Ship\.load"):
        changed(root, "Ship.load", "boxes > LIMIT", "True")
    assert "(True)" in changed(root, "boat.Ship.load", "boxes > LIMIT", "True")
