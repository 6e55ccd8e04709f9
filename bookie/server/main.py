"""The ``bookie`` command: run a storage node, and look into the directory of a stopped one.

    bookie run PATH --metadata URI [--listen HOST:PORT] [--advertise HOST:PORT] [--id ID]
                                   [--config FILE] [--label NAME=VALUE]...
                                   [--journal-dir DIR] [--index leveldb|rocksdb]
                                   [--no-journal-data] [--fix-cookie] [--repair]
                                   [--collect-interval SECONDS] [--compact-interval SECONDS]
                                   [--compact-rate BYTES] [--admin HOST:PORT] [--admin-reads open|proven]
    bookie cookie show PATH
    bookie cookie fix PATH --metadata URI [--id ID]
    bookie inspect journal PATH | bookie inspect entries PATH | bookie inspect index PATH
    bookie rebuild-index PATH [--index leveldb|rocksdb]
    bookie repair PATH --metadata URI

By default, every command prints text for a person; with ``--json`` it prints JSON objects, one a line.
Results go to standard output, the log to standard error. Exit code 0: done. 1: it failed, and one line on
standard error says why and what to try. 2: wrong usage.

``bookie run`` prints one line once it serves, and nothing more. SIGTERM, SIGINT and SIGHUP stop it
gracefully; a bookie with certificates or a secret reads them again at SIGHUP instead. A second SIGTERM or
SIGINT stops it at once. The other commands end at the first signal, with exit code 128 plus its number.

This module is the entry point. It makes the real capabilities (TCP, the disk, randomness) and passes them on.
Two tasks need a client, and this module gives them one: copying lost entries from other bookies, and
auto-recovery. Auto-recovery works for the whole cluster, not for this bookie in particular.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
import trio

from bookie.server.healing import serve_and_heal
from bookie.server.identity import establish_identity
from bookie.server.limbo import Peers
from bookie.server.node import BookieNode, open_bookie
from bookie.server.options import read_config
from bookie.storage.disk.descriptors import connections_within, raise_limit
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory, open_directory
from bookie.storage.index.kinds import NAMES as INDEX_KINDS
from ledgerlog.admin.options import admin_options, reads_are_open
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.credential_options import credential_options, given_credentials
from ledgerlog.durable_directories import make_directories
from ledgerlog.errors import InvalidArgument, LedgerLogError, StorageCorrupt, StorageError
from ledgerlog.event_log import log_to_stderr
from ledgerlog.limits import BOOKIE_COLLECTOR, BOOKIE_CONNECTIONS_MAX, BOOKIE_THREAD_SWITCH_S
from ledgerlog.meta.outside_store import OutsideStore
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import FileUri, MemoryUri, open_store, parse_uri
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.ids import check_bookie_id
from ledgerlog.net.prover import Prover
from ledgerlog.net.tcp import parse_address
from ledgerlog.net.tls import TlsNetwork, bookie_of, network_of
from ledgerlog.net.transport import Listener, Network
from ledgerlog.progress_bar import progress_bar
from ledgerlog.proving import open_prover, with_secret_beside
from ledgerlog.redact import redact
from ledgerlog.signals import receiving_stops, run_until_stopped
from ledgerlog.standard_streams import has_terminal, open_standard_streams

if TYPE_CHECKING:
    from bookie.server.administration import BookieAdministration
    from ledgerlog.metrics.families import Measurement

logger = logging.getLogger(__name__)

_journal_dir = click.option(
    "--journal-dir",
    "journal_directory",
    type=click.Path(file_okay=False),
    help="The directory of the journal, if it is not in PATH.",
)

F = TypeVar("F", bound=Callable[..., Any])


def _index(help_text: str) -> Callable[[F], F]:
    return click.option("--index", type=click.Choice(INDEX_KINDS), help=help_text)


def _metadata(function: F) -> F:
    """Add ``--metadata``, and the options that name files of credentials."""
    option = click.option(
        "--metadata",
        required=True,
        envvar="LEDGERLOG_URI",
        help="The cluster's metadata store, as sqlite:PATH or zk://HOST:PORT,.../CHROOT.",
    )
    return option(credential_options(function))


_WILDCARDS = frozenset({"0.0.0.0", "::"})


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ledgerlog")
def main() -> None:
    """Storage nodes of ledgerlog."""
    open_standard_streams()


@main.command()
@click.argument("path", type=click.Path(file_okay=False))
@_metadata
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    help="The address to serve at. Port 0 picks a free port.",
)
@click.option("--advertise", help="The address to announce to clients, if it differs from --listen.")
@click.option(
    "--id",
    "bookie_id",
    help="The bookie's id. Default: the id in its certificate, otherwise the id of the directory, otherwise "
    "a new one.",
)
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file with storage options.")
@_journal_dir
@_index(
    "The store of the index (index in the configuration). Default: the store that PATH has; for a new PATH "
    "LevelDB if plyvel is installed, otherwise RocksDB."
)
@click.option(
    "--no-journal-data",
    is_flag=True,
    help="Acknowledge entries before they are synced (journal_write_data = false). After an unclean stop, "
    "the bookie copies the lost entries from other bookies.",
)
@click.option(
    "--fix-cookie",
    is_flag=True,
    help="Serve PATH even if it was emptied or replaced. Lost entries are copied from other bookies.",
)
@click.option(
    "--repair",
    "repair_damage",
    is_flag=True,
    help="If PATH is so damaged that the bookie would not start, salvage the readable data and copy the "
    "rest from other bookies. Then verify all stored data at once.",
)
@click.option(
    "--collect-interval",
    "collect_interval_s",
    type=float,
    metavar="SECONDS",
    help="How often the bookie looks for deleted ledgers (collect_interval_s).",
)
@click.option(
    "--compact-interval",
    "compact_interval_s",
    type=float,
    metavar="SECONDS",
    help="How often compaction looks for work (compact_interval_s).",
)
@click.option(
    "--compact-rate",
    "compact_bytes_per_s",
    type=int,
    metavar="BYTES",
    help="The most bytes per second that compaction writes (compact_bytes_per_s).",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="A placement label, such as rack=r1. Repeat it for more.",
)
@click.option(
    "--auto-recovery",
    is_flag=True,
    help="Also run auto-recovery, together with all other processes that run it: it repairs "
    "under-replicated ledgers of the whole cluster.",
)
@admin_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of the log: text for people, or one JSON object per line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def run(
    path: str,
    metadata: str,
    listen: str,
    advertise: str | None,
    bookie_id: str | None,
    config: str | None,
    journal_directory: str | None,
    index: str | None,
    no_journal_data: bool,
    fix_cookie: bool,
    repair_damage: bool,
    collect_interval_s: float | None,
    compact_interval_s: float | None,
    compact_bytes_per_s: int | None,
    labels: tuple[str, ...],
    auto_recovery: bool,
    admin: str | None,
    admin_reads: str | None,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Serve the directory PATH until SIGTERM, SIGINT or SIGHUP.

    If the bookie has certificates or a secret, SIGHUP does not stop it, but makes it read them again. If the
    bookie has lost its terminal, SIGHUP always stops it."""
    with _usage():
        uri = parse_uri(metadata)
        if isinstance(uri, FileUri | MemoryUri):
            raise InvalidArgument(
                f"{metadata!r} names a cluster inside one process; a bookie needs sqlite:PATH or zk://HOSTS"
            )
        for address in (listen, advertise, admin):
            if address is not None:
                parse_address(address)
        if advertise is None and parse_address(listen)[0] in _WILDCARDS:
            raise InvalidArgument(
                f"--listen {listen} is not an address that clients can connect to: also give --advertise "
                f"HOST:PORT"
            )
        if bookie_id is not None:
            check_bookie_id(bookie_id)
        storage = StorageConfig() if config is None else read_config(config)
        if no_journal_data:
            storage = attrs.evolve(storage, journal_write_data=False)
        given: dict[str, Any] = {
            "index": index,
            "collect_interval_s": collect_interval_s,
            "compact_interval_s": compact_interval_s,
            "compact_bytes_per_s": compact_bytes_per_s,
        }
        storage = attrs.evolve(storage, **{name: value for name, value in given.items() if value is not None})
        placement = _parse_labels(labels)
        may_read = reads_are_open(admin, admin_reads)
        credentials = with_secret_beside(given_credentials(), uri)
    log_to_stderr(log_level.upper(), log_format)

    with _failures():
        descriptors = raise_limit()

    certified: TlsNetwork | None = None
    proving: Prover | None = None
    had_terminal = has_terminal()

    def reload() -> bool:
        """Read the certificates and the secret again. Return False if the bookie has no certificates and no
        secret, or if SIGHUP came because the terminal is gone."""
        if had_terminal and not has_terminal():
            return False
        if certified is not None:
            certified.certificates.reload()
        # The cluster's own record may name the secret. And while the bookie starts, it has read neither yet.
        has_secret = proving is not None and proving.reload()
        return has_secret or credentials.tls is not None or credentials.secret_file is not None

    async def serve(stop: trio.Event) -> None:
        nonlocal bookie_id, certified, proving
        is_announced = False
        administration: BookieAdministration | None = None
        door: Listener | None = None
        hosted: list[Callable[[], Iterable[Measurement]]] = []
        """Functions that read the metrics of auto-recovery, if it runs in this process."""

        def open_node(*, again_at: str | None) -> AbstractAsyncContextManager[BookieNode]:
            return open_bookie(
                path,
                store,
                bookie_id=bookie_id,
                network=network,
                listen=again_at or listen,
                advertise=advertise,
                random_bytes=os.urandom,
                config=storage,
                labels=placement,
                find_place=partial(_find_place, path),
                journal_directory=journal_directory,
                fix_cookie=fix_cookie,
                repair_damage=repair_damage,
                heals_index=again_at is not None,
                peers=partial(_open_peers, store, network, credentials, prover),
                connections_max=connections_within(descriptors, BOOKIE_CONNECTIONS_MAX),
                prover=prover,
            )

        async def body(node: BookieNode) -> None:
            nonlocal is_announced
            _tune_interpreter()
            if is_announced:
                logger.warning("bookie=%s: it serves again", node.bookie_id)
            elif as_json:
                told = {"id": node.bookie_id, "address": node.address, "instance": node.info.instance}
                _print_json(told if door is None else {**told, "admin": door.address})
            else:
                administered = "" if door is None else f", administration on {door.address}"
                click.echo(f"bookie {node.bookie_id} serving on {node.address}{administered}")
            is_announced = True
            if administration is not None:
                administration.serves(node)
            try:
                if not auto_recovery:
                    await stop.wait()
                    return
                own_store = partial(open_store, uri, cluster=store.cluster, credentials=credentials)
                async with open_nursery() as nursery:
                    nursery.start_soon(
                        partial(
                            _look_after_the_cluster,
                            own_store,
                            network,
                            credentials,
                            prover,
                            node.bookie_id,
                            hosted,
                        )
                    )
                    await stop.wait()
                    nursery.cancel_scope.cancel()
            finally:
                if administration is not None:
                    administration.node = None

        async with (
            open_store(uri, credentials=credentials) as store,
            open_prover(store, credentials, level_if_open=logging.WARNING) as prover,
        ):
            prover.check_verifies()
            proving = prover
            network = network_of(credentials, cluster=store.cluster)
            bookie_id = bookie_of(network, expected=bookie_id)
            certified = network if isinstance(network, TlsNetwork) else None
            if admin is None:
                await serve_and_heal(open_node, body)
                return
            from bookie.server.administration import BookieAdministration
            from ledgerlog.admin.gate import AdminGate

            administration = BookieAdministration(
                AdminGate(store, prover, now_s=time.time, reads_are_open=may_read),
                configuration={
                    "metadata": redact(metadata),
                    "path": path,
                    "listen": listen,
                    "advertise": advertise,
                    "journal_directory": journal_directory,
                    "auto_recovery": auto_recovery,
                    "admission": str(prover.admission),
                    "storage": attrs.asdict(storage),
                },
                beside=lambda: chain.from_iterable(measure() for measure in hosted),
            )
            door = await network.listen(admin)
            async with open_nursery() as nursery:
                nursery.start_soon(administration.run, door)
                await serve_and_heal(open_node, body)
                nursery.cancel_scope.cancel()

    with _failures(repairable=path):
        trio.run(_until_signalled, serve, reload)


