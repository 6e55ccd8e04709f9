"""Searches of the modules themselves, on sizes small enough to see every state."""

from __future__ import annotations

from typing import Any

import attrs

from tests.tla.tlc import Outcome, run_tlc
from tests.tla.values import tla

AMENDMENTS = (
    *("verdicts", "joining", "order", "highest", "frozen", "base"),
    *("changes", "carried", "unfit"),
)
"""Those of Amended.tla."""


@attrs.frozen
class Search:
    """A whole search of a module, and what it should find."""

    shape: tuple[int, int, int]
    bookies: int | None = None
    """As many as the ensemble has, if not given."""
    recoverers: int = 1
    entries: int = 1
    changes: int = 0
    time_outs: int = 0
    lost_answers: int = 0
    losses: int = 0
    repairs: int = 0
    guaranteed: bool = False
    closes: bool = True
    """Whether the owner may close."""
    without: str | None = None
    """The definition that takes the place of a rule, as ``rule <- definition``."""
    amendments: tuple[str, ...] | None = None
    """If given, whether the module refines the published one with these amendments."""
    violates: str | None = None
    """What is violated, if something must be."""

    def __str__(self) -> str:
        told = [f"{self.entries} entries, {self.recoverers} recoverers"]
        told += [
            f"{name} {getattr(self, name)}"
            for name in ("bookies", "changes", "time_outs", "lost_answers", "losses", "repairs")
            if getattr(self, name)
        ]
        if self.without:
            told.append(self.without)
        if self.amendments is not None:
            told.append(f"amendments: {', '.join(self.amendments) or 'none'}")
        if self.violates:
            told.append(f"violates {self.violates}")
        mode = " guaranteed" if self.guaranteed else ""
        return f"{'/'.join(map(str, self.shape))}{mode}, {'; '.join(told)}"

    def run(self, *, is_short: bool = False) -> Outcome:
        """Search, and wait for the end; see ``run_tlc``."""
        is_refinement = self.amendments is not None
        lines = ["CONSTANTS", *(f"  {name} = {tla(value)}" for name, value in self._constants().items())]
        lines.append("  FirstEnsemble <- First")
        if self.without:
            lines.append(f"  {self.without}")
        if is_refinement:
            lines += ["  Nil = Nil", "SPECIFICATION RefineSpec", "PROPERTY Published"]
        else:
            name = self.violates or "Safety"
            lines += ["SPECIFICATION SearchSpec", f"INVARIANT {name}"]
        module = "LedgerRefines" if is_refinement else "LedgerSearch"
        return run_tlc(module, "\n".join(lines), workers=1 if is_short else 2, is_short=is_short)

    def _constants(self) -> dict[str, Any]:
        ensemble, write_quorum, ack_quorum = self.shape
        found: dict[str, Any] = {
            "E": ensemble,
            "WQ": write_quorum,
            "AQ": ack_quorum,
            "Guaranteed": self.guaranteed,
            "FullPinning": False,
            "Bookies": {f"b{number}" for number in range(self.bookies or ensemble)},
            "Owner": "W",
            "Repairer": "X",
            "Recoverers": {f"R{number}" for number in range(self.recoverers)},
            "RoundEntries": 1,
            "SyncsLate": False,
            "Entries": self.entries,
            "Changes": self.changes,
            "TimeOuts": self.time_outs,
            "LostAnswers": self.lost_answers,
            "Losses": self.losses,
            "Repairs": self.repairs,
            "Closes": self.closes,
        }
        if self.amendments is not None:
            found["Amendments"] = set(self.amendments)
        return found

    def is_as_expected(self, outcome: Outcome) -> bool:
        """Whether the search found what it should."""
        return _is_as_expected(outcome, self.violates)


@attrs.frozen
class LogSearch:
    """A whole search of the module of a log, and what it should find."""

    processes: int = 2
    takeovers: int = 2
    seals: int = 0
    acceptances: int = 0
    records: int = 1
    rolls: int = 0
    endings: int = 0
    lost_answers: int = 0
    deaths: int = 0
    failures: int = 0
    truncations: int = 0
    losses: int = 0
    requested: int = 0
    withdrawals: int = 0
    without: str | None = None
    """The definition that takes the place of a rule, as ``rule <- definition``."""
    violates: str | None = None
    """What is violated, if something must be."""

    def __str__(self) -> str:
        budgets = {name: value for name, value in self._budgets().items() if value}
        told = [f"{self.processes} processes", *(f"{name} {value}" for name, value in budgets.items())]
        if self.without:
            told.append(self.without)
        if self.violates:
            told.append(f"violates {self.violates}")
        return f"log, {', '.join(told)}"

    def run(self, *, is_short: bool = False) -> Outcome:
        """Search, and wait for the end; see ``run_tlc``."""
        constants = {"Processes": set("ABCDEF"[: self.processes])} | {
            name.title().replace("_", ""): value for name, value in self._budgets().items()
        }
        lines = ["CONSTANTS", *(f"  {name} = {tla(value)}" for name, value in constants.items())]
        if self.without:
            lines.append(f"  {self.without}")
        # What should be violated comes first: TLC tells of one invariant only.
        names = dict.fromkeys([*([self.violates] if self.violates else []), *LOG_INVARIANTS])
        lines += ["SPECIFICATION SearchSpec", *(f"INVARIANT {name}" for name in names), "PROPERTY Edges"]
        return run_tlc("LogSearch", "\n".join(lines), workers=1 if is_short else 2, is_short=is_short)

    def _budgets(self) -> dict[str, int]:
        return attrs.asdict(self, filter=lambda field, _: field.name in _LOG_BUDGETS)

    def is_as_expected(self, outcome: Outcome) -> bool:
        """Whether the search found what it should."""
        return _is_as_expected(outcome, self.violates)


