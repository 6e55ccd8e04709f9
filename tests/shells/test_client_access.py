"""The errors of clients that lack a right, and what is left of their work after a revocation."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledgerlog.errors import AppendUnknown, EntryNotFound, LedgerLogError, PermissionDenied
from ledgerlog.log.log import create_log, open_log
from ledgerlog.meta.grants import change_grants
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.ledger import LedgerState
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import MemoryCluster, open_cluster

R332 = Replication(3, 3, 2)
GUARANTEED = Replication(3, 3, 2, guaranteed=True)
LABELS = {"log-name": b"a/1"}

CLIENT = "client-1"
"""The host of the first client of a cluster."""


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    return autojump_clock


async def change(cluster: MemoryCluster, role: Role, prefix: str, *, revoke: bool = False) -> None:
    """Grant the first client a role, or revoke it. Wait until all bookies know."""
    cluster.network.principals[CLIENT] = principal = Principal("client", "c")
    grant = Grant(role, prefix)
    async with cluster.tree.open_store() as store:
        await change_grants(
            store, principal, lambda now: now.revoked(grant) if revoke else now.granted(grant)
        )
    await trio.testing.wait_all_tasks_blocked()


# --- ledgers ------------------------------------------------------------------------------------------


async def test_an_append_without_the_right_fails_for_certain(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        await change(cluster, Role.READER, "a/")
        writer = await client.ledgers.create(replication=R332, metadata=LABELS)
        begun = trio.current_time()
        with pytest.raises(PermissionDenied, match="this client may not add to it"):
            await writer.append(b"x")
        assert trio.current_time() - begun < 1, "it asks no other bookie, and waits for no deadline"
        with pytest.raises(PermissionDenied):
            writer.push([b"y"])
        assert await writer.close() == -1
        metadata = await admin.ledgers.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, -1)


async def test_a_revoked_writer_ends_and_keeps_what_was_acknowledged(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as admin:
        await change(cluster, Role.WRITER, "a/")
        writer = await client.ledgers.create(replication=R332, metadata=LABELS)
        acked: list[int] = []
        failures: list[LedgerLogError] = []

        async def append_on() -> None:
            while not failures:
                try:
                    await trio.sleep(0.001)
                    acked.append(await writer.append(b"x"))
                except LedgerLogError as failure:
                    failures.append(failure)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(append_on)
            await trio.sleep(0.1)
            await change(cluster, Role.WRITER, "a/", revoke=True)
        assert len(failures) == 10
        assert all(type(failure) is PermissionDenied for failure in failures)
        metadata = await admin.ledgers.metadata(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry == max(acked), "what failed for certain is not in the ledger"
        assert sorted(acked) == list(range(len(acked)))
        assert await admin.contents(writer.ledger_id) == [b"x"] * len(acked)
        assert len(metadata.fragments) == 1, "it tried no other bookies"


async def test_a_revoked_writer_of_a_guaranteed_ledger_does_not_know_what_survives(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        await change(cluster, Role.WRITER, "a/")
        writer = await client.ledgers.create(replication=GUARANTEED, metadata=LABELS)
        await writer.append(b"x")
        await change(cluster, Role.WRITER, "a/", revoke=True)
        with pytest.raises(AppendUnknown, match="may not add to it"):
            await writer.append(b"y")
        with pytest.raises(PermissionDenied):
            writer.push([b"z"])
        assert (await admin.ledgers.recover(writer.ledger_id)).last_entry == 0
        assert await admin.contents(writer.ledger_id) == [b"x"]


async def test_a_recovery_without_the_right_ends_at_once_and_another_client_finishes_it(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        writer = await admin.ledgers.create(replication=R332, metadata=LABELS)
        await writer.append(b"x")
        await change(cluster, Role.READER, "a/")
        begun = trio.current_time()
        with pytest.raises(PermissionDenied, match="may not recover it"):
            await client.ledgers.recover(writer.ledger_id)
        assert trio.current_time() - begun < 1
        assert await writer.append(b"y") == 1, "nothing was fenced"
        assert (await admin.ledgers.recover(writer.ledger_id)).last_entry == 1


async def test_each_way_to_read_without_the_right_says_so(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        ledger = await admin.ledgers.create(replication=Replication(3, 2, 2), metadata=LABELS)
        await ledger.append_many([b"x"] * 9)
        await change(cluster, Role.READER, "b/")
        reader = await client.ledgers.open(ledger.ledger_id)
        with pytest.raises(PermissionDenied, match="may not read it"):
            await reader.last_add_confirmed()
        with pytest.raises(PermissionDenied, match="may not read it"):
            await reader.wait_beyond(-1)
        await ledger.close()
        await reader.refresh()
        with pytest.raises(PermissionDenied, match="may not read it"):
            await reader.read(0, 8)
        with pytest.raises(PermissionDenied, match="may not read it"):
            await client.ledgers.verify(ledger.ledger_id)


async def test_a_reader_that_follows_gets_what_it_read_before_and_then_the_refusal(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        await change(cluster, Role.READER, "a/")
        writer = await admin.ledgers.create(replication=R332, metadata=LABELS)
        await writer.append(b"x")
        reader = await client.ledgers.open(writer.ledger_id)
        seen: list[int] = []
        refused: list[LedgerLogError] = []

        async def follow() -> None:
            try:
                async for entry_id, _ in reader.follow():
                    seen.append(entry_id)
            except LedgerLogError as failure:
                refused.append(failure)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.sleep(1)
            begun = trio.current_time()
            await change(cluster, Role.READER, "a/", revoke=True)
        assert seen == [0]
        assert [type(failure) for failure in refused] == [PermissionDenied]
        assert trio.current_time() - begun < 5


async def test_a_ledger_that_is_deleted_under_a_reader_is_not_found(clock: MockClock) -> None:
    """A bookie that cannot find the ledger's log any more does not say that the reader lacks a right."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        await change(cluster, Role.READER, "a/")
        writer = await admin.ledgers.create(replication=R332, metadata=LABELS)
        await writer.append(b"x")
        await writer.close()
        reader = await client.ledgers.open(writer.ledger_id)
        await admin.ledgers.delete(writer.ledger_id)
        for bookie in cluster.bookies.values():
            await bookie.restart()  # It has forgotten whose ledger it was.
        with pytest.raises(LedgerLogError) as caught:
            await reader.read(0, 0)
        assert not isinstance(caught.value, PermissionDenied | EntryNotFound)


