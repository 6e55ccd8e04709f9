"""The ZooKeeper store under faults of real servers: killed, stopped, started again, led by another."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from ledgerlog import limits
from ledgerlog.cli.processes import open_children
from ledgerlog.errors import (
    InvalidArgument,
    MetadataError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
    WrongCluster,
)
from ledgerlog.meta.belonging import join_cluster, make_cluster
from ledgerlog.meta.store import Create, NodeExists, NodeHasChildren, SessionState, Set, VersionConflict
from ledgerlog.meta.zookeeper import tree
from ledgerlog.meta.zookeeper.acl import OPEN
from ledgerlog.meta.zookeeper.conversation import Attempt
from ledgerlog.meta.zookeeper.plan import MakeZnode
from ledgerlog.meta.zookeeper.store import ZooKeeperStore, open_zookeeper_store
from ledgerlog.meta.zookeeper.tree import Tree
from tests.waiting import PATIENCE_S, until
from tests.zookeepers import Ensemble, expire_session, new_chroot, open_ensemble

pytestmark = pytest.mark.processes


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Ensemble]:
    """One server that the test may hurt."""
    async with open_ensemble(tmp_path / "server", 1) as ensemble:
        yield ensemble


@pytest.fixture
async def ensemble(tmp_path: Path) -> AsyncIterator[Ensemble]:
    async with open_ensemble(tmp_path / "ensemble", 3) as ensemble:
        yield ensemble


async def until_state(store: ZooKeeperStore, *states: SessionState) -> None:
    session = store.session
    with trio.fail_after(PATIENCE_S):
        while session.state not in states:
            await session.wait_not(session.state)


# --- a server that is gone, and comes back --------------------------------------------------------


async def test_while_no_server_answers_calls_end_in_time_and_nothing_of_them_happens_later(
    server: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_zookeeper_store(server.hosts) as store:
        version = await store.create("a", b"0")
        await server.kill()
        await until_state(store, SessionState.SUSPENDED)
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.5)
        calls = [
            lambda: store.get("a"),
            lambda: store.set("a", b"late", version=version),
            lambda: store.create("b", b"late"),
            lambda: store.create("e", b"late", ephemeral=True),
            lambda: store.children("a"),
            lambda: store.next_id("n"),
            store.sync,
        ]
        for call in calls:
            began = trio.current_time()
            with pytest.raises(MetadataUnavailable, match="nothing happened") as caught:
                await call()
            assert not isinstance(caught.value, MetadataOutcomeUnknown)
            assert trio.current_time() - began > 0.4
        monkeypatch.undo()
        await server.start()
        await until_state(store, SessionState.CONNECTED)
        await store.sync()
        node = await store.get("a")
        assert node is not None
        assert node.value == b"0", "what was given up was not sent when the server came back"
        assert await store.get("b") is None
        assert await store.get("e") is None
        assert await store.highest_id("n") == -1


async def test_a_write_that_kazoo_keeps_for_its_next_connection_is_taken_back_in_time(
    server: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_zookeeper_store(server.hosts) as store:
        version = await store.create("a", b"0")
        await server.kill()
        await until_state(store, SessionState.SUSPENDED)
        # This is the moment before the loop knows of the lost connection.
        store._conversation.use(store.session.number, None, OPEN)
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.5)
        with pytest.raises(MetadataUnavailable, match="nothing happened") as caught:
            await store.set("a", b"late", version=version)
        assert not isinstance(caught.value, MetadataOutcomeUnknown)
        assert len(store._conversation.link._client._queue) == 1, "it is still on its way"
        monkeypatch.undo()
        await server.start()
        await until_state(store, SessionState.CONNECTED)
        await store.sync()
        node = await store.get("a")
        assert node is not None
        assert node.value == b"0"


async def test_a_session_outlives_a_server_that_is_killed_and_started_again(server: Ensemble) -> None:
    async with open_zookeeper_store(server.hosts) as store, store.watch("w") as watch:
        session = store.session
        await store.create("mine", b"", ephemeral=True)
        await server.kill()
        await until_state(store, SessionState.SUSPENDED)
        await server.start()
        await until_state(store, SessionState.CONNECTED)
        assert store.session is session
        assert await store.get("mine") is not None
        with trio.fail_after(PATIENCE_S):
            await watch.wait()  # The client must look to find what happened meanwhile.
        async with open_zookeeper_store(server.hosts) as other:
            await other.create("w/x", b"")
        with trio.fail_after(PATIENCE_S):
            await watch.wait()  # It was added again on the new connection.


async def test_a_write_whose_answer_is_lost_is_unknown_and_settled_by_reading(
    server: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_zookeeper_store(server.hosts) as store:
        server.stop()
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.5)
        with pytest.raises(MetadataOutcomeUnknown):
            await store.create("a", b"token-1")
        monkeypatch.undo()
        server.go_on()
        await store.sync()
        node = await store.get("a")
        assert node is not None, "this server had it in its socket, and did it when it went on"
        assert node.value == b"token-1"
        with pytest.raises(NodeExists):
            await store.create("a", b"token-2")


async def test_a_write_that_was_under_way_when_its_server_died_is_unknown_at_once(server: Ensemble) -> None:
    async with open_zookeeper_store(server.hosts) as store:
        server.stop()
        caught: list[BaseException] = []

        async def write() -> None:
            try:
                await store.create("a", b"")
            except MetadataOutcomeUnknown as unknown:
                caught.append(unknown)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: any(call._is_sent for call in store._conversation.link.outstanding))
            await server.kill()
        assert len(caught) == 1


async def test_a_silent_server_suspends_the_session_before_it_can_have_ended(server: Ensemble) -> None:
    async with open_zookeeper_store(server.hosts, session_timeout_s=3.0) as store:
        session = store.session
        server.stop()
        await until_state(store, SessionState.SUSPENDED)
        server.go_on()
        await until_state(store, SessionState.CONNECTED, SessionState.LOST)
        assert session.session_id == store.session.session_id or session.state is SessionState.LOST


# --- closing --------------------------------------------------------------------------------------


def _kazoo_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "Trio" not in thread.name}


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_store_closes_in_time_without_a_server_and_leaves_no_thread(
    server: Ensemble, how: str
) -> None:
    before = _kazoo_threads()
    async with open_zookeeper_store(server.hosts) as store:
        assert len(_kazoo_threads() - before) >= 1
        if how == "kill":
            await server.kill()
        else:
            server.stop()
        session = store.session
    assert session.state is SessionState.LOST
    assert _kazoo_threads() - before == set()
    with pytest.raises(MetadataUnavailable):
        await store.get("a")


async def test_no_thread_is_left_where_no_server_ever_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _kazoo_threads()
    monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.3)
    with pytest.raises(MetadataUnavailable, match="is it running"):
        async with open_zookeeper_store("127.0.0.1:1"):
            pass
    assert _kazoo_threads() - before == set()
    for timeout in (1, float("nan"), float("inf"), 1e6):
        with pytest.raises(InvalidArgument, match="from 2 to 86400"):
            open_zookeeper_store("127.0.0.1:1", session_timeout_s=timeout)


# The thread dies of an exception that nobody catches: that is what the test is about.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_store_goes_on_in_a_new_session_when_kazoos_thread_has_died(
    zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_zookeeper_store(zookeeper_hosts, chroot=new_chroot()) as store, store.watch("w") as watch:
        session = store.session
        await store.create("a", b"")
        handler = store._conversation.link._client._connection

        def fail(*args: object) -> None:
            raise RuntimeError("an answer that kazoo does not understand")

        monkeypatch.setattr(handler, "_read_response", fail)
        # The call must not wait for its deadline when the thread has failed.
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 2 * PATIENCE_S)
        with trio.fail_after(PATIENCE_S):
            assert await store.get("a") is not None
        assert session.state is SessionState.LOST
        assert store.session is not session
        with trio.fail_after(PATIENCE_S):
            await watch.wait()


# --- sessions -------------------------------------------------------------------------------------


async def test_a_process_that_was_stopped_for_too_long_believes_nothing_when_it_wakes(
    zookeeper_hosts: str,
) -> None:
    chroot = new_chroot()
    async with open_children() as children, open_zookeeper_store(zookeeper_hosts, chroot=chroot) as store:
        script = Path(__file__).with_name("zookeeper_child.py")
        child = await children.start(
            "owner", [sys.executable, str(script), zookeeper_hosts, chroot, "5"], pipe_out=True
        )
        assert child.stdout is not None
        said = b""

        async def hear(*lines: bytes) -> None:
            nonlocal said
            with trio.fail_after(PATIENCE_S):
                while not (heard := [line for line in lines if line in said]):
                    assert child.stdout is not None
                    more = await child.stdout.receive_some()
                    assert more, said
                    said += more
            said = said[said.index(heard[0]) + len(heard[0]) :]

        await hear(b"owns\n")
        async with store.watch("owner") as watch:
            child.send_signal(signal.SIGSTOP)
            with trio.fail_after(PATIENCE_S):
                while await store.get("owner") is not None:
                    await watch.wait()
        child.send_signal(signal.SIGCONT)
        # The news of the session's end may come first, on the connection's own thread.
        await hear(b"woke suspended\n", b"woke lost\n")
        await hear(b"owns\n")
        node = await store.get("owner")
        assert node is not None
        assert node.value == b"second"


async def test_an_ephemeral_create_for_a_session_that_ended_out_of_contact_is_refused(
    server: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", PATIENCE_S)
    async with open_zookeeper_store(server.hosts, session_timeout_s=4.0) as store:
        session = store.session
        server.stop()
        await until_state(store, SessionState.SUSPENDED)
        refused: list[BaseException] = []

        async def create() -> None:
            try:
                await store.create("mine", b"", ephemeral=True)
            except SessionExpired as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await server.kill()
            # A server without its data: it has forgotten the session.
            for file in (server.servers[0].directory / "data" / "version-2").iterdir():
                file.unlink()
            await server.start()
        assert session.state is SessionState.LOST
        assert len(refused) == 1
        assert await store.get("mine") is None
        await store.create("mine", b"", ephemeral=True)


# --- lists, counters ------------------------------------------------------------------------------


async def test_a_listing_beyond_a_megabyte_is_complete(zookeeper_hosts: str) -> None:
    names = [f"{n:05}-" + "x" * 240 for n in range(6000)]
    async with open_zookeeper_store(zookeeper_hosts, chroot=new_chroot()) as store:
        for first in range(0, len(names), 500):
            await store.transaction([Create(f"logs/{name}", b"") for name in names[first : first + 500]])
        assert await store.children("logs") == names


async def test_directories_that_are_empty_again_are_not_left_behind(zookeeper_hosts: str) -> None:
    chroot = new_chroot()
    async with open_zookeeper_store(zookeeper_hosts, chroot=chroot) as store:
        for path in ("a/b/c/1", "a/b/c/2", "a/x"):
            await store.create(path, b"")
        await store.delete("a/b/c/1")
        await store.delete("a/b/c/2")
        assert await store.children("a") == ["x"]
        async with open_zookeeper_store(zookeeper_hosts) as everything:
            await everything.sync()
            root = chroot.removeprefix("/")
            with trio.fail_after(PATIENCE_S):
                async with everything.watch(root) as watch:
                    while await everything._tree._holding([f"{chroot}/a/b"]) or await _exists(
                        everything, f"{chroot}/a/b"
                    ):
                        await watch.wait()


async def test_a_node_that_is_made_while_directories_are_cleared_stays(
    zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's end leaves directories, and the deletion of the node above them clears them."""
    chroot = new_chroot()
    async with (
        open_zookeeper_store(zookeeper_hosts, chroot=chroot) as first,
        open_zookeeper_store(zookeeper_hosts, chroot=chroot) as second,
    ):
        await first.create("e", b"")
        async with open_zookeeper_store(zookeeper_hosts, chroot=chroot) as third:
            await third.create("e/c/x", b"", ephemeral=True)
        clear = Tree._clear

        async def create_and_clear(self: Tree, directory: str, attempt: Attempt) -> None:
            if directory == f"{chroot}/e":
                await second.create("e/c/y", b"alive", ephemeral=True)
            await clear(self, directory, attempt)

        monkeypatch.setattr(Tree, "_clear", create_and_clear)
        with pytest.raises(NodeHasChildren):
            await first.delete("e")
        assert await first.children("e/c") == ["y"]
        with pytest.raises(InvalidArgument, match="ephemeral"):
            await first.create("e/c/y/z", b"")
        monkeypatch.undo()
        await second.delete("e/c/y")
        await first.delete("e")


