"""The child process of the ZooKeeper tests: it owns a session, and prints the session's state."""

from __future__ import annotations

import sys

import trio

from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.store import open_zookeeper_store

STEP_S = 0.05
STOPPED_S = 0.5


def say(*words: object) -> None:
    print(*words, flush=True)


async def own(hosts: str, chroot: str, timeout_s: str) -> None:
    """Own an ephemeral node. After a stop, print the first state of the session and the later ones."""
    async with open_zookeeper_store(hosts, chroot=chroot, session_timeout_s=float(timeout_s)) as store:
        session = store.session
        await store.create("owner", b"first", ephemeral=True)
        before = trio.current_time()  # The test may stop this process as soon as it reads the next line.
        say("owns")
        while True:
            await trio.sleep(STEP_S)
            now = trio.current_time()
            # The first thing that runs after a stop is this look, before any news can have come.
            state = session.state
            if now - before <= STOPPED_S < trio.current_time() - now:
                continue  # The process was stopped during this look. The next look shows it.
            if now - before > STOPPED_S:
                say("woke", state.value)
            before = now
            if state is SessionState.LOST:
                break
        while store.session is session:  # noqa: ASYNC110 (the next session is opened by the store)
            await trio.sleep(STEP_S)
        await store.create("owner", b"second", ephemeral=True)
        say("owns")
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(own, *sys.argv[1:])
