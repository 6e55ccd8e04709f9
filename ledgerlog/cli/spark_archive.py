"""``ledgerlog spark archive`` and ``ledgerlog spark compact``: logs to Parquet, on Spark or without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import attrs
import click

from ledgerlog.archive.core.compaction import parse_key_rule
from ledgerlog.archive.jobs.job import archive_log, retire_gone
from ledgerlog.archive.jobs.publishing import TableOptions, has_default_catalog
from ledgerlog.archive.jobs.rewrite import compact_log, merge_log
from ledgerlog.cli.log_retention import parse_age, parse_bytes
from ledgerlog.cli.options import (
    check_there,
    connect,
    json_option,
    log_name_argument,
    needs,
    parsed,
    uri_option,
)
from ledgerlog.cli.output import human_bytes, print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.cli.spark_session import local_session
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ARCHIVE_KEEP_COPIES_S, ARCHIVE_MERGE_BYTES
from ledgerlog.meta.uri import FileUri, MemoryUri, parse_uri
from ledgerlog.progress_bar import progress_bar
from ledgerlog.spark.session import LOCAL_MASTER

if TYPE_CHECKING:
    from ledgerlog.archive.jobs.archiver import ArchiveStep

__all__ = ["report", "spark_archive", "spark_compact"]

_NO_SPARK = "none"

_master_option = click.option(
    "--master",
    default=LOCAL_MASTER,
    show_default=True,
    help="Where Spark runs. 'none': run in this process, without Spark.",
)
_to_option = click.option(
    "--destination",
    "--to",
    "destination",
    required=True,
    metavar="WHERE",
    help="The archive: a directory, or a URL that pyarrow supports (s3://bucket/prefix).",
)


_NO_TABLE = "none"


def _table_options(command: Any) -> Any:
    """Add the options about the table of the archive. The command gets them as one argument, ``table``."""

    @click.option(
        "--catalog",
        metavar="NAME",
        help="The Iceberg catalog of the archive's table, by its name in pyiceberg's configuration; 'none': "
        "no table. [default: an SQLite file in a local destination, and none otherwise]",
    )
    @click.option(
        "--namespace", default=TableOptions().namespace, show_default=True, help="The namespace of the table."
    )
    @click.option(
        "--new-table",
        is_flag=True,
        help="Make a new table if the present one is damaged, or if another program changed it.",
    )
    @wraps(command)
    def with_table(
        *, destination: str, catalog: str | None, namespace: str, new_table: bool, **others: Any
    ) -> Any:
        has_table = has_default_catalog(destination) if catalog is None else catalog != _NO_TABLE
        if new_table and not has_table:
            raise click.UsageError("--new-table: name a catalog")
        table = TableOptions(catalog=catalog, namespace=namespace, is_anew=new_table) if has_table else None
        return command(destination=destination, table=table, **others)

    return with_table


def _check_master(uri: str, master: str) -> None:
    """Raise UsageError if tasks could not reach the cluster. Tasks are separate processes."""
    if master != _NO_SPARK and isinstance(parse_uri(uri), MemoryUri | FileUri):
        raise click.UsageError(f"{uri} is a cluster inside one process: give --master none")


def _merged_bytes(text: str) -> int:
    size = parse_bytes(text)
    if size is None:
        raise InvalidArgument("a merged file needs a largest size")
    return size


def _age(text: str) -> float | None:
    return 0.0 if text == "0" else parse_age(text)


@click.command("archive")
@log_name_argument
@_to_option
@click.option(
    "--keep-copies",
    default=f"{ARCHIVE_KEEP_COPIES_S / 3600:g}h",
    show_default=True,
    callback=parsed(_age),
    help="How long bookies keep their copies of a ledger after it was archived (7d, 0). 'none': keep them.",
)
@click.option(
    "--accept-destination",
    is_flag=True,
    help="Accept WHERE even if it lacks the marker of this cluster's archive, or if it is new and the log "
    "has files elsewhere. First check that it is the right place, and mounted.",
)
@click.option("--merge", is_flag=True, help="Then merge small files into fewer, larger ones.")
@click.option(
    "--merge-bytes",
    default=f"{ARCHIVE_MERGE_BYTES // 2**20}m",
    show_default=True,
    callback=parsed(_merged_bytes),
    help="The largest size of a merged file.",
)
@_table_options
@_master_option
@uri_option
@json_option
def spark_archive(
    name: str,
    destination: str,
    keep_copies: float | None,
    accept_destination: bool,
    merge: bool,
    merge_bytes: int,
    table: TableOptions | None,
    master: str,
    uri: str,
    as_json: bool,
) -> None:
    """Copy the closed ledgers of the log NAME to Parquet. Let bookies delete copies that were archived long
    enough ago.

    Run the command from time to time: it continues where it ended. It also removes files of deleted logs.

    An Iceberg table shows the archive to other programs. Give the same --catalog and --namespace to each run
    for a log.

    The exit status is 1 if something failed."""
    needs("--merge-bytes", "--merge", is_given=merge)
    check_there(uri)
    _check_master(uri, master)
    # To keep the copies forever, use an age that no ledger reaches.
    keep_copies_s = float(10**12) if keep_copies is None else keep_copies
    if master == _NO_SPARK:
        steps = _here(
            uri,
            name,
            lambda cluster, tell: retire_gone(
                cluster.client,
                destination,
                accept_destination=accept_destination,
                table=table,
                on_step=tell,
            ),
            lambda cluster, tell: archive_log(
                cluster.client,
                name,
                destination,
                keep_copies_s=keep_copies_s,
                accept_destination=accept_destination,
                table=table,
                on_step=tell,
            ),
        )
    else:
        with local_session("ledgerlog archive", master) as spark:
            from ledgerlog.spark.archive import archive_on_spark

            with progress_bar(f"archiving {name}", None) as bar:
                steps = archive_on_spark(
                    spark,
                    uri,
                    name,
                    destination,
                    keep_copies_s=keep_copies_s,
                    accept_destination=accept_destination,
                    table=table,
                    on_progress=partial(_move, bar),
                )
    if merge:
        steps += _here(
            uri,
            name,
            lambda cluster, tell: merge_log(
                cluster.client,
                name,
                destination,
                bytes_max=merge_bytes,
                table=table and attrs.evolve(table, is_anew=False),
                on_step=tell,
            ),
        )
    report(name, steps, as_json)


@click.command("compact")
@log_name_argument
@_to_option
@click.option(
    "--key",
    default="key",
    show_default=True,
    metavar="RULE",
    help="Where the key of a record is: key (the key that it was appended with), prefix:N (its first N "
    "bytes), until:TEXT (the bytes before TEXT) or json:PATH (a field of a JSON object). A record without a "
    "key stays.",
)
@click.option(
    "--tombstones",
    metavar="KIND",
    help="Records that delete their key: 'empty' (no bytes besides the key) or json:PATH (true at PATH).",
)
@click.option(
    "--tombstones-after",
    default="7d",
    show_default=True,
    callback=parsed(_age),
    help="Also drop these records once they have this age. 'none': never drop them.",
)
@_table_options
@_master_option
@uri_option
@json_option
def spark_compact(
    name: str,
    destination: str,
    key: str,
    tombstones: str | None,
    tombstones_after: float | None,
    table: TableOptions | None,
    master: str,
    uri: str,
    as_json: bool,
) -> None:
    """Compact the archived part of the log NAME: keep only the latest record of each key. You cannot undo
    this.

    The command compacts only ledgers whose copies bookies have deleted. Records keep their offsets, and
    readers find gaps between them. The exit status is 1 if something failed; then run the command again."""
    needs("--tombstones-after", "--tombstones", is_given=tombstones is not None)
    rule = parse_key_rule(key, tombstones)
    after_s = None if tombstones is None else tombstones_after
    check_there(uri)
    _check_master(uri, master)
    if master == _NO_SPARK:
        steps = _here(
            uri,
            name,
            lambda cluster, tell: compact_log(
                cluster.client,
                name,
                destination,
                rule=rule,
                tombstones_after_s=after_s,
                table=table,
                on_step=tell,
            ),
        )
    else:
        with local_session("ledgerlog compact", master) as spark:
            from ledgerlog.spark.archive import compact_on_spark

            with progress_bar(f"compacting {name}", None) as bar:
                steps = compact_on_spark(
                    spark,
                    uri,
                    name,
                    destination,
                    key=key,
                    tombstones=tombstones,
                    tombstones_after_s=after_s,
                    table=table,
                    on_progress=partial(_move, bar),
                )
    report(name, steps, as_json)


def _move(bar: Any, done: int, total: int) -> None:
    bar.resize(total)
    bar.move_to(done)


def _here(
    uri: str, name: str, *jobs: Callable[[Any, Callable[[ArchiveStep], None]], Any]
) -> list[ArchiveStep]:
    """Run jobs in this process, with a bar that counts their steps."""

    async def body() -> list[ArchiveStep]:
        steps: list[ArchiveStep] = []
        with progress_bar(name, None) as bar:

            def tell(step: ArchiveStep) -> None:
                steps.append(step)
                bar.move_to(len(steps))

            async with connect(uri) as cluster:
                for job in jobs:
                    await job(cluster, tell)
        return steps

    return run(body)


def report(name: str, steps: Sequence[ArchiveStep], as_json: bool, *, kind: str = "log") -> None:
    """Print the steps of a job about ``name``. Raise ClickException if one failed."""
    counts = Counter(step.what for step in steps)
    if as_json:
        for step in steps:
            print_json(attrs.asdict(step))
        print_json({kind: name, "steps": dict(sorted(counts.items()))})
    else:
        for step in steps:
            whose = "" if step.ledger_id is None else f" ledger {step.ledger_id}"
            size = f", {step.records:,} records, {human_bytes(step.bytes)}" if step.records else ""
            where = f", {step.file}" if step.file else ""
            print_line(f"{step.what}{whose}{size}{where}{f': {step.why}' if step.why else ''}")
        summary = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print_line(f"{name}: {summary or 'nothing to do'}")
    if counts["failed"]:
        raise click.ClickException(
            f"{counts['failed']} of {len(steps)} steps failed; each says why. Mend the cause, then run it "
            "again"
        )