# --- logs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replication", [R332, GUARANTEED], ids=["plain", "guaranteed"])
async def test_a_leader_that_is_revoked_ends_and_the_next_one_finds_every_acknowledged_record(
    clock: MockClock, replication: Replication
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as admin:
        await change(cluster, Role.WRITER, "a/")
        await create_log(client.opened, "a/1", replication=replication)
        log = await open_log(client.opened, "a/1")
        acked: list[int] = []
        failures: list[LedgerLogError] = []
        async with log.writer() as writer:

            async def append_on() -> None:
                while not failures:
                    try:
                        await trio.sleep(0.001)
                        acked.append((await writer.append(b"x")).offset)
                    except LedgerLogError as failure:
                        failures.append(failure)

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(append_on)
                await trio.sleep(0.1)
                await change(cluster, Role.WRITER, "a/", revoke=True)
            with pytest.raises(PermissionDenied):
                await writer.append(b"never")
        kinds = {type(failure) for failure in failures}
        assert kinds <= ({AppendUnknown, PermissionDenied} if replication.guaranteed else {PermissionDenied})
        other = await open_log(admin.opened, "a/1")
        async with other.writer() as writer:
            next_offset = (await writer.append(b"after")).offset
        assert sorted(acked) == list(range(len(acked)))
        if replication.guaranteed:
            assert next_offset >= len(acked)
        else:
            assert next_offset == len(acked), "what failed for certain is not in the log"
        async with other.read() as records:
            found = [record.data async for record in records]
        assert found[: len(acked)] == [b"x"] * len(acked)
        assert b"never" not in found


async def test_a_takeover_of_a_log_of_others_is_refused(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as admin:
        await create_log(admin.opened, "a/1", replication=R332)
        log = await open_log(admin.opened, "a/1")
        async with log.writer() as leader:
            await leader.append(b"x")
            await change(cluster, Role.WRITER, "b/")
            mine = await open_log(client.opened, "a/1")
            with pytest.raises(PermissionDenied):
                async with mine.writer():
                    raise AssertionError("it leads")
            with pytest.raises(PermissionDenied):
                async with mine.read():
                    raise AssertionError("it reads")
