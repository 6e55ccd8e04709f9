"""The plan of a run: its faults, with times and kinds, drawn from the seed before the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random

import attrs
import trio

__all__ = ["Fault", "carry_out", "draw_faults"]


@attrs.frozen
class Fault:
    """One fault of a plan."""

    number: int
    at_s: float
    kind: str

    def __str__(self) -> str:
        return f"#{self.number} at {self.at_s:.3f} s: {self.kind}"


def draw_faults(
    random: Random, kinds: Sequence[str], *, gap_s: float, until_s: float, first_number: int = 0
) -> tuple[Fault, ...]:
    """Draw faults, in the order of their times.

    Args:
        random: The generator to draw from.
        kinds: The kinds of faults.
        gap_s: The mean time between two faults, in seconds.
        until_s: When the trouble ends.
        first_number: The number of the first fault.
    """
    faults: list[Fault] = []
    at = random.expovariate(1 / gap_s)
    while at < until_s and kinds:
        faults.append(Fault(first_number + len(faults), at, random.choice(kinds)))
        at += random.expovariate(1 / gap_s)
    return tuple(faults)


async def carry_out(
    plan: Sequence[Fault],
    seconds: float,
    inject: Callable[[Fault], Awaitable[None]],
    beside: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Inject each fault of a plan at its time. Faults that still last when the time is up stay in effect.

    Args:
        plan: The faults, in the order of their times.
        seconds: How long the trouble lasts.
        inject: Injects one fault, in a task of its own.
        beside: An async function to run meanwhile. It is cancelled at the end. None: run nothing.
    """
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        if beside is not None:
            nursery.start_soon(beside)
        with trio.move_on_after(seconds):
            for fault in plan:
                await trio.sleep(began + fault.at_s - trio.current_time())
                nursery.start_soon(inject, fault)
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
