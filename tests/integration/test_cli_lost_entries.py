"""The output and exit status of commands for ledgers whose copies are gone."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import trio
from click.testing import CliRunner, Result

import ledgerlog
from ledgerlog import Replication
from ledgerlog.cli.ledger import loss_lines, verification_fault, verification_lines
from ledgerlog.cli.main import cli
from ledgerlog.cluster import Cluster
from ledgerlog.ledger.accepted_loss import AcceptedLoss
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.verify import LedgerVerification
from ledgerlog.limits import LEDGER_KEY_BYTES
from ledgerlog.model.layout import LEDGERS as LEDGERS_ROOT
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import Fragment, LedgerMetadata


async def put_ledger(cluster: Cluster, *ensemble: str, last_entry: int | None) -> LedgerMetadata:
    """A ledger as metadata alone: nothing was ever written to these bookies."""
    client = cluster.client
    registry = LedgerRegistry(client.store, client.environment)
    copies = len(ensemble)
    metadata, version = await registry.create(Replication(copies, copies, copies // 2 + 1), ensemble, {})
    if last_entry is not None:
        metadata = metadata.closed(last_entry, b"t")
    await client.store.set(ledger_path(metadata.ledger_id), metadata.encode(), version=version)
    return metadata


def run(uri: str, *args: str) -> Result:
    return CliRunner().invoke(cli, args, env={"LEDGERLOG_URI": uri})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A cluster of bookie-1. It has LEDGERS, a sound ledger, and a ledger that lost two of its three
    copies."""
    uri = f"file:{tmp_path}/cluster"

    async def make() -> None:
        async with ledgerlog.connect(uri) as cluster:
            for ensemble, last_entry in LEDGERS.values():
                await put_ledger(cluster, *ensemble, last_entry=last_entry)
            for ledger_id, replication, ensemble in (
                (SOUND, Replication(1, 1, 1), ("bookie-1",)),
                (THIN, Replication(3, 3, 2), ("bookie-1", "gone-1", "gone-2")),
            ):
                writer = await cluster.ledgers.create(Replication(1, 1, 1))
                await writer.append_many([b"a", b"b"])
                await writer.close()
                assert writer.ledger_id == ledger_id
                registry = LedgerRegistry(cluster.client.store, cluster.client.environment)
                written, version = await registry.read(ledger_id)
                fragments = (Fragment(0, ensemble),)
                changed = attrs.evolve(written, replication=replication, fragments=fragments)
                await cluster.store.set(ledger_path(ledger_id), changed.encode(), version=version)

    trio.run(make)
    return uri


LEDGERS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "one entry, its bookies are gone": (("gone-1", "gone-2", "gone-3"), 0),
    "one entry, its bookie answers and has it not": (("bookie-1",), 0),
    "three entries, their bookies are gone": (("gone-1", "gone-2", "gone-3"), 2),
    "empty, its bookies are gone": (("gone-1", "gone-2", "gone-3"), -1),
    "open, its bookies are gone": (("gone-1", "gone-2", "gone-3"), None),
    "open, its bookie answers and has nothing": (("bookie-1",), None),
}
SOUND = len(LEDGERS)
THIN = SOUND + 1

VERIFIED: list[tuple[str, int, int, str]] = [
    # which ledger; the exit status, also with --strict; what standard output says
    ("one entry, its bookies are gone", 1, 1, "unreadable: 1 entry (entry 0)\n"),
    ("one entry, its bookie answers and has it not", 1, 1, "unreadable: 1 entry (entry 0)\n"),
    ("three entries, their bookies are gone", 1, 1, "unreadable: 3 entries (entries 0-2)\n"),
    ("empty, its bookies are gone", 0, 0, "unreadable: none\n"),
    ("open, its bookies are gone", 1, 1, "unknown: entries from 0 on"),
    ("open, its bookie answers and has nothing", 0, 0, "unreadable: none\n"),
]


@pytest.mark.parametrize(("which", "status", "strict_status", "says"), VERIFIED, ids=[v[0] for v in VERIFIED])
def test_verify_fails_whenever_an_entry_has_no_copy_that_can_be_read(
    uri: str, which: str, status: int, strict_status: int, says: str
) -> None:
    ledger_id = str(list(LEDGERS).index(which))
    plain = run(uri, "ledger", "verify", ledger_id)
    assert says in plain.stdout
    assert plain.exit_code == status, plain.output
    assert run(uri, "ledger", "verify", ledger_id, "--strict").exit_code == strict_status
    in_json = run(uri, "ledger", "verify", ledger_id, "--json")
    assert in_json.exit_code == status
    fields = json.loads(in_json.stdout)
    assert bool(fields["unreadable"] or fields["unknown_from"] is not None) == bool(status)
    if status:
        assert plain.stderr.startswith(f"ledgerlog: ledger {ledger_id}: ")
        assert plain.stderr.count("\n") == 1


