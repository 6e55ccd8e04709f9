"""``ledgerlog cluster``: a local cluster of real processes."""

from __future__ import annotations

from pathlib import Path

import click
import trio

from ledgerlog.cli.local_cluster import existing_bookies, local_cluster
from ledgerlog.cli.options import json_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run_until_interrupted
from ledgerlog.limits import ENSEMBLE_MAX

_BOOKIES = 3


@click.group()
def cluster() -> None:
    """Run a cluster on this machine."""


@cluster.command("run")
@click.argument("path", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--bookies",
    type=click.IntRange(1, ENSEMBLE_MAX),
    help=f"How many bookies.  [default: as many as PATH has, at least {_BOOKIES}]",
)
@click.option(
    "--metadata",
    type=click.Choice(["sqlite", "zookeeper"]),
    default="sqlite",
    show_default=True,
    help="Where the metadata is kept.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Options of every bookie's storage, a TOML file.",
)
@json_option
def cluster_run(path: Path, bookies: int | None, metadata: str, config: Path | None, as_json: bool) -> None:
    """Run a cluster below the directory PATH until interrupted.

    Prints 'uri: ...' once all bookies serve. A bookie that dies is started again; its
    log is PATH/bookie-N.log. SIGINT and SIGTERM stop all of it gracefully."""
    if metadata == "zookeeper":
        raise click.ClickException(
            "ZooKeeper metadata is not supported by this version; leave --metadata out, or say sqlite"
        )
    existing = existing_bookies(path)
    count = max(existing, bookies or _BOOKIES)

    async def body() -> None:
        async with local_cluster(path, bookies=count, config=config) as local:
            if bookies is not None and existing > bookies:
                _report(f"{path} holds the data of {existing} bookies; all of them run")
            if as_json:
                pids = {bookie_id: child.pid for bookie_id, child in local.bookies.items()}
                print_json({"uri": local.uri, "bookies": pids})
            else:
                print_line(f"uri: {local.uri}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(local.supervise, _report)

    run_until_interrupted(body)


def _report(line: str) -> None:
    click.echo(line, err=True)
