"""The child process of the SQLite process tests. It does one verb and prints a line for each step."""

from __future__ import annotations

import os
import resource
import sys

import trio

from ledgerlog.errors import LedgerLogError
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.meta.store import Create, SessionState, Set, VersionConflict


def say(*words: object) -> None:
    print(*words, flush=True)


async def move(path: str) -> None:
    """Move three nodes together, for ever. Print each number once it is committed."""
    async with open_sqlite_store(path) as store:
        n = 0
        left, right = await store.get("pair/left"), await store.get("pair/right")
        if left is None or right is None:
            versions = await store.transaction([Create("pair/left", b"0"), Create("pair/right", b"0")])
        else:
            versions = [left.version, right.version]
            n = int(left.value)
        while True:
            n += 1
            value = b"%d" % n
            versions = await store.transaction(
                [
                    Set("pair/left", value, versions[0]),
                    Create(f"log/{n:08}", value * 300),
                    Set("pair/right", value, versions[1]),
                ]
            )
            del versions[1]
            say(n)


async def own(path: str, node: str, timeout_s: str) -> None:
    """Own an ephemeral node. Print how the session ends, and own the node again in the next session."""
    async with open_sqlite_store(path, session_timeout_s=float(timeout_s)) as store:
        session = store.session
        await store.create(node, b"first", ephemeral=True)
        say("owns", session.session_id)
        while session.state is not SessionState.LOST:
            await session.wait_not(session.state)
        say("lost", session.session_id)
        while store.session is session:  # noqa: ASYNC110 (the next session is opened by the store)
            await trio.sleep(0.01)
        await store.create(node, b"second", ephemeral=True)
        say("owns", store.session.session_id)
        await trio.sleep_forever()


async def increment(path: str, times: str) -> None:
    """Add one to the node "sum" by compare-and-set, ``times`` times."""
    async with open_sqlite_store(path) as store:
        conflicts = 0
        for _ in range(int(times)):
            while True:
                node = await store.get("sum")
                assert node is not None
                try:
                    await store.set("sum", b"%d" % (int(node.value) + 1), version=node.version)
                    break
                except VersionConflict:
                    conflicts += 1
        say("done", conflicts)


async def fill(path: str) -> None:
    """Write while no file may grow, then while files may grow again. Print both outcomes."""
    async with open_sqlite_store(path) as store:
        await store.create("before", b"0")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        log_bytes = os.stat(f"{path}-wal").st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (log_bytes, hard))
        try:
            await store.create("during", bytes(100_000))
        except LedgerLogError as error:
            say(type(error).__name__)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        say("there" if await store.get("during") is not None else "absent")
        await store.create("after", b"0")
        say("after")


if __name__ == "__main__":
    trio.run({"move": move, "own": own, "increment": increment, "fill": fill}[sys.argv[1]], *sys.argv[2:])