def _tune_interpreter() -> None:
    """Call this each time that the bookie begins to serve."""
    # If clients keep the event loop busy, a thread that has written the journal waits this long until Python
    # lets it run. Python's own value is ten times as much.
    sys.setswitchinterval(BOOKIE_THREAD_SWITCH_S)
    # All objects that exist now stay as long as the bookie serves, so the garbage collector need not visit
    # them again. It must visit those of the time before: if the index was made again, they are not needed.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*BOOKIE_COLLECTOR)


async def _until_signalled(
    serve: Callable[[trio.Event], Awaitable[None]], reload: Callable[[], bool]
) -> None:
    """Run ``serve`` with an event that the first signal sets. A second signal ends ``serve`` with an error. A
    second SIGHUP does not, because a terminal that closes may send SIGHUP twice. If ``reload`` returns True
    for a SIGHUP, that signal has no other effect."""
    stop = trio.Event()
    async with open_nursery() as nursery:

        async def listen() -> None:
            with receiving_stops() as signals:
                listening.set()
                async for number in signals:
                    if number == signal.SIGHUP and reload():
                        continue
                    if stop.is_set() and number != signal.SIGHUP:
                        raise LedgerLogError("stopped by a second signal before the stop was complete")
                    stop.set()

        listening = trio.Event()
        nursery.start_soon(listen)
        await listening.wait()
        await serve(stop)
        nursery.cancel_scope.cancel()


