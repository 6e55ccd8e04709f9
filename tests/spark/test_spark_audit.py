"""``spark.read.format("ledgeraudit")`` and ``ledgerlog spark audit`` on real bookies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio
from click.testing import CliRunner

from ledgerlog.blocking.portal import Portal
from ledgerlog.cli import spark_audit
from ledgerlog.cli.main import cli
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.spark.audit import DECLARED
from ledgerlog.spark.audit_repairs import mark_for_repair
from ledgerlog.spark.connection import connected
from tests.spark.conftest import SparkOnLogs
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes


@attrs.frozen
class Hole:
    """A ledger that names a bookie with none of its entries."""

    ledger_id: int
    bookie: str
    entries: int


@contextmanager
def client_of(uri: str) -> Iterator[tuple[Portal, LedgerClient]]:
    with Portal() as portal:
        client, _ = portal.enter(connected(uri))
        yield portal, client


async def hollow(client: LedgerClient, entries: int = 50) -> Hole:
    """Replace one bookie of the ensemble by another, and copy nothing to it."""
    async with await client.ledgers.create(replication=Replication(2, 2, 2)) as writer:
        await writer.append_many([b"entry %d" % number for number in range(entries)])
    metadata, version = await LedgerRegistry(client.store, client.environment).read(writer.ledger_id)
    ensemble = metadata.fragments[0].ensemble
    spare = sorted((await RepairQueue(client).registered()).keys() - set(ensemble))[0]
    changed = metadata.with_replacement(0, ensemble[0], spare, b"t" * 16)
    await client.store.set(ledger_path(writer.ledger_id), changed.encode(), version=version)
    return Hole(writer.ledger_id, spare, entries)


async def mend(client: LedgerClient, ledger_id: int) -> None:
    """Run auto-recovery until the ledger's task is done."""
    queue = RepairQueue(client)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(AutoRecovery(client, name="repair of a test").run)
            while ledger_id in await queue.tasks():  # noqa: ASYNC110 (the store says when)
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()


def audit_table(on_spark: SparkOnLogs, **options: Any) -> Any:
    return (
        on_spark.spark.read.format("ledgeraudit").options(uri=on_spark.uri, settleSeconds=0, **options).load()
    )


