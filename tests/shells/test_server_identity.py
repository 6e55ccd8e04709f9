"""A bookie serves only from the directory of its identity. Otherwise it says what is wrong."""

from __future__ import annotations

import itertools

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.core.loss_marks import LossMarks
from bookie.server.identity import establish_identity
from bookie.storage.disk.loss_marks import read_marks
from bookie.storage.engine.directory import open_directory
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import (
    ClusterNotFound,
    CookieMismatch,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    StorageCorrupt,
    StorageError,
)
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk
from ledgerlog.testing.faulty_store import Call, Fate, FaultyStore, before, fates
from ledgerlog.testing.memory_cluster import new_tree

_numbers = itertools.count(1)

PATH = "/data/b1"
COOKIE = f"{PATH}/cookie"


def random_bytes(count: int) -> bytes:
    return next(_numbers).to_bytes(count, "big")


RENAMES_FAIL = Fails("rename", error=StorageError("the disk failed"))


@attrs.define
class Machine:
    """What a bookie's machine holds. It survives the bookie."""

    disk: FaultyDisk = attrs.Factory(FaultyDisk)
    indexes: MemoryIndexes = attrs.Factory(MemoryIndexes)
    path: str = PATH

    async def cookie(self) -> bytes | None:
        async with open_directory(self.path, disk=self.disk, indexes=self.indexes) as directory:
            return await directory.read_cookie()

    async def begin_journal(self) -> None:
        """Leave a journal segment, as the first run of the bookie does."""
        await self.disk.write_file(f"{self.path}/journal/{1:016x}.journal", b"entries")


@pytest.fixture
def store() -> MemoryStore:
    return new_tree().open_store()


async def establish(store: MemoryStore, machine: Machine, bookie_id: str | None = "b1") -> Cookie:
    async with open_directory(machine.path, disk=machine.disk, indexes=machine.indexes) as directory:
        return await establish_identity(store, directory, bookie_id=bookie_id, random_bytes=random_bytes)


async def formatted(store: MemoryStore) -> Machine:
    """A machine whose bookie has served."""
    machine = Machine()
    await establish(store, machine)
    await machine.begin_journal()
    return machine


async def data_alone() -> Machine:
    """A machine on which the cookie's file was lost."""
    machine = await formatted(new_tree().open_store())
    del machine.disk.files[COOKIE]
    return machine


async def test_a_new_directory_is_formatted_on_both_sides(store: MemoryStore) -> None:
    machine = Machine()
    cookie = await establish(store, machine)
    assert cookie.bookie_id == "b1"
    cluster = await store.get(layout.CLUSTER)
    there = await store.get(layout.cookie_path("b1"))
    assert cluster is not None
    assert there is not None
    assert cookie.cluster == cluster.value.decode()
    assert await machine.cookie() == there.value == cookie.encode()


async def test_a_directory_is_served_again_and_again_and_keeps_its_instance(store: MemoryStore) -> None:
    machine = Machine()
    cookie = await establish(store, machine)
    await machine.begin_journal()
    assert await establish(store, machine) == cookie
    assert await establish(store, machine, None) == cookie


async def test_an_id_is_generated_once_where_none_is_given(store: MemoryStore) -> None:
    machine = Machine()
    cookie = await establish(store, machine, None)
    assert cookie.bookie_id.startswith("bookie-")
    assert (await establish(store, machine, None)).bookie_id == cookie.bookie_id


async def test_bookies_of_one_store_have_one_cluster_and_instances_of_their_own(store: MemoryStore) -> None:
    first = await establish(store, Machine(), "b1")
    second = await establish(store, Machine(), "b2")
    assert first.cluster == second.cluster
    assert first.instance != second.instance


async def test_a_crash_between_the_two_writes_is_completed(store: MemoryStore) -> None:
    machine = Machine()
    store.disconnect()
    with pytest.raises(MetadataUnavailable):
        await establish(store, machine)
    assert await machine.cookie() is None  # The bookie wrote nothing before it asked the store.
    store.reconnect()
    cookie = await establish(store, machine)
    await store.delete(layout.cookie_path("b1"))  # Like a crash before the second write.
    assert await establish(store, machine) == cookie
    assert await store.get(layout.cookie_path("b1")) is not None


