"""What a client takes from the world besides disks, networks and the metadata store: a wall clock and
randomness. Tests and the simulator bring their own."""

from __future__ import annotations

import random
import time

from ledgerlog.limits import LEDGER_KEY_BYTES

TOKEN_BYTES = 16


class Environment:
    """The real one. ``random`` is used for choices (placement, jitter), never for secrets."""

    def __init__(self) -> None:
        self.random = random.Random()
        self._secret = random.SystemRandom()

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def mark(self, step: str) -> None:
        """Something that takes several steps has come to this one. Nothing listens but a benchmark, which
        puts another environment in this one's place and looks at its own clock."""

    def new_token(self) -> bytes:
        """Random bytes that mark one metadata write as one's own (rule 14)."""
        return self._secret.randbytes(TOKEN_BYTES)

    def new_key(self) -> bytes:
        """A ledger's secret key."""
        return self._secret.randbytes(LEDGER_KEY_BYTES)
