"""``ledgerlog console``: the cluster on a web page."""

from __future__ import annotations

import ipaddress
import logging
import time

import click

from ledgerlog.cli.options import connect, json_option, keep_a_log, uri_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run_until_interrupted
from ledgerlog.errors import InvalidArgument
from ledgerlog.net.tcp import parse_address
from ledgerlog.optional_packages import how_to_install, is_installed

__all__ = ["console"]

logger = logging.getLogger(__name__)


@click.command("console")
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="HOST:PORT",
    help="The address for browsers. Port 0 picks a free port.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that browsers may use, besides localhost and IP addresses. Repeat it for more names. "
    "Requests for other names are refused, so an attacker cannot point another name at the console.",
)
@click.option(
    "--reads",
    type=click.Choice(["open", "proven"]),
    help=(
        "Who may look: all people, or only people who log in with a token of a bookie or an admin. Default: "
        "all people, unless the cluster is closed."
    ),
)
@click.option("--https-cert", type=click.Path(), help="The certificate, to serve HTTPS.")
@click.option("--https-key", type=click.Path(), help="The private key of the certificate.")
@uri_option
@json_option
def console(
    listen: str,
    hosts: tuple[str, ...],
    reads: str | None,
    https_cert: str | None,
    https_key: str | None,
    uri: str,
    as_json: bool,
) -> None:
    """Show the cluster on a web page until interrupted: bookies, logs, ledgers, repair.

    The console only reads, unless an admin logs in with a token of 'ledgerlog access token --change'. While
    no page is open, it sends no requests. docs/CONSOLE.md describes the pages."""
    keep_a_log()
    if (https_cert is None) != (https_key is None):
        raise click.UsageError("--https-cert and --https-key go together")
    host, _ = parse_address(listen)
    for package in ("starlette", "hypercorn"):
        if not is_installed(package):
            raise InvalidArgument(f"the console needs {package}: {how_to_install(package)}")
    from ledgerlog.console.serving import serve_console

    async def told(url: str) -> None:
        if https_cert is None and not _is_loopback(host):
            logger.warning("the console serves %s without HTTPS: tokens can be seen on the network", url)
        if as_json:
            print_json({"console": url})
        else:
            print_line(f"console: {url}")

    async def body() -> None:
        async with connect(uri) as cluster:
            await serve_console(
                cluster.client,
                listen,
                hosts=frozenset({"localhost", host.lower(), *(name.lower() for name in hosts)}),
                now_s=time.time,
                reads_are_open=None if reads is None else reads == "open",
                certificate=https_cert,
                key=https_key,
                on_serving=told,
            )

    run_until_interrupted(body)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
