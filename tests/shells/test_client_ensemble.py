"""Bookies die, refuse, hang and come back under a ledger's writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import (
    AppendUnknown,
    LedgerClosed,
    LedgerFenced,
    LedgerLogError,
    NotEnoughBookies,
    WriteQuorumUnavailable,
)
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import (
    ADD_TIMEOUT_S,
    APPEND_DEADLINE_S,
    REACH_LOST_S,
    SESSION_TIMEOUT_S,
    WRITER_WINDOW_ENTRIES,
)
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Bookie, Client, MemoryCluster, eventually, open_cluster
from ledgerlog.wire.frame import Status

R332 = Replication(3, 3, 2)
GUARANTEED = Replication(3, 3, 2, guaranteed=True)


class Load:
    """Appends numbered entries in the background, and records the acknowledged ones."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self.acknowledged: dict[int, bytes] = {}
        self.failures: list[LedgerLogError] = []
        self.pause_s = 0.001
        """Use a longer pause if the test waits for seconds: more entries would prove nothing more."""
        self._may_go_on = True

    async def run(self, tasks: int = 4) -> None:
        async with trio.open_nursery() as nursery:
            for task in range(tasks):
                nursery.start_soon(self._append, task)

    async def _append(self, task: int) -> None:
        number = 0
        while self._may_go_on:
            payload = b"%d/%d" % (task, number)
            try:
                entry_id = await self.writer.append(payload)
            except LedgerLogError as failure:
                self.failures.append(failure)
                return
            self.acknowledged[entry_id] = payload
            number += 1
            await trio.sleep(self.pause_s)

    def end(self) -> None:
        self._may_go_on = False

    async def more(self, count: int = 50) -> None:
        """Wait until ``count`` more entries are acknowledged."""
        target = len(self.acknowledged) + count
        await eventually(lambda: len(self.acknowledged) >= target or bool(self.failures))
        assert not self.failures


