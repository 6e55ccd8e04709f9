"""``ledgerlog spark audit``: every copy of every ledger, checked by a job on Spark."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ledgerlog.cli.options import check_there, json_option, uri_option
from ledgerlog.cli.output import print_json, print_line, print_table
from ledgerlog.cli.spark_session import local_session
from ledgerlog.progress_bar import progress_bar
from ledgerlog.spark.session import LOCAL_MASTER

if TYPE_CHECKING:
    from ledgerlog.spark.audit_job import AuditRun
    from ledgerlog.spark.audit_repairs import MarkedForRepair

__all__ = ["spark_audit"]

_ROWS_SHOWN = 1000


@click.command("audit")
@click.option(
    "--mode",
    type=click.Choice(["index", "scrub"]),
    default="index",
    show_default=True,
    help="index: bookies answer from their index. scrub: they read and check every entry that they have.",
)
@click.option("--logs", help="Check only the ledgers of these logs, separated by commas.")
@click.option("--ledgers", help="Check only these ledgers, separated by commas.")
@click.option(
    "--bookie-share",
    help="The part of the time of each bookie that one task uses at most, from 0.01 to 1.  [default: 0.5]",
)
@click.option("--mark", is_flag=True, help="Make repair tasks for auto-recovery from the findings.")
@click.option("--master", default=LOCAL_MASTER, show_default=True, help="Where Spark runs.")
@uri_option
@json_option
def spark_audit(
    mode: str,
    logs: str | None,
    ledgers: str | None,
    bookie_share: str | None,
    mark: bool,
    master: str,
    uri: str,
    as_json: bool,
) -> None:
    """Check every copy of every ledger.

    Print copies that are missing, corrupt or different from others, lost ledgers, and logs and archived files
    that cannot be read.

    The exit status is 1 if the command found any, or if it could not check everything."""

    from ledgerlog.spark.options import parse_audit_options

    given = {"mode": mode}
    if logs is not None:
        given["logs"] = logs
    if ledgers is not None:
        given["ledgers"] = ledgers
    if bookie_share is not None:
        given["bookieShare"] = bookie_share
    # Report wrong options before Spark starts.
    parse_audit_options({"uri": uri, **given})
    check_there(uri)
    with ExitStack() as stack:
        spark = stack.enter_context(local_session("ledgerlog audit", master))
        from ledgerlog.spark.audit_job import audit

        started = time.monotonic()
        with progress_bar("checking", None) as bar:

            def on_progress(done: int, total: int) -> None:
                bar.resize(total)
                bar.move_to(done)

            result = stack.enter_context(audit(spark, uri, on_progress=on_progress, **given))
        took_s = time.monotonic() - started
        marked = result.mark() if mark and not result.is_clean else None
        if as_json:
            _print_json(result, marked, mode, took_s)
        else:
            _print_for_people(result, marked, took_s)
    if not result.is_clean:
        copies = sum(found.copies for found in result.found)
        others = sum(found.runs for found in result.found if not found.copies)
        said = [f"{copies:,} copies are missing or wrong"] if copies else []
        if others:
            said.append(f"{others:,} ledgers, logs or files are lost, damaged or could not be checked")
        raise click.ClickException("; ".join(said))


def _print_json(result: AuditRun, marked: MarkedForRepair | None, mode: str, took_s: float) -> None:
    for row in result.rows():
        print_json(row)
    summary: dict[str, Any] = {
        "mode": mode,
        "ledgers": result.ledgers,
        "checked": result.checked,
        "logs": result.logs,
        "files": result.files,
        "found": {found.kind: {"runs": found.runs, "copies": found.copies} for found in result.found},
        "seconds": round(took_s, 3),
    }
    if marked is not None:
        summary["marked"] = marked.ledgers
        summary["undecided"] = marked.undecided
    print_json(summary)


def _print_for_people(result: AuditRun, marked: MarkedForRepair | None, took_s: float) -> None:
    columns = ("ledger", "log", "bookie", "entries", "copies", "left", "what")
    rows = [
        (
            "-" if row["ledger_id"] is None else row["ledger_id"],
            row["log"] or "-",
            row["bookie"] or "-",
            "-" if row["first_entry"] is None else f"{row['first_entry']}..{row['last_entry']}",
            row["copies"],
            "-" if row["copies_left"] is None else f"{row['copies_left']} of {row['write_quorum']}",
            row["kind"] if row["why"] is None else f"{row['kind']}: {row['why']}",
        )
        for row in (() if result.is_clean else result.rows(_ROWS_SHOWN))
    ]
    if rows:
        print_table(columns, rows, numbers=("ledger", "copies"))
    runs = sum(found.runs for found in result.found)
    if runs > len(rows):
        print_line(f"... and {runs - len(rows):,} more; --json prints all")
    print_line(f"{result.checked:,} copies of {result.ledgers:,} ledgers checked in {took_s:.1f} s")
    print_line(f"{result.logs:,} logs and {result.files:,} archived files are sound")
    for found in result.found:
        what = f"{found.copies:,} copies in {found.runs:,} runs" if found.copies else f"{found.runs:,}"
        print_line(f"{found.kind}: {what}")
    if marked is not None:
        print_line(f"marked for repair: {marked.ledgers:,} ledgers ('ledgerlog repair status' shows them)")
        if marked.undecided:
            print_line(f"copies differ and need a person to decide: {marked.undecided:,} ledgers, not marked")
