"""``ledgerlog metadata``: the store that holds a cluster's metadata.

Most commands never make a cluster. If they did, a mistyped path or chroot would be an empty cluster, and all
data would seem gone. ``metadata init`` makes a cluster. So do ``log create``, for ``file:`` clusters only,
and commands that run their own cluster, such as ``cluster run``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import click

from ledgerlog.cli.options import check_there, connect, json_option, uri_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.credential_options import given_credentials
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.bookies import STORED_PLACEMENT
from ledgerlog.ledger.core.placement import rack_of
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.meta import restore as restoring
from ledgerlog.meta.admission import STORED_ADMISSION
from ledgerlog.meta.uri import (
    ClusterUri,
    FileUri,
    MemoryUri,
    SqliteUri,
    StoreAccess,
    back_up,
    count_other_lists,
    make_cluster_at,
    open_store,
    parse_uri,
    restore_at,
    secure_at,
)
from ledgerlog.model.admission import ProvenBy
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.ids import BookieId
from ledgerlog.model.placement import DEFAULT_PLACEMENT, PlacementPolicy
from ledgerlog.model.record import moment
from ledgerlog.progress_bar import progress_bar
from ledgerlog.proving import make_closed_cluster, secret_beside
from ledgerlog.repair.bringing_back import BroughtBack, LeftOut
from ledgerlog.repair.bringing_back import bring_back as bring_back_ledgers
from ledgerlog.repair.core.metadata_check import HeldOnly, MetadataCheck
from ledgerlog.repair.metadata_check import look_at_metadata

__all__ = ["metadata"]

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = 20
"""How many findings of one kind 'metadata check' prints for a person."""


@click.group()
def metadata() -> None:
    """Back up, restore, check and protect the metadata store of a cluster."""


def _store_of(uri: str) -> ClusterUri:
    where = parse_uri(uri)
    if isinstance(where, MemoryUri):
        raise click.UsageError("memory: is gone with its process; give sqlite:PATH or zk://HOSTS/CHROOT")
    if isinstance(where, FileUri):
        raise click.UsageError(
            f"{uri} belongs to the process that serves it; stop that, and give sqlite:{where.metadata_path}"
        )
    check_there(uri)
    return where


@metadata.command("backup")
@click.argument("file", type=click.Path())
@uri_option
@json_option
def metadata_backup(file: str, uri: str, as_json: bool) -> None:
    """Save all metadata of a cluster in the new file FILE. The cluster may be in use.

    The file contains the keys of all ledgers: keep it as safe as the store. It does not contain records."""
    where = _store_of(uri)

    async def body() -> tuple[str, int]:
        return await back_up(where, file, made_ms=_now_ms(), credentials=given_credentials())

    with progress_bar("saving all metadata", None):
        cluster, nodes = run(body)
    if as_json:
        print_json({"file": file, "cluster": cluster, "nodes": nodes})
    else:
        print_line(f"{file}: {nodes} nodes of cluster {cluster}")


@metadata.command("restore")
@click.argument("file", type=click.Path(), required=False)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Let bookies delete the ledgers that the backup lacks. Without FILE: the backup of the last "
    "restore.",
)
@uri_option
@json_option
def metadata_restore(file: str | None, accept_loss: bool, uri: str, as_json: bool) -> None:
    """Restore the metadata store from the backup FILE, and print the losses.

    The store must be empty, or belong to the same cluster with every process stopped. If the command is
    interrupted, the store refuses all other processes until you run the command again. If two run at the same
    time, the last one to begin restores the store, and the other one fails. Bookies keep every ledger from
    before the restore until you give --accept-loss, now or later without FILE. Run 'ledgerlog metadata check'
    before that."""
    if file is None and not accept_loss:
        raise click.UsageError(
            "give the FILE of a backup, or --accept-loss to accept the losses of the last restore"
        )
    where = _store_of(uri)

    async def accept() -> bool:
        async with open_store(where, credentials=given_credentials()) as store:
            return await restoring.accept_loss(store)

    async def bring_back(file: str) -> restoring.Restored:
        return await restore_at(where, file, now_ms=_now_ms(), credentials=given_credentials())

    restored = None
    if file is not None:
        with progress_bar(f"restoring {file}", None):
            restored = run(partial(bring_back, file))
    was_held = run(accept) if accept_loss else False
    if restored is None:
        if as_json:
            print_json({"accepted": was_held})
        elif was_held:
            print_line("the loss is accepted: bookies collect what the store lacks")
        else:
            print_line("there is no restore with a loss to accept")
        return
    said = restored.restoration
    if as_json:
        print_json(
            {
                "file": file,
                "nodes": restored.nodes,
                "backup_ms": said.backup_ms,
                "first_new_ledger": said.floor,
                "compared": not (restored.was_empty or restored.follows_another),
                "lost_ledgers": restored.lost_ledgers,
                "lost_ledger_ids": restored.lost_ledger_ids,
                "lost_logs": restored.lost_logs,
                "logs_taken_back": restored.changed_logs,
                "accepted": accept_loss,
            }
        )
        return
    print_line(f"restored {restored.nodes} nodes from the backup of {moment(said.backup_ms).isoformat()}")
    if restored.was_empty:
        print_line("the store was empty, so it cannot say what was lost")
        print_line(
            "the grants, and how the cluster is closed, are as in the backup: check 'ledgerlog access list' "
            "and 'ledgerlog access mode'"
        )
    else:
        if restored.follows_another:
            print_line(
                "an earlier restore was interrupted, or its loss was not accepted yet: what it deleted or "
                "took back is not counted here; 'ledgerlog metadata check' shows what is missing"
            )
        more = " ..." if restored.lost_ledgers > len(restored.lost_ledger_ids) else ""
        ids = " ".join(map(str, restored.lost_ledger_ids))
        print_line(f"lost ledgers: {restored.lost_ledgers}" + (f" ({ids}{more})" if ids else ""))
        print_line(f"lost logs: {', '.join(restored.lost_logs) or 'none'}")
        print_line(f"logs taken back to an earlier state: {restored.changed_logs}")
        print_line("the grants, and how the cluster is closed, stay as they were")
    print_line(f"new ledgers get ids from {said.floor} on")
    if not accept_loss:
        print_line(
            "start the bookies, and run 'ledgerlog metadata check --bring-back' before any writer: it "
            "brings back the parts of logs that bookies hold, and names the rest"
        )
        print_line(
            "bookies keep all ledgers from before the restore until you accept the loss: "
            "'ledgerlog metadata restore --accept-loss'"
        )


@metadata.command("check")
@click.option(
    "--bring-back",
    is_flag=True,
    help="First restore the forgotten ledgers that continue their logs. Do this before any writer starts.",
)
@click.option(
    "--accept-absent",
    is_flag=True,
    help="With --bring-back: continue even if bookies are not registered or did not answer. Ledgers that "
    "only they hold are not restored, and writers reuse their offsets.",
)
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="With --bring-back: also restore ledgers that begin behind the end of their log. The records in "
    "between stay missing, and readers are told so.",
)
@uri_option
@json_option
def metadata_check(bring_back: bool, accept_absent: bool, accept_gaps: bool, uri: str, as_json: bool) -> None:
    """Compare the metadata with the ledgers that bookies hold, and print the differences.

    Exit 0: the only differences are deleted ledgers, which bookies will collect. Exit 1: there are other
    differences, or a ledger was not brought back."""
    for option, is_set in (("--accept-absent", accept_absent), ("--accept-gaps", accept_gaps)):
        if is_set and not bring_back:
            raise click.UsageError(f"{option} needs --bring-back")

    why: dict[BookieId, str] = {}

    async def body() -> tuple[MetadataCheck, list[BroughtBack], list[LeftOut], int]:
        async with connect(uri) as cluster:
            client = cluster.client
            check = await look_at_metadata(client)
            back: list[BroughtBack] = []
            left: list[LeftOut] = []
            if bring_back:
                back, left = await bring_back_ledgers(
                    client, check, accept_absent=accept_absent, accept_gaps=accept_gaps
                )
                check = await look_at_metadata(client)
            why.update(client.pool.troubles(check.silent))
            return check, back, left, await count_other_lists(client.store)

    with progress_bar("comparing metadata with bookies", None):
        check, back, left, other_lists = run(body)
    is_sound = check.is_sound and not other_lists and not left
    if as_json:
        fields = {**_check_fields(check), "sound": is_sound, "why_silent": why, "other_lists": other_lists}
        print_json({**fields, "brought_back": _rows(back), "left_out": _rows(left)})
    else:
        for ledger in back:
            last = ledger.first_offset + ledger.records - 1
            what = f"ledger {ledger.ledger_id}, log {ledger.log}, offsets {ledger.first_offset} to {last}"
            print_line(f"brought back: {what}")
        for other in left:
            whose = "" if other.log is None else f" of log {other.log}"
            print_line(f"not brought back: ledger {other.ledger_id}{whose}: {other.why}")
        _print_other_lists(other_lists)
        _print_check(check, why)
    if not is_sound:
        raise click.exceptions.Exit(1)


def _rows(found: Sequence[BroughtBack] | Sequence[LeftOut]) -> list[dict[str, Any]]:
    return [attrs.asdict(row) for row in found]


def _check_fields(check: MetadataCheck) -> dict[str, Any]:
    def held(ledgers: Sequence[HeldOnly]) -> list[dict[str, Any]]:
        return [
            {"id": x.ledger_id, "log": x.log, "last_entry": x.last_entry, "bookies": list(x.bookies)}
            for x in ledgers
        ]

    return {
        "sound": check.is_sound,
        "ledgers": check.ledgers,
        "bookies": check.bookies,
        "forgotten": held(check.forgotten),
        "deleted": held(check.deleted),
        "not_held": [{"id": x.ledger_id, "elsewhere": list(x.elsewhere)} for x in check.not_held],
        "missing": {name: list(ledgers) for name, ledgers in check.missing.items()},
        "broken_logs": [
            {"log": x.name, "incarnation": x.incarnation, "why": x.why} for x in check.broken_logs
        ],
        "above_counter": list(check.above_counter),
        "unregistered": list(check.unregistered),
        "silent": list(check.silent),
        "in_limbo": list(check.in_limbo),
        "unreadable": list(check.unreadable),
        "restored_ms": None if check.restoration is None else check.restoration.restored_ms,
        "backup_ms": None if check.restoration is None else check.restoration.backup_ms,
    }


def _print_check(check: MetadataCheck, why: Mapping[BookieId, str]) -> None:
    print_line(f"compared {check.ledgers} ledgers with what {check.bookies} bookies hold")
    if check.restoration is not None:
        made = moment(check.restoration.backup_ms).isoformat()
        print_line(f"the store was restored from the backup of {made}, and the loss is not accepted")
    _print_some(
        "held by bookies, forgotten by the metadata",
        [
            f"ledger {x.ledger_id} ({x.log or 'log not known'}) on {' '.join(x.bookies)}"
            for x in check.forgotten
        ],
    )
    _print_some(
        "without any copy where the metadata says",
        [
            f"ledger {x.ledger_id}" + (f", held by {' '.join(x.elsewhere)}" if x.elsewhere else "")
            for x in check.not_held
        ],
    )
    _print_some(
        "missing from the metadata, listed by a log",
        [f"ledger {ledger} of log {log}" for log, ledgers in check.missing.items() for ledger in ledgers],
    )
    _print_some("logs that have lost a node", [f"log {x.name}: {x.why}" for x in check.broken_logs])
    _print_some("ids that were not given out", [f"ledger {number}" for number in check.above_counter])
    _print_some("not registered", list(check.unregistered))
    _print_some(
        "registered, did not list their ledgers", [why.get(bookie, bookie) for bookie in check.silent]
    )
    _print_some("in limbo, may have lost ledgers", list(check.in_limbo))
    _print_some("cannot be read", list(check.unreadable))
    if check.deleted:
        print_line(f"deleted, to be collected by bookies: {len(check.deleted)} ledgers")
    print_line("nothing differs" if check.is_sound else "the metadata and the bookies differ")


def _print_other_lists(other_lists: int) -> None:
    if other_lists:
        print_line(
            f"znodes whose list of rights is not the cluster's: {other_lists}; 'ledgerlog metadata secure' "
            "sets it"
        )


def _print_some(what: str, lines: list[str]) -> None:
    if not lines:
        return
    print_line(f"{what}: {len(lines)}")
    for line in lines[:_SHOWN]:
        print_line(f"  {line}")
    if len(lines) > _SHOWN:
        print_line("  ... (--json names all)")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_min_racks_option = click.option(
    "--min-racks",
    type=click.IntRange(1, ENSEMBLE_MAX),
    help="The number of racks over which the copies of each entry must be spread ('bookie run --label "
    "rack=NAME'). 1: no rule.",
)


def _access_options(function: F) -> F:
    """Add the options that say who may use the tree in ZooKeeper; see ``_access``."""
    who = "SCHEME:ID, such as sasl:NAME, or @FILE for the user of a credentials file"
    for option in (
        click.option(
            "--with-root",
            is_flag=True,
            help="Set the rights even if the cluster is in ZooKeeper's root, because only this cluster uses "
            "the ensemble.",
        ),
        click.option(
            "--zk-read",
            "zk_read",
            metavar="WHO",
            multiple=True,
            help=f"Who may read in ZooKeeper: {who}. Repeat it for more.",
        ),
        click.option(
            "--zk-all",
            "zk_all",
            metavar="WHO",
            multiple=True,
            help="Who may do everything in ZooKeeper, in addition to you.",
        ),
    ):
        function = option(function)
    return function


def _access(zk_all: tuple[str, ...], zk_read: tuple[str, ...], with_root: bool) -> StoreAccess | None:
    if not (zk_all or zk_read or with_root):
        return None
    return StoreAccess(all_of=zk_all, readers=zk_read, with_root=with_root)


@metadata.command("secure")
@_access_options
@uri_option
@json_option
def metadata_secure(
    zk_all: tuple[str, ...], zk_read: tuple[str, ...], with_root: bool, uri: str, as_json: bool
) -> None:
    """Protect the cluster's tree in ZooKeeper: only you and the users that you name may use it.

    Each znode gets the same access list. The cluster may be in use. If the command is interrupted, run it
    again. Name all users each time: a user that you do not name loses the right. Run it again after the last
    process of version 0.1 has ended, because such a process makes open znodes."""
    where = parse_uri(uri)

    async def body() -> dict[str, Any]:
        access = _access(zk_all, zk_read, with_root) or StoreAccess()
        rights, changed, znodes = await secure_at(where, credentials=given_credentials(), access=access)
        return {"uri": str(where), "znodes": znodes, "changed": changed, "rights": rights}

    said = run(body)
    if as_json:
        print_json(said)
        return
    print_line(f"{said['uri']}: {said['znodes']} znodes, {said['changed']} of them changed")
    for right in said["rights"]:
        print_line(f"  {right}")


@metadata.command("principal")
@click.argument("file", type=click.Path(dir_okay=False))
@json_option
def metadata_principal(file: str, as_json: bool) -> None:
    """Print the ZooKeeper name of the user in the credentials file FILE, for --zk-all and --zk-read."""

    async def body() -> str:
        (principal,) = StoreAccess().principals([f"@{file}"])
        return str(principal)

    principal = run(body)
    if as_json:
        print_json({"principal": principal})
    else:
        print_line(principal)


@metadata.command("init")
@_min_racks_option
@click.option("--strict", is_flag=True, help="Refuse new ledgers whose copies would be in fewer racks.")
@_access_options
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="Make an open cluster, which serves every process that can reach it.",
)
@uri_option
@json_option
def metadata_init(
    min_racks: int | None,
    strict: bool,
    zk_all: tuple[str, ...],
    zk_read: tuple[str, ...],
    with_root: bool,
    is_open: bool,
    uri: str,
    as_json: bool,
) -> None:
    """Create a new, empty cluster in a metadata store.

    For sqlite:PATH the command makes the file, for zk://HOSTS/CHROOT the nodes below the chroot. Then start
    the bookies with 'bookie run'. If the store already has a cluster, the command changes nothing and says
    so. Then it also says whether 'metadata secure' has to be run.

    The new cluster is closed: its bookies serve only processes that prove who they are, with the secret in
    --secret-file or with a certificate. If the secret file does not exist, the command makes it. For
    sqlite:PATH the default is PATH.secret, where all processes find it. 'access mode' opens or closes a
    cluster later.

    See 'metadata placement' for the options about racks. With credentials for ZooKeeper, only you and the
    users that you name may use the cluster's tree; see 'metadata secure'."""
    policy = _policy_with(DEFAULT_PLACEMENT, min_racks, strict or None)
    parsed = parse_uri(uri)
    if isinstance(parsed, FileUri | MemoryUri):
        raise click.UsageError(
            f"{uri}: such a cluster is made when it is opened; give sqlite:PATH or zk://HOSTS"
        )
    check_there(uri)
    credentials, by = _closed_by(parsed, given_credentials(), is_open)

    async def body() -> dict[str, Any]:
        access = _access(zk_all, zk_read, with_root)
        if by is ProvenBy.NOTHING:
            cluster, is_new = await make_cluster_at(
                parsed, credentials=credentials, access=access, placement=policy
            )
        else:
            cluster, is_new = await make_closed_cluster(
                parsed, credentials, by=by, access=access, placement=policy
            )
        async with open_store(parsed, credentials=credentials) as store:
            now = await STORED_ADMISSION.read(store)
            # An earlier command may have been killed after it made the cluster and before it set the lists.
            other_lists = await count_other_lists(store)
        said = {"uri": str(parsed), "cluster": cluster, "made": is_new, "mode": now.name}
        said["other_lists"] = other_lists
        if is_new and by is ProvenBy.SECRET:
            said["secret_file"] = credentials.secret_file
        return said

    said = run(body)
    if as_json:
        print_json(said)
    elif said["made"]:
        how = f"closed by the secret in {said['secret_file']}" if "secret_file" in said else said["mode"]
        print_line(f"{said['uri']}: made cluster {said['cluster']}, which is {how}")
    else:
        print_line(f"{said['uri']}: cluster {said['cluster']} is there already; nothing was changed")
    if not as_json:
        _print_other_lists(said["other_lists"])