async def test_a_directory_whose_cookie_could_not_be_written_is_unknown_to_the_store(
    store: MemoryStore,
) -> None:
    machine = Machine()
    machine.disk.faults = [RENAMES_FAIL]
    with pytest.raises(StorageError):
        await establish(store, machine)
    assert await store.get(layout.cookie_path("b1")) is None
    machine.disk.faults.clear()
    await establish(store, machine)


async def test_an_emptied_directory_is_refused(store: MemoryStore) -> None:
    await formatted(store)
    with pytest.raises(CookieMismatch, match=r"/data/b1 is empty, but .* knows bookie b1.*bookie cookie fix"):
        await establish(store, Machine())


async def test_data_without_a_cookie_is_refused(store: MemoryStore) -> None:
    with pytest.raises(
        CookieMismatch, match="has data but no cookie, and the metadata store knows no bookie"
    ):
        await establish(store, await data_alone())
    await formatted(store)
    with pytest.raises(
        CookieMismatch, match="has data but no cookie, and the metadata store knows bookie b1"
    ):
        await establish(store, await data_alone())


async def test_a_bookie_that_the_store_has_forgotten_is_refused(store: MemoryStore) -> None:
    machine = await formatted(store)
    await store.delete(layout.cookie_path("b1"))
    with pytest.raises(CookieMismatch, match="knows no such bookie: it was decommissioned"):
        await establish(store, machine)


async def test_a_swapped_directory_is_refused(store: MemoryStore) -> None:
    machine = await formatted(store)
    await store.delete(layout.cookie_path("b1"))
    other = await formatted(store)
    assert await other.cookie() != await machine.cookie()
    with pytest.raises(CookieMismatch, match="not the directory that the bookie served from last"):
        await establish(store, machine)


async def test_a_directory_of_another_bookie_is_refused(store: MemoryStore) -> None:
    machine = await formatted(store)
    with pytest.raises(CookieMismatch, match="belongs to bookie b1, not to b2: start it with --id b1"):
        await establish(store, machine, "b2")


async def test_a_directory_of_another_cluster_is_refused_even_while_it_is_empty(store: MemoryStore) -> None:
    machine = Machine()
    await establish(store, machine)
    with pytest.raises(CookieMismatch, match="was formatted for cluster"):
        await establish(new_tree("another").open_store(), machine)


async def test_a_damaged_cookie_names_its_file_and_a_damaged_record_its_node(store: MemoryStore) -> None:
    machine = await formatted(store)
    cookie = machine.disk.files[COOKIE]
    for position in range(len(cookie)):
        cookie[position] ^= 0x41
        with pytest.raises(StorageCorrupt, match=COOKIE):
            await establish(store, machine, None)
        cookie[position] ^= 0x41
    node = await store.get(layout.cookie_path("b1"))
    assert node is not None
    await store.set(layout.cookie_path("b1"), b"nonsense", version=node.version)
    with pytest.raises(MetadataCorrupt, match="cookie of bookie b1"):
        await establish(store, machine)


async def test_a_malformed_id_is_refused_before_anything_is_written(store: MemoryStore) -> None:
    machine = Machine()
    with pytest.raises(InvalidArgument):
        await establish(store, machine, "no blanks")
    assert await machine.cookie() is None
    assert await store.children(layout.COOKIES) == []


async def test_of_two_directories_that_are_formatted_for_one_id_at_once_one_is_refused() -> None:
    tree = new_tree()
    outcomes: list[str] = []

    async def start(path: str) -> None:
        try:
            await establish(tree.open_store(), Machine(path=path))
            outcomes.append("serves")
        except CookieMismatch:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, "/data/one")
        nursery.start_soon(start, "/data/two")
    assert sorted(outcomes) == ["refused", "serves"]


