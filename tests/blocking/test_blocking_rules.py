"""Rules of the hand-written part of ``ledgerlog.blocking``: how far a reader fetches, and what is held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio.testing

from ledgerlog import blocking
from ledgerlog.crossing import fetching
from ledgerlog.errors import ConnectionClosed
from tests.waiting import PATIENCE_S


@pytest.fixture
def cluster() -> Iterator[blocking.Cluster]:
    with blocking.connect("memory:") as made:
        yield made


def log_of_entries(cluster: blocking.Cluster) -> blocking.Log:
    """A log of six records, in entries of one, one and four."""
    log = cluster.create_log("log")
    with log.writer() as writer:
        writer.append(b"0")
        writer.append(b"1")
        writer.append_many([b"2", b"3", b"4", b"5"], atomic=True)
    return log


def test_both_ways_of_iterating_share_one_place(cluster: blocking.Cluster) -> None:
    with log_of_entries(cluster).read(start=1) as records:
        assert records.next_offset == 1
        assert [next(records).offset for _ in range(2)] == [1, 2]
        batches = records.batches()
        assert [record.data for record in next(batches)] == [b"3", b"4", b"5"]
        assert list(batches) == list(records) == []
        assert records.next_offset == 6


def test_fetching_ahead_has_a_bound(cluster: blocking.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of_entries(cluster)
    monkeypatch.setattr(fetching, "LOG_READ_AHEAD_BYTES", 1)
    with log.read() as records:
        for _ in range(3):
            cluster._portal.run(trio.testing.wait_all_tasks_blocked)
            assert len(records._inner.batches) == 1, "the next one waits until this one is taken"
            next(records)
        assert [record.offset for record in records] == [3, 4, 5]


def test_a_ledger_that_is_closed_is_held_no_more(cluster: blocking.Cluster) -> None:
    held = dict(cluster._portal._held)
    with cluster.ledgers.create() as writer:
        writer.append(b"a")
        assert cluster._portal._held != held
        assert writer.close(timeout_s=PATIENCE_S) == 0
        assert cluster._portal._held == held


def test_a_closed_cluster_gives_nothing_but_its_uri() -> None:
    with blocking.connect("memory:") as cluster:
        pass
    with pytest.raises(ConnectionClosed):
        _ = cluster.ledgers
    assert cluster.uri == "memory:"
    assert repr(cluster) == "<blocking cluster 'memory:'>"


def test_a_closed_cluster_is_not_entered_again() -> None:
    cluster = blocking.connect("memory:")
    with cluster:
        pass
    with pytest.raises(ConnectionClosed), cluster:
        pass


def test_a_ledger_keeps_its_metadata(cluster: blocking.Cluster) -> None:
    with cluster.ledgers.create(metadata={"made by": b"a test"}) as writer:
        assert dict(cluster.ledgers.metadata(writer.ledger_id).custom) == {"made by": b"a test"}


def test_who_follows_a_ledger_waits_for_more(cluster: blocking.Cluster) -> None:
    with cluster.ledgers.create() as writer:
        writer.append(b"a")
        entries = cluster.ledgers.open(writer.ledger_id).follow()
        assert next(entries) == (0, b"a")
        writer.append(b"b")
        assert next(entries) == (1, b"b")
        writer.close()
        assert list(entries) == []
