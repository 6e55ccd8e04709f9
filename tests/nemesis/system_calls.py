"""System calls of a running process that fail or take their time, by ``strace``'s injection.

strace is attached to the process and detached again, so the process stays a child of whoever started it;
should strace be killed, the kernel lets the process go on unharmed. ``why_not`` says why this cannot be done
here: strace is missing, or may not attach (which takes root, CAP_SYS_PTRACE or ``ptrace_scope`` 0).

What a bookie makes durable goes through ``SYNCS``: ``pwritev2`` with RWF_DSYNC for its own files, and
``fdatasync`` where that does not exist, and for the index.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import trio

from ledgerlog.cli.processes import Child, ChildProcesses

__all__ = ["SYNCS", "injected", "why_not"]

SYNCS = "pwritev2,fdatasync"
_ATTACHED_S = 10.0


@cache
def why_not() -> str | None:
    """Why system calls cannot be made to fail here; None where they can."""
    strace = shutil.which("strace")
    if strace is None:
        return "there is no strace"
    # A process that we did not become by exec: the right to trace one's own child is never refused.
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with tempfile.TemporaryFile() as said:
            tracer = subprocess.Popen(
                [strace, "-p", str(other.pid), "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO"],
                stderr=said,
            )
            try:
                while tracer.poll() is None:
                    said.seek(0)
                    if b" attached" in said.read():
                        return None
                    time.sleep(0.01)
                said.seek(0)
                return (
                    f"strace does not attach ({tracer.returncode}): "
                    f"{said.read().decode(errors='replace').strip()}"
                )
            finally:
                tracer.terminate()
                tracer.wait()
    finally:
        other.kill()
        other.communicate()


@asynccontextmanager
async def injected(
    children: ChildProcesses, child: Child, fault: str, *, log_path: Path, calls: str = SYNCS
) -> AsyncIterator[None]:
    """For the body, ``fault`` happens to these system calls of a process: ``error=EIO:when=3``,
    ``delay_enter=200ms:when=1+10``, as strace's ``inject`` has it."""
    strace = shutil.which("strace")
    assert strace is not None, "see why_not"
    await trio.Path(log_path).unlink(missing_ok=True)
    tracer = await children.start(
        f"strace of {child.name}",
        [
            *(strace, "-f", "-p", str(child.pid), "-o", "/dev/null"),
            *("-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"),
        ],
        log_path=log_path,
    )
    try:
        with trio.move_on_after(_ATTACHED_S):
            said = trio.Path(log_path)
            while b" attached" not in await said.read_bytes() and tracer.is_running:  # noqa: ASYNC110 (a file)
                await trio.sleep(0.02)
        yield
    finally:
        with trio.CancelScope(shield=True):
            await tracer.stop(grace_s=2.0)