async def test_a_lost_answer_is_settled_by_looking(clock: MockClock) -> None:
    fate = Fate.UNANSWERED
    forgetful = fates(lambda call: fate if call.verb == "create" else Fate.DONE)
    store = FaultyStore(new_tree(), forgetful)
    machine = Machine()
    cookie = await establish(store, machine)
    assert await establish(store, machine) == cookie

    store = FaultyStore(new_tree(), forgetful)
    fate = Fate.LOST
    with pytest.raises(MetadataOutcomeUnknown):
        await establish(store, machine := Machine())
    assert await store.get(layout.cookie_path("b1")) is None
    fate = Fate.UNANSWERED
    assert (await establish(store, machine)).encode() == await machine.cookie()


async def test_no_bookie_makes_a_cluster(store: MemoryStore) -> None:
    """An empty store is one that was mistyped or lost, until an operator says otherwise."""
    machine = Machine()
    with pytest.raises(ClusterNotFound):
        await establish(MemoryTree().open_store(), machine)
    assert await machine.cookie() is None
    await formatted(store)
    with pytest.raises(ClusterNotFound):
        await fix(MemoryTree().open_store(), machine)


# --- fixing ---------------------------------------------------------------------------------------


async def fix(store: MemoryStore, machine: Machine, bookie_id: str | None = "b1") -> Cookie:
    async with open_directory(machine.path, disk=machine.disk, indexes=machine.indexes) as directory:
        return await establish_identity(
            store, directory, bookie_id=bookie_id, random_bytes=random_bytes, fix_cookie=True
        )


async def marks_of(machine: Machine) -> LossMarks | None:
    return await read_marks(machine.disk, machine.path)


def ordered_store(tree: MemoryTree, machine: Machine) -> tuple[FaultyStore, list[LossMarks | None]]:
    """A store that records the machine's marks at each write of a cookie."""
    seen: list[LossMarks | None] = []

    async def note(call: Call) -> None:
        if call.verb in ("set", "create"):
            seen.append(await marks_of(machine))

    return FaultyStore(tree, before(note)), seen


async def five_ledgers(tree: MemoryTree) -> MemoryStore:
    store = tree.open_store()
    for _ in range(5):
        await store.next_id(layout.LEDGER_COUNTER)
    return store


async def test_an_emptied_directory_is_formatted_anew_with_marks_for_all_that_it_may_have_lost() -> None:
    tree = new_tree()
    store = await five_ledgers(tree)
    lost = await establish(store, await formatted(store))
    machine = Machine()
    ordered, seen = ordered_store(tree, machine)
    fixed = await fix(ordered, machine)
    assert fixed.instance != lost.instance
    assert await machine.cookie() == fixed.encode()
    there = await store.get(layout.cookie_path("b1"))
    assert there is not None
    assert there.value == fixed.encode()
    assert seen == [LossMarks().after_loss(4)], "the marks come before the store's cookie"
    assert await establish(store, machine) == fixed


async def test_the_marks_come_before_the_directorys_cookie_too() -> None:
    tree = new_tree()
    store = await five_ledgers(tree)
    await formatted(store)
    machine = Machine()
    seen: list[bool] = []
    original = machine.disk.rename

    async def rename(source: str, target: str) -> None:
        if target == COOKIE:
            seen.append(await marks_of(machine) == LossMarks().after_loss(4))
        await original(source, target)

    machine.disk.rename = rename
    await fix(store, machine)
    assert seen == [True]


async def test_a_swapped_directory_is_marked_and_then_adopted() -> None:
    tree = new_tree()
    store = await five_ledgers(tree)
    machine = await formatted(store)
    older = await establish(store, machine)
    await store.delete(layout.cookie_path("b1"))
    await formatted(store)
    ordered, seen = ordered_store(tree, machine)
    assert await fix(ordered, machine) == older, "its data is that of its own instance"
    assert seen == [LossMarks().after_loss(4)]
    assert await establish(store, machine) == older


async def test_a_bookie_that_the_store_has_forgotten_is_marked_and_then_adopted() -> None:
    tree = new_tree()
    store = await five_ledgers(tree)
    machine = await formatted(store)
    cookie = await establish(store, machine)
    await store.delete(layout.cookie_path("b1"))
    ordered, seen = ordered_store(tree, machine)
    assert await fix(ordered, machine) == cookie
    assert seen == [LossMarks().after_loss(4)]


