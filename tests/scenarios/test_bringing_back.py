"""What bookies hold of logs and a restored metadata store lacks: it is brought back, or named, or kept."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import (
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LogListFull,
    LogNotFound,
    LossUndecided,
    NotEnoughBookies,
    PermissionDenied,
    RecordsLost,
    RecoveryFailed,
)
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.ledger.ranges import read_entries
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.registry import LogRegistry, ledger_labels
from ledgerlog.log.sweep import sweep
from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import open_backup, write_backup
from ledgerlog.meta.restore import accept_loss
from ledgerlog.model.layout import (
    ledger_path,
    log_record_path,
)
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.log_key import INCARNATION_LABEL, is_key_of_log, key_for
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import LogSegment
from ledgerlog.repair.bringing_back import bring_back
from ledgerlog.repair.metadata_check import look_at_metadata
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, unreachable_after
from ledgerlog.testing.memory_cluster import CLUSTER as OURS
from ledgerlog.testing.memory_cluster import Bookie, Client, MemoryCluster, new_tree, open_cluster
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import Status, decode_frame_untrusted
from ledgerlog.wire.records import encode_entry
from tests.scenarios.restores import NOW_MS, backed_up, collected, restored_under_bookies, written

R332 = Replication(3, 3, 2)


async def appended(client: Client, log: Log, records: range) -> None:
    """One leadership that appends ``records``, with a roll in the middle."""
    async with log.writer() as writer:
        for number in records:
            await writer.append(b"%d" % number)
            if number == records[len(records) // 2]:
                await writer.roll()


async def restored_without(cluster: MemoryCluster, path: Path, *since: range) -> None:
    """Lose the metadata store, and restore it. Log x had five records at the backup. Since then, writers have
    appended these, each in a ledger of its own."""
    async with cluster.client() as client:
        log = await create_log(client.opened, "x")
        await appended(client, log, range(5))
        backup = await backed_up(cluster.tree, path / "backup")
        for records in since:
            await appended(client, log, records)
    await restored_under_bookies(cluster, backup)


async def records_of(log: Log) -> list[bytes]:
    async with log.read(start=0) as reader:
        return [record.data async for record in reader]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("is_led", [False, True])
async def test_what_bookies_hold_of_a_log_is_brought_back_into_it(
    clock: MockClock, tmp_path: Path, is_led: bool
) -> None:
    """Rolls, new leaders and a leader that lives at the backup: every acknowledged record is read again."""
    async with open_cluster(4) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            other = await create_log(client.opened, "other")
            await appended(client, log, range(10))
            await appended(client, other, range(5))
            if is_led:
                async with log.writer() as writer:
                    await writer.append(b"10")
                    backup = await backed_up(cluster.tree, tmp_path / "backup")
                    await writer.append(b"11")
            else:
                backup = await backed_up(cluster.tree, tmp_path / "backup")
                await appended(client, log, range(10, 12))
            await appended(client, log, range(12, 20))
            await appended(client, other, range(5, 9))
            await appended(client, log, range(20, 30))
            bare = await written(client, b"of no log")
            new = await create_log(client.opened, "new")
            await appended(client, new, range(4))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(4)
            check = await look_at_metadata(client.opened)
            assert not check.is_sound
            assert {ledger.log for ledger in check.forgotten} == {"x", "other", None}
            assert len([ledger for ledger in check.forgotten if ledger.log is None]) == 3
            assert bare in {ledger.ledger_id for ledger in check.forgotten}
            back, left = await bring_back(client.opened, check)
            assert {ledger.log for ledger in back} == {"x", "other"}
            assert {ledger.log for ledger in left} == {None}
            log = await open_log(client.opened, "x")
            assert await records_of(log) == numbers(30)
            assert await records_of(await open_log(client.opened, "other")) == numbers(9)
            again = await look_at_metadata(client.opened)
            assert {ledger.ledger_id for ledger in again.forgotten} == {ledger.ledger_id for ledger in left}
            await appended(client, log, range(30, 40))
            assert await records_of(log) == numbers(40)
            assert await accept_loss(client.store)
        assert await collected(cluster) > 0
        async with cluster.client() as client:
            assert await records_of(await open_log(client.opened, "x")) == numbers(40)
            assert (await look_at_metadata(client.opened)).is_sound


@pytest.mark.parametrize(
    "failure",
    [
        LogListFull("x", 5),
        PermissionDenied("client/a may not do this"),
        MetadataCorrupt("its record is damaged"),
        None,
    ],
    ids=lambda failure: "too many holders" if failure is None else type(failure).__name__,
)
async def test_a_ledger_that_cannot_come_back_keeps_no_other_log_from_coming_back(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: LedgerLogError | None
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            logs = [await create_log(client.opened, name) for name in ("x", "other")]
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            for log in logs:
                async with log.writer() as writer:
                    await writer.append(b"0")
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            check = await look_at_metadata(client.opened)
            (bad,) = (ledger for ledger in check.forgotten if ledger.log == "x")
            if failure is None:
                many = attrs.evolve(bad, bookies=(*bad.bookies, *(f"c{n}" for n in range(ENSEMBLE_MAX))))
                rest = (ledger for ledger in check.forgotten if ledger is not bad)
                check = attrs.evolve(check, forgotten=(many, *rest))
            change = LogRegistry.change

            async def fail(registry: LogRegistry, name: str, *args: Any) -> Any:
                if name == "x" and failure is not None:
                    raise fresh(failure)
                return await change(registry, name, *args)

            monkeypatch.setattr(LogRegistry, "change", fail)
            back, left = await bring_back(client.opened, check)
            assert [ledger.log for ledger in back] == ["other"]
            assert [ledger.ledger_id for ledger in left] == [bad.ledger_id]
            assert (str(failure) if failure else "at most 64 bookies") in left[0].why


@pytest.mark.parametrize("accept_gaps", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        EntryUnavailable(2, 0, "no bookie answers"),
        NotEnoughBookies("no bookie answers"),
        PermissionDenied("client/a may not do this"),
        RecoveryFailed(2, "no bookie answers"),
        LogNotFound("x"),
        None,
    ],
    ids=lambda failure: "its first entry" if failure is None else type(failure).__name__,
)
async def test_nothing_comes_back_behind_a_ledger_of_its_log_that_fails_for_some_time(
    clock: MockClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: LedgerLogError | None,
    accept_gaps: bool,
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            other = await create_log(client.opened, "y")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            await appended(client, log, range(5, 7))
            await appended(client, log, range(7, 9))
            await appended(client, other, range(5))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            check = await look_at_metadata(client.opened)
            forgotten = [ledger.ledger_id for ledger in check.forgotten if ledger.log == "x"]
            with monkeypatch.context() as patch:
                if failure is None:
                    read = read_entries

                    async def cannot_read(metadata: LedgerMetadata, *args: Any, **options: Any) -> Any:
                        if metadata.ledger_id == forgotten[0]:
                            raise EntryUnavailable(metadata.ledger_id, 0)
                        return await read(metadata, *args, **options)

                    patch.setattr("ledgerlog.repair.bringing_back.read_entries", cannot_read)
                else:
                    recover = Ledgers.recover

                    async def cannot_recover(ledgers: Ledgers, ledger_id: int) -> LedgerMetadata:
                        if ledger_id == forgotten[0]:
                            raise fresh(failure)
                        return await recover(ledgers, ledger_id)

                    patch.setattr(Ledgers, "recover", cannot_recover)
                back, left = await bring_back(client.opened, check, accept_gaps=accept_gaps)
            assert {ledger.log for ledger in back} == {"y"}
            assert [ledger.ledger_id for ledger in left if ledger.log == "x"] == forgotten
            behind = "its log is gone" if isinstance(failure, LogNotFound) else "which may come before it"
            assert behind in left[-1].why
            await bring_back(client.opened, await look_at_metadata(client.opened), accept_gaps=accept_gaps)
            assert await records_of(await open_log(client.opened, "x")) == numbers(9)


async def test_what_followed_a_ledger_that_is_lost_comes_back_behind_a_gap(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            for number in range(3):
                async with log.writer() as writer:
                    await writer.append(b"%d" % number)
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            lost = [ledger.ledger_id for ledger in (await look_at_metadata(client.opened)).forgotten][:2]
            recover = Ledgers.recover

            async def nothing_there(metadata: LedgerMetadata, *args: Any, **options: Any) -> Any:
                if metadata.ledger_id == lost[0]:
                    raise EntryNotFound(metadata.ledger_id, 0)
                return await read_entries(metadata, *args, **options)

            async def is_lost(ledgers: Ledgers, ledger_id: int) -> LedgerMetadata:
                if ledger_id == lost[1]:
                    raise EntryCorrupt(ledger_id, 0)
                return await recover(ledgers, ledger_id)

            monkeypatch.setattr("ledgerlog.repair.bringing_back.read_entries", nothing_there)
            monkeypatch.setattr(Ledgers, "recover", is_lost)
            for accept_gaps in (False, True):
                back, left = await bring_back(
                    client.opened, await look_at_metadata(client.opened), accept_gaps=accept_gaps
                )
                assert len(back) == accept_gaps
                assert accept_gaps or "--accept-gaps" in left[-1].why
            with pytest.raises(RecordsLost) as gap:
                await records_of(await open_log(client.opened, "x"))
            assert (gap.value.lost_from, gap.value.first_offset) == (0, 2)


async def test_an_operator_gives_up_a_ledger_that_cannot_be_recovered_and_the_rest_comes_back(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3) as cluster:
        await restored_without(cluster, tmp_path, range(5, 7), range(7, 9))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            bad = (await look_at_metadata(client.opened)).forgotten[0].ledger_id
            recover = Ledgers.recover

            async def cannot_recover(ledgers: Ledgers, ledger_id: int) -> LedgerMetadata:
                if ledger_id == bad and not (await ledgers.metadata(bad)).is_closed:
                    raise RecoveryFailed(bad, "a bookie is gone for good")
                return await recover(ledgers, ledger_id)

            monkeypatch.setattr(Ledgers, "recover", cannot_recover)
            for _ in range(2):
                back, _ = await bring_back(
                    client.opened, await look_at_metadata(client.opened), accept_gaps=True
                )
                assert not back
            await client.ledgers.recover_accepting_loss(bad)
            await bring_back(client.opened, await look_at_metadata(client.opened), accept_gaps=True)
            assert await records_of(await open_log(client.opened, "x")) == numbers(9)


@pytest.mark.parametrize("accept_gaps", [False, True])
async def test_what_does_not_continue_its_log_is_named_and_kept(
    clock: MockClock, tmp_path: Path, accept_gaps: bool
) -> None:
    """A writer came first: the offsets are given out again, so the old records cannot have them.

    One of the old ledgers begins behind the new records, but it is of an earlier epoch.
    """
    async with open_cluster(3) as cluster:
        await restored_without(cluster, tmp_path, range(5, 9))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            log = await open_log(client.opened, "x")
            await appended(client, log, range(50, 52))
            check = await look_at_metadata(client.opened)
            back, left = await bring_back(client.opened, check, accept_gaps=accept_gaps)
            assert not back
            assert left
            assert all("begins at offset" in ledger.why for ledger in left)
            assert await records_of(log) == [*numbers(5), b"50", b"51"]
        assert await collected(cluster) == 0


async def test_nothing_is_brought_back_while_a_bookie_is_absent_unless_that_is_accepted(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(3) as cluster:
        await restored_without(cluster, tmp_path, range(5, 9))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            await cluster.bookies["b2"].stop()
            check = await look_at_metadata(client.opened)
            with pytest.raises(BookieUnavailable, match="b2 did not list the ledgers that they hold"):
                await bring_back(client.opened, check)
            assert (await look_at_metadata(client.opened)).forgotten == check.forgotten
            back, _ = await bring_back(client.opened, check, accept_absent=True)
            assert {ledger.log for ledger in back} == {"x"}
            assert await records_of(await open_log(client.opened, "x")) == numbers(9)


async def test_a_leader_that_came_after_the_restore_keeps_the_lead(clock: MockClock, tmp_path: Path) -> None:
    async with open_cluster(3) as cluster:
        await restored_without(cluster, tmp_path, range(5, 9))
        async with cluster.client() as client, cluster.client() as operator:
            await operator.opened.bookies.wait_writable(3)
            log = await open_log(client.opened, "x")
            async with log.writer() as writer:
                await writer.append(b"50")
                back, left = await bring_back(operator.opened, await look_at_metadata(operator.opened))
                assert not back
                assert left
                await writer.append(b"51")
            assert await records_of(log) == [*numbers(5), b"50", b"51"]


async def test_the_key_of_a_ledger_tells_its_log_and_no_other() -> None:
    random = bytes(range(16))
    key = key_for(random, {INCARNATION_LABEL: b"7"})
    assert [number for number in range(100) if is_key_of_log(key, number)] == [7]
    assert key[:8] == random[:8]
    assert key_for(random, {}) == random


async def test_an_interrupted_bringing_back_is_done_again(clock: MockClock, tmp_path: Path) -> None:
    async with open_cluster(3) as cluster:
        await restored_without(cluster, tmp_path, range(5, 9))
        is_done = False
        for calls in range(6, 300, 6):
            if is_done:
                break
            async with cluster.client() as client:
                await client.opened.bookies.wait_writable(3)
                check = await look_at_metadata(client.opened)
                client.store.faults.append(unreachable_after(calls))
                with contextlib.suppress(LedgerLogError):
                    _, left = await bring_back(client.opened, check)
                    is_done = not left
        assert is_done
        async with cluster.client() as client:
            assert await records_of(await open_log(client.opened, "x")) == numbers(9)
            assert not (await look_at_metadata(client.opened)).forgotten


async def test_without_a_restore_nothing_is_forgotten_and_deleted_ledgers_stay_deleted(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await written(client, b"x")
        assert (await look_at_metadata(client.opened)).is_sound
        await client.ledgers.delete(ledger_id)
        check = await look_at_metadata(client.opened)
        assert check.is_sound
        assert [ledger.ledger_id for ledger in check.deleted] == [ledger_id]
        with pytest.raises(InvalidArgument, match="no ledger is forgotten"):
            await bring_back(client.opened, check)


async def test_a_roll_while_the_metadata_are_read_is_no_difference(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, cluster.client() as leader:
        log = await create_log(leader.opened, "x")
        async with log.writer() as writer:
            rolled = []

            async def roll_before_logs_are_read(call: Call, go_on: GoOn) -> Any:
                if call.path == log_record_path(log.incarnation) and not rolled:
                    rolled.append((await writer.append(b"0")).offset)
                    await writer.roll()
                    rolled.append((await writer.append(b"1")).offset)
                return await go_on()

            client.store.faults.append(roll_before_logs_are_read)
            check = await look_at_metadata(client.opened)
        assert rolled == [0, 1]
        assert check.is_sound


async def test_what_the_metadata_have_and_nobody_holds_is_named(clock: MockClock, tmp_path: Path) -> None:
    """A ledger that was deleted and collected after the backup, and a bookie that is down."""
    async with open_cluster(4) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            gone = await client.ledgers.list()
            for ledger_id in gone:
                await client.ledgers.delete(ledger_id)
        assert await collected(cluster) > 0
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(4)
            check = await look_at_metadata(client.opened)
            held = [ledger.ledger_id for ledger in check.not_held]
            assert held
            assert {*held} <= {*gone}
            await client.store.delete(ledger_path(held[0]))
            await cluster.bookies["b1"].stop()
            check = await look_at_metadata(client.opened)
            assert (check.missing, check.unregistered) == ({"x": (held[0],)}, ("b1",))


async def test_entries_that_the_next_leader_had_cut_off_stay_cut_off(
    clock: MockClock, tmp_path: Path
) -> None:
    """An entry reached one bookie only, and that bookie was away when the next leader took over.

    Another bookie is away at the restore. So fewer bookies deny the entry than a recovery needs to end before
    it, and the recovery keeps it.
    """
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            async with log.writer() as writer:
                await writer.append(b"5")
                await writer.append(b"6")
                ledger_id = (await log.info()).segments[-1].ledger_id
            left_over = encode_entry(
                [b"never acknowledged"], epoch=2, first_offset=7, timestamp_ms=1, bytes_before=7
            )
            closed = await client.ledgers.metadata(ledger_id)
            assert closed.last_entry is not None
            await add_to(cluster.bookies["b1"], closed, closed.last_entry + 1, left_over)
            await appended(client, log, range(7, 10))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await cluster.bookies["b3"].kill(session_s=0)
            await client.opened.bookies.wait_writable(2)
            _, left = await bring_back(
                client.opened, await look_at_metadata(client.opened), accept_absent=True
            )
            assert not left
            assert await records_of(await open_log(client.opened, "x")) == numbers(10)


async def add_to(bookie: Bookie, ledger: LedgerMetadata, entry_id: int, payload: bytes) -> None:
    """Store an entry on one bookie alone, as if its add had come late."""
    entries = Entries.build(ledger.ledger_id, entry_id, [payload])
    buffers = encode_add(entries, lac=entry_id - 1, lafr=-1, key=ledger.key, recovery=True)
    frame = decode_frame_untrusted(memoryview(b"".join(buffers)))
    assert not isinstance(bookie.node.engine.add(frame, entries), Status)
    await bookie.node.engine.flush()


async def test_a_backup_has_the_ledgers_that_a_log_lists_since_they_were_read(tmp_path: Path) -> None:
    tree = new_tree()
    log = LogMetadata.create(
        name="x", incarnation=0, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )
    listed = attrs.evolve(log, epoch=1, segments=(LogSegment(5, 1, 0),))

    async def roll_before_logs_are_read(call: Call, go_on: GoOn) -> Any:
        if call.path == log_record_path(0) and ledger_path(5) not in tree.content.nodes:
            async with tree.open_store() as writer:
                await writer.create(ledger_path(5), b"five")
                await writer.set(log_record_path(0), listed.encode(), version=0)
        return await go_on()

    store = FaultyStore(tree, roll_before_logs_are_read)
    await store.create("cookies/b1", b"")
    store.faults.clear()
    await store.create(log_record_path(0), log.encode())
    store.faults.append(roll_before_logs_are_read)
    store.belong_to(OURS)
    with write_backup(str(tmp_path / "backup")) as writer:
        await save(store, writer, made_ms=NOW_MS)
    assert dict(open_backup(str(tmp_path / "backup")).read())[ledger_path(5)] == b"five"


async def test_a_ledger_that_was_open_when_the_backup_read_it_and_closed_in_its_log_is_read_whole(
    clock: MockClock, tmp_path: Path
) -> None:
    """A store that is read node by node: the log rolls between the reads of its ledger and of its list."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            async with log.writer() as writer:

                async def append(records: range) -> None:
                    for number in records:
                        await writer.append(b"%d" % number)

                async def roll_before_the_list_is_read(call: Call, go_on: GoOn) -> Any:
                    if call.path == log_record_path(0):
                        store.faults.clear()
                        for first in (5, 10):
                            await append(range(first, first + 5))
                            await writer.roll()
                        await append(range(15, 20))
                    return await go_on()

                await append(range(5))
                store = FaultyStore(cluster.tree, roll_before_the_list_is_read)
                store.belong_to(OURS)
                with write_backup(str(tmp_path / "backup")) as file:
                    await save(store, file, made_ms=NOW_MS)
                await append(range(20, 25))
                await writer.roll()
                await append(range(25, 30))
        await restored_under_bookies(cluster, open_backup(str(tmp_path / "backup")))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            _, left = await bring_back(client.opened, await look_at_metadata(client.opened))
            assert not left
            assert await records_of(await open_log(client.opened, "x")) == numbers(30)


