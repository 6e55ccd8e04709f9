"""``ledgerlog metadata``: the store that holds a cluster's metadata.

Most commands never make a cluster. If they did, a mistyped path or chroot would be an empty cluster, and all
data would seem gone. ``metadata init`` makes one. The exceptions are ``log create``, which may make a
``file:`` cluster, and commands that run a cluster of their own, such as ``cluster run``.
"""

from __future__ import annotations

from typing import Any

import click

from ledgerlog.cli.options import check_there, json_option, uri_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.meta.uri import FileUri, MemoryUri, make_cluster_at, parse_uri

__all__ = ["metadata"]


@click.group()
def metadata() -> None:
    """Look after the metadata store of a cluster."""


@metadata.command("init")
@uri_option
@json_option
def metadata_init(uri: str, as_json: bool) -> None:
    """Make a new, empty cluster in a metadata store.

    For sqlite:PATH it makes the file, for zk://HOSTS/CHROOT the nodes below the chroot. Then start the
    bookies with 'bookie run'. If there is a cluster already, it changes nothing and says so."""
    parsed = parse_uri(uri)
    if isinstance(parsed, FileUri | MemoryUri):
        raise click.UsageError(
            f"{uri}: such a cluster is made when it is opened; give sqlite:PATH or zk://HOSTS"
        )
    check_there(uri)

    async def body() -> dict[str, Any]:
        cluster, is_new = await make_cluster_at(parsed)
        return {"uri": str(parsed), "cluster": cluster, "made": is_new}

    said = run(body)
    if as_json:
        print_json(said)
    elif said["made"]:
        print_line(f"{said['uri']}: made cluster {said['cluster']}")
    else:
        print_line(f"{said['uri']}: cluster {said['cluster']} is there already; nothing was changed")