# Import the client only if something needs it: with the client, a start takes one and a half times as long.


def _open_peers(
    store: MetadataStore, network: Network, credentials: Credentials, prover: Prover
) -> AbstractAsyncContextManager[Peers]:
    """Open the access to the other bookies, for copying lost entries from them."""
    from ledgerlog.repair.peers import open_peers

    return open_peers(store, network, credentials=credentials, prover=prover)


async def _look_after_the_cluster(
    open_own_store: Callable[[], AbstractAsyncContextManager[MetadataStore]],
    network: Network,
    credentials: Credentials,
    prover: Prover,
    name: str,
    hosted: list[Callable[[], Iterable[Measurement]]],
) -> None:
    """Run auto-recovery until cancelled. ``hosted`` gets functions that read its metrics.

    The bookie's own store goes through restores from a backup, because a bookie only registers and reads.
    Auto-recovery also writes metadata of ledgers, so it has a store of its own, and begins anew after a
    restore. A fault of that store does not end the bookie.
    """
    from ledgerlog.ledger.client import open_client
    from ledgerlog.metrics.client import client_measurements
    from ledgerlog.repair.metrics import repair_measurements
    from ledgerlog.repair.service import AutoRecovery, begin_anew

    async def serve() -> None:
        async with (
            open_own_store() as store,
            open_client(OutsideStore(store), network, credentials=credentials, prover=prover) as client,
        ):
            service = AutoRecovery(client, name=name)
            hosted[:] = [partial(repair_measurements, service), partial(client_measurements, client)]
            try:
                await service.run_until_restored()
            finally:
                hosted.clear()

    await begin_anew(serve, name)