def _closed_by(uri: ClusterUri, credentials: Credentials, is_open: bool) -> tuple[Credentials, ProvenBy]:
    """Return the credentials for a new cluster, with its secret file if it has one, and the required proof.

    Raises:
        click.UsageError: ``--open`` contradicts a secret file; or both are missing, and no secret file is
            found.
    """
    if is_open:
        if credentials.secret_file is not None:
            raise click.UsageError("--open makes a cluster without a secret: do not give --secret-file")
        return credentials, ProvenBy.NOTHING
    if credentials.tls is not None:
        return credentials, ProvenBy.TLS
    if credentials.secret_file is None and isinstance(uri, SqliteUri):
        credentials = attrs.evolve(credentials, secret_file=secret_beside(uri))
    if credentials.secret_file is None:
        raise click.UsageError(
            "give --secret-file FILE, with the secret of the new cluster (it is made if it does not exist); "
            "or --open for a cluster that serves every process that reaches it"
        )
    return credentials, ProvenBy.SECRET


@metadata.command("placement")
@_min_racks_option
@click.option(
    "--strict/--no-strict",
    default=None,
    help="Refuse new ledgers and replacements that break the rule, or accept them and move the copies later.",
)
@click.option("--reset", is_flag=True, help="Start from the defaults instead of the stored policy.")
@uri_option
@json_option
def metadata_placement(
    min_racks: int | None, strict: bool | None, reset: bool, uri: str, as_json: bool
) -> None:
    """Print or change the number of racks over which the copies of each entry must be spread.

    A change applies to new ledgers at once, everywhere. 'repair audit' reports the ledgers that break the
    rule, and workers of auto-recovery move their copies."""

    async def body() -> dict[str, Any]:
        async with connect(uri) as cluster:
            client = cluster.client
            if reset or min_racks is not None or strict is not None:
                policy = await STORED_PLACEMENT.change(
                    client.store, lambda now: _policy_with(now, min_racks, strict), reset=reset
                )
            else:
                policy = await STORED_PLACEMENT.read(client.store)
            await client.bookies.refresh()
            racks: dict[str, list[str]] = {}
            unlabelled = []
            for info in sorted(client.bookies.registered(), key=lambda info: info.bookie_id):
                rack = rack_of(info)
                if rack is None:
                    unlabelled.append(info.bookie_id)
                else:
                    racks.setdefault(rack, []).append(info.bookie_id)
            return {
                "min_racks": policy.min_racks,
                "strict": policy.strict,
                "racks": dict(sorted(racks.items())),
                "without_rack": unlabelled,
            }

    said = run(body)
    if as_json:
        print_json(said)
        return
    print_line(f"min_racks: {said['min_racks']}")
    print_line(f"strict: {said['strict']}")
    for rack, bookies in said["racks"].items():
        print_line(f"rack {rack}: {' '.join(bookies)}")
    if said["without_rack"]:
        print_line(f"without a rack label: {' '.join(said['without_rack'])}")


def _policy_with(policy: PlacementPolicy, min_racks: int | None, strict: bool | None) -> PlacementPolicy:
    try:
        return attrs.evolve(
            policy,
            min_racks=policy.min_racks if min_racks is None else min_racks,
            strict=policy.strict if strict is None else strict,
        )
    except InvalidArgument as cause:
        raise click.UsageError(str(cause)) from cause
