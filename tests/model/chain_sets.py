"""The configurations of the chain that are searched. ``sets`` has those of the ledger."""

from __future__ import annotations

from tests.model.chain_world import ChainConfiguration as C

SMALL = [
    # Two leaders and a roll of the first or the second, with two records anywhere.
    C(records=2, rolls=1),
    # Answers of compare-and-sets that are lost, or come after all.
    C(takeovers=1, seals=1, records=1, rolls=1, lost=1),
    # A crash or a cancellation anywhere, also between the making of a ledger and the write that lists it.
    C(records=1, rolls=1, crash=1),
    # Ledgers that fail, that are truncated away, leaders that leave, logs that are ended.
    C(records=1, rolls=1, fail=1),
    C(takeovers=1, seals=1, records=1, rolls=1, truncate=1),
    C(records=1, rolls=1, leaves=1),
    C(takeovers=1, seals=1, records=2, rolls=1),
    # A loss that is accepted for a ledger, and then for the log, or never.
    C(takeovers=1, records=2, rolls=1, losses=1, accepts=1),
    # A splice by a leader whose answer may be lost, and a request that may be withdrawn.
    C(takeovers=1, seals=1, records=1, rolls=0, splices=1, withdrawals=1, lost=1),
    # A splice and a leader that is deposed, or leaves.
    C(records=1, rolls=0, splices=1, leaves=1),
]

WIDE = [
    C(records=1, rolls=1, lost=1),
    # Rolls of both leaders that overlap, and two rolls of one.
    C(records=1, rolls=2),
    C(records=2, rolls=2),
    C(records=1, rolls=2, crash=1),
    C(records=1, rolls=2, lost=1),
    C(records=2, rolls=1, fail=1),
    C(records=2, rolls=1, lost=1),
    C(records=1, rolls=1, lost=2),
    C(records=2, rolls=1, crash=1),
    C(records=1, rolls=1, lost=1, crash=1),
    C(records=3, rolls=1),
    C(records=1, rolls=1, truncate=1),
    C(records=2, rolls=1, truncate=1),
    C(records=2, rolls=1, leaves=1, fail=1),
    C(records=1, rolls=1, lost=1, truncate=1),
    C(takeovers=1, seals=1, records=2, rolls=1, lost=1),
    C(records=2, rolls=1, losses=1, accepts=1),
    C(records=2, rolls=2, losses=2, accepts=1),
    C(records=2, rolls=1, losses=1, accepts=1, truncate=1),
    C(records=2, rolls=1, splices=1, lost=1),
    C(records=2, rolls=1, splices=2, withdrawals=1),
    C(records=1, rolls=1, splices=1, crash=1, truncate=1),
    # A third takeover, by the process that lost or by a third one.
    C(takeovers=3, records=1, rolls=1),
    C(processes=3, takeovers=3, records=1, rolls=1),
]

_STORMY = {
    "losses": 2,
    "accepts": 2,
    "rolls": 3,
    "leaves": 1,
    "lost": 3,
    "crash": 3,
    "fail": 1,
    "truncate": 2,
    "splices": 3,
    "withdrawals": 1,
}

WALKED = [
    C(processes=2, takeovers=6, records=8, **_STORMY),
    C(processes=3, takeovers=6, seals=1, records=8, **_STORMY),
]
