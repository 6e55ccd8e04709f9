"""``ledgerlog access certificates``: an authority and certificates for a trial cluster."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from ledgerlog.cli.options import json_option, parsed
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.cli.trial_certificates import CERTIFICATE_DAYS, make_certificates, tls_files
from ledgerlog.errors import InvalidArgument
from ledgerlog.model.principal import ANY_CLUSTER, Principal

__all__ = ["access_certificates"]

_PRINCIPALS = ("bookie/bookie-1", "bookie/bookie-2", "bookie/bookie-3", "admin/admin", "client/client")
"""The principals that get certificates by default, the same as in ``ledgerlog cluster run``."""


def _check_cluster(text: str) -> str:
    Principal("client", "x").certificate_uri(text)
    return text


@click.command("certificates")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.argument("principals", nargs=-1, metavar="[PRINCIPAL]...")
@click.option(
    "--cluster",
    default=ANY_CLUSTER,
    callback=parsed(_check_cluster),
    metavar="ID",
    help="The id of the cluster that the certificates are for.  [default: every cluster that trusts this "
    "authority]",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=CERTIFICATE_DAYS,
    show_default=True,
    help="How many days the certificates are valid.",
)
@click.option(
    "--renew", is_flag=True, help="Also make new certificates for principals that already have one."
)
@json_option
def access_certificates(
    directory: Path, principals: tuple[str, ...], cluster: str, days: int, renew: bool, as_json: bool
) -> None:
    """Make an authority and certificates for a trial cluster in DIR.

    Each PRINCIPAL is bookie/ID, admin/NAME or client/NAME; by default three bookies, an admin and a client.
    Files that DIR already has are kept, unless you give --renew. The private key of the authority is also in
    DIR. So for a cluster that matters, get the certificates from your own authority (docs/SECURITY.md). This
    command needs the extra ledgerlog[access]."""
    try:
        wanted = [Principal.parse(text) for text in principals or _PRINCIPALS]
    except InvalidArgument as wrong:
        raise click.UsageError(str(wrong)) from wrong

    async def body() -> set[str]:
        made = make_certificates(directory, wanted, cluster=cluster, days=days, again=renew)
        return {files.cert for files in made}

    made = run(body)
    for principal in dict.fromkeys(wanted):
        files = tls_files(directory, principal)
        is_new = files.cert in made
        if as_json:
            print_json({"principal": str(principal), "made": is_new, **attrs.asdict(files)})
        else:
            print_line(f"{principal}: {files.cert}{'' if is_new else ' (it was there)'}")