async def test_a_fix_that_was_interrupted_is_done_again(store: MemoryStore) -> None:
    await formatted(store)
    machine = Machine()
    store.disconnect()
    with pytest.raises(MetadataUnavailable):
        await fix(store, machine)
    store.reconnect()
    first = await fix(store, machine)
    await formatted_elsewhere(store)
    second = await fix(store, machine)
    assert second == first
    assert await establish(store, machine) == first


async def formatted_elsewhere(store: MemoryStore) -> None:
    """The store's cookie is one that no directory carries, as after a crash between the two writes."""
    node = await store.get(layout.cookie_path("b1"))
    assert node is not None
    other = attrs.evolve(Cookie.decode_untrusted(node.value, "b1"), instance="ff")
    await store.set(layout.cookie_path("b1"), other.encode(), version=node.version)


async def test_what_a_person_has_to_look_at_is_not_fixed(store: MemoryStore) -> None:
    await formatted(store)
    with pytest.raises(CookieMismatch, match="has data but no cookie"):
        await fix(store, await data_alone())
    with pytest.raises(CookieMismatch, match="was formatted for cluster"):
        await fix(store, await formatted(new_tree("another").open_store()))
    with pytest.raises(CookieMismatch, match="belongs to bookie b1, not to b2"):
        await fix(store, await formatted(new_tree().open_store()), "b2")


async def test_an_id_that_never_served_is_refused_by_a_fix_and_makes_no_bookie(store: MemoryStore) -> None:
    await formatted(store)
    machine = Machine()
    with pytest.raises(InvalidArgument, match="no bookie b11 has ever served this cluster"):
        await fix(store, machine, "b11")
    with pytest.raises(InvalidArgument, match="does not name its bookie: give --id"):
        await fix(store, machine, None)
    assert await machine.cookie() is None
    assert await store.children(layout.COOKIES) == ["b1"]
    assert (await fix(store, machine)).bookie_id == "b1", "the refusals left the directory as it was"


async def test_a_sound_directory_is_not_changed_by_a_fix(store: MemoryStore) -> None:
    machine = await formatted(store)
    cookie = await establish(store, machine)
    assert await fix(store, machine) == cookie
    assert await marks_of(machine) == LossMarks()


async def test_the_directory_of_a_bookie_that_is_registered_is_not_replaced(clock: MockClock) -> None:
    store = new_tree().open_store()
    await formatted(store)
    await store.create(layout.writable_path("b1"), b"whoever", ephemeral=True)
    machine = Machine()
    with pytest.raises(CookieMismatch, match="by another process, which is alive"):
        await fix(store, machine)
    assert await machine.cookie() is None
    await store.delete(layout.writable_path("b1"))
    await fix(store, machine)


# --- a journal in a directory of its own ----------------------------------------------------------


JOURNAL = "/fast/b1"


async def establish_apart(
    store: MemoryStore, machine: Machine, *, fix_cookie: bool = False, journal: str = JOURNAL
) -> Cookie:
    async with open_directory(
        machine.path, disk=machine.disk, indexes=machine.indexes, journal_directory=journal
    ) as directory:
        return await establish_identity(
            store, directory, bookie_id="b1", random_bytes=random_bytes, fix_cookie=fix_cookie
        )


async def formatted_apart(store: MemoryStore) -> Machine:
    """A machine with two disks, whose bookie has served."""
    machine = Machine()
    await establish_apart(store, machine)
    await machine.disk.write_file(f"{JOURNAL}/journal/{1:016x}.journal", b"entries")
    return machine


def empty(machine: Machine, path: str) -> None:
    for name in [name for name in machine.disk.files if name.startswith(f"{path}/")]:
        del machine.disk.files[name]


async def test_both_directories_carry_the_cookie(store: MemoryStore) -> None:
    machine = await formatted_apart(store)
    cookie = await establish_apart(store, machine)
    assert machine.disk.files[COOKIE] == machine.disk.files[f"{JOURNAL}/cookie"]
    assert await establish_apart(store, machine) == cookie


