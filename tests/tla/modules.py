"""Searches of the modules themselves with TLC."""

from __future__ import annotations

import attrs

from tests.tla.tlc import Outcome, run_tlc


@attrs.frozen
class Search:
    """A whole search of a module on a small size."""

    module: str
    constants: dict[str, str]
    lines: tuple[str, ...]
    violates: str | None = None
    """What the search must find to be violated, if it must."""

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.constants.items())
        return f"{self.module}: {told}"

    def run(self) -> Outcome:
        """Search, and wait for the end."""
        constants = "\n".join(f"  {name} = {value}" for name, value in self.constants.items())
        return run_tlc(self.module, f"CONSTANTS\n{constants}\n" + "\n".join(self.lines), workers=2)

    def is_as_expected(self, outcome: Outcome) -> bool:
        return outcome.violated == self.violates and outcome.is_ok == (self.violates is None)


SEARCHES: list[Search] = []
PUBLISHED: list[Search] = []