async def _exists(store: ZooKeeperStore, znode: str) -> bool:
    from ledgerlog.meta.zookeeper.calls import Exists

    return await store._conversation.read(lambda: Exists(znode)) is not None


async def test_an_id_is_given_out_once_across_generations_of_the_counter(
    zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "IDS_PER_GENERATION", 3)
    chroot = new_chroot()
    async with (
        open_zookeeper_store(zookeeper_hosts, chroot=chroot) as first,
        open_zookeeper_store(zookeeper_hosts, chroot=chroot) as second,
    ):
        given = []
        for n in range(12):
            given.append(await (first if n % 3 else second).next_id("n"))
            assert await second.highest_id("n") == given[-1]
        assert given == list(range(12))
        not_ours = MakeZnode(f"{first._names.counter('n')}/not-ours")
        await first._conversation.write([not_ours], Attempt(), is_repeatable=True)
        async with open_zookeeper_store(zookeeper_hosts, chroot=chroot) as third:
            assert await third.next_id("n") == 12


# --- ensembles ------------------------------------------------------------------------------------


async def test_after_sync_another_server_shows_every_finished_write(ensemble: Ensemble) -> None:
    one, other = (f"127.0.0.1:{server.client_port}" for server in ensemble.servers[:2])
    async with open_zookeeper_store(one) as writing, open_zookeeper_store(other) as reading:
        version = await writing.create("a", b"0")
        for n in range(1, 40):
            version = await writing.set("a", b"%d" % n, version=version)
            await reading.sync()
            node = await reading.get("a")
            assert node is not None
            assert node.value == b"%d" % n


