"""What a client needs from outside, besides disks, networks and the metadata store: a wall clock, randomness,
its own version and the size of records. Tests and the simulator pass their own."""

from __future__ import annotations

import random
import time

from ledgerlog.limits import LEDGER_KEY_BYTES, RECORD_BYTES_MAX
from ledgerlog.versions import THIS, Version

TOKEN_BYTES = 16


class Environment:
    """The real environment. ``random`` is for choices (placement, jitter), never for secrets."""

    version: Version = THIS
    """The version that the client speaks and writes."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """The largest record that a log takes. Simulated bookies take less than real ones."""

    def __init__(self) -> None:
        self.random = random.Random()
        self._secret = random.SystemRandom()

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def mark(self, step: str) -> None:
        """Report that a multi-step operation has reached ``step``.

        The real environment ignores it. A benchmark passes an environment that records the time."""

    def new_token(self) -> bytes:
        """Random bytes. They mark a metadata write as this client's own (rule 14)."""
        return self._secret.randbytes(TOKEN_BYTES)

    def new_key(self) -> bytes:
        """A new secret key for a ledger."""
        return self._secret.randbytes(LEDGER_KEY_BYTES)