@pytest.mark.parametrize("calls", [10, 22, 26, 30])
async def test_a_ledger_of_the_backup_that_its_leader_listed_later_is_brought_back_after_an_interruption(
    clock: MockClock, tmp_path: Path, calls: int
) -> None:
    """The leader had made it ahead. When it is recovered, nothing in its metadata shows that they are old."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")

            async def back_up_before_the_roll_is_written(call: Call, go_on: GoOn) -> Any:
                if call.verb == "set" and call.path == log_record_path(log.incarnation):
                    client.store.faults.clear()
                    await backed_up(cluster.tree, tmp_path / "backup")
                return await go_on()

            async with log.writer() as writer:
                await writer.append(b"0")
                client.store.faults.append(back_up_before_the_roll_is_written)
                await writer.roll()
                await writer.append(b"1")
        await restored_under_bookies(cluster, open_backup(str(tmp_path / "backup")))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            check = await look_at_metadata(client.opened)
            client.store.faults.append(unreachable_after(calls))
            with contextlib.suppress(LedgerLogError):
                await bring_back(client.opened, check)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            await bring_back(client.opened, await look_at_metadata(client.opened))
            assert await records_of(await open_log(client.opened, "x")) == numbers(2)
            assert (await look_at_metadata(client.opened)).is_sound


async def test_a_ledger_that_was_staged_at_the_backup_and_spliced_later_is_named(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            registry = LogRegistry(client.opened.store, client.opened.environment)
            async with stage(client.opened, registry, log.name, log.incarnation) as opened:
                await opened.append_many([b"0", b"1"])
                staged = await opened.close()
            assert staged is not None
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            commit = Commit(producer="p", source="s", run="r", batch=0, staged=(staged,))
            await splice(client.opened, registry, log.name, log.incarnation, commit)
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            _, (left,) = await bring_back(client.opened, await look_at_metadata(client.opened))
            assert (left.ledger_id, left.log) == (staged.ledger_id, "x")


@pytest.mark.parametrize("was_on", [False, True])
async def test_a_ledger_comes_back_with_the_deduplication_of_its_leader(
    clock: MockClock, tmp_path: Path, was_on: bool
) -> None:
    """That leader had switched it on or off. Otherwise the next leader could not read the table."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            async with log.writer(dedupe=was_on) as writer:
                await writer.append(b"0")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            producer, first, second = (None, None, None) if was_on else ("p", 0, 1)
            async with log.writer(dedupe=not was_on) as writer:
                await writer.append(b"1", producer=producer, sequence=first)
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            await bring_back(client.opened, await look_at_metadata(client.opened))
            log = await open_log(client.opened, "x")
            async with log.writer() as writer:
                if not was_on:
                    assert (await writer.append(b"1", producer=producer, sequence=first)).offset == 1
                await writer.append(b"2", producer=producer, sequence=second)
            assert await records_of(log) == numbers(3)


