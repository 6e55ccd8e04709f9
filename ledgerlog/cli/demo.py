"""``ledgerlog demo``: a log on a throw-away cluster of real processes, with faults, checked at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import click

from ledgerlog.cli.demo_driver import DemoFailed, DemoOutcome, Driver
from ledgerlog.cli.demo_text import numbered, text_lines
from ledgerlog.cli.local_cluster import local_cluster
from ledgerlog.cli.options import WholeNumber, json_option
from ledgerlog.cli.output import print_json, print_line, print_table
from ledgerlog.cli.running import run
from ledgerlog.errors import InvalidArgument
from ledgerlog.model.quorum import Replication
from ledgerlog.progress_bar import progress_bar

__all__ = ["demo", "throw_away_directory"]

RECORDS = 1_000_000
_LOG = "demo"
_REPLICATION = Replication(ensemble=3, write_quorum=3, ack_quorum=2)
_BOOKIES = 4
"""Three for an ensemble, and one to replace the killed bookie."""


@click.command()
@click.option("--records", type=WholeNumber(1, 999_999_999), help="How many records to send.")
@click.option(
    "--input",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text to send, one record per line.  [default: the source files of Python's standard library]",
)
@click.option(
    "--metadata",
    type=click.Choice(["sqlite", "zookeeper"]),
    default="sqlite",
    show_default=True,
    help="Where the cluster keeps its metadata.",
)
@json_option
def demo(records: int | None, path: Path | None, metadata: str, as_json: bool) -> None:
    """Send real text through a log while bookies and leaders fail, and check that nothing is lost.

    The command starts a temporary cluster: four bookie processes, one of them a spare, and two processes that
    contend for the lead. After a third of the records it kills a bookie (SIGKILL). After two thirds it stops
    the leader (SIGSTOP), and the other process takes over. Then it wakes the old leader, whose appends must
    be refused. At the end it reads everything back and compares it with the acknowledged records. Without
    --records it sends each line of --input once, or 1,000,000 records.

    Exit code 1 if a record was lost, duplicated, out of order or not acknowledged."""
    if records is None:
        records = RECORDS if path is None else sum(1 for _ in text_lines(path))
    if not records:
        raise InvalidArgument(f"{path} has no line")

    async def body() -> DemoOutcome:
        with throw_away_directory("demo") as directory, progress_bar("starting", records) as bar:
            zookeepers = 1 if metadata == "zookeeper" else 0
            async with local_cluster(directory, bookies=_BOOKIES, zookeepers=zookeepers) as local:
                log = await local.cluster.create_log(_LOG, replication=_REPLICATION)
                bar.describe("records acknowledged")
                driver = Driver(local, log, bar, records=records)
                return await driver.run(numbered(path, records))

    outcome = run(body)
    _print(outcome, as_json)
    if not outcome.is_clean:
        raise DemoFailed(
            f"of {outcome.records} records {outcome.acknowledged} were acknowledged; {outcome.lost} lost, "
            f"{outcome.duplicated} duplicated, {outcome.out_of_order} out of order, {outcome.foreign} foreign"
        )


def _print(outcome: DemoOutcome, as_json: bool) -> None:
    if as_json:
        fields = attrs.asdict(outcome)
        for name in ("takeover_ms", "failover_ms", "records_per_s"):
            fields[name] = round(fields[name], 1)
        print_json(fields)
        return
    rows = [
        ("records", f"{outcome.records:,}"),
        ("acknowledged", f"{outcome.acknowledged:,}"),
        ("  of these settled by reading the log", f"{outcome.settled_by_reading:,}"),
        ("lost", f"{outcome.lost:,}"),
        ("duplicated", f"{outcome.duplicated:,}"),
        ("out of order", f"{outcome.out_of_order:,}"),
        ("of the deposed leader, in the log", f"{outcome.foreign:,}"),
        ("bookies killed", f"{outcome.bookies_killed}"),
        ("leaders stopped and deposed", f"{outcome.leaders_killed}"),
        ("takeover", f"{outcome.takeover_ms:.0f} ms"),
        ("leader stopped to next acknowledgement", f"{outcome.failover_ms:.0f} ms"),
        ("records/s, faults included", f"{outcome.records_per_s:,.0f}"),
    ]
    print_table(("what", "how much"), rows, numbers=("how much",))
    print_line(f"the deposed leader was told: {outcome.refusal}")


@contextmanager
def throw_away_directory(what: str) -> Iterator[Path]:
    """Make a directory for the body and delete it afterwards."""
    path = Path(tempfile.mkdtemp(prefix=f"ledgerlog-{what}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
