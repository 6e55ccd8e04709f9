"""``ledgerlog repair``: run auto-recovery, watch it, and change its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import click
import trio

from ledgerlog.admin.options import admin_options, reads_are_open
from ledgerlog.cli.options import FiniteNumber, connect, json_option, keep_a_log, uri_option
from ledgerlog.cli.output import human_bytes, print_json, print_line, print_table
from ledgerlog.cli.repair_administration import serve_administration
from ledgerlog.cli.running import run, run_until_interrupted
from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.election.election import Election
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import (
    REPAIR_AUDIT,
    REPAIR_SETTINGS,
    draining_path,
    election_path,
    ledger_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.record import moment
from ledgerlog.model.repair import RepairSettings, RepairTask
from ledgerlog.net.tcp import parse_address
from ledgerlog.progress_bar import Bar, progress_bar
from ledgerlog.repair.auditor import AUDITOR_ELECTION, check_entries, pass_over_now
from ledgerlog.repair.checking import LedgerFaults
from ledgerlog.repair.core.placement import NarrowFragment
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery, begin_anew
from ledgerlog.repair.settings import SettingsInForce

__all__ = ["repair"]

logger = logging.getLogger(__name__)

_TASKS_SHOWN = 1000
_LOOK_S = 20.0
"""How long a status looks at ledgers: long enough for some ten thousand in a real metadata store."""


@click.group()
def repair() -> None:
    """Find under-replicated ledgers, and copy their entries until each has its write quorum."""


@repair.command("run")
@click.option("--name", help="The name of this process in 'repair status'.")
@admin_options
@uri_option
@json_option
def repair_run(name: str | None, admin: str | None, admin_reads: str | None, uri: str, as_json: bool) -> None:
    """Run auto-recovery in this process until interrupted.

    You can run any number of these processes, also inside bookies ('bookie run --auto-recovery'). One of them
    is the auditor, and each works on a share of the tasks. If the metadata store is restored from a backup,
    the process connects to it again and begins anew."""

    keep_a_log()
    may_read = reads_are_open(admin, admin_reads)
    if admin is not None:
        parse_address(admin)

    async def serve(*, again: bool) -> None:
        """Run until the metadata store is restored from a backup."""
        nonlocal name, admin
        async with connect(uri) as cluster, open_nursery() as nursery:
            service = AutoRecovery(cluster.client, name=name)
            name = service.worker.name
            door = None
            if admin is not None:
                door = await cluster.client.network.listen(admin)
                admin = door.address
                nursery.start_soon(partial(serve_administration, cluster, service, door, may_read=may_read))
            if again:
                logger.warning("worker=%s: it runs again", name)
            elif as_json:
                print_json({"running": name} if door is None else {"running": name, "admin": door.address})
            else:
                administered = "" if door is None else f", administration on {door.address}"
                print_line(f"auto-recovery runs as {name}{administered}")
            await service.run_until_restored()
            nursery.cancel_scope.cancel()

    async def body() -> None:
        await serve(again=False)  # The first failure to connect ends the command.
        await begin_anew(partial(serve, again=True), name)

    run_until_interrupted(body)


@repair.command("status")
@click.option(
    "--within",
    type=FiniteNumber(0),
    default=_LOOK_S,
    show_default=True,
    help="How many seconds to check ledgers. If some are left after that, the output says so.",
)
@uri_option
@json_option
def repair_status(within: float, uri: str, as_json: bool) -> None:
    """Print which ledgers are under-replicated now, which workers repair them, how fast, and why some are not
    repaired yet. Works even if no auto-recovery runs."""

    async def body() -> dict[str, Any]:
        async with connect(uri) as cluster:
            return await status_fields(cluster, within_s=within)

    fields = run(body)
    if as_json:
        print_json(fields)
    else:
        _print_status(fields)


async def status_fields(cluster: Cluster, *, within_s: float = _LOOK_S) -> dict[str, Any]:
    """Return the output of ``repair status --json``.

    Looks at ledgers and tasks for about ``within_s`` seconds.
    """
    deadline = trio.current_time() + within_s
    queue = RepairQueue(cluster.client)
    damaged: dict[str, str] = {}
    leader = record = None
    try:
        leader = await Election(cluster.client, AUDITOR_ELECTION).leader()
    except MetadataCorrupt as damage:
        damaged[election_path(AUDITOR_ELECTION)] = str(damage)
    try:
        record = await queue.audit_record()
    except MetadataCorrupt as damage:
        damaged[REPAIR_AUDIT] = str(damage)
    in_force = SettingsInForce(queue, name="repair status")
    settings = await in_force.read()
    if in_force.damage is not None:
        damaged[REPAIR_SETTINGS] = in_force.damage
    draining, unknown = await queue.requests()
    damaged |= {draining_path(bookie): why for bookie, why in unknown.items()}
    workers, locks = await queue.workers(), await queue.locks()
    waiting = await queue.tasks()
    passed = await pass_over_now(cluster.client, queue, within_s=deadline - trio.current_time())
    damaged |= {ledger_path(ledger_id): why for ledger_id, why in passed.unreadable.items()}
    damaged |= {path: why for path, _, why in (stray.partition(": ") for stray in passed.strays)}
    lacking = set(passed.affected)
    # A task names bookies that were lost when it was last written. Leave out bookies that are back.
    there = (await queue.registered()).keys() - draining
    tasks: list[dict[str, Any]] = []
    tasks_read = 0
    for ledger_id in waiting:
        if tasks_read >= _TASKS_SHOWN and trio.current_time() > deadline:
            break
        tasks_read += 1
        try:
            found = await queue.task(ledger_id)
        except MetadataCorrupt as damage:
            found = RepairTask(ledger_id=ledger_id, trouble=str(damage)), 0
        if found is None:
            continue
        task = found[0]
        if task.damaged or task.incomplete:
            lacking.add(ledger_id)
        if len(tasks) == _TASKS_SHOWN:
            continue
        holder = workers.get(locks.get(ledger_id, ""))
        doing = {work.ledger_id: work.doing for work in holder.work} if holder else {}
        tasks.append(
            {
                "ledger": ledger_id,
                "lost": [bookie for bookie in task.lost if bookie not in there],
                "damaged": list(task.damaged),
                "incomplete": list(task.incomplete),
                "misplaced": list(task.misplaced),
                "made": _time(task.made_at_ms),
                "worker": None if holder is None else holder.name,
                "doing": doing.get(ledger_id),
                "trouble": task.trouble,
            }
        )
    return {
        "under_replicated": len(lacking),
        "ledgers": passed.ledgers,
        "looked_at": passed.looked_at,
        "is_complete": passed.looked_at == passed.ledgers and tasks_read == len(waiting),
        "waiting": len(waiting),
        "paused": settings.paused,
        "settings": settings_fields(settings),
        "auditor": leader.candidate if leader is not None and leader.is_registered else None,
        "last_metadata_check": None if record is None else _time(record.metadata_at_ms),
        "last_entry_check": None if record is None else _time(record.entries_at_ms),
        "absent": {} if record is None else {b: _time(at) for b, at in sorted(record.absent.items())},
        "draining": sorted(draining),
        "damaged": [{"path": path, "why": why} for path, why in sorted(damaged.items())],
        "workers": [
            {
                "name": worker.name,
                "repaired": worker.repaired,
                "entries": worker.entries,
                "bytes": worker.copied_bytes,
                "bytes_per_s": worker.bytes_per_s,
                "ledgers": [{"ledger": w.ledger_id, "doing": w.doing} for w in worker.work],
            }
            for worker in sorted(workers.values(), key=lambda worker: worker.name)
        ],
        "tasks": tasks,
    }


def _time(at_ms: int) -> str | None:
    return moment(at_ms).isoformat(timespec="milliseconds") if at_ms else None


def _print_status(fields: dict[str, Any]) -> None:
    under, count = fields["under_replicated"], fields["waiting"]
    seen = "all ledgers" if fields["ledgers"] is None else f"{fields['ledgers']} ledgers"
    if fields["is_complete"]:
        print_line(f"under-replicated now: {under} of {seen}")
    else:
        print_line(
            f"under-replicated now: at least {under} of {seen}; {fields['looked_at']} were checked (use "
            f"--within SECONDS to check longer)"
        )
    paused = ", and repair is paused" if fields["paused"] else ""
    print_line(f"{count} ledger{'' if count == 1 else 's'} to repair{paused}")
    print_line(f"auditor: {fields['auditor'] or 'none'}")
    print_line(f"metadata compared with bookies: {fields['last_metadata_check'] or 'never'}")
    print_line(f"entries checked: {fields['last_entry_check'] or 'never'}")
    for bookie, since in fields["absent"].items():
        print_line(f"absent: {bookie} since {since}")
    for bookie in fields["draining"]:
        print_line(f"being emptied: {bookie}")
    for damage in fields["damaged"]:
        print_line(f"damaged: {damage['path']}: {damage['why']}")
    if fields["workers"]:
        rows = [
            (
                w["name"],
                len(w["ledgers"]),
                w["repaired"],
                human_bytes(w["bytes"]),
                human_bytes(w["bytes_per_s"]),
            )
            for w in fields["workers"]
        ]
        print_table(("worker", "at work on", "done", "copied", "a second"), rows)
    else:
        print_line("no worker is running: start 'ledgerlog repair run', or bookies with --auto-recovery")
    if fields["tasks"]:
        tasks = [
            (
                task["ledger"],
                " ".join((*task["lost"], *task["damaged"], *task["incomplete"], *task["misplaced"])),
                task["worker"] or "-",
                task["doing"] or task["trouble"] or "-",
            )
            for task in fields["tasks"]
        ]
        print_table(("ledger", "bookies", "worker", "why it is not done"), tasks, numbers=("ledger",))


@repair.command("audit")
@click.option(
    "--entries",
    type=click.Choice(["none", "ends", "all"]),
    default="none",
    show_default=True,
    help="Also ask bookies for the entries that they should have. ends: read the first and last entry of "
    "each fragment, which also shows damage there. all: compare lists of all entries, which shows every "
    "missing entry, but no damage.",
)
@click.option(
    "--per-second",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="How many entries to ask for per second.",
)
@click.option("--dry-run", is_flag=True, help="Print the findings, but make no tasks.")
@uri_option
@json_option
def repair_audit(entries: str, per_second: int, dry_run: bool, uri: str, as_json: bool) -> None:
    """Compare all metadata with the registered bookies, and make a repair task for each ledger that needs
    one.

    That is a ledger that names a lost bookie, or whose copies are in too few racks ('metadata placement') and
    can be moved. A bookie that is not registered counts as lost at once, without the usual delay. Workers
    check again before they do anything, so a bookie that comes back costs nothing.

    The exit status is 1 if some ledgers could not be checked, because their metadata is damaged, you may not
    read them, or one of their bookies is registered but does not answer or is in limbo. It is also 1 if the
    metadata store has a node among the ledgers that does not belong to a ledger."""

    async def body(bar: Bar) -> list[dict[str, Any]]:
        def on_checked(checked: int, ledgers: int) -> None:
            bar.describe("checking entries of ledgers")
            bar.resize(ledgers)
            bar.move_to(checked)

        async with connect(uri) as cluster:
            return await audit(
                cluster, entries=entries, per_s=per_second, make_tasks=not dry_run, on_checked=on_checked
            )

    with progress_bar("comparing metadata", None) as bar:
        found = run(partial(body, bar))
    if as_json:
        misplaced = {fields["ledger"] for fields in found if "racks" in fields}
        under_replicated = {f["ledger"] for f in found if f["bookies"] and "racks" not in f}
        print_json({"under_replicated": len(under_replicated), "misplaced": len(misplaced), "found": found})
    elif found:
        rows = [
            ("-" if f["ledger"] is None else f["ledger"], " ".join(f["bookies"]), f["why"]) for f in found
        ]
        print_table(("ledger", "bookies", "why"), rows, numbers=("ledger",))
    else:
        print_line("nothing is under-replicated or in too few racks, among the ledgers that were checked")
        if entries == "none":
            print_line("bookies were not asked for entries: '--entries all' asks them")
    if unchecked := sum(not fields["bookies"] for fields in found):
        items = "item" if unchecked == 1 else "items"
        raise click.ClickException(f"{unchecked} {items} could not be checked; 'why' tells the reason")


async def audit(
    cluster: Cluster,
    *,
    entries: str,
    per_s: int,
    make_tasks: bool,
    on_checked: Callable[[int, int], object] = lambda checked, ledgers: None,
) -> list[dict[str, Any]]:
    """Return the findings of ``repair audit``, an item for each ledger and reason. An item about a ledger
    that could not be checked has no bookies."""
    client, queue = cluster.client, RepairQueue(cluster.client)
    draining = frozenset(await queue.draining())
    found: list[dict[str, Any]] = []
    passed = await pass_over_now(client, queue, draining=draining)
    registered = await queue.registered()
    unchecked = dict(passed.unreadable)
    for stray in passed.strays:
        found.append({"ledger": None, "bookies": [], "why": stray})
    gone: set[BookieId] = set()
    for ledger_id, hit in passed.affected.items():
        gone.update(bookie for bookie in hit if bookie not in registered)
        if make_tasks:
            await queue.post(ledger_id, lost=hit)
        for why, bookies in (
            ("not registered", [bookie for bookie in hit if bookie not in registered]),
            ("being emptied", [bookie for bookie in hit if bookie in registered and bookie in draining]),
        ):
            if bookies:
                found.append({"ledger": ledger_id, "bookies": bookies, "why": why})

    for ledger_id, narrow in passed.narrow.items():
        mendable = passed.movable.get(ledger_id)
        if make_tasks and mendable:
            await queue.post(ledger_id, misplaced=mendable)
        for fragment in narrow:
            found.append(_narrow_fields(ledger_id, fragment, is_mendable=mendable is not None))

    async def on_fault(ledger_id: int, faults: LedgerFaults) -> None:
        if make_tasks:
            await queue.post(ledger_id, incomplete=faults.incomplete, damaged=faults.damaged)
        for why, bookies in (("entries missing", faults.incomplete), ("entries damaged", faults.damaged)):
            if bookies:
                found.append({"ledger": ledger_id, "bookies": list(bookies), "why": why})

    if entries != "none":
        await check_entries(
            client,
            check_all=entries == "all",
            per_s=per_s,
            on_fault=on_fault,
            is_gone=gone.__contains__,
            on_checked=on_checked,
            on_unchecked=unchecked.__setitem__,
        )
    for ledger_id, why in unchecked.items():
        found.append({"ledger": ledger_id, "bookies": [], "why": f"not checked: {why}"})
    return sorted(found, key=lambda f: (-1 if f["ledger"] is None else f["ledger"], f["why"]))


def _narrow_fields(ledger_id: int, fragment: NarrowFragment, *, is_mendable: bool) -> dict[str, Any]:
    end = "" if fragment.last_entry is None else fragment.last_entry
    racks = ", ".join(fragment.racks) or "unknown racks"
    why = f"copies in too few racks ({racks}), entries {fragment.first_entry}..{end}"
    if fragment.last_entry is None:
        why += "; its writer still appends"
    elif not is_mendable:
        why += "; no writable bookie in another rack helps"
    return {
        "ledger": ledger_id,
        "bookies": list(fragment.bookies),
        "why": why,
        "racks": list(fragment.racks),
    }


# --- settings -------------------------------------------------------------------------------------


def settings_fields(settings: RepairSettings) -> dict[str, Any]:
    """Return the settings in the units of their options."""
    return {
        "paused": settings.paused,
        "lost_after_s": settings.lost_after_ms / 1000,
        "grace_s": settings.grace_ms / 1000,
        "bytes_per_s": settings.bytes_per_s,
        "cluster_bytes_per_s": settings.cluster_bytes_per_s,
        "bookie_check_s": settings.bookie_check_ms / 1000,
        "entry_check_s": settings.entry_check_ms / 1000,
        "entry_check": "all" if settings.check_all else "ends",
        "checks_per_s": settings.checks_per_s,
    }


_reset_option = click.option(
    "--reset",
    is_flag=True,
    help="Start from the defaults instead of the stored settings, which may be damaged.",
)


def _change(uri: str, as_json: bool, reset: bool, **changes: Any) -> None:
    async def body() -> RepairSettings:
        async with connect(uri) as cluster:
            queue = RepairQueue(cluster.client)
            if not changes and not reset:
                return await queue.settings()
            return await queue.change_settings(lambda now: attrs.evolve(now, **changes), reset=reset)

    fields = settings_fields(run(body))
    if as_json:
        print_json(fields)
    else:
        for name, value in fields.items():
            print_line(f"{name}: {value}")


@repair.command("pause")
@_reset_option
@uri_option
@json_option
def repair_pause(reset: bool, uri: str, as_json: bool) -> None:
    """Pause repair: workers copy and recover nothing until 'repair resume'. The auditor still makes tasks."""
    _change(uri, as_json, reset, paused=True)


@repair.command("resume")
@_reset_option
@uri_option
@json_option
def repair_resume(reset: bool, uri: str, as_json: bool) -> None:
    """Resume repair: workers copy and recover again."""
    _change(uri, as_json, reset, paused=False)


_SECONDS = FiniteNumber(0)


@repair.command("settings")
@click.option("--lost-after", type=_SECONDS, help="Seconds until an absent bookie counts as lost.")
@click.option(
    "--grace",
    type=_SECONDS,
    help="Seconds that a writer has to replace a lost bookie, before its ledger is recovered.",
)
@click.option(
    "--bytes-per-second",
    type=click.IntRange(1),
    help="How many bytes each worker process may copy per second.",
)
@click.option(
    "--cluster-bytes-per-second",
    type=click.IntRange(0),
    help="How many bytes all worker processes together may copy per second. 0: no common limit.",
)
@click.option("--bookie-check", type=FiniteNumber(0.001), help="Seconds between checks of all metadata.")
@click.option("--entry-check", type=_SECONDS, help="Seconds between checks of entries. 0: no checks.")
@click.option(
    "--entry-check-of",
    type=click.Choice(["ends", "all"]),
    help="What a check of entries covers. ends: the first and last entry of each fragment, also damage "
    "there. all: all entries, but no damage.",
)
@click.option(
    "--checks-per-second",
    type=click.IntRange(1),
    help="How many requests a check of entries may send per second.",
)
@_reset_option
@uri_option
@json_option
def repair_settings(
    lost_after: float | None,
    grace: float | None,
    bytes_per_second: int | None,
    cluster_bytes_per_second: int | None,
    bookie_check: float | None,
    entry_check: float | None,
    entry_check_of: str | None,
    checks_per_second: int | None,
    reset: bool,
    uri: str,
    as_json: bool,
) -> None:
    """Print the settings of repair, or change them. A change applies at once, everywhere. Only a check of
    entries that has begun ends with the old settings."""
    milliseconds = {
        "lost_after_ms": lost_after,
        "grace_ms": grace,
        "bookie_check_ms": bookie_check,
        "entry_check_ms": entry_check,
    }
    changes: dict[str, Any] = {name: round(1000 * s) for name, s in milliseconds.items() if s is not None}
    if bytes_per_second is not None:
        changes["bytes_per_s"] = bytes_per_second
    if cluster_bytes_per_second is not None:
        changes["cluster_bytes_per_s"] = cluster_bytes_per_second
    if entry_check_of is not None:
        changes["check_all"] = entry_check_of == "all"
    if checks_per_second is not None:
        changes["checks_per_s"] = checks_per_second
    _change(uri, as_json, reset, **changes)
