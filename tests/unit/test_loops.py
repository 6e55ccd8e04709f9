"""In the wrong event loop ``connect`` and ``ledgerlog.blocking`` raise an error, and do nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import ledgerlog
from ledgerlog import blocking
from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.zookeeper.store import open_zookeeper_store


def uris(path: Path) -> list[str]:
    return ["memory:", f"file:{path}/f", f"sqlite:{path}/s", "zk://127.0.0.1:1/x"]


def portal_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "ledgerlog-blocking"}


def in_asyncio(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``asyncio.run`` in a thread of its own, so other tests do not find its leftovers in this thread."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("number", range(4), ids=["memory", "file", "sqlite", "zk"])
def test_connect_in_an_asyncio_loop_says_what_to_use_and_touches_nothing(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match=r"asyncio loop.*use ledgerlog\.aio"):
            async with ledgerlog.connect(uris(tmp_path)[number]):
                pass

    in_asyncio(main)
    assert list(tmp_path.iterdir()) == []


def test_connect_in_no_loop_says_what_to_use() -> None:
    entering = ledgerlog.connect("memory:").__aenter__()
    with pytest.raises(InvalidArgument, match=r"trio\.run.*ledgerlog\.blocking"):
        entering.send(None)


def test_a_store_that_cannot_be_begun_says_why_itself() -> None:
    """Outside of trio the store's link cannot be made, so there is no link to close."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="async context"):
            async with open_zookeeper_store("127.0.0.1:1"):
                pass

    in_asyncio(main)


def test_blocking_calls_in_an_asyncio_loop_are_refused_and_work_from_a_thread() -> None:
    """This is like a notebook, where a loop runs in the thread of each cell."""

    async def main() -> None:
        with pytest.raises(InvalidArgument, match=r"notebook.*asyncio\.to_thread"):
            blocking.connect("memory:")
        cluster = await asyncio.to_thread(blocking.connect, "memory:")
        refused: list[Callable[[], object]] = [
            lambda: cluster.create_log("log"),
            cluster.logs,
            lambda: cluster.ledgers,
        ]
        log = await asyncio.to_thread(cluster.create_log, "log")
        refused += [log.info, lambda: log.writer().__enter__(), lambda: log.read().__enter__()]
        for call in refused:
            with pytest.raises(InvalidArgument, match=r"asyncio\.to_thread"):
                call()
        assert await asyncio.to_thread(cluster.logs) == ["log"]
        with pytest.raises(InvalidArgument, match=r"asyncio\.to_thread"):
            cluster.close()
        assert await asyncio.to_thread(log.properties) == {}, "nothing was closed"
        await asyncio.to_thread(cluster.close)

    there_before = portal_threads()  # For example, of a cluster that the tests of this worker share.
    in_asyncio(main)
    assert portal_threads() == there_before
