"""``ledgerlog archive``: list the places of a cluster's archives, and move an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from ledgerlog.archive.jobs.listing import list_archives
from ledgerlog.archive.jobs.moving import move_archive
from ledgerlog.cli.options import connect, json_option, uri_option
from ledgerlog.cli.output import human_bytes, print_json, print_table
from ledgerlog.cli.running import run
from ledgerlog.cli.spark_archive import report
from ledgerlog.redact import redact

if TYPE_CHECKING:
    from ledgerlog.archive.jobs.archiver import ArchiveStep
    from ledgerlog.archive.jobs.listing import ListedArchive

__all__ = ["archive"]


@click.group()
def archive() -> None:
    """Where archives are. To archive a log, see `ledgerlog spark archive`."""


@archive.command("list")
@uri_option
@json_option
def list_(uri: str, as_json: bool) -> None:
    """List the places of archives, and how much each holds. The command reads only the metadata, not the
    places themselves."""

    async def body() -> list[ListedArchive]:
        async with connect(uri) as cluster:
            return await list_archives(cluster.client)

    found = run(body)
    if as_json:
        for each in found:
            print_json(attrs.asdict(each))
        return
    columns = ("archive", "logs", "files", "records", "bytes", "moved to")
    rows = [
        (each.url, each.logs, each.files, f"{each.records:,}", human_bytes(each.byte_count), each.moved_to)
        for each in found
    ]
    print_table(columns, rows, numbers=columns[1:5])


@archive.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--accept-destination",
    is_flag=True,
    help="TO is the right place, and mounted, even if it lacks the marker of the archive. TO gets a new one.",
)
@uri_option
@json_option
def move(source: str, target: str, accept_destination: bool, uri: str, as_json: bool) -> None:
    """Tell the cluster that the archive at FROM is at TO now: another directory, bucket or URL. First copy
    its files there, with the marker, and run no job meanwhile. All logs that are archived at FROM move.

    The exit status is 1 if a file or the marker is not at TO. Then nothing was changed."""

    async def body() -> list[ArchiveStep]:
        async with connect(uri) as cluster:
            return await move_archive(cluster.client, source, target, accept_destination=accept_destination)

    report(redact(target), run(body), as_json, kind="archive")
