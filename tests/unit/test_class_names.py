"""One class name means one thing: a search for it finds one class.

The faces are the exception. A face wraps the class of the same name for programs that do not run on trio. A
name that starts with an underscore is used in one file only, so two files may have the same one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FACES = {
    ROOT / "ledgerlog/blocking/faces.py",
    ROOT / "ledgerlog/aio/faces.py",
    ROOT / "ledgerlog/aio/replicas.py",
}


def test_each_public_class_has_a_name_of_its_own() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for package in ("ledgerlog", "bookie"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if file in FACES:
                continue
            for statement in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                    where[statement.name].append(str(file.relative_to(ROOT)))
    assert len(where) > 500, "the search looks at the wrong place"
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert twice == {}