def back_up_before_the_close(cluster: MemoryCluster, client: Client, ledger_id: int, path: Path) -> None:
    """Make a backup right before the client next writes the metadata of a ledger."""

    async def fault(call: Call, go_on: GoOn) -> Any:
        if ledger_path(ledger_id) in [operation.path for operation in call.operations]:
            client.store.faults.clear()
            await backed_up(cluster.tree, path)
        return await go_on()

    client.store.faults.append(fault)


@attrs.frozen
class Truncation:
    """A log that was truncated after the backup: five records in each ledger, all but the last one rolled."""

    ledgers: int
    open_at_backup: int
    truncated_to: int
    replication: Replication = R332
    collected_on: int = 3
    """On how many bookies the truncated ledgers are collected, in the order of the first one's ensemble."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Truncation(3, 2, 5), id="the older of two open ledgers"),
        pytest.param(Truncation(3, 2, 10), id="both open ledgers"),
        pytest.param(Truncation(3, 1, 5), id="the open ledger"),
        pytest.param(Truncation(2, 2, 5), id="the older, and nothing is forgotten"),
        pytest.param(Truncation(3, 2, 5, Replication(5, 2, 2), 2), id="the older, collected on some bookies"),
        pytest.param(Truncation(2, 2, 5, Replication(5, 2, 2), 2), id="the older in part, and no other"),
        pytest.param(Truncation(3, 2, 0), id="none"),
    ],
)
async def test_what_followed_ledgers_that_were_truncated_since_the_backup_comes_back_behind_a_gap(
    clock: MockClock, tmp_path: Path, case: Truncation
) -> None:
    async with open_cluster(case.replication.ensemble) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x", replication=case.replication)

            async with log.writer() as writer:
                ledger_ids = []
                for number in range(case.ledgers):
                    for record in numbers(5 * number + 5)[5 * number :]:
                        await writer.append(record)
                    ledger_ids.append((await log.info()).segments[-1].ledger_id)
                    if number == 0 and case.open_at_backup == 1:
                        await backed_up(cluster.tree, tmp_path / "backup")
                    elif number == 0:
                        back_up_before_the_close(cluster, client, ledger_ids[0], tmp_path / "backup")
                    if number < case.ledgers - 1:
                        await writer.roll()
            ensemble = (await client.ledgers.metadata(ledger_ids[0])).fragments[0].ensemble
            await log.truncate(case.truncated_to)
        await collected(cluster, ensemble[: case.collected_on])
        await restored_under_bookies(cluster, open_backup(str(tmp_path / "backup")))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(len(cluster.bookies))
            back, left = await bring_back(client.opened, await look_at_metadata(client.opened))
            log = await open_log(client.opened, "x")
            end = 5 * case.ledgers
            if not case.truncated_to:
                assert not left
                assert await records_of(log) == numbers(end)
                return
            assert not back
            assert left
            assert all("--bring-back --accept-gaps" in ledger.why for ledger in left)
            lost_in = min(2, case.open_at_backup)
            named = {ledger.ledger_id for ledger in left}
            assert named >= {*ledger_ids[case.truncated_to // 5 :]} - {*ledger_ids[:lost_in]}
            back, left = await bring_back(
                client.opened, await look_at_metadata(client.opened), accept_gaps=True
            )
            assert not left
            with pytest.raises(RecordsLost) as gap:
                await records_of(log)
            assert (gap.value.lost_from, gap.value.first_offset) == (0, case.truncated_to)
            async with log.writer() as writer:
                assert (await writer.append(b"%d" % end)).offset == end
            async with log.read(start=case.truncated_to) as reader:
                assert [record.data async for record in reader] == numbers(end + 1)[case.truncated_to :]


async def test_a_log_whose_older_open_ledger_was_collected_since_the_backup_takes_no_leader(
    clock: MockClock, tmp_path: Path
) -> None:
    """Otherwise the records of the newer ledger would be dropped, and nobody would be told."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")

            async with log.writer() as writer:
                await writer.append_many(numbers(5))
                older = (await log.info()).segments[-1].ledger_id
                back_up_before_the_close(cluster, client, older, tmp_path / "backup")
                await writer.roll()
                await writer.append_many(numbers(10)[5:])
                newer = (await log.info()).segments[-1].ledger_id
            await log.truncate(5)
        assert await collected(cluster) == 3
        await restored_under_bookies(cluster, open_backup(str(tmp_path / "backup")))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            log = await open_log(client.opened, "x")
            with pytest.raises(LossUndecided) as caught:
                await log.writer().__aenter__()
            found = caught.value
            assert (found.short_ledger, found.kept_ledger) == (older, newer)
            assert (found.lost_from, found.first_offset, found.end_offset) == (0, 5, 10)
            with pytest.raises(LossUndecided):
                await records_of(log)


async def test_a_sweep_keeps_ledgers_from_before_a_restore_until_the_loss_is_accepted(
    clock: MockClock, tmp_path: Path
) -> None:
    """The list of the backup may lack a ledger that is about to be brought back."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            record, _ = await LogRegistry(client.store, client.opened.environment).read(log.incarnation)
            assert record is not None
            writer = await client.ledgers.create(metadata=ledger_labels(record, record.epoch))
            await writer.append(b"x")
            await writer.close()
            backup = await backed_up(cluster.tree, tmp_path / "backup")
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            assert await sweep(client.opened, min_age_s=0) == []
            assert await accept_loss(client.store)
            (orphan,) = await sweep(client.opened, min_age_s=0)
            assert (orphan.ledger_id, orphan.is_deleted) == (writer.ledger_id, True)
