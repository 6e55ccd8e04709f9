"""The Python of docs/SPARK.md and docs/ARCHIVE.md runs unchanged, in order, on the shared session.

Only the address of the cluster and the directories are replaced, because a page cannot know them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

import ledgerlog
from ledgerlog.archive.jobs.job import retire_gone
from ledgerlog.archive.table import CATALOG_FILE
from tests.integration.pages import compiled, run_block
from tests.spark.conftest import SparkOnLogs
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

VALUES = [b'{"id": 1, "amount": 2.5}', b'{"id": 2, "amount": 4}', b"not JSON"]


def test_the_page_on_spark_runs_in_order(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, cluster = on_spark.uri, on_spark.cluster
    cluster.create_log("orders")
    copy = cluster.create_log("orders-copy")
    cluster.create_log(log_name)
    for name in ("orders", log_name):
        with cluster.open_log(name).writer() as writer:
            writer.append_many(VALUES[:2])
            writer.roll()
            writer.append(VALUES[2])
    names: dict[str, Any] = {"uri": uri}

    run_block("docs/SPARK.md", 0, names, **{"metadata.sqlite": uri})
    assert "|    3|" in capsys.readouterr().out, "the records of the only epoch"

    run_block("docs/SPARK.md", 1, names)
    assert re.findall(r"\| *(\w+)\| *([\w.]+)\|$", capsys.readouterr().out, re.MULTILINE) == [
        ("id", "amount"),
        ("1", "2.5"),
        ("2", "4.0"),
        ("NULL", "NULL"),
    ]

    names["lines"] = on_spark.read_stream(startingOffsets="earliest").load(log_name)
    run_block("docs/SPARK.md", 2, names, copy=str(tmp_path / "checkpoint"))
    names["query"].processAllAvailable()
    names["query"].stop()
    assert names["query"].exception() is None
    with copy.read() as records:
        assert sorted(record.data for record in records) == sorted(VALUES * 2)

    run_block("docs/SPARK.md", 3, names)
    assert re.search(r"^\| +\d+\| +3\|$", capsys.readouterr().out, re.MULTILINE)
    run_block("docs/SPARK.md", 4, names)
    assert re.search(r"^\| +7\|$", capsys.readouterr().out, re.MULTILINE)

    run_block("docs/SPARK.md", 5, names)
    assert re.findall(r"^\| *(kind|log) *\|", capsys.readouterr().out, re.MULTILINE) == ["kind", "log"]

    run_block("docs/SPARK.md", 6, names)

    run_block("docs/SPARK.md", 7, names, archive=str(tmp_path / "archive"))
    assert [step.what for step in names["steps"]] == ["copied"] * 2
    with cluster.open_log("orders").read() as records:
        assert [record.data for record in records] == VALUES
    for name in ("orders", "orders-copy"):
        cluster.delete_log(name)


async def test_the_page_on_archives_runs(on_spark: SparkOnLogs, log_name: str, tmp_path: Path) -> None:
    async with ledgerlog.connect(on_spark.uri) as cluster:
        log = await cluster.create_log("orders")
        async with log.writer() as writer:
            await writer.append(log_name.encode())
        names: dict[str, Any] = {"ledgerlog": ledgerlog, "uri": on_spark.uri}
        with trio.fail_after(PATIENCE_S):
            await eval(compiled("docs/ARCHIVE.md", 0, archive=str(tmp_path / "archive")), names)
        assert [step.what for step in names["steps"]] == ["copied", "published"]
        run_block(
            "docs/ARCHIVE.md", 1, names, **{CATALOG_FILE: f"sqlite:///{tmp_path}/archive/{CATALOG_FILE}"}
        )
        assert names["table"].scan().to_arrow().column("value").to_pylist() == [log_name.encode()]
        names["catalog"].close()
        await cluster.delete_log("orders")
        await retire_gone(cluster.client, str(tmp_path / "archive"))  # The other tests share the cluster.
