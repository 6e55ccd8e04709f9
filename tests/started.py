"""The processes that a test started, found in ``/proc``.

They carry a token in their environment, which children inherit, so that a grandchild is found even after its
parent was killed and it was adopted by init.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

TOKEN_VARIABLE = "LEDGERLOG_TEST_TOKEN"

_PROC = Path("/proc")


def processes_of(token: str) -> set[int]:
    """Live processes, zombies not counted, that carry the token or are children of this process."""
    found = set()
    entry = f"{TOKEN_VARIABLE}={token}".encode()
    for path in _PROC.iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            # The command's name stands in parentheses and may hold anything; what follows may not.
            state, parent = (path / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state in (b"Z", b"X"):
                continue
            if int(parent) == os.getpid() or entry in _environment_of(path, int(parent)):
                found.add(int(path.name))
        except OSError:
            continue  # It ended while we looked, or it is another user's and so not ours.
    return found


def _environment_of(path: Path, parent: int) -> list[bytes]:
    """What a process was given. One that is just becoming another program has nothing for a moment, and
    threads of the kernel, children of 2, for ever."""
    deadline = time.monotonic() + 1.0
    while not (environment := (path / "environ").read_bytes()):
        if parent in (0, 2) or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    return environment.split(b"\0")