async def test_writes_go_on_when_the_leading_server_is_killed_and_none_is_lost(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writes wait for an election and a reconnection, and not for their own time-outs.
    monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 2 * PATIENCE_S)
    async with open_zookeeper_store(ensemble.hosts, session_timeout_s=50.0) as store:
        session = store.session
        await store.create("mine", b"", ephemeral=True)
        leader = await ensemble.leader()
        done: list[int] = []
        longest_s = 0.0
        began = trio.current_time()
        with trio.fail_after(PATIENCE_S):
            while len(done) < 300:
                if len(done) == 100:
                    await ensemble.kill(leader)
                n = len(done)
                try:
                    await store.create(f"n/{n}", b"token")
                except (MetadataOutcomeUnknown, NodeExists):
                    await store.sync()
                    if await store.get(f"n/{n}") is None:
                        continue
                done.append(n)
                longest_s = max(longest_s, trio.current_time() - began)
                began = trio.current_time()
        assert await store.children("n") == sorted(str(n) for n in done)
        assert store.session is session, "the session moves to another server"
        assert await store.get("mine") is not None
        print(f"longest stall {longest_s:.2f} s")


async def test_a_minority_serves_nothing_and_says_so(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_zookeeper_store(ensemble.hosts) as store:
        await store.create("a", b"0")
        leader = await ensemble.leader()
        await ensemble.kill(*[server.number for server in ensemble.servers if server.number != leader])
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 3.0)
        with pytest.raises(
            MetadataError
        ):  # The outcome is unknown if the server took the write before it noticed that it is alone.
            await store.create("b", b"")
        with pytest.raises(MetadataUnavailable):
            await store.sync()
        monkeypatch.undo()
        await ensemble.start(*[server.number for server in ensemble.servers if server.number != leader])
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", PATIENCE_S)  # An election may take its time.

        async def is_served() -> bool:
            with suppress(NodeExists, MetadataOutcomeUnknown):
                await store.create("b", b"")
            return await store.get("b") is not None

        await until(is_served)


