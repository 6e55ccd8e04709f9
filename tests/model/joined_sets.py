"""The configurations of the joined world that are searched. ``sets`` has those of the ledger, ``chain_sets``
those of the chain."""

from __future__ import annotations

from tests.model.joined_world import JoinedConfiguration as C

SMALL = [
    # A takeover and a roll on real ledgers.
    C(shape=(1, 1, 1), bookies=1, takeovers=1, records=1, rolls=1, crash=1),
    # A disk that is lost, and an operator who accepts what that means for a ledger and for the log.
    C(shape=(2, 2, 2), takeovers=1, records=1, rolls=0, accepts=1, disks=1),
    C(shape=(1, 1, 1), takeovers=1, records=1, rolls=1, accepts=1, disks=1),
    # A bookie that died and has lost nothing refuses the ledger that it is chosen for.
    C(bookies=3, takeovers=1, records=1, rolls=0, bounces=1, stale=1, failures=1, changes=1),
    # Bookies copy back what they lost and leave limbo, while repair moves copies to and from them.
    C(takeovers=1, records=1, rolls=1, disks=1, heals=1),
    C(processes=1, bookies=3, takeovers=1, records=1, rolls=0, leaves=1, forgets=1, heals=1, repairs=1),
    # The LAC is told in frames without entries.
    C(takeovers=1, seals=1, records=1, rolls=0, publishes=1),
]

WIDE = [
    C(shape=(2, 2, 2), takeovers=1, records=1, rolls=0, accepts=1, disks=1, reads=1),
    C(shape=(1, 1, 1), bookies=1, takeovers=2, records=1, rolls=1),
    C(shape=(1, 1, 1), bookies=1, takeovers=1, seals=1, records=1, rolls=1, crash=1),
    # The older of two ledgers loses acknowledged entries, and the newer one does not.
    C(shape=(1, 1, 1), takeovers=1, records=2, rolls=1, accepts=1, disks=1),
    C(takeovers=2, records=1, rolls=0, disks=1),
    C(takeovers=1, seals=1, records=1, rolls=0, forgets=1),
    C(shape=(2, 2, 1), guaranteed=True, takeovers=1, seals=1, records=1, rolls=0, forgets=1),
    # Limbo is left before and after a takeover, by two bookies, and after an accepted loss.
    C(takeovers=2, records=1, rolls=0, disks=1, heals=1),
    C(takeovers=1, seals=1, records=1, rolls=0, disks=2, heals=2),
    C(shape=(2, 2, 1), takeovers=1, records=2, rolls=1, disks=1, heals=1),
    C(takeovers=1, records=1, rolls=0, accepts=1, disks=1, heals=1, reads=1),
    # Repair, too.
    C(bookies=3, takeovers=1, seals=1, records=1, rolls=0, forgets=1, heals=1, repairs=1),
    C(
        shape=(2, 2, 1),
        guaranteed=True,
        bookies=3,
        takeovers=1,
        seals=1,
        records=1,
        rolls=0,
        forgets=1,
        heals=1,
        repairs=1,
    ),
    # Frames of two entries, read back in rounds of two, with answers that are cut short.
    C(
        shape=(2, 2, 1),
        takeovers=1,
        seals=1,
        records=2,
        rolls=0,
        frames_outstanding=1,
        frame_entries=2,
        round_entries=2,
        shorts=1,
    ),
]

_STORMY = {
    "takeovers": 6,
    "seals": 1,
    "records": 8,
    "rolls": 3,
    "leaves": 1,
    "lost": 2,
    "crash": 2,
    "fail": 1,
    "truncate": 1,
    "accepts": 3,
    "bounces": 1,
    "stale": 1,
    "failures": 2,
    "changes": 2,
    "fences": 1,
    "reads": 2,
    "answers": 1,
    "closes": 1,
}

WALKED = [
    C(
        shape=(3, 3, 2),
        bookies=5,
        disks=1,
        forgets=1,
        round_entries=2,
        frames_outstanding=1,
        frame_entries=2,
        shorts=2,
        publishes=2,
        **_STORMY,
    ),
    C(bookies=3, disks=3, forgets=1, repeats=1, reconnects=1, **_STORMY),
    C(
        shape=(3, 2, 2),
        bookies=4,
        processes=3,
        disks=2,
        forgets=1,
        heals=6,
        repairs=3,
        round_entries=3,
        shorts=1,
        **_STORMY,
    ),
    C(shape=(3, 3, 2), bookies=4, guaranteed=True, disks=1, forgets=1, publishes=1, **_STORMY),
]
