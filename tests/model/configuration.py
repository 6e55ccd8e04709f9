"""The contents of the model's world, and the budgets for everything that may go wrong in it."""

from __future__ import annotations

import attrs

BUDGETS = (
    *("fail", "connect", "change", "fence", "read", "lost", "dup", "crash", "give_up", "repair"),
    *("short", "publish"),
)


@attrs.frozen
class Configuration:
    """Quorums, entries, clients, and a budget for everything that may go wrong."""

    shape: tuple[int, int, int]
    entries: int
    bookies: int
    guaranteed: bool = False
    full_pinning: bool = False
    recoverers: int = 1
    round_entries: int = 1
    frames_outstanding: int = 8
    frame_entries: int = 1
    """How many entries travel in a frame, where more are appended than frames may be outstanding."""
    sent: int = 0
    """How many of the entries are appended before anything else happens. Nothing is lost by it for the first:
    what is sent may be late, and carries no LAC."""
    twins: bool = False
    """Two states in which two recoverers have changed roles are one. A schedule may change their names on its
    way, so this is for searches that find nothing otherwise."""
    close: bool = False
    """The owner may close."""
    fail: int = 0
    """How often a client treats a bookie of its ensemble as failed (time-out, connection, refusal)."""
    connect: int = 0
    """How often a failed bookie comes back: everything unconfirmed is sent again."""
    change: int = 0
    """How often slots are replaced."""
    fence: int = 0
    """How often a fence times out at its recoverer; it may still reach the bookie later."""
    read: int = 0
    """How often a recovery read times out; likewise."""
    lost: int = 0
    """How often the answer of a metadata write is lost before the store has seen the write: the client reads
    again, and the write may still be applied later."""
    dup: int = 0
    """How often a request is handled twice."""
    crash: int = 0
    """How often a bookie loses what it had not synced, and restarts."""
    give_up: int = 0
    """Whether the owner may give up."""
    repair: int = 0
    """How often a bookie of a fragment that takes no more entries is replaced by repair."""
    short: int = 0
    """How often a bookie answers a recovery read with fewer entries than it was asked for."""
    publish: int = 0
    """How often the owner tells its LAC in a frame without entries."""

    def __str__(self) -> str:
        mode = ""
        if self.guaranteed:
            mode = " guaranteed" + (" (full pinning)" if self.full_pinning else "")
        told = [f", {name} {getattr(self, name)}" for name in BUDGETS if getattr(self, name)]
        if self.round_entries != 1:
            told.insert(0, f", rounds of {self.round_entries}")
        if self.frame_entries != 1:
            told.insert(0, f", {self.frames_outstanding} frames of {self.frame_entries}")
        return (
            f"{'/'.join(map(str, self.shape))}{mode}, {self.bookies} bookies, {self.entries} entries, "
            f"{self.recoverers} recoverers{', close' if self.close else ''}{''.join(told)}"
        )
