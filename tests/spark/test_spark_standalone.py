"""Source, sink, archive and audit on a Spark cluster. Packages are sent as docs/SPARK.md says.

The archive is on S3. The executors have the credentials in their environment.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pyiceberg.catalog.sql import SqlCatalog

import ledgerlog
from tests.archive.s3_server import REGION, S3Server, s3_server
from tests.integration.running_cluster import running_cluster
from tests.spark.conftest import EVERY_COPY
from tests.spark.shipping import prepare, submitting_block
from tests.spark.standalone import standalone_cluster
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

LEDGERS, EACH = 3, 40
JOB = textwrap.dedent(
    """
    import json
    from pyspark.sql import SparkSession
    import ledgerlog
    from ledgerlog.archive.jobs.publishing import TableOptions
    from ledgerlog.spark.archive import archive_on_spark
    from ledgerlog.spark.audit_job import audit

    spark = SparkSession.builder.getOrCreate()
    imported = spark.sparkContext.parallelize(range(8), 8).map(lambda _: ledgerlog.__file__)
    table = spark.read.format("ledgerlog").options(uri={uri!r}, minPartitions=4).load("lines")
    read = table.selectExpr("count(*)", "count(DISTINCT offset)", "min(offset)", "max(offset)").collect()[0]
    stream = spark.readStream.format("ledgerlog").options(uri={uri!r}, minPartitions=4)
    rows = stream.option("startingOffsets", "earliest").load("lines").select("value")
    query = rows.writeStream.format("ledgerlog").trigger(availableNow=True)
    query = query.options(uri={uri!r}, checkpointLocation={checkpoint!r}).start("copy")
    query.awaitTermination()
    steps = archive_on_spark(
        spark, {uri!r}, "lines", {archive!r}, keep_copies_s=0, table=TableOptions(catalog="company")
    )
    again = spark.read.format("ledgerlog").options(uri={uri!r}).load("lines")
    with audit(spark, {uri!r}, mode="scrub") as found:
        audited = {{"faults": list(found.rows()), "logs": found.logs, "files": found.files}}
    said = {{
        "imported": sorted(set(imported.collect())),
        "read": list(read),
        "steps": sorted(step.what for step in steps),
        "from files": again.where("offset < 80").count(),
        "audited": audited,
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }}
    print("said", json.dumps(said))
    spark.stop()
    """
)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server. Its credentials are in the environment, which all processes inherit."""
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize(
    "whole",
    [False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["our package sent", "all packages sent"],
)
async def test_source_sink_archive_and_audit_run_on_a_cluster_with_packages_sent_as_the_page_says(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    catalog_uri = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    configuration = f"catalog:\n  company:\n    type: sql\n    uri: {catalog_uri}\n"
    (stage / ".pyiceberg.yaml").write_text(configuration)
    monkeypatch.setenv("PYICEBERG_HOME", str(stage))
    async with (
        running_cluster(tmp_path / "cluster", "--bookies", "3") as running,
        standalone_cluster(tmp_path / "spark", brings_pyspark=True) as spark,
        ledgerlog.connect(running.uri) as cluster,
    ):
        values = [b"line %d" % at for at in range(LEDGERS * EACH)]
        lines = await cluster.create_log("lines", replication=EVERY_COPY)
        copy = await cluster.create_log("copy", replication=EVERY_COPY)
        async with lines.writer() as writer:
            for first in range(0, len(values), EACH):
                if first:
                    await writer.roll()
                await writer.append_many(values[first : first + EACH])
        archive, checkpoint = f"s3://{s3.new_bucket()}/archive", str(tmp_path / "checkpoint")
        (stage / "job.py").write_text(JOB.format(uri=running.uri, archive=archive, checkpoint=checkpoint))
        code = submitting_block().code
        assert "spark://MASTER:7077" in code
        code = code.replace("spark://MASTER:7077", spark.master)
        environment = spark.environment | prepare(stage, whole=whole)
        environment["PATH"] += f":{spark.environment['PATH']}"
        with trio.fail_after(3 * PATIENCE_S):
            ran = await trio.run_process(
                ["bash", "-eu", "-c", code],
                cwd=stage,
                env=environment,
                check=False,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
            )
        assert ran.returncode == 0, ran.stdout.decode()
        (line,) = [line for line in ran.stdout.decode().splitlines() if line.startswith("said ")]
        said = json.loads(line.removeprefix("said "))
        places = {
            place.partition("/environment/")[0].rpartition("/spark/")[2] for place in said.pop("imported")
        }
        assert {place.split("/")[0] for place in places} == {"work-2", "work-3"}, "each executor its own copy"
        assert said == {
            "read": [len(values), len(values), 0, len(values) - 1],
            "steps": ["copied"] * 3 + ["given up"] * 2 + ["published"],
            "from files": 80,
            "audited": {"faults": [], "logs": 2, "files": 3},
            "executors": 2,
        }
        assert sum(key.endswith(".parquet") for key in s3.keys(archive)) == LEDGERS
        for log in (lines, copy):
            async with log.read() as records:
                assert [record.data async for record in records] == values
    catalog = SqlCatalog("company", uri=catalog_uri, **{"s3.endpoint": s3.endpoint, "s3.region": REGION})
    rows = catalog.load_table("ledgerlog.lines").scan().to_arrow().sort_by("offset")
    catalog.close()
    assert rows["value"].to_pylist() == values
