"""A script that becomes another program, which is killed when the process that started it dies.

    python -I -S exit_with_parent.py PARENT_PID REPORT_FD PROGRAM [ARGUMENT ...]

It asks the kernel for SIGKILL on the death of its parent (``PR_SET_PDEATHSIG``), makes sure that the
parent had not died before it asked, and turns into PROGRAM, keeping its process id. The wish survives
``exec``. SIGKILL and not a gentler signal, because a stopped process (SIGSTOP) obeys no other.

REPORT_FD is a pipe that closes by itself when PROGRAM takes over. Where that fails the reason is written
into it first; so the starter knows when the tie is made, and never stops or counts on a process before.

Run as a script of its own and not as a ``preexec_fn``, which would run Python between fork and exec in
a process whose other threads, and the locks that they held, are gone. It imports as little as it can: it
costs 10 ms.

The kernel counts the *thread* that started the process as its parent, so whoever uses this starts
processes from a thread that lives as long as they may (``processes`` uses the thread of the event loop).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, report, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(report, False)
    try:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() == parent:
            os.execv(program[0], program)
    except OSError as error:
        os.write(report, str(error).encode())
    sys.exit(1)


if __name__ == "__main__":
    main()
