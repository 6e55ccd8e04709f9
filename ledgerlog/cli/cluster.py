"""``ledgerlog cluster``: a local cluster of real processes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import trio

from ledgerlog.cli.local_cluster import (
    CLIENT,
    certificates_path,
    existing_bookies,
    existing_metadata,
    local_cluster,
)
from ledgerlog.cli.options import WholeNumber, json_option
from ledgerlog.cli.output import print_as_is, print_json, print_line
from ledgerlog.cli.running import run_until_interrupted
from ledgerlog.cli.trial_certificates import has_authority, tls_files
from ledgerlog.cli.zookeeper import HOST, existing_servers, free_port
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.meta.admission import STORED_ADMISSION
from ledgerlog.meta.grants import grant_at_first
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.admission import ProvenBy
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.ids import BookieId

_BOOKIES = 3


@click.group()
def cluster() -> None:
    """Run a cluster on this machine."""


@cluster.command("run")
@click.argument("path", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--bookies",
    type=WholeNumber(1, ENSEMBLE_MAX),
    help=f"How many bookies to run.  [default: as many as PATH has, at least {_BOOKIES}]",
)
@click.option(
    "--metadata",
    type=click.Choice(["sqlite", "zookeeper"]),
    help="Where to keep the metadata.  [default: what PATH already uses, otherwise sqlite]",
)
@click.option(
    "--zookeepers",
    type=WholeNumber(1, 7),
    help="How many ZooKeeper servers to run.  [default: as many as PATH has, otherwise 1]",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with storage options for every bookie.",
)
@click.option(
    "--index",
    type=click.Choice(["leveldb", "rocksdb"]),
    help="The index store of every bookie, as in 'bookie run'.",
)
@click.option(
    "--tls",
    "wants_tls",
    is_flag=True,
    help="Make certificates in PATH/certificates, and use TLS. If PATH has certificates, TLS is always used.",
)
@click.option(
    "--auto-recovery",
    is_flag=True,
    help="Run auto-recovery in every bookie: it repairs under-replicated ledgers.",
)
@click.option(
    "--admin",
    "wants_admin",
    is_flag=True,
    help="Give every bookie an administration port, any free port of this machine, and print the ports.",
)
@json_option
def cluster_run(
    path: Path,
    bookies: int | None,
    metadata: str | None,
    zookeepers: int | None,
    config: Path | None,
    index: str | None,
    wants_tls: bool,
    auto_recovery: bool,
    wants_admin: bool,
    as_json: bool,
) -> None:
    """Run a cluster in the directory PATH until interrupted.

    The command prints 'uri: ...' once the bookies serve. If a bookie does not start to serve, the command
    says why and runs the others. With '--tls' it first prints the environment
    variables that clients need, and with '--admin' the administration port of each bookie. If a process dies,
    it is started again, and a bookie keeps its port. The log of bookie N is PATH/bookie-N.log. SIGINT and
    SIGTERM stop the whole cluster gracefully.

    '--metadata zookeeper' runs real ZooKeeper servers, whose logs are PATH/zookeeper-N.log. It needs the
    packages of the extra ledgerlog[spark]. '--tls' needs the extra ledgerlog[access]. It makes new
    certificates from the same authority at each start, and at the first start it grants client/client the
    role of a writer."""
    metadata = metadata or existing_metadata(path) or "sqlite"
    if zookeepers is not None and metadata != "zookeeper":
        raise click.UsageError("--zookeepers needs --metadata zookeeper")
    servers = (existing_servers(path) or zookeepers or 1) if metadata == "zookeeper" else 0
    existing = existing_bookies(path)
    count = max(existing, bookies or _BOOKIES)

    doors = _AdminPorts() if wants_admin else None
    has_tls = wants_tls or has_authority(certificates_path(path))

    def options_of(bookie_id: BookieId) -> list[str]:
        store = [] if index is None else ["--index", index]
        return store if doors is None else [*store, *doors.options_of(bookie_id)]

    async def body() -> None:
        async with local_cluster(
            path,
            bookies=count,
            config=config,
            zookeepers=servers,
            auto_recovery=auto_recovery,
            with_tls=has_tls,
            options_of=options_of,
            report=_report,
        ) as local:
            if (
                await STORED_ADMISSION.read(local.cluster.client.store)
            ).by is ProvenBy.NOTHING and not has_tls:
                _report(
                    "this cluster is open: every process that can reach its bookies may do everything. "
                    "'ledgerlog access mode --help' says how to close it"
                )
            if bookies is not None and existing > bookies:
                _report(f"{path} holds the data of {existing} bookies; the command runs all of them")
            if zookeepers is not None and servers != zookeepers:
                _report(
                    f"{path} holds the data of {servers} ZooKeeper servers; the command runs exactly these"
                )
            if has_tls:
                await grant_at_first(local.cluster.client.store, CLIENT, Grant(Role.WRITER))
            if as_json:
                pids = {each: child.pid for each, child in local.bookies.items() if each not in local.down}
                said = {"uri": local.uri, "bookies": pids}
                if local.zookeepers:
                    said["zookeepers"] = {name: child.pid for name, child in local.zookeepers.items()}
                if has_tls:
                    said["certificates"] = str(certificates_path(path))
                if doors is not None:
                    said["admin"] = doors.announced()
                print_json(said)
            else:
                if has_tls:
                    mine = Credentials(tls=tls_files(certificates_path(path).absolute(), CLIENT))
                    for name, value in mine.variables().items():
                        print_as_is(f"export {name}={shlex.quote(value)}")
                if doors is not None:
                    for bookie_id, address in doors.announced().items():
                        print_line(f"{bookie_id}: administration on {address}")
                print_line(f"uri: {local.uri}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(local.supervise, _report)

    run_until_interrupted(body)


class _AdminPorts:
    """The administration ports of the bookies. A bookie keeps its port unless another process takes it."""

    def __init__(self) -> None:
        self._ports: dict[BookieId, int] = {}
        self._is_announced = False

    def options_of(self, bookie_id: BookieId) -> Sequence[str]:
        """Return the options for a start of the bookie."""
        before = self._ports.get(bookie_id, 0)
        port = self._ports[bookie_id] = free_port(before)
        if self._is_announced and port != before:
            _report(f"port {before} is taken; {bookie_id}: administration on {HOST}:{port}")
        return "--admin", f"{HOST}:{port}"

    def announced(self) -> dict[BookieId, str]:
        """Return the addresses, for the user. Later changes are reported."""
        self._is_announced = True
        ports = sorted(self._ports.items(), key=lambda door: (len(door[0]), door[0]))
        return {bookie_id: f"{HOST}:{port}" for bookie_id, port in ports}


def _report(line: str) -> None:
    click.echo(line, err=True)
