"""``ledgerlog ledger``: list, show, read, recover, verify and delete the ledgers below the logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ledgerlog.archive.reader import check_archive
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.cli.archived import telling_archives
from ledgerlog.cli.lines import open_sink
from ledgerlog.cli.options import OFFSET, connect, json_option, ledger_id_argument, uri_option
from ledgerlog.cli.output import (
    bytes_fields,
    print_json,
    print_line,
    print_table,
    printable,
    raw_output,
    to_json,
)
from ledgerlog.cli.running import run
from ledgerlog.errors import EntryNotFound, LedgerLogError, LedgerNotFound, MetadataCorrupt
from ledgerlog.ledger.accepted_loss import AcceptedLoss
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.verify import LedgerVerification
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.id_ranges import IdSequence
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import moment
from ledgerlog.progress_bar import progress_bar
from ledgerlog.redact import redact

__all__ = ["ledger", "ledger_fields", "replication_shown"]

_STRAYS_SHOWN = 10

_IDS_LISTED = 1_000_000
"""JSON lists at most this many entry ids one by one. Metadata with an absurd end name 2**62 of them."""


def replication_shown(replication: Replication) -> dict[str, Any]:
    """Return a replication as the members of a JSON object."""
    return {
        "ensemble_size": replication.ensemble,
        "write_quorum": replication.write_quorum,
        "ack_quorum": replication.ack_quorum,
        "guaranteed": replication.guaranteed,
    }


def ledger_fields(metadata: LedgerMetadata) -> dict[str, Any]:
    """Return a ledger's metadata as a JSON object."""
    return {
        "id": metadata.ledger_id,
        "state": metadata.state.value,
        "last_entry": metadata.last_entry,
        **replication_shown(metadata.replication),
        "fragments": [
            {"first_entry": fragment.first_entry, "bookies": list(fragment.ensemble)}
            for fragment in metadata.fragments
        ],
        "created": moment(metadata.created_ms).isoformat(timespec="milliseconds"),
    }


def _fields_with_labels(metadata: LedgerMetadata) -> dict[str, Any]:
    labels = {key: bytes_fields(value) for key, value in metadata.custom.items()}
    return {**ledger_fields(metadata), "custom": labels}


@click.group()
def ledger() -> None:
    """Inspect, recover and verify ledgers."""


@ledger.command("list")
@uri_option
@json_option
def ledger_list(uri: str, as_json: bool) -> None:
    """Print the ids of all ledgers.

    The exit status is 1 if the metadata store has a node among the ledgers that does not belong to a
    ledger."""

    async def body() -> tuple[Sequence[int], Sequence[str]]:
        async with connect(uri) as cluster:
            return await LedgerRegistry(cluster.store, cluster.client.environment).survey()

    ledger_ids, strays = run(body)
    for ledger_id in ledger_ids:
        if as_json:
            print_json({"id": ledger_id})
        else:
            print_line(str(ledger_id))
    if strays:
        raise MetadataCorrupt("; ".join(strays[:_STRAYS_SHOWN]))


@ledger.command("show")
@ledger_id_argument
@uri_option
@json_option
def ledger_show(ledger_id: int, uri: str, as_json: bool) -> None:
    """Print the metadata of the ledger ID."""

    async def body() -> LedgerMetadata:
        async with connect(uri) as cluster, telling_archives(cluster, ledger_id):
            return await cluster.ledgers.metadata(ledger_id)

    _print_ledger(run(body), as_json)


def _print_ledger(metadata: LedgerMetadata, as_json: bool) -> None:
    fields = ledger_fields(metadata)
    if as_json:
        print_json(_fields_with_labels(metadata))
        return
    last = metadata.last_entry
    end = (
        "its end is not known yet" if last is None else "empty" if last == NO_ENTRY else f"last entry {last}"
    )
    print_line(f"ledger {metadata.ledger_id}: {fields['state']}, {end}, {metadata.replication}")
    print_line(f"created {fields['created']}")
    for key, value in sorted(metadata.custom.items()):
        print_line(f"{key}: {printable(value)}")
    rows = [(fragment.first_entry, " ".join(fragment.ensemble)) for fragment in metadata.fragments]
    print_table(("from entry", "bookies"), rows, numbers=("from entry",))


