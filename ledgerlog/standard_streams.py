"""Standard streams that are there, whoever starts a program of ours.

A process that was started with one of them closed gives its number to the next file that it opens. That may
be a database or a journal, and to everybody who prints it would be standard output.
"""

from __future__ import annotations

import os
import sys

__all__ = ["open_standard_streams"]


def open_standard_streams() -> None:
    """Put the null device where whoever started us has closed a standard stream (``>&-``).

    Otherwise there is nothing to print to, which would fail a command that has done its work, and the next
    file to be opened, a database for example, would be standard output to everybody who writes there."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor, "the lowest that is free is given out, and those below it are open"
        if getattr(sys, name) is None:
            # It stays open for as long as the process lives.
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (see above)