def test_a_hole_is_a_row_until_it_is_marked_and_mended(on_spark: SparkOnLogs, log_name: str) -> None:
    with on_spark.cluster.create_log(log_name).writer() as writer:
        writer.append_many([b"record %d" % number for number in range(100)])
        writer.roll()
    with client_of(on_spark.uri) as (portal, client):
        hole = portal.run(lambda: hollow(client))
        for mode in ("index", "scrub"):
            table = audit_table(on_spark, mode=mode, ledgers=hole.ledger_id)
            assert table.schema.names == [column.split(" ")[0] for column in DECLARED.split(", ")]
            assert [row.asDict() for row in table.collect()] == [
                {
                    "log": None,
                    "ledger_id": hole.ledger_id,
                    "bookie": hole.bookie,
                    "first_entry": 0,
                    "last_entry": hole.entries - 1,
                    "copies": hole.entries,
                    "copies_left": 1,
                    "write_quorum": 2,
                    "kind": "missing",
                    "file": None,
                    "why": None,
                }
            ]
            assert audit_table(on_spark, mode=mode, logs=log_name).count() == 0
        everything = audit_table(on_spark, summary="true", replicasPerPartition=50, minPartitions=3)
        assert everything.rdd.getNumPartitions() >= 3
        kinds = {
            row.kind: row.copies
            for row in everything.groupBy("kind").sum("copies").toDF("kind", "copies").collect()
        }
        assert kinds["missing"] == hole.entries
        assert kinds["checked"] >= 2 * hole.entries
        marked = mark_for_repair(table, on_spark.uri)
        assert (marked.ledgers, marked.changed, marked.undecided) == (1, 1, 0)
        portal.run(lambda: mend(client, hole.ledger_id))
        assert audit_table(on_spark, ledgers=hole.ledger_id).collect() == []
        assert audit_table(on_spark).select("kind").collect() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mod": "scrub"}, "did you mean mode"),
        ({"ledgers": "123456789"}, "123456789"),
        ({"logs": "nobody"}, "nobody"),
    ],
)
def test_what_is_wrong_is_said(on_spark: SparkOnLogs, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        audit_table(on_spark, **options).count()


Command = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def command(on_spark: SparkOnLogs, monkeypatch: pytest.MonkeyPatch) -> Command:
    """``ledgerlog spark audit`` in the shared session: the exit status, the lines, and the complaint."""

    @contextmanager
    def shared_session(app_name: str, master: str) -> Iterator[Any]:
        yield on_spark.spark

    monkeypatch.setattr(spark_audit, "local_session", shared_session)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        result = CliRunner().invoke(cli, ["spark", "audit", "--uri", on_spark.uri, *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout.splitlines(), result.stderr

    return run


async def absurd(client: LedgerClient, entries: int = 10) -> int:
    """Make a ledger whose metadata say that it ends at the highest entry that there can be."""
    async with await client.ledgers.create(replication=Replication(3, 3, 3)) as writer:
        await writer.append_many([b"entry"] * entries)
    metadata, version = await LedgerRegistry(client.store, client.environment).read(writer.ledger_id)
    changed = attrs.evolve(metadata, last_entry=ENTRY_ID_MAX)
    await client.store.set(ledger_path(writer.ledger_id), changed.encode(), version=version)
    return writer.ledger_id


def test_the_command_counts_the_copies_of_absurd_ledgers(on_spark: SparkOnLogs, command: Command) -> None:
    """There are more copies than a LONG can count."""
    with client_of(on_spark.uri) as (portal, client):
        ledgers = [portal.run(lambda: absurd(client)) for _ in range(2)]
        try:
            code, lines, complaint = command("--json", "--ledgers", ",".join(map(str, ledgers)))
        finally:
            for ledger_id in ledgers:
                portal.run(lambda gone=ledger_id: client.ledgers.delete(gone))
    assert code == 1, complaint
    *rows, summary = map(json.loads, lines)
    assert sorted((row["ledger_id"], row["first_entry"], row["last_entry"]) for row in rows) == [
        (ledger_id, 10, ENTRY_ID_MAX) for ledger_id in ledgers for _ in range(3)
    ]
    lacking = 6 * (ENTRY_ID_MAX - 9)
    assert summary["found"] == {"missing": {"runs": 6, "copies": lacking}}
    assert summary["checked"] == 6 * (ENTRY_ID_MAX + 1)
    assert f"{lacking:,} copies are missing or wrong" in complaint


def test_the_command_lists_marks_and_says_by_its_exit_status(on_spark: SparkOnLogs, command: Command) -> None:
    with client_of(on_spark.uri) as (portal, client):
        hole = portal.run(lambda: hollow(client))
        chosen = ("--ledgers", str(hole.ledger_id))
        code, lines, complaint = command(*chosen)
        assert code == 1
        assert f"{hole.entries} copies are missing or wrong" in complaint
        assert f"0..{hole.entries - 1}" in lines[1]
        assert f"missing: {hole.entries} copies in 1 runs" in lines
        assert portal.run(lambda: RepairQueue(client).tasks()) == []
        code, lines, _ = command(*chosen, "--mark", "--json", "--mode", "scrub")
        assert code == 1
        row, summary = map(json.loads, lines)
        assert (row["ledger_id"], row["kind"], row["copies_left"]) == (hole.ledger_id, "missing", 1)
        assert summary.pop("seconds") > 0
        assert summary == {
            "mode": "scrub",
            "ledgers": 1,
            "checked": 2 * hole.entries,
            "logs": 0,
            "files": 0,
            "found": {"missing": {"runs": 1, "copies": hole.entries}},
            "marked": 1,
            "undecided": 0,
        }
        portal.run(lambda: mend(client, hole.ledger_id))
        code, lines, complaint = command("--json")
        assert (code, len(lines), complaint) == (0, 1, "")
        assert json.loads(lines[0])["found"] == {}
        code, _, complaint = command("--ledgers", "123456789")
        assert (code, complaint) == (1, "ledgerlog: ledger 123456789 does not exist\n")


@pytest.mark.soak
def test_the_command_starts_a_session_of_its_own(on_spark: SparkOnLogs) -> None:
    arguments = [sys.executable, "-m", "ledgerlog", "spark", "audit", "--uri", on_spark.uri, "--json"]
    ran = subprocess.run(
        [*arguments, "--master", "local[1]"], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["found"] == {}
    ran = subprocess.run(
        [*arguments, "--logs", "nobody"], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 1
    complaint = ran.stderr.splitlines()[-1]  # Java and Spark print their own lines first.
    assert complaint.startswith("ledgerlog: ")
    assert "nobody" in complaint
