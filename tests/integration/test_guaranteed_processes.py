"""The guaranteed write quorum with real bookies: a closed ledger is whole, and a ledger that is not whole
stays open.

Bookies are killed with SIGKILL while entries are on their way to them, so that some entries are on one, two
or three of the three bookies that should have them. What ``cluster.ledgers.verify`` says is what
``ledgerlog ledger verify`` prints: it asks every bookie of every fragment which entries it holds. A dead
bookie answers nothing, so what a fragment before its death owes to it is under-replicated to ``verify`` until
it is back; that it is there then shows that it had been synced before it was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.errors import NotEnoughBookies, WriteQuorumUnavailable
from ledgerlog.ledger.verify import LedgerVerification
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

GUARANTEED = Replication(ensemble=3, write_quorum=3, ack_quorum=2, guaranteed=True)
ENTRIES = 20_000
BATCH = 100
CLOSE_S = PATIENCE_S


def payloads(first: int, end: int) -> list[bytes]:
    return [b"entry %d" % entry_id for entry_id in range(first, end)]


async def write(writer: LedgerWriter, end: int) -> None:
    """Append entries up to ``end``. Wait only for room, so the window is full of them."""
    for first in range(writer.last_add_pushed + 1, end, BATCH):
        await writer.wait_room()
        assert writer.push(payloads(first, first + BATCH)) == first


async def kill(local: LocalCluster, writer: LedgerWriter, slots: Sequence[int]) -> list[str]:
    """Kill the bookies in some slots of the ensemble while entries are on their way. Return these bookies."""
    bookies = [writer.metadata.last_fragment.ensemble[slot] for slot in slots]
    assert writer.last_add_fully_replicated < writer.last_add_pushed
    for bookie in bookies:
        local.bookies[bookie].kill()
    for bookie in bookies:
        await local.bookies[bookie].wait()
    return bookies


async def verify(local: LocalCluster, ledger_id: int, entries: int) -> LedgerVerification:
    verification = await local.cluster.ledgers.verify(ledger_id)
    assert verification.entries == entries
    assert verification.unreadable == []
    return verification


async def check_content(local: LocalCluster, ledger_id: int, entries: int) -> None:
    reader = await local.cluster.ledgers.open(ledger_id)
    for first in range(0, entries, 50 * BATCH):
        end = min(first + 50 * BATCH, entries)
        assert await reader.read(first, end - 1) == payloads(first, end)


def entries_on(metadata: LedgerMetadata, bookies: Sequence[str]) -> list[int]:
    """The entries of all fragments that name one of these bookies."""
    found: list[int] = []
    for index, fragment in enumerate(metadata.fragments):
        if not set(bookies).isdisjoint(fragment.ensemble):
            end = metadata.fragment_end(index)
            assert end is not None
            found.extend(range(fragment.first_entry, end + 1))
    return found


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "one-after-the-other"])
async def test_a_guaranteed_ledger_closes_whole_though_two_of_five_bookies_were_killed_while_it_was_written(
    tmp_path: Path, at_once: bool
) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=5) as local:
        writer = await local.cluster.ledgers.create(replication=GUARANTEED)
        await write(writer, 6_000)
        dead = await kill(local, writer, [0, 1] if at_once else [0])
        sent_before = [writer.last_add_pushed]
        if not at_once:
            await write(writer, 14_000)
            dead += await kill(local, writer, [1])
            sent_before.append(writer.last_add_pushed)
        await write(writer, ENTRIES)
        with trio.fail_after(CLOSE_S):
            assert await writer.close() == ENTRIES - 1
        assert writer.last_add_fully_replicated == ENTRIES - 1

        metadata = await local.cluster.ledgers.metadata(writer.ledger_id)
        assert metadata.is_closed
        assert set(dead).isdisjoint(metadata.last_fragment.ensemble)
        for bookie, sent in zip(dead, sent_before * len(dead), strict=False):
            assert max(entries_on(metadata, [bookie]), default=-1) <= sent, "the dead own nothing sent later"
        missing = await verify(local, writer.ledger_id, ENTRIES)
        assert missing.under_replicated == entries_on(metadata, dead), "all else is on its full write quorum"
        await check_content(local, writer.ledger_id, ENTRIES)

        async with trio.open_nursery() as nursery:
            for bookie in dead:
                nursery.start_soon(local.start_serving, bookie)
        whole = await verify(local, writer.ledger_id, ENTRIES)
        assert whole.under_replicated == [], "what the dead were counted for they had synced"


async def test_without_a_spare_bookie_a_guaranteed_ledger_stays_open_until_one_is_back_and_recovery_closes_it(
    tmp_path: Path,
) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=3) as local:
        ledgers = local.cluster.ledgers
        writer = await ledgers.create(replication=GUARANTEED)
        await write(writer, 3_000)
        (dead,) = await kill(local, writer, [0])
        await write(writer, 6_000)
        await writer.flush()
        assert writer.last_add_confirmed == 5_999, "appends are acknowledged at the ack quorum all the same"
        with pytest.raises(WriteQuorumUnavailable):
            await writer.close(timeout_s=0.5)
        assert (await ledgers.metadata(writer.ledger_id)).state is LedgerState.OPEN
        await writer.aclose()
        assert (await ledgers.metadata(writer.ledger_id)).state is LedgerState.OPEN

        async with ledgerlog.connect(local.uri, append_deadline_s=0.5) as impatient:
            with pytest.raises(NotEnoughBookies):
                await impatient.ledgers.recover(writer.ledger_id)
        assert (await ledgers.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY

        await local.start_serving(dead)
        with trio.fail_after(CLOSE_S):
            closed = await ledgers.recover(writer.ledger_id)
        assert closed.last_entry == 5_999
        assert (await verify(local, writer.ledger_id, 6_000)).under_replicated == []
        await check_content(local, writer.ledger_id, 6_000)
