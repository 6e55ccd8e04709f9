"""A client of one version, in a process of its own: it appends numbered records until its input ends.

    python upgrade_child.py URI LOG

It prints the package that it runs and goes on where the log ends. It prints each offset that follows
acknowledged records, and "failed" and the error if an append fails. It uses only what version 0.1 has
already.
"""

from __future__ import annotations

import sys

import trio

import ledgerlog

_BATCH = 20


async def main(uri: str, name: str) -> None:
    print(f"runs {ledgerlog.__file__}", flush=True)
    async with ledgerlog.connect(uri) as cluster:
        log = await cluster.open_log(name)
        async with log.writer() as writer, trio.open_nursery() as nursery:
            is_over = trio.Event()

            async def end_with_input() -> None:
                await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
                is_over.set()

            nursery.start_soon(end_with_input)
            try:
                while not is_over.is_set():
                    first = writer.next_offset
                    await writer.append_many([b"record %d" % n for n in range(first, first + _BATCH)])
                    print(first + _BATCH, flush=True)
            except BaseException as failure:
                print(f"failed {failure!r}", flush=True)
                raise
            nursery.cancel_scope.cancel()


trio.run(main, *sys.argv[1:])
