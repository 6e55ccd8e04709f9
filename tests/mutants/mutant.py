"""What a mutant is: a small patch to the product that breaks one rule of the protocol.

A mutant is a question to the tests: would they notice if this rule were broken? Each is a few replacements of
text, so that it says by itself what it does and is noticed when the text that it was made for is gone: every
``old`` must occur exactly once in its file, else the mutant is *stale*.

Two kinds of answers are wanted (``Mutant.equivalent`` tells which):

* as a rule ``tests`` are those that must notice, quick ones first;
* an *equivalent* mutant breaks nothing that anybody could observe, or only costs time; ``equivalent`` is the
  reason, and ``tests`` (those that look hardest at the rule) must all pass in spite of it. They are kept
  because they were tried: whoever asks "and if this were different?" finds the answer.
"""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class Edit:
    """In ``file`` (below the root), ``old`` becomes ``new``."""

    file: str
    old: str
    new: str


class Stale(Exception):
    """The text that a mutant changes is not there any more, or not once."""


@attrs.frozen
class Mutant:
    name: str
    rule: str
    """The rule of docs/PROTOCOL.md that it breaks."""
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    """Files or test ids."""
    equivalent: str | None = None
    """Why nothing can notice it; None where the tests must."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    def patched(self, root: Path) -> dict[str, str]:
        """The new text of each file that it changes. Stale if one cannot be changed so."""
        texts = {file: (root / file).read_text(encoding="utf-8") for file in self.files}
        for edit in self.edits:
            count = texts[edit.file].count(edit.old)
            if count != 1:
                raise Stale(f"{self.name}: {edit.file} has this text {count} times, not once:\n{edit.old}")
            texts[edit.file] = texts[edit.file].replace(edit.old, edit.new)
        for file, text in texts.items():
            try:
                compile(text, file, "exec", dont_inherit=True)
            except SyntaxError as cause:
                raise Stale(f"{self.name}: {file} does not compile any more: {cause}") from cause
        return texts


def mutant(
    name: str, rule: str, file: str, old: str, new: str, *tests: str, also: tuple[Edit, ...] = ()
) -> Mutant:
    """A mutant that some of ``tests`` must notice. ``also``: more that has to change with it."""
    return Mutant(name, rule, (Edit(file, old, new), *also), tests)


def equivalent(
    name: str,
    rule: str,
    file: str,
    old: str,
    new: str,
    *tests: str,
    because: str,
    also: tuple[Edit, ...] = (),
) -> Mutant:
    """A mutant that nothing can notice, ``tests`` least of all."""
    return Mutant(name, rule, (Edit(file, old, new), *also), tests, because)