async def test_a_journal_directory_that_is_empty_or_anothers_is_refused(store: MemoryStore) -> None:
    machine = await formatted_apart(store)
    with pytest.raises(CookieMismatch, match="/fast/other has no cookie"):
        await establish_apart(store, machine, journal="/fast/other")
    machine.disk.files[f"{JOURNAL}/cookie"] = (await formatted(new_tree().open_store())).disk.files[COOKIE]
    with pytest.raises(
        CookieMismatch,
        match=r"do not belong to the same bookie: .* instance .*, .* "
        "instance ",
    ):
        await establish_apart(store, machine)
    empty(machine, JOURNAL)
    with pytest.raises(CookieMismatch, match="/fast/b1 has no cookie"):
        await establish_apart(store, machine)


async def test_a_data_directory_that_was_emptied_is_not_formatted_beside_its_old_journal(
    store: MemoryStore,
) -> None:
    machine = await formatted_apart(store)
    for fix_cookie in (False, True):
        empty(machine, PATH)
        machine.indexes.indexes.clear()
        with pytest.raises(CookieMismatch, match="/data/b1 has no cookie"):
            await establish_apart(store, machine, fix_cookie=fix_cookie)
    # Both are empty now, so the fix is allowed.
    empty(machine, JOURNAL)
    machine.disk.directories.clear()
    fixed = await establish_apart(store, machine, fix_cookie=True)
    assert await establish_apart(store, machine) == fixed


async def test_a_formatting_of_two_directories_that_was_interrupted_is_done_again(store: MemoryStore) -> None:
    machine = Machine()
    machine.disk.faults = [RENAMES_FAIL]
    with pytest.raises(StorageError):
        await establish_apart(store, machine)
    machine.disk.faults.clear()
    # Like a crash after the journal got its cookie.
    await machine.disk.write_file(f"{JOURNAL}/cookie", bytes(machine.disk.files[f"{COOKIE}.new"]))
    cookie = await establish_apart(store, machine)
    assert await establish_apart(store, machine) == cookie


# --- directories that were rolled back ------------------------------------------------------------


def copied(machine: Machine) -> Machine:
    """A machine with a copy of the directory as it is now."""
    copy = Machine(path=machine.path)
    copy.disk.files.update({path: bytearray(data) for path, data in machine.disk.files.items()})
    copy.disk.directories.update(machine.disk.directories)
    return copy


async def is_marked(machine: Machine) -> bool:
    return await marks_of(machine) == LossMarks().after_loss(4)


async def generation_in(store: MemoryStore) -> int:
    node = await store.get(layout.cookie_path("b1"))
    assert node is not None
    return Cookie.decode_untrusted(node.value, "b1").generation


async def test_a_directory_that_was_rolled_back_is_marked_for_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = await five_ledgers(new_tree())
    machine = await formatted(store)
    old = copied(machine)
    await establish(store, machine)
    assert not await is_marked(machine)
    await establish(store, old)
    assert await is_marked(old)
    assert "rolled back: /data/b1 has generation 1, but the bookie was at 2" in caplog.text
    await establish(store, machine)
    assert await is_marked(machine), "the copy served since"


async def test_a_rolled_back_directory_whose_marking_was_interrupted_is_marked_by_the_next_start() -> None:
    store = await five_ledgers(new_tree())
    machine = await formatted(store)
    old = copied(machine)
    await establish(store, machine)
    old.disk.faults = [RENAMES_FAIL]
    with pytest.raises(StorageError):
        await establish(store, old)
    assert await generation_in(store) == 2
    old.disk.faults = []
    await establish(store, old)
    assert await is_marked(old)


async def test_starts_are_counted_and_mark_nothing(store: MemoryStore) -> None:
    machine = await formatted(store)
    for generation in range(2, 6):
        await establish(store, machine)
        assert await generation_in(store) == generation
    assert await marks_of(machine) == LossMarks()


