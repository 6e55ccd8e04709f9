"""The metrics of a cluster, read as Prometheus reads them."""

from __future__ import annotations

import itertools

import prometheus_client
import prometheus_client.openmetrics.parser
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from bookie.server.metrics import bookie_measurements
from bookie.server.shared import REFUSED
from ledgerlog import blocking
from ledgerlog.cluster import Cluster
from ledgerlog.counts import Histogram
from ledgerlog.metrics.families import (
    BOOKIE_FIGURES,
    CLIENT_TAKEOVER_SECONDS,
    FAMILIES,
    INFO_SUMS,
    Measurement,
)
from ledgerlog.metrics.prometheus import ClusterCollector, expose
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.metrics import repair_measurements
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing.memory_cluster import Bookie, Client, eventually, open_cluster

R322 = Replication(3, 2, 2)
Read = dict[tuple[str, str], float]


def values(text: str) -> Read:
    """The samples by name and by the values of their labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family
        for sample in family.samples:
            found[sample.name, " ".join(sample.labels.values())] = sample.value
    return found


def of_bookie(bookie: Bookie) -> Read:
    return values(expose(bookie_measurements(bookie.node), "")[0].decode())


def of_client(client: Client) -> Read:
    registry = prometheus_client.CollectorRegistry()
    registry.register(ClusterCollector(Cluster("memory:", client.opened)))
    return values(prometheus_client.generate_latest(registry).decode())


async def test_a_bookie_tells_what_it_has_stored_and_how_long_its_syncs_took(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 3))
        await writer.append_many([b"x" * 100] * 5)
        found = of_bookie(cluster.bookies["b1"])
        assert found["ledgerlog_bookie_entries_added_total", ""] == 5
        assert found["ledgerlog_bookie_registered", ""] == 1
        syncs = found["ledgerlog_bookie_syncs_total", ""]
        assert found["ledgerlog_bookie_sync_seconds_count", ""] == syncs > 0
        assert found["ledgerlog_bookie_sync_seconds_bucket", "+Inf"] == syncs
        assert found["ledgerlog_bookie_connections", ""] == 1


async def test_every_figure_that_a_bookie_tells_is_a_metric(clock: MockClock) -> None:
    async with open_cluster(1) as cluster:
        figures = cluster.bookies["b1"].node.server.figures()
        assert {name for name in figures if not name.startswith(REFUSED)} == {*BOOKIE_FIGURES, *INFO_SUMS}


async def test_refused_adds_are_counted_by_their_reason(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R322)
        await writer.append(b"one")
        (full, *_) = cluster.bookies_of(writer.metadata.last_fragment.ensemble)
        full.set_read_only(True)
        await writer.append_many([b"x"] * 4)
        await eventually(lambda: full.bookie_id not in writer.metadata.last_fragment.ensemble)
        assert of_bookie(full)["ledgerlog_bookie_refused_total", "read_only"] > 0
        assert of_bookie(full)["ledgerlog_bookie_read_only", ""] == 1
        found = of_client(client)
        assert found["ledgerlog_client_ensemble_changes_total", ""] == 1
        assert found["ledgerlog_client_bookies_failed_total", ""] == 1
        assert found["ledgerlog_client_bookie_adds_refused_total", full.bookie_id] > 0


async def test_a_client_tells_of_its_appends_takeovers_and_of_the_logs_that_it_leads(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        log = await Cluster("memory:", client.opened).create_log("orders", replication=R322)
        async with log.writer(producer="p"):
            pass
        async with log.writer(window=100) as writer:
            await writer.append_many([b"record"] * 10)
            found = of_client(client)
            assert found["ledgerlog_client_append_seconds_count", ""] >= 1
            assert found["ledgerlog_log_next_offset", "orders"] == 10
            assert found["ledgerlog_log_epoch", "orders"] == 2
            assert found["ledgerlog_log_window_records", "orders"] == 100
            for part in ("read", "create", "write", "producers", "all"):
                assert found["ledgerlog_client_takeover_seconds_count", part] >= 1, part
            assert found["ledgerlog_client_takeover_seconds_count", "all"] == 2
        after = of_client(client)
        assert not [name for name, _ in after if name.startswith("ledgerlog_log_")]
        for read in (found, after):
            assert read["ledgerlog_client_records_appended_total", ""] == 10
            assert read["ledgerlog_client_entries_appended_total", ""] >= 1
            assert read["ledgerlog_client_leaderships_lost_total", ""] == 0


async def test_a_leadership_that_another_writer_ends_is_counted_as_lost_and_its_takeover_as_none(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, cluster.client() as rival:
        log = await Cluster("memory:", client.opened).create_log("orders", replication=R322)
        other = await Cluster("memory:", rival.opened).open_log("orders")
        async with log.writer() as writer, other.writer():
            await writer.wait_over()
        found = of_client(client)
        assert found["ledgerlog_client_leaderships_lost_total", ""] == 1
        assert found["ledgerlog_client_takeover_seconds_count", "all"] == 1
        found = of_client(rival)
        assert found["ledgerlog_client_recovery_seconds_count", ""] == 1
        assert found["ledgerlog_client_takeover_seconds_count", "recover"] == 1


async def test_a_process_tells_where_it_has_moved_cursors_and_forgets_deleted_ones(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        log = await Cluster("memory:", client.opened).create_log("orders", replication=R322)
        async with log.writer() as writer:
            await writer.append_many([b"record"] * 10)
        await log.cursor("billing").set(3)
        await log.cursor("billing").set(7)
        await log.cursor("reports").set(1)
        found = of_client(client)
        assert found["ledgerlog_client_cursor_offset", "billing orders"] == 7
        assert found["ledgerlog_client_cursor_offset", "reports orders"] == 1
        await log.cursor("billing").delete()
        assert ("ledgerlog_client_cursor_offset", "billing orders") not in of_client(client)


async def test_records_whose_outcome_nobody_can_find_out_are_counted(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client(append_deadline_s=2.0) as client:
        log = await Cluster("memory:", client.opened).create_log("orders", replication=R322)
        async with log.writer() as writer:
            submission = await writer.submit(b"first")
            await submission.wait()
            client.store.is_hanging = True
            for bookie in cluster.bookies.values():
                await bookie.kill()
            await writer.submit(b"second")
            await writer.submit(b"third")
            await writer.wait_over()
            unknown = of_client(client)["ledgerlog_client_unknown_records_total", ""]
            client.store.is_hanging = False
    assert unknown == 2


async def test_lost_sessions_and_lost_contact_are_counted(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        assert of_client(client)["ledgerlog_metadata_connected", ""] == 1
        client.store.disconnect()
        await eventually(lambda: of_client(client)["ledgerlog_metadata_connected", ""] == 0)
        client.store.reconnect()
        await eventually(lambda: of_client(client)["ledgerlog_metadata_connected", ""] == 1)
        assert of_client(client)["ledgerlog_metadata_suspensions_total", ""] == 1
        assert of_client(client)["ledgerlog_metadata_sessions_lost_total", ""] == 0
        client.store.inner.expire_session()
        await eventually(lambda: of_client(client)["ledgerlog_metadata_sessions_lost_total", ""] == 1)
        await eventually(lambda: of_client(client)["ledgerlog_metadata_connected", ""] == 1)


async def test_a_bookie_that_lost_its_session_says_so_until_it_is_registered_again(clock: MockClock) -> None:
    async with open_cluster(1) as cluster:
        bookie = cluster.bookies["b1"]
        bookie.store.disconnect()
        await eventually(lambda: of_bookie(bookie)["ledgerlog_bookie_registered", ""] == 0)
        bookie.store.inner.expire_session()
        bookie.store.reconnect()
        await eventually(lambda: of_bookie(bookie)["ledgerlog_bookie_registered", ""] == 1)


async def test_repair_tells_what_is_lost_and_what_it_has_copied(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R322)
        await writer.append_many([b"x"] * 10)
        await writer.close()
        service = AutoRecovery(client.opened, name="here")

        def read() -> Read:
            return values(expose(repair_measurements(service), "")[0].decode())

        client.opened.nursery.start_soon(service.run)
        await eventually(lambda: read()["ledgerlog_repair_auditor", ""] == 1)
        await cluster.bookies_of(writer.metadata.last_fragment.ensemble)[0].kill()
        await eventually(lambda: read()["ledgerlog_repair_absent_bookies", ""] == 1)
        await eventually(lambda: read()["ledgerlog_repair_under_replicated_ledgers", ""] == 1)
        await eventually(lambda: read()["ledgerlog_repair_ledgers_repaired_total", ""] >= 1)
        assert read()["ledgerlog_repair_entries_copied_total", ""] > 0
        assert read()["ledgerlog_repair_copied_bytes_total", ""] > 0


async def test_no_metric_is_read_twice_and_each_is_in_the_table(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        log = await Cluster("memory:", client.opened).create_log("orders", replication=R322)
        async with log.writer() as writer:
            await writer.append(b"x")
            found = [
                (each.name, *each.labels.values()) for each in Cluster("memory:", client.opened).metrics()
            ]
        assert len(found) == len(set(found))
        names = {family.name for family in FAMILIES}
        for name, *_ in found:
            assert name in names or name.rpartition("_")[0] in names


def test_a_collector_of_a_closed_cluster_leaves_the_other_metrics_of_its_registry() -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("orders", "Orders.", registry=registry).inc()
    with blocking.connect("memory:?bookies=1") as cluster:
        registry.register(ClusterCollector(cluster))
        assert "ledgerlog_metadata_connected 1.0" in prometheus_client.generate_latest(registry).decode()
    found = prometheus_client.generate_latest(registry).decode()
    assert "orders_total 1.0" in found
    assert "ledgerlog" not in found


async def test_a_client_that_asks_for_openmetrics_gets_it(clock: MockClock) -> None:
    async with open_cluster(1) as cluster:
        measured = list(bookie_measurements(cluster.bookies["b1"].node))
        text, kind = expose(measured, "application/openmetrics-text;version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith(b"# EOF\n")
        for accepts in ("", "text/plain;version=abc", "application/openmetrics-text;version=abc"):
            assert expose(measured, accepts)[1].startswith("text/plain")


def test_the_samples_of_one_histogram_stand_together_as_openmetrics_requires() -> None:
    found = [Measurement(CLIENT_TAKEOVER_SECONDS, Histogram(), (part,)) for part in ("write", "read")]
    text = expose(found, "application/openmetrics-text;version=1.0.0")[0].decode()
    parts = [line.split('part="')[1].split('"')[0] for line in text.splitlines() if "part=" in line]
    assert [part for part, _ in itertools.groupby(parts)] == ["write", "read"]
    (metric,) = prometheus_client.openmetrics.parser.text_string_to_metric_families(text)
    assert len(metric.samples) == len(parts)