@ledger.command("read")
@ledger_id_argument
@click.option("--first", type=OFFSET, default=0, show_default=True, help="The first entry to print.")
@click.option("--last", type=OFFSET, help="The last entry to print.  [default: the last that can be read]")
@click.option("--raw", is_flag=True, help="Print only the bytes of the entries, with nothing between them.")
@uri_option
@json_option
def ledger_read(ledger_id: int, first: int, last: int | None, raw: bool, uri: str, as_json: bool) -> None:
    """Print entries of the ledger ID. This does not disturb its writer.

    If too few bookies answer to know where an open ledger ends, you get the entries that are known, and an
    error.

    The entries of a log's ledger consist of a header and packed records. To print records, use 'log read'."""
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    if last is not None and first > last:
        raise click.UsageError(f"--first {first} is after --last {last}")

    async def body() -> None:
        async with connect(uri) as cluster, open_sink(raw_output()) as sink:
            async with telling_archives(cluster, ledger_id):
                reader = await cluster.ledgers.open(ledger_id)
            end, doubt = await reader.known_end()
            stop = end if last is None else last
            # A caller that has read all entries asks for the entry after the end. That is not an error.
            if max(stop, first - 1) > end:
                if doubt is not None:
                    raise doubt
                missing = max(stop, first)
                known = (
                    "no entry can be read yet"
                    if end == NO_ENTRY
                    else f"the last entry that can be read is {end}"
                )
                raise EntryNotFound(ledger_id, missing, known)
            at = first
            while at <= stop:
                payloads = await reader.read_batch(at, stop)
                if raw:
                    await sink.put(b"".join(payloads))
                else:
                    lines = [_entry_line(at + i, payload, as_json) for i, payload in enumerate(payloads)]
                    await sink.put("".join(lines).encode("utf-8", "surrogateescape"))
                at += len(payloads)
            if doubt is not None and last is None:
                raise doubt

    run(body)


def _entry_line(entry_id: int, payload: bytes, as_json: bool) -> str:
    if as_json:
        return to_json({"entry": entry_id, "bytes": len(payload), **bytes_fields(payload)}) + "\n"
    return f"{entry_id:>10}  {printable(payload)}\n"


@ledger.command("recover")
@ledger_id_argument
@uri_option
@json_option
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If bookies have lost so much that no bookie can say whether an entry exists, end the ledger "
    "before this entry and print the losses. You cannot undo this.",
)
@click.option(
    "--accept-unreachable",
    is_flag=True,
    help="With --accept-loss: end the ledger even if bookies that may hold the entry do not answer. Use it "
    "only if these bookies will never return.",
)
def ledger_recover(
    ledger_id: int, uri: str, as_json: bool, accept_loss: bool, accept_unreachable: bool
) -> None:
    """Fence the ledger ID, find its end and close it. A writer of the ledger, if there is one, can append
    nothing more."""
    if accept_unreachable and not accept_loss:
        raise click.UsageError("--accept-unreachable extends --accept-loss: give both")

    async def body() -> LedgerMetadata:
        async with connect(uri) as cluster:
            return await cluster.ledgers.recover(ledger_id)

    async def body_accepting_loss() -> AcceptedLoss:
        async with connect(uri) as cluster:
            return await cluster.ledgers.recover_accepting_loss(
                ledger_id, accept_unreachable=accept_unreachable
            )

    if not accept_loss:
        _print_ledger(run(body), as_json)
        return
    found = run(body_accepting_loss)
    if as_json:
        print_json(
            {
                **_fields_with_labels(found.metadata),
                "lost_from": found.lost_from,
                **_ids("cut_off", found.cut),
                **_ids("unreadable", found.unreadable),
                "unreachable_bookies": found.unreachable,
            }
        )
        return
    _print_ledger(found.metadata, as_json)
    for line in loss_lines(found):
        print_line(line)


def loss_lines(found: AcceptedLoss) -> list[str]:
    """Return the cost of accepting a loss, for a person; at least one line."""
    lines = []
    if found.lost_from is not None:
        lines.append(
            f"lost: entry {found.lost_from} and all entries after it: no bookie that answers can say "
            f"whether it existed"
        )
    if found.cut:
        lines.append(f"found after the end, and no longer in the ledger: {_entries(found.cut)}")
    if found.unreadable:
        lines.append(f"in the ledger, and unreadable: {_entries(found.unreadable)}")
    if not lines:
        lines.append("nothing is lost")
    if found.unreachable:
        lines.append(f"bookies that did not answer, and may hold more: {' '.join(found.unreachable)}")
    return lines