async def test_the_contract_holds_for_what_a_session_owned_when_it_is_ended(ensemble: Ensemble) -> None:
    async with open_zookeeper_store(ensemble.hosts) as store, open_zookeeper_store(ensemble.hosts) as other:
        session = store.session
        await store.create("mine", b"", ephemeral=True)
        async with other.watch("mine") as watch:
            await expire_session(store, ensemble.hosts)
            with trio.fail_after(PATIENCE_S):
                while await other.get("mine") is not None:
                    await watch.wait()
        with trio.fail_after(PATIENCE_S):
            while session.state is not SessionState.LOST:
                await session.wait_not(session.state)
        await until(lambda: store.session is not session)
        await store.create("mine", b"again", ephemeral=True)


@pytest.mark.parametrize("seconds", [pytest.param(90.0, marks=pytest.mark.soak)])
async def test_every_write_is_what_its_answer_said_under_random_faults(
    ensemble: Ensemble, seconds: float
) -> None:
    """Four clients count together while servers are killed, stopped and started again."""
    chance = random.Random(20)
    sure: list[str] = []
    refused: list[str] = []
    in_doubt: list[str] = []
    end = trio.current_time() + seconds

    async def count(name: str) -> None:
        async with open_zookeeper_store(ensemble.hosts) as store:
            for n in itertools.count():
                if trio.current_time() > end:
                    return
                token = f"{name}-{n}"
                try:
                    node = await store.get("count")
                    assert node is not None
                    await store.transaction(
                        [
                            Set("count", b"%d" % (int(node.value) + 1), node.version),
                            Create(f"done/{token}", b""),
                        ]
                    )
                except VersionConflict:
                    refused.append(token)
                except MetadataOutcomeUnknown:
                    in_doubt.append(token)
                except MetadataUnavailable:
                    refused.append(token)
                else:
                    sure.append(token)

    async def disturb() -> None:
        numbers = [server.number for server in ensemble.servers]
        while True:
            await trio.sleep(chance.uniform(1, 5))
            victims = numbers if chance.random() < 0.15 else [chance.choice(numbers)]
            if chance.random() < 0.5:
                await ensemble.kill(*victims)
                await trio.sleep(chance.uniform(0, 3))
                await ensemble.start(*victims)
            else:
                ensemble.stop(*victims)
                await trio.sleep(chance.uniform(0.5, 8))
                ensemble.go_on()

    async with open_zookeeper_store(ensemble.hosts) as store:
        await store.create("count", b"0")
        async with trio.open_nursery() as faults:
            faults.start_soon(disturb)
            async with trio.open_nursery() as clients:
                for name in "abcd":
                    clients.start_soon(count, name)
            faults.cancel_scope.cancel()
        ensemble.go_on()
        for number, child in list(ensemble.running.items()):
            if not child.is_running:
                await ensemble.start(number)
        await ensemble.wait_serving()
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await store.sync()
                    break
                except MetadataUnavailable:
                    continue
        done = set(await store.children("done"))
        node = await store.get("count")
        assert node is not None
        assert int(node.value) == len(done)
        assert set(sure) <= done
        assert not done & set(refused)
        assert done <= set(sure) | set(in_doubt)
        print(
            f"{len(sure)} done, {len(refused)} refused, {len(in_doubt)} in doubt, of which "
            f"{len(done) - len(sure)} done"
        )