def _is_as_expected(outcome: Outcome, violates: str | None) -> bool:
    return outcome.violated == violates and outcome.is_ok == (violates is None)


_LOG_BUDGETS = tuple(
    field.name for field in attrs.fields(LogSearch) if field.name not in ("processes", "without", "violates")
)

LOG_INVARIANTS = (
    *("OnlyLastTwoOpen", "OffsetsDense", "ReplayComplete", "TakeoverPrefixStable", "OneLeader", "LogOrder"),
    *("FailedMeansAbsent", "LogAckedInList", "GapsAreLosses", "NoTruncation", "SplicedOnce"),
    "DeletedIsUnlisted",
)
"""Those of ``Safety`` in Log.tla."""

LOG_SEARCHES = [
    LogSearch(rolls=1),
    LogSearch(takeovers=1, seals=1, rolls=1, lost_answers=1),
    LogSearch(takeovers=1, seals=1, rolls=1, deaths=1, failures=1),
    LogSearch(takeovers=1, seals=1, rolls=1, truncations=1, endings=1),
    LogSearch(takeovers=1, acceptances=1, records=2, rolls=1, losses=1),
    LogSearch(takeovers=1, seals=1, requested=1, withdrawals=1, lost_answers=1),
    # Without one rule, and that a second leader acknowledges something at all.
    LogSearch(records=2, violates="NeverTwoLeaders"),
    LogSearch(rolls=1, without="ToRecover <- TheLastOnly", violates="TakeoverPrefixStable"),
    LogSearch(without="Conflicted <- NoneAgain", violates="OneLeader"),
    LogSearch(takeovers=1, records=0, rolls=2, without="MayRoll <- AnyTime", violates="OnlyLastTwoOpen"),
    LogSearch(
        takeovers=1,
        records=2,
        rolls=1,
        without="Acknowledged <- WhateverIsConfirmed",
        violates="LogOrder",
    ),
    LogSearch(
        records=0,
        rolls=1,
        lost_answers=1,
        failures=1,
        without="Unused <- SpareAnyway",
        violates="DeletedIsUnlisted",
    ),
]
"""What the module of a log promises: the invariants hold in every state, and do not if a rule is missing."""

ONE = (1, 1, 1)
PAIR = (2, 2, 1)

SEARCHES = [
    Search(ONE, bookies=2, entries=1, changes=1, lost_answers=1),
    Search(ONE, bookies=2, entries=2, changes=1, time_outs=1),
    Search(ONE, recoverers=2, time_outs=1),
    Search(PAIR),
    Search(PAIR, guaranteed=True),
    Search(PAIR, bookies=3, recoverers=0, changes=1, lost_answers=1),
    Search(PAIR, bookies=3, recoverers=0, changes=1, guaranteed=True),
    Search((2, 2, 2), losses=1, closes=False),
    Search((2, 2, 2), losses=1, closes=False, guaranteed=True),
    Search((2, 2, 2), bookies=3, repairs=1),
    # Without one rule, and that recoveries and the end of limbo are reached at all.
    Search(ONE, violates="NeverClosedByRecovery"),
    Search((2, 2, 2), losses=1, closes=False, violates="NeverHealed"),
    Search((2, 2, 2), losses=1, closes=False, without="MayLeaveLimbo <- OnceItIsClosed", violates="Safety"),
    Search((2, 2, 2), losses=1, closes=False, without="MayLeaveLimbo <- AnyTime", violates="Safety"),
    Search((2, 2, 2), bookies=3, changes=1, repairs=1, violates="NeverRepaired"),
    Search((2, 2, 2), bookies=3, repairs=1, without="MayBeNamed <- WithoutCopies", violates="Safety"),
    Search((2, 2, 2), bookies=3, repairs=1, without="MayBeRepaired <- OfItsWriterToo", violates="Safety"),
    Search(
        (2, 2, 2),
        bookies=3,
        losses=1,
        repairs=1,
        without="IsStillThere <- WhoeverBooted",
        violates="Safety",
    ),
    Search(PAIR, without="NegativeQuorum <- OneDenialIsEnough", violates="Safety"),
    Search(ONE, without="Refuses <- NothingIsRefused", violates="Safety"),
    Search((2, 2, 2), without="MaybeClose <- NothingIsWaitedFor", closes=False, violates="Safety"),
]
"""What the modules promise: the invariants hold in every state, and do not if a rule is missing."""


def _needs(amendment: str, *others: str, **size: Any) -> list[Search]:
    """Two searches: the refinement holds with amendments, and does not without one of them."""
    return [
        Search(amendments=(amendment, *others), **size),
        Search(amendments=others, violates="steps", **size),
    ]


PAIR_AND_SPARE: dict[str, Any] = {"shape": PAIR, "bookies": 3, "changes": 1, "closes": False}

PUBLISHED = [
    Search(ONE, amendments=()),
    *_needs("joining", shape=ONE, recoverers=2, closes=False),
    *_needs("order", "frozen", "base", shape=ONE, entries=2),
    *_needs("frozen", "order", "base", shape=ONE, entries=2)[1:],
    *_needs("base", "order", "frozen", shape=ONE, entries=2)[1:],
    *_needs("highest", "order", shape=PAIR, recoverers=0, entries=2),
    *_needs("verdicts", shape=PAIR, closes=False),
    *_needs("carried", "changes", "order", "highest", recoverers=0, **PAIR_AND_SPARE),
    *_needs("changes", "carried", "order", "highest", recoverers=0, **PAIR_AND_SPARE)[1:],
    *_needs("unfit", "changes", "carried", "order", shape=ONE, bookies=2, changes=1, closes=False),
]
"""Where the module refines the published one, and that it needs each amendment for it."""
