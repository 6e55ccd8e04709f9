"""If tasks find another cluster than the one that planned their job, they draw no conclusions from it."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
import trio
from pyspark.sql.types import BinaryType, LongType, StructType

import ledgerlog
from ledgerlog.errors import WrongCluster
from ledgerlog.log.core.attach import Staged
from ledgerlog.meta.uri import make_cluster_at, parse_uri
from ledgerlog.spark.audit import audit_schema, read_audit
from ledgerlog.spark.audit_plan import AuditPart, plan_audit
from ledgerlog.spark.columns import arrow_schema
from ledgerlog.spark.options import parse_audit_options, parse_read_options, parse_write_options
from ledgerlog.spark.planning import plan_table
from ledgerlog.spark.scanning import ScanPart
from ledgerlog.spark.sink import BatchOf, LogTableWriter, StagedPart, StagedRows
from ledgerlog.spark.source import read_part

Parts = tuple[ScanPart, AuditPart]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """Plan in one cluster, with a URI that leads to another one."""
    uri = f"sqlite:{os.path.join(tmp_path, 'metadata.sqlite')}"

    async def plan() -> Parts:
        await make_cluster_at(parse_uri(uri))
        async with ledgerlog.connect("memory:") as cluster:
            log = await cluster.create_log("orders")
            async with log.writer() as writer:
                await writer.append(b"acknowledged")
            reading = parse_read_options(
                {"uri": uri, "log": "orders", "failOnDataLoss": "false"}, is_stream=False
            )
            (read,) = await plan_table(cluster.client, reading)
            audited, *_ = await plan_audit(cluster.client, parse_audit_options({"uri": uri}))
            return attrs.evolve(read, bookies={}), audited

    return trio.run(plan)


def test_a_read_leaves_nothing_out_as_deleted(parts: Parts) -> None:
    with pytest.raises(WrongCluster):
        list(read_part(parts[0], arrow_schema(StructType().add("value", BinaryType()))))


def test_a_commit_does_not_look_for_staged_ledgers_there(parts: Parts) -> None:
    """The other cluster gives the ids of the staged ledgers to other ledgers."""
    options = parse_write_options({"uri": parts[0].uri, "log": "orders"}, is_stream=False)
    writer = LogTableWriter(options)
    staged = StagedRows(
        parts[0].cluster, BatchOf("query", "run", 0), {"orders": StagedPart(0, Staged(0, 1, 1, 0))}
    )
    with pytest.raises(WrongCluster):
        writer.commit([staged])


def test_an_audit_gives_no_verdict(parts: Parts) -> None:
    with pytest.raises(WrongCluster):
        list(read_audit(parts[1], audit_schema(StructType().add("ledger_id", LongType()))))
