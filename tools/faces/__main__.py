"""``python -m tools.faces``: write the files of all faces anew."""

from __future__ import annotations

from tools.faces.generator import ROOT, generate
from tools.faces.plans import PLANS


def main() -> None:
    for plan in PLANS:
        (ROOT / plan.file).write_text(generate(plan), encoding="utf-8")


if __name__ == "__main__":
    main()
