"""The object store of a swarm, and the archive of a swarm in it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from ledgerlog.archive.core.compaction import Latest
from ledgerlog.archive.destinations import Destination
from ledgerlog.archive.jobs.archiver import Archiver
from ledgerlog.errors import ArchiveUnavailable
from ledgerlog.model.record import RecordBatch
from ledgerlog.testing.archive_store import ArchiveStore
from ledgerlog.testing.features import ARCHIVE
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import Report, run_seed
from tests.simulation.violations import first_violation

WHERE = "simulated://archive"


@pytest.fixture
def store() -> Iterator[ArchiveStore]:
    found = ArchiveStore(lambda: 1000, Random(1))
    with found.mounted():
        yield found


def write(name: str, data: bytes) -> None:
    with Destination(WHERE).create(name) as stream:
        stream.write(data)


def test_an_object_appears_when_its_upload_is_complete(store: ArchiveStore) -> None:
    with Destination(WHERE).create("log/file") as stream:
        stream.write(b"some")
        assert store.objects == {}
    assert store.objects["archive/log/file"].data == b"some"
    (listed,) = Destination(WHERE).list("log")
    assert (listed.name, listed.size, listed.modified.timestamp()) == ("log/file", 4, 1.0)


def test_an_object_is_moved_and_deleted(store: ArchiveStore) -> None:
    write("log/.file.tmp", b"some")
    Destination(WHERE).publish("log/.file.tmp", "log/file")
    assert list(store.objects) == ["archive/log/file"]
    assert Destination(WHERE).open("log/file").read() == b"some"
    assert Destination(WHERE).delete("log/file")
    assert not Destination(WHERE).delete("log/file")
    with pytest.raises(ArchiveUnavailable, match="is missing"):
        Destination(WHERE).open("log/file")


def test_a_store_out_of_reach_answers_nothing(store: ArchiveStore) -> None:
    write("log/file", b"some")
    store.is_out_of_reach = True
    for ask in (
        lambda: Destination(WHERE).open("log/file"),
        lambda: Destination(WHERE).list("log"),
        lambda: Destination(WHERE).delete("log/file"),
    ):
        with pytest.raises(ArchiveUnavailable, match="does not answer"):
            ask()
    with pytest.raises(OSError, match="does not answer"):
        write("log/other", b"more")
    store.heal()
    assert list(store.objects) == ["archive/log/file"]


def test_a_move_that_fails_may_leave_both_objects_or_either(store: ArchiveStore) -> None:
    seen = dict[tuple[str, ...], None]()
    for number in range(100):
        store.heal()
        store.objects.clear()
        write("log/a", b"%d" % number)
        store.failing_share = 0.5
        try:
            Destination(WHERE).publish("log/a", "log/b")
        except ArchiveUnavailable:
            seen[tuple(sorted(path[-1] for path in store.objects))] = None
    assert sorted(seen) == [("a",), ("a", "b"), ("b",)]


def test_an_upload_has_one_flipped_bit(store: ArchiveStore) -> None:
    store.flipping_share = 1.0
    write("log/file", bytes(10))
    assert sum(each.bit_count() for each in store.objects["archive/log/file"].data) == 1
    assert store.flipped == 1


def test_another_store_answers_while_the_right_one_is_unmounted(store: ArchiveStore) -> None:
    write("log/file", b"some")
    store.unmount()
    assert store.is_unmounted
    assert Destination(WHERE).list("log") == []
    write("log/below", b"")
    store.mount()
    assert [file.name for file in Destination(WHERE).list("log")] == ["log/file"]


def test_a_destination_is_copied_and_dropped(store: ArchiveStore) -> None:
    write("log/file", b"some")
    assert store.copy(WHERE, "simulated://other/place") == 1
    store.drop(WHERE)
    assert list(store.objects) == ["other/place/log/file"]


# --- the swarm --------------------------------------------------------------------------------------


def run(seed: int) -> Report:
    return run_seed(seed, size=Size.SMALL, features=(ARCHIVE,), people=False, hostile=False)


def violation_of_some_seed(*rules: str) -> str:
    return first_violation(map(run, range(20)), *rules)


def test_with_an_archive_the_same_seed_is_the_same_run() -> None:
    assert run(3).trace_hash == run(3).trace_hash


def test_a_job_at_a_copy_of_the_archive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Destination, "is_at", lambda self, url: True)
    assert violation_of_some_seed().startswith("ArchiveMarked")


@pytest.mark.parametrize("seed", [179, 262])
def test_a_disk_is_unmounted_only_after_the_cluster_knows_the_archive(seed: int) -> None:
    report = run(seed)  # If nothing knows the archive yet, it begins on the wrong disk, and is lost with it.
    if report.failure is not None:
        raise report.failure


def test_compaction_that_keeps_the_first_record_of_a_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Latest.feed

    def first(self: Latest, batches: list[RecordBatch]) -> None:
        known = dict(self._offsets)
        original(self, batches)
        self._offsets.update(known)

    monkeypatch.setattr(Latest, "feed", first)
    assert violation_of_some_seed().startswith(("KeyedLatest", "KeyedGone", "KeyedEntry"))


@pytest.mark.long
def test_giving_copies_up_without_a_look_at_the_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from ledgerlog.archive.jobs import archiver

    async def passes(record: Any) -> None:
        pass

    monkeypatch.setattr(archiver, "check_archive", passes)
    assert "(ArchiveWhole)" in violation_of_some_seed()


def test_a_job_that_never_cleans_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from ledgerlog.archive.jobs import publishing

    async def nothing(archiver: Archiver) -> list[Any]:
        return []

    monkeypatch.setattr(publishing, "clean", nothing)
    assert violation_of_some_seed().startswith("ArchiveClean")