@asynccontextmanager
async def loaded(cluster: MemoryCluster, client: Client, replication: Replication) -> AsyncIterator[Load]:
    """A writer under load. At the end it is closed, dead bookies are started again, and every acknowledged
    entry must be in its place."""
    writer = await client.ledgers.create(replication=replication)
    load = Load(writer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.more(20)
        yield load
        load.end()
    assert not load.failures
    last = await writer.close()
    await cluster.start_all()
    contents = await client.contents(writer.ledger_id)
    assert len(contents) == last + 1
    for entry_id, payload in load.acknowledged.items():
        assert contents[entry_id] == payload


def ensemble(cluster: MemoryCluster, writer: LedgerWriter) -> list[Bookie]:
    return cluster.bookies_of(writer.metadata.last_fragment.ensemble)


async def copies(client: Client, ledger_id: int) -> tuple[list[int], list[int]]:
    found = await client.ledgers.verify(ledger_id)
    return found.under_replicated, found.unreadable


# --- with spares ----------------------------------------------------------------------------------


async def test_a_bookie_that_dies_is_replaced_and_no_append_fails(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        async with loaded(cluster, client, R332) as load:
            writer = load.writer
            victim, *stay = ensemble(cluster, writer)
            begun = trio.current_time()
            await victim.kill()
            await load.more()
            await eventually(lambda: len(writer.metadata.fragments) == 2)
            assert trio.current_time() - begun < 1
            first, second = writer.metadata.fragments
            (spare,) = cluster.spares(first.ensemble)
            assert second.ensemble == (spare.bookie_id, *(bookie.bookie_id for bookie in stay))
            assert writer.metadata == await client.ledgers.metadata(writer.ledger_id)
            await load.more()
        # The replacement has every entry that the dead bookie had not confirmed, and all later ones.
        missing, unreadable = await copies(client, writer.ledger_id)
        assert not unreadable
        assert all(entry_id < second.first_entry for entry_id in missing)


async def test_entries_that_lacked_their_quorum_are_sent_to_the_replacement(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"settled")
        one, two, three = ensemble(cluster, writer)
        for hung in (two, three):
            cluster.network.stall(client.host, hung.bookie_id)
        writer.push([b"on one", b"of three"])
        await trio.sleep(0.1)
        assert writer.last_add_confirmed == 0
        await two.kill()
        cluster.network.heal(client.host, two.bookie_id)
        await writer.flush()
        assert [f.first_entry for f in writer.metadata.fragments] == [0, 1]
        cluster.network.heal()
        assert await writer.close() == 2
        missing, _ = await copies(client, writer.ledger_id)
        assert missing == [0], "only what was settled before lacks its copy"
        await one.kill()
        assert await client.contents(writer.ledger_id) == [b"settled", b"on one", b"of three"]


@pytest.mark.parametrize("replication", [R332, Replication(3, 3, 3), Replication(4, 2, 2)], ids=str)
async def test_two_that_die_at_once_are_replaced_together(replication: Replication, clock: MockClock) -> None:
    async with (
        open_cluster(replication.ensemble + 2) as cluster,
        cluster.client() as client,
        loaded(cluster, client, replication) as load,
    ):
        first, second, *_ = ensemble(cluster, load.writer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.kill)
            nursery.start_soon(second.kill)
        await load.more(100)
        names = {first.bookie_id, second.bookie_id}
        await eventually(lambda: not names.intersection(load.writer.metadata.last_fragment.ensemble))
        assert len(load.writer.metadata.fragments) <= 3
        await load.more(100)


async def test_a_replacement_that_is_dead_as_well_is_replaced(clock: MockClock) -> None:
    async with (
        open_cluster(5) as cluster,
        cluster.client() as client,
        loaded(cluster, client, R332) as load,
    ):
        victim, *stay = ensemble(cluster, load.writer)
        spare, other = cluster.spares(load.writer.metadata.last_fragment.ensemble)
        load.pause_s = 0.05
        await spare.kill()
        await other.kill()
        await other.start()  # Which waits for its former session to end.
        await victim.kill()
        await load.more()
        wanted = {other.bookie_id, *(bookie.bookie_id for bookie in stay)}
        await eventually(lambda: set(load.writer.metadata.last_fragment.ensemble) == wanted)
        await load.more()


async def test_bookies_that_are_dead_and_still_registered_do_not_take_turns(clock: MockClock) -> None:
    async with (
        open_cluster(5) as cluster,
        cluster.client() as client,
        loaded(cluster, client, R332) as load,
    ):
        first, *_ = ensemble(cluster, load.writer)
        dead = [first, *cluster.spares(load.writer.metadata.last_fragment.ensemble)]
        for bookie in dead:
            await bookie.kill(session_s=4 * SESSION_TIMEOUT_S + 5)  # Registered through all of the load.
        load.pause_s = 0.2
        await trio.sleep(4 * SESSION_TIMEOUT_S)
        await load.more()
        assert len(load.writer.metadata.fragments) <= 9
        assert client.store.writes <= 12


async def test_rule_12_a_bookie_that_fails_after_its_entries_have_their_quorum_is_replaced(
    clock: MockClock,
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        victim = ensemble(cluster, writer)[2]
        cluster.network.stall(client.host, victim.bookie_id)
        assert await writer.append(b"confirmed by the two others") == 1
        await trio.sleep(ADD_TIMEOUT_S + 2)
        assert victim.bookie_id not in writer.metadata.last_fragment.ensemble
        assert writer.metadata.last_fragment.first_entry == 2
        assert await writer.append(b"y") == 2
        assert await writer.close() == 2


async def test_a_bookie_that_hangs_is_replaced_after_a_second_without_a_sign_of_life(
    clock: MockClock,
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 3))
        await writer.append(b"x")
        hung = ensemble(cluster, writer)[1]
        # Cut one way: the bookie receives and cannot answer.
        cluster.network.stall(hung.bookie_id, client.host, both=False)
        begun = trio.current_time()
        await writer.append(b"y")
        assert REACH_LOST_S - 0.01 < trio.current_time() - begun < REACH_LOST_S + 0.5
        assert hung.bookie_id not in writer.metadata.last_fragment.ensemble
        cluster.network.heal()
        await writer.close()


async def test_late_answers_of_a_bookie_that_left_count_for_nothing(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 3))
        await writer.append(b"x")
        hung, other, _ = ensemble(cluster, writer)
        cluster.network.stall(hung.bookie_id, client.host, both=False)
        writer.push([b"y"])
        await eventually(lambda: hung.bookie_id not in writer.metadata.last_fragment.ensemble)
        await writer.flush()
        cluster.network.stall(client.host, other.bookie_id)
        writer.push([b"z"])
        cluster.network.heal(hung.bookie_id, client.host)
        await trio.sleep(1)
        assert writer.last_add_confirmed == 1
        cluster.network.heal()
        await writer.close()


async def test_a_broken_connection_to_a_healthy_bookie_costs_no_entry(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        for _ in range(20):
            for bookie in ensemble(cluster, load.writer):
                cluster.network.reset(client.host, bookie.bookie_id)
                await load.more(5)
        assert len(load.writer.metadata.fragments) == 1


# --- striping -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "replication", [Replication(4, 2, 2), Replication(5, 3, 2), Replication(3, 2, 1)], ids=str
)
async def test_striped_ledgers_survive_one_death_after_another(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble + 2) as cluster, cluster.client() as client:
        async with loaded(cluster, client, replication) as load:
            load.pause_s = 0.1
            for turn in range(4):
                slot = (2 * turn + 1) % replication.ensemble
                victim = ensemble(cluster, load.writer)[slot]
                await victim.kill()
                await load.more(40)
                await eventually(
                    lambda victim=victim: victim.bookie_id not in load.writer.metadata.last_fragment.ensemble
                )
                await victim.start()
                await load.more(40)
        _, unreadable = await copies(client, load.writer.ledger_id)
        assert not unreadable


# --- without spares -------------------------------------------------------------------------------


async def test_without_a_spare_a_ledger_goes_on_without_one_of_three(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        await ensemble(cluster, load.writer)[1].kill()
        await load.more(200)
        load.pause_s = 0.5
        await trio.sleep(2 * APPEND_DEADLINE_S)
        await load.more(50)
        assert len(load.writer.metadata.fragments) == 1


async def test_without_an_ack_quorum_appends_wait_and_fail_at_the_deadline(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        load = Load(writer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await load.more(20)
            for bookie in ensemble(cluster, writer)[1:]:
                await bookie.kill()
            begun = trio.current_time()
            await trio.sleep(APPEND_DEADLINE_S - 1)
            assert not load.failures
        assert trio.current_time() - begun <= APPEND_DEADLINE_S + 2
        assert [type(failure) for failure in load.failures] == [NotEnoughBookies] * 4
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert metadata.last_entry == max(load.acknowledged) == writer.last_add_confirmed
        with pytest.raises(NotEnoughBookies):
            await writer.append(b"later")
        assert await writer.close() == metadata.last_entry
        await cluster.start_all()
        contents = await client.contents(writer.ledger_id)
        assert dict(enumerate(contents)) == load.acknowledged


async def test_a_bookie_that_returns_before_the_deadline_is_sent_what_it_lacks(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        _, two, three = ensemble(cluster, load.writer)
        await two.kill()
        await three.kill()
        stood_at = load.writer.last_add_confirmed
        await trio.sleep(APPEND_DEADLINE_S - 5)
        assert load.writer.last_add_confirmed == stood_at
        await two.start()
        await load.more(50)
        await three.start()
        await load.more(50)
        assert len(load.writer.metadata.fragments) == 1


async def test_a_bookie_that_registers_while_appends_wait_is_taken_in(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        _, two, three = ensemble(cluster, load.writer)
        await two.kill()
        await three.kill()
        await trio.sleep(5)
        fresh = await cluster.add_bookie()
        await load.more(50)
        assert fresh.bookie_id in load.writer.metadata.last_fragment.ensemble


# --- refusals -------------------------------------------------------------------------------------


async def test_a_bookie_that_becomes_read_only_is_replaced(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        full = ensemble(cluster, load.writer)[0]
        full.set_read_only(True)
        await load.more()
        await eventually(lambda: full.bookie_id not in load.writer.metadata.last_fragment.ensemble)
        await load.more()


async def test_without_a_spare_a_bookie_that_refuses_is_tried_again_but_not_in_a_hurry(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 3))
        await writer.append(b"x")
        full = ensemble(cluster, writer)[0]
        full.set_read_only(True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.append, b"y")
            await trio.sleep(10)
            assert writer.last_add_confirmed == 0
            assert 10 <= full.node.server.counts["adds_refused"] <= 25
            full.set_read_only(False)
        await writer.close()
        assert await copies(client, writer.ledger_id) == ([], [])


async def test_a_busy_writer_also_tries_a_bookie_that_refused_again(clock: MockClock) -> None:
    # The LAC never rests long enough to be published without entries.
    async with open_cluster(3) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        full = ensemble(cluster, load.writer)[0]
        full.set_read_only(True)
        await eventually(lambda: full.node.server.counts["adds_refused"] > 0)
        await trio.sleep(0.1)  # Now it has refused everything that was under way.
        refused = full.node.server.counts["adds_refused"]
        await eventually(lambda: full.node.server.counts["adds_refused"] > refused, timeout_s=3)
        full.set_read_only(False)


async def test_a_bookie_that_is_overloaded_for_a_moment_loses_no_entry(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        async with loaded(cluster, client, Replication(3, 3, 3)) as load:
            bookie = ensemble(cluster, load.writer)[1]
            engine = bookie.node.engine
            take = engine.add
            turns = iter(range(1_000_000))

            def add(*args: object) -> int | Status:
                return Status.TOO_MANY_REQUESTS if next(turns) % 7 == 0 else take(*args)

            monkeypatch.setattr(engine, "add", add)
            await load.more(100)
            monkeypatch.undo()
            await load.more(50)
        assert await copies(client, load.writer.ledger_id) == ([], [])


# --- replacements that refuse ----------------------------------------------------------------------


ANSWERS = set(Status) - {Status.OK, Status.PERMISSION_DENIED}
"""Refusals that are about one bookie. PERMISSION_DENIED is about the client, and ends its writer
(``test_client_access``)."""


@pytest.mark.parametrize(
    ("status", "replication"),
    [*((status, R332) for status in sorted(ANSWERS)), (Status.FENCED, GUARANTEED)],
    ids=lambda value: value.name if isinstance(value, Status) else str(value),
)
async def test_whatever_a_replacement_answers_the_writer_goes_on_and_finds_another(
    status: Status, replication: Replication, clock: MockClock
) -> None:
    async with (
        open_cluster(5) as cluster,
        cluster.client() as client,
        loaded(cluster, client, replication) as load,
    ):
        load.pause_s = 0.5
        dead = ensemble(cluster, load.writer)[0]
        bad, good = cluster.spares(load.writer.metadata.last_fragment.ensemble)
        bad.node.engine.add = lambda *frame: status
        client.opened.bookies.quarantine(good.bookie_id)  # So the writer chooses the bad one first.
        await dead.kill()
        await eventually(lambda: bad in ensemble(cluster, load.writer))
        await load.more(10)
        await eventually(lambda: good in ensemble(cluster, load.writer))
        await load.more(10)
        assert not {bad, dead} & set(ensemble(cluster, load.writer))
        await bad.kill()  # So that it takes its own adds again.


async def back_from_a_loss(cluster: MemoryCluster, writer: LedgerWriter) -> Bookie:
    """A spare that lost its disk. It refuses adds of ledgers that existed before."""
    spare = cluster.spares(writer.metadata.last_fragment.ensemble)[0]
    await spare.lose_disk()
    await spare.start()
    return spare


async def test_a_bookie_that_fences_older_ledgers_is_not_chosen_for_them(clock: MockClock) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        async with loaded(cluster, client, R332) as load:
            load.pause_s = 0.5
            fencing = await back_from_a_loss(cluster, load.writer)
            assert fencing.node.info.fences_through == load.writer.ledger_id
            await eventually(lambda: fencing.node.info in client.opened.bookies.writable())
            await ensemble(cluster, load.writer)[0].kill()
            await load.more(10)
            await eventually(lambda: len({b.is_running for b in ensemble(cluster, load.writer)}) == 1)
            await load.more(10)
            assert fencing not in ensemble(cluster, load.writer)
            assert fencing.node.server.counts["adds_refused"] == 0
        # It takes newer ledgers like any other bookie.
        newer = await client.ledgers.create(replication=Replication(4, 4, 4))
        assert fencing in ensemble(cluster, newer)
        await newer.append(b"x")
        await newer.close()


async def test_where_no_other_is_left_a_fencing_bookie_is_no_replacement_and_no_end(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, loaded(cluster, client, R332) as load:
        load.pause_s = 0.5
        fencing = await back_from_a_loss(cluster, load.writer)
        await ensemble(cluster, load.writer)[0].kill()
        await load.more(20)
        assert fencing not in ensemble(cluster, load.writer)


async def test_a_recoverer_that_fences_a_new_replacement_ends_the_writer_all_the_same(
    clock: MockClock,
) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        dead = ensemble(cluster, writer)[0]
        await dead.kill()
        await eventually(lambda: dead not in ensemble(cluster, writer))
        new = ensemble(cluster, writer)[0]
        for member in ensemble(cluster, writer)[1:]:
            cluster.network.stall(client.host, member.bookie_id)
        assert new.is_running
        await other.ledgers.recover(writer.ledger_id)
        with pytest.raises((LedgerFenced, LedgerClosed)):
            await writer.append(b"y")
        cluster.network.heal()


# --- guaranteed write quorum ----------------------------------------------------------------------


async def test_in_guaranteed_mode_every_entry_gets_its_full_write_quorum(clock: MockClock) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        async with loaded(cluster, client, GUARANTEED) as load:
            for _ in range(2):
                victim = ensemble(cluster, load.writer)[1]
                await victim.kill()
                load.pause_s = 0.001
                await load.more(50)
                load.pause_s = 0.05
                await eventually(
                    lambda victim=victim: victim.bookie_id not in load.writer.metadata.last_fragment.ensemble
                )
                await victim.start()
        assert load.writer.last_add_fully_replicated == load.writer.last_add_confirmed
        assert await copies(client, load.writer.ledger_id) == ([], [])


async def test_in_guaranteed_mode_close_waits_for_the_write_quorum(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=GUARANTEED)
        await writer.append(b"x")
        await eventually(lambda: writer.last_add_fully_replicated == 0)
        late = ensemble(cluster, writer)[2]
        await late.kill()
        assert await writer.append(b"y") == 1
        assert writer.last_add_fully_replicated == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.close)
            await trio.sleep(5)
            assert not (await client.ledgers.metadata(writer.ledger_id)).is_closed
            await late.start()
        assert (await client.ledgers.metadata(writer.ledger_id)).last_entry == 1
        assert await copies(client, writer.ledger_id) == ([], [])


async def test_in_guaranteed_mode_a_ledger_that_cannot_close_stays_open_and_usable(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=GUARANTEED)
        await writer.append(b"x")
        dead = ensemble(cluster, writer)[0]
        await dead.kill()
        await writer.append(b"y")
        with pytest.raises(WriteQuorumUnavailable):
            await writer.close(timeout_s=3)
        assert not (await client.ledgers.metadata(writer.ledger_id)).is_closed
        assert await writer.append(b"z") == 2
        with pytest.raises(WriteQuorumUnavailable):
            async with writer:
                pass
        with pytest.raises(AppendUnknown):
            await writer.append(b"left")
        await dead.start()
        assert (await client.ledgers.recover(writer.ledger_id)).last_entry == 2
        assert await copies(client, writer.ledger_id) == ([], [])


async def test_in_guaranteed_mode_a_window_that_stays_full_refuses_appends_in_time(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client(append_deadline_s=5) as client:
        writer = await client.ledgers.create(replication=GUARANTEED)
        await writer.append(b"x")
        dead = ensemble(cluster, writer)[0]
        await dead.kill()
        await writer.append_many([b""] * WRITER_WINDOW_ENTRIES)
        begun = trio.current_time()
        with pytest.raises(WriteQuorumUnavailable):
            await writer.append(b"no room")
        assert trio.current_time() - begun == pytest.approx(5, abs=0.1)
        assert writer.last_add_pushed == WRITER_WINDOW_ENTRIES
        await dead.start()
        assert await writer.append(b"room again") == WRITER_WINDOW_ENTRIES + 1
        await writer.close()


async def test_in_guaranteed_mode_appends_without_an_ack_quorum_have_an_unknown_outcome(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=GUARANTEED)
        await writer.append(b"x")
        dead: Sequence[Bookie] = ensemble(cluster, writer)[:2]
        for bookie in dead:
            await bookie.kill()
        with trio.fail_after(APPEND_DEADLINE_S + 2), pytest.raises(AppendUnknown):
            await writer.append(b"y")
        assert not (await client.ledgers.metadata(writer.ledger_id)).is_closed
        for bookie in dead:
            await bookie.start()
        # One bookie has the second entry: recovery may keep it, and may hear first the two that have not.
        assert (await client.ledgers.recover(writer.ledger_id)).last_entry in (0, 1)
