"""``ledgerlog log``: create, list, show, truncate, seal, recover and delete logs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import click
import trio

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.cli.ledger import ledger_fields, replication_shown
from ledgerlog.cli.log_data import log_append, log_read
from ledgerlog.cli.log_retention import (
    cursor,
    log_configure,
    log_retain,
    log_sweep,
    policies_of,
    policies_text,
    policy_options,
)
from ledgerlog.cli.options import (
    OFFSET,
    confirmed,
    connect,
    json_option,
    log_name_argument,
    quorum_options,
    replication_of,
    uri_option,
    yes_option,
)
from ledgerlog.cli.output import human_bytes, print_json, print_line, print_table
from ledgerlog.cli.running import run
from ledgerlog.cluster import Cluster
from ledgerlog.errors import EntryUnavailable, LedgerNotFound
from ledgerlog.log.log import LogInfo
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.record import moment
from ledgerlog.model.segments import Gap, LogSegment
from ledgerlog.redact import redact

_READS_AT_ONCE = 32
"""How many metadata reads ``show`` runs at once."""


@click.group()
def log() -> None:
    """Create, write, read and maintain logs."""


log.add_command(log_append)
log.add_command(log_read)
log.add_command(log_configure)
log.add_command(log_retain)
log.add_command(log_sweep)
log.add_command(cursor)


@log.command("create")
@log_name_argument
@quorum_options
@policy_options
@uri_option
@json_option
def log_create(
    name: str,
    ensemble: int | None,
    write_quorum: int | None,
    ack_quorum: int | None,
    guaranteed: bool,
    uri: str,
    as_json: bool,
    **policies: str | None,
) -> None:
    """Create a new, empty log NAME.

    If you give no numbers, the cluster's defaults apply: ensemble 3, write quorum 3 and ack quorum 2; for
    file: what its bookies allow. If you give some numbers, the default write quorum is 3, or the ensemble if
    that is smaller, and the default ack quorum is a majority of the write quorum."""
    replication = replication_of(ensemble, write_quorum, ack_quorum, guaranteed)
    has_numbers = any(number is not None for number in (ensemble, write_quorum, ack_quorum))
    roll, retention = policies_of(**policies)

    async def body() -> dict[str, Any]:
        async with connect(uri, make=True) as cluster:
            default = attrs.evolve(cluster.client.default_replication, guaranteed=guaranteed)
            made = await cluster.create_log(
                name,
                replication=replication if has_numbers else default,
                roll=RollPolicy(**roll),
                retention=RetentionPolicy(**retention),
            )
            return await _show(cluster, made.name)

    shown = run(body)
    if as_json:
        print_json(shown)
    else:
        print_line(f"{name}: created")


@log.command("list")
@click.option("--prefix", default="", help="List only logs whose names begin with this.")
@uri_option
@json_option
def log_list(prefix: str, uri: str, as_json: bool) -> None:
    """Print the names of all logs."""

    async def body() -> list[str]:
        async with connect(uri) as cluster:
            return await cluster.logs(prefix)

    for name in run(body):
        if as_json:
            print_json({"name": name})
        else:
            print_line(name)


@log.command("show")
@log_name_argument
@uri_option
@json_option
def log_show(name: str, uri: str, as_json: bool) -> None:
    """Print the log NAME, its policies and its ledgers."""

    async def body() -> dict[str, Any]:
        async with connect(uri) as cluster:
            return await _show(cluster, name)

    shown = run(body)
    if as_json:
        print_json(shown)
        return
    print_line(f"{name}: {'sealed' if shown['sealed'] else 'open'}, epoch {shown['epoch']}")
    first, end = shown["first_offset"], shown["next_offset"]
    if end is None:
        print_line(f"offsets: from {first}; the end is not known now: {shown['end_unknown']}")
    else:
        print_line(f"offsets: {f'{first} to {end - 1}' if first < end else 'none'}, next {end}")
    chosen = shown["replication"]
    quorums = f"{chosen['ensemble_size']}/{chosen['write_quorum']}/{chosen['ack_quorum']}"
    print_line(f"new ledgers: {quorums}{' guaranteed' if chosen['guaranteed'] else ''}")
    print_line(policies_text(shown["roll"], shown["retention"]))
    for first, end in shown["gaps"]:
        print_line(f"lost: offsets {first} to {end - 1}")
    for place in shown["cursors"]:
        print_line(f"cursor {place['name']}: offset {place['offset']}{', pins' if place['pins'] else ''}")
    for key, value in shown["properties"].items():
        print_line(f"property {key}: {value}")
    rows = [
        (
            ledger["id"],
            ledger["state"],
            "?" if ledger["first_offset"] is None else ledger["first_offset"],
            "" if ledger["last_entry"] is None else ledger["last_entry"],
            f"{ledger['ensemble_size']}/{ledger['write_quorum']}/{ledger['ack_quorum']}"
            + (" guaranteed" if ledger["guaranteed"] else ""),
            "; ".join(f"{f['first_entry']}: {' '.join(f['bookies'])}" for f in ledger["fragments"])
            or ("" if ledger["archive"] is None else ledger["archive"]["file"]),
            "" if ledger["bytes"] is None else human_bytes(ledger["bytes"]),
            ledger["kept_because"] or "not known now",
        )
        for ledger in shown["ledgers"]
    ]
    columns = (
        "ledger",
        "state",
        "first offset",
        "last entry",
        "replication",
        "bookies from entry",
        "size",
        "kept because",
    )
    print_table(columns, rows, numbers=("ledger", "first offset", "last entry", "size"))


async def _show(cluster: Cluster, name: str) -> dict[str, Any]:
    log = await cluster.open_log(name)
    end_unknown, whys = None, None
    try:
        info = await log.info()
    except EntryUnavailable as failure:  # This command is for outages, too.
        end_unknown, info = str(failure), await log.counted_info()
    with suppress(EntryUnavailable):
        whys = {segment.ledger_id: why for segment, why in await log.why_kept()}
    limiter = trio.CapacityLimiter(_READS_AT_ONCE)
    ledgers: dict[int, dict[str, Any]] = {}

    archives = await ArchiveRegistry(cluster.store).of_log(log.incarnation)
    archived = {record.ledger_id: record for record, _ in archives}

    async def look(segment: LogSegment) -> None:
        async with limiter:
            try:
                metadata = await cluster.ledgers.metadata(segment.ledger_id)
            except LedgerNotFound:
                if segment.ledger_id not in archived:
                    return  # Truncation or a deletion removed it after the list was read.
                fields = _archived_fields(info, archived[segment.ledger_id])
            else:
                fields = ledger_fields(metadata)
        ledgers[segment.ledger_id] = {
            "first_offset": segment.first_offset,
            "records": segment.record_count,
            "bytes": segment.byte_length,
            "kept_because": None
            if whys is None
            else whys.get(segment.ledger_id, "it has just left the list"),
            **fields,
            "archive": _archive_fields(archived.get(segment.ledger_id)),
        }

    async with trio.open_nursery() as nursery:
        for segment in info.segments:
            nursery.start_soon(look, segment)
    return {
        "name": info.name,
        "epoch": info.epoch,
        "first_offset": info.first_offset,
        "next_offset": info.next_offset if end_unknown is None else None,
        "end_unknown": end_unknown,
        "sealed": info.sealed,
        "gaps": [[gap.first_offset, gap.end_offset] for gap in info.gaps],
        "deduplicates": info.deduplicates,
        "replication": replication_shown(info.replication),
        "roll": attrs.asdict(info.roll),
        "retention": attrs.asdict(info.retention),
        "cursors": [{"name": c.name, "offset": c.offset, "pins": c.pins} for c in await log.cursors()],
        "properties": dict(info.properties),
        "ledgers": [ledgers[s.ledger_id] for s in info.segments if s.ledger_id in ledgers],
    }


def _archived_fields(info: LogInfo, record: ArchivedFile) -> dict[str, Any]:
    """Return the fields for an archived ledger without metadata: only the archive has this ledger."""
    return {
        "id": record.ledger_id,
        "state": "ARCHIVED",
        "last_entry": record.ledgers[0].last_entry,
        **replication_shown(info.replication),
        "fragments": [],
    }


def _archive_fields(record: ArchivedFile | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "file": redact(record.file),
        "file_bytes": record.file_bytes,
        "records": record.record_count,
        "ledgers": [ledger.ledger_id for ledger in record.ledgers],
        "compacted": record.compacted,
        "archived": moment(record.archived_ms).isoformat(timespec="milliseconds"),
    }


@log.command("stats")
@log_name_argument
@uri_option
@json_option
def log_stats(name: str, uri: str, as_json: bool) -> None:
    """Print how much the log NAME holds, and how fast it grew.

    Bytes and times cover closed ledgers only. The open ledger is counted when it is closed."""

    async def body() -> LogInfo:
        async with connect(uri) as cluster:
            return await (await cluster.open_log(name)).info()

    stats = _stats_of(run(body))
    if as_json:
        print_json(stats)
        return
    lost = f", {stats['lost']} lost" if stats["lost"] else ""
    print_line(
        f"{name}: {stats['records']} records{lost} in {stats['ledgers']} ledgers, epoch {stats['epoch']}"
    )
    print_line(f"closed ledgers: {stats['closed_records']} records, {human_bytes(stats['closed_bytes'])}")
    if stats["bytes_a_record"] is not None:
        print_line(f"mean record: {human_bytes(stats['bytes_a_record'])}")
    if stats["first_time"] is not None:
        print_line(f"written from {stats['first_time']} to {stats['last_time']}")
    if stats["records_per_s"] is not None:
        print_line(f"mean rate: {stats['records_per_s']:,.1f} records/s")


def _stats_of(info: LogInfo) -> dict[str, Any]:
    counted = [segment for segment in info.segments if segment.is_counted]
    records = sum(segment.record_count or 0 for segment in counted)
    size = sum(segment.byte_length or 0 for segment in counted)
    times = [ms for segment in counted for ms in (segment.first_ms, segment.last_ms) if ms is not None]
    span_s = (max(times) - min(times)) / 1000 if times else 0.0
    lost = sum(gap.end_offset - gap.first_offset for gap in info.gaps)
    return {
        "name": info.name,
        "epoch": info.epoch,
        "sealed": info.sealed,
        "records": info.next_offset - info.first_offset - lost,
        "lost": lost,
        "ledgers": len(info.segments),
        "closed_records": records,
        "closed_bytes": size,
        "bytes_a_record": size / records if records else None,
        "first_time": moment(min(times)).isoformat(timespec="milliseconds") if times else None,
        "last_time": moment(max(times)).isoformat(timespec="milliseconds") if times else None,
        "records_per_s": records / span_s if span_s else None,
    }


@log.command("truncate")
@log_name_argument
@click.option("--before", type=OFFSET, required=True, help="The first offset to keep.")
@click.option("--ignore-pins", is_flag=True, help="Also drop records that cursors pin.")
@uri_option
@json_option
def log_truncate(name: str, before: int, ignore_pins: bool, uri: str, as_json: bool) -> None:
    """Drop the records of the log NAME before an offset. The other records keep their offsets."""

    async def body() -> dict[str, Any]:
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            await log.truncate(before, ignore_pins=ignore_pins)
            return await _show(cluster, name)

    shown = run(body)
    if as_json:
        print_json(shown)
    else:
        print_line(f"{name}: begins at offset {shown['first_offset']}")


@log.command("seal")
@log_name_argument
@yes_option
@uri_option
@json_option
def log_seal(name: str, yes: bool, uri: str, as_json: bool) -> None:
    """Seal the log NAME permanently: it takes no more records. If it has a writer, the writer is stopped."""
    confirmed(f"Seal the log {name} permanently", is_sure=yes)

    async def body() -> dict[str, Any]:
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            await log.seal()
            return await _show(cluster, name)

    shown = run(body)
    if as_json:
        print_json(shown)
    else:
        print_line(f"{name}: sealed at offset {shown['next_offset']}")


@log.command("recover")
@log_name_argument
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If bookies have lost so much that no bookie can say where a ledger ends, end it before the loss. "
    "The records after it keep their offsets, after a gap that readers are told about. You cannot undo this.",
)
@click.option(
    "--accept-unreachable",
    is_flag=True,
    help="With --accept-loss: end the ledger even if bookies that may hold records do not answer. Use it "
    "only if these bookies will never return.",
)
@uri_option
@json_option
def log_recover(name: str, accept_loss: bool, accept_unreachable: bool, uri: str, as_json: bool) -> None:
    """Close the ledgers that the last writer of the log NAME left open, so that the next writer does not have
    to.

    If the log has a writer, the writer is stopped. The command fails if an accepted loss in one ledger
    ('ledger recover --accept-loss') or a restore of the metadata would drop later records that may have been
    acknowledged. It then says which records."""
    if accept_unreachable and not accept_loss:
        raise click.UsageError("--accept-unreachable extends --accept-loss: give both")

    async def body() -> tuple[tuple[Gap, ...], dict[str, Any]]:
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            made = await log.recover(accept_loss=accept_loss, accept_unreachable=accept_unreachable)
            return made, await _show(cluster, name)

    made, shown = run(body)
    if as_json:
        print_json({**shown, "gaps_made": [[gap.first_offset, gap.end_offset] for gap in made]})
        return
    print_line(f"{name}: complete up to offset {shown['next_offset']}, epoch {shown['epoch']}")
    for gap in made:
        print_line(
            f"lost: offsets {gap.first_offset} to {gap.end_offset - 1}; the records after them are kept"
        )


@log.command("delete")
@log_name_argument
@click.option(
    "--damaged",
    is_flag=True,
    help="Delete the log even if its record cannot be read. Its ledgers stay until `ledgerlog log sweep`.",
)
@yes_option
@uri_option
@json_option
def log_delete(name: str, damaged: bool, yes: bool, uri: str, as_json: bool) -> None:
    """Delete the log NAME and its ledgers permanently. If it has a writer, the writer is stopped."""
    confirmed(f"Delete the log {name} with all of its records", is_sure=yes)

    async def body() -> bool:
        async with connect(uri) as cluster:
            await cluster.delete_log(name, damaged=damaged)
            return True

    run(body)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print_line(f"{name}: deleted")
