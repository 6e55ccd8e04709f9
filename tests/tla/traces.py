"""TLC judges recorded runs: is each a behaviour of its module in ``docs/tla``?"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tests.model.checker import AnyConfiguration
from tests.model.messages import Message
from tests.tla.log_views import LogMessage, log_message_view
from tests.tla.steps import Run, Step
from tests.tla.subjects import subject_of
from tests.tla.tlc import Outcome, run_tlc
from tests.tla.values import Name, View, tla
from tests.tla.views import message_view


@attrs.frozen
class Refusal:
    """A run that is no behaviour of the module."""

    run: int
    at: int
    """The step that is not possible, from 0."""
    why: str

    def describe(self, runs: Sequence[Run]) -> str:
        return (
            f"run {self.run}, step {self.at} of {len(runs[self.run])}: {self.why}: {runs[self.run][self.at]}"
        )


@attrs.frozen
class Judgement:
    outcome: Outcome
    accepted: tuple[int, ...]
    refused: tuple[Refusal, ...]


class _Texts:
    """Definitions for what occurs often, so that TLC reads it once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}

    def name(self, text: str) -> Name:
        return Name(self._names.setdefault(text, f"{self._prefix}{len(self._names)}"))

    def definitions(self) -> list[str]:
        return [f"{name} == {text}" for text, name in self._names.items()]


def recorded_module(runs: Sequence[Run], definitions: Sequence[str] = ()) -> str:
    """The text of the module Recorded, with further definitions."""
    messages, views = _Texts("m"), _Texts("v")

    def named(value: object) -> object:
        if isinstance(value, Message):
            return messages.name(tla(message_view(value)))
        return messages.name(tla(log_message_view(value))) if isinstance(value, LogMessage) else value

    def told(step: Step) -> View:
        arguments = {name: named(value) for name, value in step.arguments.items()}
        seen = [{**one, "is": views.name(tla(one["is"]))} for one in step.seen]
        return {"ev": step.event, **arguments, "out": {named(one) for one in step.out}, "see": seen}

    lines = [
        f"run{number} == <<\n  " + ",\n  ".join(tla(told(step)) for step in run) + "\n>>"
        for number, run in enumerate(runs)
    ]
    return "\n".join(
        [
            "---- MODULE Recorded ----",
            "EXTENDS Integers, Sequences, TLC",
            *messages.definitions(),
            *views.definitions(),
            *definitions,
            *lines,
            f"Runs == <<{', '.join(f'run{number}' for number in range(len(runs)))}>>",
            "====",
        ]
    )


def judge(configuration: AnyConfiguration, runs: Sequence[Run]) -> Judgement:
    """Have TLC try to follow each run, and check the invariants of the module in each state of those that it
    can follow.

    Args:
        configuration: The one that all runs were recorded with.
        runs: What was recorded.

    Returns:
        Which runs it could follow to their end, and where it could not go on in the others.
    """
    outcome = _follow(configuration, runs, ["Explains = FALSE", *subject_of(configuration).promises])
    accepted = _accepted(outcome)
    others = [number for number in range(len(runs)) if number not in accepted]
    if not outcome.is_ok or not others:
        return Judgement(outcome, accepted, ())
    refused = refusals(configuration, [runs[number] for number in others])
    return Judgement(outcome, accepted, tuple(attrs.evolve(one, run=others[one.run]) for one in refused))


def refusals(configuration: AnyConfiguration, runs: Sequence[Run]) -> list[Refusal]:
    """Where TLC could not go on in those runs that are no behaviours of the module."""
    outcome = _follow(configuration, runs, ["Explains = TRUE"])
    refused = [Refusal(int(run) - 1, int(at) - 1, why) for run, at, why in outcome.printed("refused")]
    assert len(refused) + len(_accepted(outcome)) == len(runs), outcome.text
    return sorted(refused, key=lambda one: one.run)


def _accepted(outcome: Outcome) -> tuple[int, ...]:
    return tuple(sorted(int(one[0]) - 1 for one in outcome.printed("accepted")))


def _follow(configuration: AnyConfiguration, runs: Sequence[Run], lines: Sequence[str]) -> Outcome:
    subject = subject_of(configuration)
    recorded = recorded_module(runs, subject.definitions(configuration))
    text = "\n".join(["CONSTANTS", *subject.constants(configuration), *lines, "SPECIFICATION TraceSpec"])
    return run_tlc(subject.module, text, generated={"Recorded": recorded}, is_short=True)
