"""The terminal and the three standard streams.

If a process is started with a standard stream closed, the next file that it opens gets the stream's number.
For example, if a database is opened as number 1, it is standard output, and every ``print`` overwrites the
database.
"""

from __future__ import annotations

import os
import sys

__all__ = ["has_terminal", "open_standard_streams"]


def open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed (for example by ``>&-``).

    Without this, a command that has done its work would fail because it cannot print, or would overwrite a
    file (see the module docstring).
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor, "open() takes the lowest free number, and all lower ones are open"
        if getattr(sys, name) is None:
            # The stream stays open for as long as the process lives.
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (see above)


def has_terminal() -> bool:
    """Return whether the process has a controlling terminal that still exists."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(descriptor)
    return True