def test_a_copy_of_each_entry_is_enough_unless_with_strict(uri: str) -> None:
    for ledger_id, strict_status in ((SOUND, 0), (THIN, 1)):
        plain = run(uri, "ledger", "verify", str(ledger_id))
        assert plain.exit_code == 0, plain.output
        assert "unreadable: none\n" in plain.stdout
        assert run(uri, "ledger", "verify", str(ledger_id), "--strict").exit_code == strict_status


def verification(under: list[int], unreadable: list[int], unknown_from: int | None) -> LedgerVerification:
    return LedgerVerification(7, 9, under, unreadable, ["b3"] if under else [], unknown_from)


FAULTS: list[tuple[LedgerVerification, str | None, str | None]] = [
    # what was found; why the command fails, and why with --strict
    (verification([], [], None), None, None),
    (verification([4], [], None), None, "ledger 7: fewer copies than the write quorum: 1 entry (entry 4)"),
    (
        verification([0, 1, 4], [4], None),
        "ledger 7: unreadable: 1 entry (entry 4)",
        "ledger 7: unreadable: 1 entry (entry 4); fewer copies than the write quorum: "
        "3 entries (entries 0-1, 4)",
    ),
    (
        verification([], [], 9),
        "ledger 7: no bookie can tell which entries exist from 9 on",
        "ledger 7: no bookie can tell which entries exist from 9 on",
    ),
]


@pytest.mark.parametrize(("found", "why", "why_strict"), FAULTS)
def test_why_verify_fails(found: LedgerVerification, why: str | None, why_strict: str | None) -> None:
    assert verification_fault(found, strict=False) == why
    assert verification_fault(found, strict=True) == why_strict
    # No column has a number of entries where a reader could take it for an id.
    assert verification_lines(found, {})[0] == "ledger 7: 9 entries"


def test_an_accepted_loss_says_how_many_entries_before_which() -> None:
    metadata = LedgerMetadata.create(
        ledger_id=7,
        replication=Replication(1, 1, 1),
        ensemble=("b1",),
        key=bytes(LEDGER_KEY_BYTES),
        token=b"",
        created_ms=0,
    )
    lines = loss_lines(AcceptedLoss(metadata.closed(0, b""), 1, [2, 3], [0], []))
    assert lines[1:] == [
        "found after the end, and no longer in the ledger: 2 entries (entries 2-3)",
        "in the ledger, and unreadable: 1 entry (entry 0)",
    ]


def test_status_counts_what_is_under_replicated_though_nobody_runs_auto_recovery(uri: str) -> None:
    gone = [ensemble for ensemble, _ in LEDGERS.values() if "gone-1" in ensemble]
    total = len(LEDGERS) + 2
    fields = json.loads(run(uri, "repair", "status", "--json").stdout)
    assert fields["auditor"] is None
    assert fields["under_replicated"] == len(gone) + 1
    assert (fields["ledgers"], fields["looked_at"], fields["is_complete"]) == (total, total, True)
    assert fields["waiting"] == 0
    plain = run(uri, "repair", "status").stdout
    assert f"under-replicated now: {len(gone) + 1} of {total} ledgers\n" in plain
    audited = json.loads(run(uri, "repair", "audit", "--dry-run", "--json").stdout)
    assert audited["under_replicated"] == fields["under_replicated"]


def test_a_status_that_had_no_time_says_so(uri: str) -> None:
    fields = json.loads(run(uri, "repair", "status", "--within", "0", "--json").stdout)
    assert not fields["is_complete"]
    assert fields["looked_at"] < fields["ledgers"]
    plain = run(uri, "repair", "status", "--within", "0").stdout
    assert plain.startswith("under-replicated now: at least ")


def test_a_list_of_ledgers_has_all_of_them_although_a_node_is_no_ledgers(uri: str) -> None:
    before = run(uri, "ledger", "list")
    assert before.exit_code == 0
    assert run(uri, "repair", "audit", "--dry-run").exit_code == 0
    stray = f"{LEDGERS_ROOT}/00000000/0000/no-ledger"

    async def put() -> None:
        async with ledgerlog.connect(uri) as cluster:
            await cluster.store.create(stray, b"")

    trio.run(put)
    after = run(uri, "ledger", "list")
    assert after.exit_code == 1
    assert after.stdout == before.stdout
    assert stray in after.stderr
    audited = run(uri, "repair", "audit", "--dry-run", "--json")
    assert audited.exit_code == 1
    first, *_ = json.loads(audited.stdout)["found"]
    assert (first["ledger"], first["bookies"], first["why"].partition(": ")[0]) == (None, [], stray)
    assert "1 item could not be checked" in audited.stderr
