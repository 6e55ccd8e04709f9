"""Damage in the metadata file ends the call that meets it. The client goes on serving all other calls."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ledgerlog import connect
from ledgerlog.errors import StorageCorrupt
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.layout import writable_path
from ledgerlog.model.ledger import MetadataCorrupt
from tests.waiting import PATIENCE_S


class Told(logging.Handler):
    """Fires when the client has logged that its view of the bookies is out of date."""

    def __init__(self) -> None:
        super().__init__()
        self.event = trio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the view of the bookies is not kept up" in record.getMessage():
            self.event.set()


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    logger = logging.getLogger("ledgerlog.ledger.bookies")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_damaged_registration_does_not_end_the_client(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "metadata"
    registration = writable_path("b1")
    async with connect(f"sqlite:{path}", create=True) as cluster:
        await cluster.store.create(registration, BookieInfo("b1", "127.0.0.1:1", "i").encode())
        while not cluster.bookies.writable():
            await cluster.bookies.wait_change()
        with sqlite3.connect(path) as file:
            file.execute("UPDATE nodes SET checksum = checksum + 1 WHERE path = ?", (registration,))
            file.execute("INSERT INTO changes (path) VALUES (?)", (registration,))
        file.close()
        with trio.fail_after(PATIENCE_S):
            await told.event.wait()
        assert [info.bookie_id for info in cluster.bookies.writable()] == ["b1"], "it stays as it was"
        with pytest.raises(StorageCorrupt):
            await cluster.store.get(registration)


async def test_a_list_of_ledgers_with_a_node_that_is_none_says_which(tmp_path: Path) -> None:
    async with connect(f"sqlite:{tmp_path / 'metadata'}", create=True) as cluster:
        await cluster.store.create("ledgers/00000000/0000/notes", b"")
        with pytest.raises(MetadataCorrupt, match="ledgers/00000000/0000/notes"):
            await cluster.ledgers.list()