# --- whose store it is ----------------------------------------------------------------------------


async def test_an_older_state_of_the_right_store_is_refused_until_the_newer_one_is_back(
    server: Ensemble,
) -> None:
    """Like a restored backup under programs that have seen newer metadata."""
    data = server.servers[0].directory / "data"

    async def become(source: str, *, keep: str) -> None:
        await server.kill()
        await trio.to_thread.run_sync(shutil.copytree, data / "version-2", data / keep)
        await trio.to_thread.run_sync(shutil.rmtree, data / "version-2")
        await trio.to_thread.run_sync(shutil.copytree, data / source, data / "version-2")
        await server.start()
        await server.wait_serving()

    async with open_zookeeper_store(server.hosts) as first:
        await make_cluster(first, os.urandom)
    await server.kill()
    await trio.to_thread.run_sync(shutil.copytree, data / "version-2", data / "older")
    await server.start()
    await server.wait_serving()
    async with open_zookeeper_store(server.hosts) as store:
        await join_cluster(store)
        for number in range(300):
            await store.create(f"n/{number}", b"")
        await become("older", keep="newer")

        async def read_on() -> None:
            while True:
                try:
                    assert await store.get("n/299") is not None, "what was read is gone"
                except WrongCluster:
                    raise
                except MetadataUnavailable:
                    await trio.sleep(0.05)

        with trio.fail_after(PATIENCE_S):
            with pytest.raises(WrongCluster, match="has lost data that was read"):
                await read_on()
        await become("newer", keep="unused")
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    assert await store.get("n/299") is not None
                    break
                except MetadataUnavailable:
                    await trio.sleep(0.05)
