"""The configurations that are searched: a small set in every test run, a wide one on request.

Of the small set every state is visited. In the wide set the exhaustive ones are, unless they are cut at
``STATES_MAX`` (breadth first: everything that takes no more steps was seen); the rest is walked at random.
"""

from __future__ import annotations

from tests.model.configuration import Configuration as C

SMALL = [
    # The plain mode: recovery racing with the owner, one recoverer and two.
    C((2, 2, 1), entries=2, bookies=2),
    C((2, 2, 1), entries=1, bookies=2, recoverers=2),
    C((3, 3, 2), entries=1, bookies=3),
    # Striped: coverage, classes, batches that a slot holds nothing of.
    C((3, 2, 2), entries=1, bookies=3),
    # Ensemble changes by the owner and, in private, by the recoverer.
    C((2, 2, 1), entries=1, bookies=3, recoverers=0, close=True, fail=1, change=1, give_up=1),
    C((2, 2, 2), entries=1, bookies=3, fail=1, change=1),
    # Guaranteed mode with both ways of pinning.
    C((2, 2, 1), entries=1, bookies=3, guaranteed=True, fail=1, change=1),
    C((2, 2, 1), entries=1, bookies=3, guaranteed=True, full_pinning=True, fail=1, change=1),
    # Repair of a fragment that takes no more entries, beside the owner's change, his close, and a recovery.
    C((2, 2, 1), entries=1, bookies=3, recoverers=0, close=True, fail=1, change=1, repair=1),
    C((2, 2, 2), entries=1, bookies=3, fail=1, change=1, repair=1),
    # Closing, metadata writes whose answers are lost, crashes of bookies.
    C((2, 2, 2), entries=1, bookies=2, close=True, lost=1),
    C((2, 2, 2), entries=1, bookies=2, crash=1),
    # Frames of several entries, answers that are cut short, and frames that tell a LAC alone.
    C((3, 2, 2), entries=4, bookies=3, recoverers=0, close=True, frames_outstanding=1, frame_entries=3),
    C((2, 2, 2), entries=2, bookies=2, round_entries=2, short=1),
    C((2, 2, 1), entries=2, bookies=2, guaranteed=True, recoverers=0, close=True, publish=1),
]

_SHAPES = ((2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2))

CHANGED = [
    C(shape, entries=1, sent=1, bookies=shape[0] + 1, fail=1, change=1, **clients, **mode)
    for clients in ({}, {"recoverers": 2, "twins": True})
    for shape in _SHAPES
    for mode in ({}, {"guaranteed": True}, {"guaranteed": True, "full_pinning": True})
]
"""One writer, one recoverer and two, one change of the ensemble by any of them, in all three modes."""

WIDE = [
    C((2, 2, 1), entries=2, bookies=3, recoverers=0, close=True, fail=1, change=1, give_up=1),
    C((2, 2, 1), entries=2, bookies=2, close=True, lost=1),
    C((2, 2, 1), entries=3, bookies=2),
    C((2, 2, 2), entries=2, bookies=2),
    C((2, 2, 2), entries=1, bookies=2, recoverers=2),
    C((2, 2, 2), entries=1, bookies=2, recoverers=2, fence=1, read=1),
    C((2, 2, 1), entries=1, bookies=2, recoverers=2, fence=1, read=1, lost=1),
    C((2, 2, 2), entries=1, bookies=2, fail=1, connect=1, dup=1),
    C((2, 2, 2), entries=1, bookies=2, crash=2),
    C((2, 2, 1), entries=1, bookies=2, recoverers=2, crash=1),
    C((2, 2, 2), entries=1, bookies=3, close=True, fail=1, change=1, lost=1),
    C((2, 2, 1), entries=2, bookies=3, fail=1, change=1),
    C((2, 2, 1), entries=2, bookies=4, recoverers=0, close=True, fail=2, change=2, lost=1),
    C((3, 3, 2), entries=1, bookies=3, recoverers=2),
    C((3, 3, 2), entries=2, bookies=3),
    C((3, 2, 2), entries=1, bookies=3, recoverers=2),
    C((3, 2, 2), entries=2, bookies=3),
    C((3, 2, 2), entries=2, bookies=3, round_entries=2),
    C((2, 2, 1), entries=2, bookies=2, guaranteed=True, close=True),
    C((2, 2, 1), entries=2, bookies=3, guaranteed=True, fail=1, change=1),
    C((2, 2, 1), entries=2, bookies=3, guaranteed=True, full_pinning=True, fail=1, change=1),
    # Repair next to a writer and a recoverer.
    C((2, 2, 1), entries=1, bookies=3, fail=1, change=1, repair=1),
    C((2, 2, 1), entries=2, bookies=3, recoverers=0, close=True, fail=1, change=1, repair=2, lost=1),
    C((2, 2, 2), entries=1, bookies=3, close=True, fail=1, change=1, repair=2),
    C((2, 2, 2), entries=1, bookies=3, guaranteed=True, fail=1, change=1, repair=1),
    C((3, 2, 2), entries=1, bookies=4, fail=1, change=1, repair=1),
    C((2, 2, 1), entries=1, bookies=3, recoverers=2, repair=1),
    *CHANGED,
]

STATES_MAX = 15_000_000

_STORMY = {"fail": 3, "connect": 2, "change": 3, "fence": 1, "read": 1, "lost": 2, "dup": 2}

WALKED = [
    C((3, 3, 2), entries=4, bookies=5, recoverers=2, close=True, **_STORMY),
    C((3, 3, 2), entries=4, bookies=5, recoverers=2, round_entries=2, crash=3, **_STORMY),
    C((3, 2, 2), entries=6, bookies=5, recoverers=2, close=True, **_STORMY),
    C((4, 3, 2), entries=6, bookies=6, recoverers=2, **_STORMY),
    C((4, 2, 2), entries=6, bookies=6, recoverers=2, round_entries=2, give_up=1, **_STORMY),
    C((3, 3, 2), entries=4, bookies=5, recoverers=2, guaranteed=True, close=True, **_STORMY),
    C((3, 3, 2), entries=4, bookies=5, recoverers=2, guaranteed=True, full_pinning=True, **_STORMY),
    C((4, 3, 2), entries=6, bookies=6, recoverers=2, guaranteed=True, **_STORMY),
    C((5, 3, 2), entries=7, bookies=7, recoverers=2, guaranteed=True, crash=2, **_STORMY),
    C((4, 4, 2), entries=4, bookies=6, recoverers=2, guaranteed=True, **_STORMY),
    C((3, 3, 2), entries=4, bookies=5, recoverers=2, close=True, repair=3, **_STORMY),
    C((4, 3, 2), entries=6, bookies=6, recoverers=2, guaranteed=True, repair=3, **_STORMY),
]