async def test_a_directory_of_version_0_1_is_current_and_then_counted() -> None:
    store = await five_ledgers(new_tree())
    machine = await formatted(store)
    path = layout.cookie_path("b1")
    node = await store.get(path)
    assert node is not None
    first = attrs.evolve(Cookie.decode_untrusted(node.value, "b1"), generation=0, generation_token="")
    async with open_directory(machine.path, disk=machine.disk, indexes=machine.indexes) as directory:
        await directory.replace_cookie(first)
    await store.set(path, first.encode(), version=node.version)
    assert b"start" not in first.encode()
    old = copied(machine)
    await establish(store, machine)
    assert await generation_in(store) == 1
    assert await marks_of(machine) == LossMarks()
    await establish(store, old)
    assert await is_marked(old)


async def test_a_crash_before_or_after_a_start_is_counted_marks_no_sound_directory(clock: MockClock) -> None:
    tree = new_tree()
    store = await five_ledgers(tree)
    machine = await formatted(store)
    fate = [Fate.LOST]
    crashing = FaultyStore(tree, fates(lambda call: fate[0]))
    for fate[0] in (Fate.LOST, Fate.UNREACHABLE, Fate.LOST):
        with pytest.raises((MetadataOutcomeUnknown, MetadataUnavailable)):
            await establish(crashing, machine)
        assert await generation_in(store) == 1, "the directory's cookie alone was written"
    old = copied(machine)
    fate[0] = Fate.UNANSWERED
    await establish(crashing, machine)
    assert await generation_in(store) == 2
    await establish(store, machine)
    assert await generation_in(store) == 3
    assert await marks_of(machine) == LossMarks()
    await establish(store, old)
    assert await is_marked(old)


async def test_of_two_copies_that_are_started_at_once_one_is_refused_and_marked_at_its_next_start() -> None:
    tree = new_tree()
    store = await five_ledgers(tree)
    machine = await formatted(store)
    copy = copied(machine)
    both = [machine, copy]
    refused: list[Machine] = []

    async def start(each: Machine) -> None:
        try:
            await establish(tree.open_store(), each)
        except CookieMismatch:
            refused.append(each)

    async with trio.open_nursery() as nursery:
        for each in both:
            nursery.start_soon(start, each)
    (loser,) = refused
    assert await generation_in(store) == 2
    await establish(store, loser)
    assert await is_marked(loser)


async def test_a_directory_is_believed_if_the_store_was_restored_from_an_older_backup(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    machine = await formatted(store)
    path = layout.cookie_path("b1")
    backup = await store.get(path)
    for _ in range(3):
        await establish(store, machine)
    now = await store.get(path)
    assert backup is not None
    assert now is not None
    await store.set(path, backup.value, version=now.version)
    await establish(store, machine)
    assert await marks_of(machine) == LossMarks()
    assert "the metadata store is at 1: the store was restored from an older backup" in caplog.text
    assert await generation_in(store) == 4, "the directory's last count was 3"


async def test_a_rolled_back_directory_is_not_taken_while_another_process_is_registered(
    autojump_clock: MockClock,
) -> None:
    store = await five_ledgers(new_tree())
    machine = await formatted(store)
    old = copied(machine)
    await establish(store, machine)
    await store.create(layout.writable_path("b1"), b"alive")
    with pytest.raises(CookieMismatch, match="by another process, which is alive"):
        await establish(store, old)
    assert await generation_in(store) == 2
    assert await marks_of(old) == LossMarks()


async def test_a_journal_that_alone_was_rolled_back_is_noticed(store: MemoryStore) -> None:
    store = await five_ledgers(new_tree())
    machine = Machine()

    async def start() -> None:
        async with open_directory(
            PATH, disk=machine.disk, indexes=machine.indexes, journal_directory="/journal"
        ) as directory:
            await establish_identity(store, directory, bookie_id="b1", random_bytes=random_bytes)

    await start()
    await machine.disk.write_file(f"/journal/journal/{1:016x}.journal", b"entries")
    await start()
    old = bytearray(machine.disk.files["/journal/cookie"])
    await start()
    await start()
    assert await marks_of(machine) == LossMarks()
    machine.disk.files["/journal/cookie"] = old
    await start()
    assert await is_marked(machine)
