"""What runs are recorded of, a ledger or the chain of a log, each with the module that judges them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tests.cores import bookies
from tests.model.chain_world import ChainConfiguration
from tests.model.checker import AnyConfiguration
from tests.model.configuration import Configuration
from tests.model.messages import OWNER, REPAIR
from tests.tla.log_recorder import record_log
from tests.tla.recorder import record_ledger
from tests.tla.steps import Step
from tests.tla.values import tla


@attrs.frozen
class Subject:
    """What runs are recorded of."""

    module: str
    """The module whose specification TraceSpec the runs must follow."""
    record: Callable[[Any, int], list[Step]]
    """Records the run of a configuration and a seed."""
    constants: Callable[[Any], list[str]]
    """The constants of the module, as lines of a configuration of TLC."""
    definitions: Callable[[Any], list[str]]
    """What Recorded defines apart from the runs."""
    promises: tuple[str, ...]
    """What must hold on the way, as lines of a configuration of TLC."""


def record(configuration: AnyConfiguration, seed: int) -> list[Step]:
    """Run the cores at random, and return what they did as steps of their module."""
    return subject_of(configuration).record(configuration, seed)


def subject_of(configuration: AnyConfiguration) -> Subject:
    return LOG if isinstance(configuration, ChainConfiguration) else LEDGER


def _ledger_constants(configuration: Configuration) -> list[str]:
    ensemble, write_quorum, ack_quorum = configuration.shape
    names = bookies(configuration.bookies)
    recoverers = {f"R{number}" for number in range(configuration.recoverers)}
    return [
        f"  E = {ensemble}",
        f"  WQ = {write_quorum}",
        f"  AQ = {ack_quorum}",
        f"  Guaranteed = {tla(configuration.guaranteed)}",
        f"  FullPinning = {tla(configuration.full_pinning)}",
        f"  RoundEntries = {configuration.round_entries}",
        f"  SyncsLate = {tla(bool(configuration.crash))}",
        f"  Bookies = {tla(set(names))}",
        f"  Owner = {tla(OWNER)}",
        f"  Repairer = {tla(REPAIR)}",
        f"  Recoverers = {tla(recoverers)}",
        "  FirstEnsemble <- RecordedEnsemble",
    ]


def _ledger_definitions(configuration: Configuration) -> list[str]:
    return [f"RecordedEnsemble == {tla(bookies(configuration.shape[0]))}"]


def processes(configuration: ChainConfiguration) -> set[str]:
    """The names of the processes, as the world gives them."""
    return set("ABCDEF"[: configuration.processes])


LEDGER = Subject("LedgerTrace", record_ledger, _ledger_constants, _ledger_definitions, ("INVARIANT Safety",))
LOG = Subject(
    "LogTrace",
    record_log,
    lambda configuration: [f"  Processes = {tla(processes(configuration))}"],
    lambda configuration: [],
    ("INVARIANT Safety", "PROPERTY Edges"),
)
