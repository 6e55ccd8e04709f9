"""Make system calls of a running process fail or slow, with ``strace``'s injection.

strace attaches to the process and detaches again, so the process keeps its parent. If strace is killed, the
kernel lets the process go on unharmed. ``why_not`` says why a machine cannot do this: strace is missing, or
may not attach (this needs root, CAP_SYS_PTRACE or ``ptrace_scope`` 0).

A bookie makes data durable with ``SYNCS``: ``pwritev2`` with RWF_DSYNC for its own files, or ``fdatasync`` if
that does not exist; and ``fdatasync`` for the index.
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
    """Return why this machine cannot make system calls fail; None if it can."""
    strace = shutil.which("strace")
    if strace is None:
        return "there is no strace"
    # Not a child of strace: the right to trace your own child is never refused.
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
    """Inject ``fault`` into these system calls of a process for the body.

    Write the fault as for strace's ``inject``: ``error=EIO:when=3`` or ``delay_enter=200ms:when=1+10``.
    """
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