def _find_place(path: str) -> str:
    """Return a text that identifies the directory ``path``, which must be locked. If two directories are in
    use at the same time, their texts differ, even if one directory is a copy of the other."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
        lock = os.stat(os.path.join(path, "lock"))
    except OSError as cause:
        raise StorageError(f"{cause.filename} cannot be read: {cause.strerror}") from cause
    return f"{boot_id}/{lock.st_dev:x}/{lock.st_ino:x}"


def _parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"--label {text!r} is not NAME=VALUE")
        if name in labels:
            raise InvalidArgument(f"--label {name} is given twice")
        labels[name] = value
    return labels


# --- looking into a directory ---------------------------------------------------------------------


@main.group()
def cookie() -> None:
    """Show or fix the identity (the cookie) of a bookie's directory."""


@cookie.command("show")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cookie_show(path: str, journal_directory: str | None, as_json: bool) -> None:
    """Show to which bookie the directory PATH belongs."""

    from bookie.server.inspect import show_cookie, show_marks

    async def items(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
        yield {**await show_cookie(directory), **await show_marks(directory)}

    _show(path, journal_directory, items, as_json)


@cookie.command("fix")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@_metadata
@click.option("--id", "bookie_id", help="The bookie's id. Default: the id of the directory.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cookie_fix(
    path: str, journal_directory: str | None, metadata: str, bookie_id: str | None, as_json: bool
) -> None:
    """Take PATH into service for a bookie whose disk was emptied or replaced.

    The command marks the loss in PATH. When the bookie serves, it refuses adds to all ledgers that exist now,
    denies no entry of them, and copies the lost entries from other bookies. If nothing is wrong, the command
    marks nothing. It refuses an id that never served the cluster: 'bookie run' makes a new bookie."""

    from bookie.server.inspect import show_marks

    async def items(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
        async with open_store(uri, credentials=given_credentials()) as store:
            fixed = await establish_identity(
                store,
                directory,
                bookie_id=bookie_id,
                random_bytes=os.urandom,
                place=_find_place(path),
                fix_cookie=True,
            )
        yield {
            "id": fixed.bookie_id,
            "instance": fixed.instance,
            "cluster": fixed.cluster,
            **await show_marks(directory),
        }

    with _usage():
        uri = parse_uri(metadata)
        if bookie_id is not None:
            check_bookie_id(bookie_id)
    with _failures():
        try:
            make_directories(Path(path))
        except OSError as cause:
            raise InvalidArgument(f"{path} cannot be made: {cause.strerror}") from cause
    _show(path, journal_directory, items, as_json)


@main.group()
def inspect() -> None:
    """Show the contents of a stopped bookie's files."""


@inspect.command("journal")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per segment.")
def inspect_journal(path: str, journal_directory: str | None, as_json: bool) -> None:
    """Show each segment of the journal in PATH."""
    from bookie.server.inspect import show_journal

    _show(path, journal_directory, show_journal, as_json)


@inspect.command("entries")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per entry log.")
def inspect_entries(path: str, journal_directory: str | None, as_json: bool) -> None:
    """Show each entry log in PATH, and why it is kept."""
    from bookie.server.inspect_entries import show_entries

    _show(path, journal_directory, show_entries, as_json)


@inspect.command("index")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: one line for the index itself, then one line per ledger.",
)
def inspect_index(path: str, journal_directory: str | None, as_json: bool) -> None:
    """Show the contents of the index in PATH."""
    from bookie.server.inspect import show_index

    _show(path, journal_directory, show_index, as_json)


@main.command("rebuild-index")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@_index("The store of the new index. Give the other store to convert the index. Default: the present store.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rebuild_index_command(path: str, journal_directory: str | None, index: str | None, as_json: bool) -> None:
    """Rebuild the index in PATH from the journal and the entry logs. None of these files may be missing."""

    from bookie.storage.upkeep.rebuild import rebuild_index

    async def items(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
        with progress_bar("reading files", None) as bar:

            def on_file(done: int, total: int) -> None:
                bar.resize(total)
                bar.move_to(done)

            runs = await rebuild_index(directory, on_file=on_file)
        yield {"runs": runs}

    _show(path, journal_directory, items, as_json, index=index or "")


@main.command("repair")
@click.argument("path", type=click.Path(file_okay=False))
@_journal_dir
@_metadata
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def repair(path: str, journal_directory: str | None, metadata: str, as_json: bool) -> None:
    """Salvage PATH if it is so damaged that its bookie does not start.

    The command keeps all readable data, sets damaged files aside, and marks the loss. When the bookie serves,
    it denies no entry of the ledgers that exist now, and copies the lost entries from other bookies. If the
    bookie would start anyway, the command changes nothing."""

    from bookie.server.repairing import repair_directory, restore_cookie

    async def items(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
        async with open_store(uri, credentials=given_credentials()) as opened:
            store = OutsideStore(opened)
            place = _find_place(path)
            has_new_cookie = await restore_cookie(store, directory, place=place)
            if await directory.read_cookie() is None:
                raise StorageError(f"{path} has no cookie and no data: see 'bookie cookie fix'")
            await establish_identity(store, directory, bookie_id=None, random_bytes=os.urandom, place=place)
            with progress_bar("reading and salvaging files", None):
                done = await repair_directory(store, directory, random_bytes=os.urandom)
        item: dict[str, Any] = {"repaired": has_new_cookie or done is not None}
        if has_new_cookie:
            item["cookie"] = "restored"
        if done is not None:
            item |= {"runs": done.runs, "set_aside": list(done.set_aside)}
        yield item

    with _usage():
        uri = parse_uri(metadata)
    _show(path, journal_directory, items, as_json, is_repair=True)


Items = Callable[[StorageDirectory], AsyncGenerator[dict[str, Any], None]]


def _show(
    path: str,
    journal_directory: str | None,
    items: Items,
    as_json: bool,
    *,
    index: str = "",
    is_repair: bool = False,
) -> None:
    async def show() -> bool:
        is_sound = True
        async with (
            open_directory(path, journal_directory=journal_directory, index=index) as directory,
            contextlib.aclosing(items(directory)) as found,
        ):
            async for item in found:
                is_sound = is_sound and "damage" not in item
                if as_json:
                    _print_json(item)
                else:
                    click.echo("  ".join(f"{name}={value}" for name, value in item.items()))
        return is_sound

    with _failures(repairable=None if is_repair else path):
        if not os.path.isdir(path):
            raise StorageError(f"{path} is not a directory: give the directory of a bookie")
        outcome = trio.run(run_until_stopped, show)
        if isinstance(outcome, signal.Signals):
            click.echo(f"bookie: interrupted by {outcome.name}", err=True)
            sys.exit(128 + outcome)
        if not outcome.value:
            raise StorageError(f"{path} is damaged, see above: make a copy before you try anything else")


# --- endings --------------------------------------------------------------------------------------


def _print_json(item: dict[str, Any]) -> None:
    click.echo(json.dumps(item))


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """Turn wrong arguments into wrong usage: exit 2."""
    try:
        yield
    except InvalidArgument as wrong:
        raise click.UsageError(str(wrong)) from wrong


@contextlib.contextmanager
def _failures(*, repairable: str | None = None) -> Iterator[None]:
    """Turn an operating fault into one line on standard error: exit 1. A bug keeps its traceback.

    Args:
        repairable: The bookie's directory, if 'bookie repair' may help against damage.
    """
    try:
        yield
    except LedgerLogError as fault:
        advice = ""
        if isinstance(fault, StorageCorrupt):
            advice = fault.advice
            if not advice and repairable is not None:
                advice = (
                    "keep the files, and check that all its directories are mounted; then "
                    f"'bookie repair {repairable}' salvages it"
                )
        click.echo(f"bookie: {type(fault).__name__}: {fault}{advice and f' ({advice})'}", err=True)
        sys.exit(1)