@ledger.command("verify")
@ledger_id_argument
@uri_option
@json_option
@click.option("--strict", is_flag=True, help="Fail if an entry has fewer copies than its write quorum.")
def ledger_verify(ledger_id: int, uri: str, as_json: bool, strict: bool) -> None:
    """Look for every copy of every entry of the ledger ID.

    If the ledger is archived and bookies no longer have it, read and check its whole file. The exit status is
    1 if an entry has no readable copy."""

    why: dict[BookieId, str] = {}

    async def body() -> LedgerVerification | ArchivedFile:
        async with connect(uri) as cluster:
            try:
                verification = await cluster.ledgers.verify(ledger_id)
                why.update(cluster.client.pool.troubles(verification.unreachable))
                return verification
            except LedgerNotFound:
                record = await ArchiveRegistry(cluster.store).of_ledger(ledger_id)
                if record is None:
                    raise
            await check_archive(record)
            return record

    with progress_bar(f"looking for copies of ledger {ledger_id}", None):
        found = run(body)
    if isinstance(found, ArchivedFile):
        _print_archived(ledger_id, found, as_json)
        return
    if as_json:
        print_json(
            {
                "ledger": found.ledger_id,
                "entries": found.entries,
                **_ids("under_replicated", found.under_replicated),
                **_ids("unreadable", found.unreadable),
                "unknown_from": found.unknown_from,
                "unreachable_bookies": found.unreachable,
                "why_unreachable": why,
                "bookies_in_limbo": found.in_limbo,
            }
        )
    else:
        for line in verification_lines(found, why):
            print_line(line)
    fault = verification_fault(found, strict=strict)
    if fault is not None:
        raise NotSound(fault)


def verification_lines(found: LedgerVerification, why: Mapping[BookieId, str]) -> list[str]:
    """Return a verification's findings, as lines for a person. ``why`` has the reasons of bookies that did
    not answer, as far as they are known.

    A line about entries first gives their number, then their ids.
    """
    lines = [
        f"ledger {found.ledger_id}: {_count(found.entries)}",
        f"unreadable: {_entries(found.unreadable)}",
        f"fewer copies than the write quorum: {_entries(found.under_replicated)}",
    ]
    if found.unknown_from is not None:
        lines.append(
            f"unknown: entries from {found.unknown_from} on, whose bookies do not answer or are in limbo"
        )
    if found.unreachable:
        lines.append(f"bookies that did not answer: {' '.join(found.unreachable)}")
        lines += [f"  {reason}" for reason in why.values()]
    if found.in_limbo:
        lines.append(f"bookies in limbo, which may have lost copies: {' '.join(found.in_limbo)}")
    return lines


def verification_fault(found: LedgerVerification, *, strict: bool) -> str | None:
    """Return why the command fails, or None if it succeeds.

    The command fails if an entry has no readable copy, or if it is not known which entries exist. With
    ``strict`` it also fails if an entry has fewer copies than the write quorum.
    """
    faults = []
    if found.unreadable:
        faults.append(f"unreadable: {_entries(found.unreadable)}")
    if found.unknown_from is not None:
        faults.append(f"no bookie can tell which entries exist from {found.unknown_from} on")
    if strict and found.under_replicated:
        faults.append(f"fewer copies than the write quorum: {_entries(found.under_replicated)}")
    return f"ledger {found.ledger_id}: {'; '.join(faults)}" if faults else None


def _print_archived(ledger_id: int, record: ArchivedFile, as_json: bool) -> None:
    archived = record.ledger(ledger_id)
    assert archived is not None
    entries = archived.last_entry + 1
    if as_json:
        print_json(
            {
                "ledger": ledger_id,
                "entries": entries,
                **_ids("under_replicated", ()),
                **_ids("unreadable", ()),
                "unknown_from": None,
                "unreachable_bookies": [],
                "archive": redact(record.file),
            }
        )
    else:
        print_line(f"ledger {ledger_id}: {_count(entries)}, archived")
        print_line(f"{redact(record.file)} is sound: {record.record_count} records")


class NotSound(LedgerLogError):
    """A verification found entries without a readable copy or, with ``--strict``, with too few copies."""


def _count(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _ids(name: str, entry_ids: Sequence[int]) -> dict[str, Any]:
    """Return entry ids as fields of JSON: the first of them, and the ranges of all of them."""
    ranges = [list(pair) for pair in IdSequence.of(entry_ids).ranges]
    return {name: list(entry_ids[:_IDS_LISTED]), f"{name}_ranges": ranges}


def _entries(entry_ids: Sequence[int]) -> str:
    """Return ascending ids and their number: "none", "1 entry (entry 0)", or "7 entries (entries 0-5, 7)"."""
    if not entry_ids:
        return "none"
    ranges = IdSequence.of(entry_ids).ranges
    listed = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{_count(len(entry_ids))} ({'entry' if len(entry_ids) == 1 else 'entries'} {listed})"


@ledger.command("delete")
@ledger_id_argument
@uri_option
@json_option
def ledger_delete(ledger_id: int, uri: str, as_json: bool) -> None:
    """Delete the ledger ID permanently. If a log lists it, the log can no longer read that part."""

    async def body() -> None:
        async with connect(uri) as cluster:
            await cluster.ledgers.delete(ledger_id)

    run(body)
    if as_json:
        print_json({"id": ledger_id, "deleted": True})
    else:
        print_line(f"ledger {ledger_id}: deleted")
