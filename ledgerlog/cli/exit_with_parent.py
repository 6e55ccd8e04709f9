"""A script that turns into another program. The program is killed when the process that started it dies.

    python -I -S exit_with_parent.py PARENT_PID REPORT_FD PROGRAM [ARGUMENT ...]

The script asks the kernel to send it SIGKILL on the death of its parent (``PR_SET_PDEATHSIG``). It checks
that the parent did not die before that. Then it turns into PROGRAM by ``exec``, which keeps the process id
and the kernel's promise. The signal is SIGKILL, because a stopped process (SIGSTOP) reacts to no other.

REPORT_FD is a pipe that closes by itself when PROGRAM takes over. If ``exec`` fails, the script first writes
the reason into the pipe. So the starter knows when the life of the process is tied to the starter's life.
Until then, the starter does not stop the process and does not rely on it.

This is a script and not a ``preexec_fn``. A ``preexec_fn`` would run Python between fork and exec, in a
process that has lost its other threads but not the locks that they held. The script imports as little as
possible and costs 10 ms.

For the kernel, the parent is the *thread* that started the process. So start processes from a thread that
lives at least as long as the processes may (``cli.processes`` uses the thread of the event loop).
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
