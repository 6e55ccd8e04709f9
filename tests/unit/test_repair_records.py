"""The records of auto-recovery are read back equal, and damaged records are refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.codec import encode_record
from ledgerlog.model.layout import ledger_path, repair_lock_path, repair_task_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import (
    AuditState,
    Draining,
    LedgerWork,
    RepairSettings,
    RepairTask,
    WorkerProgress,
)

SETTINGS = RepairSettings(
    paused=True,
    lost_after_ms=1,
    grace_ms=2,
    bytes_per_s=3,
    cluster_bytes_per_s=4,
    bookie_check_ms=5,
    entry_check_ms=6,
    check_all=True,
    checks_per_s=7,
)
"""No value is a default. A damaged key is ignored, like a key of a later version; its value is the default
then.
"""
TASK = RepairTask(
    ledger_id=7,
    lost=("b1", "b2"),
    damaged=("b3",),
    incomplete=("b4",),
    asks_all=True,
    made_at_ms=5,
    trouble="too few bookies",
)
DRAINING = Draining(bookie_id="b1", instance="abc", asked_at_ms=9)
AUDIT = AuditState(
    auditor="a",
    metadata_at_ms=1,
    ledgers=2,
    affected=1,
    entries_at_ms=3,
    absent={"b1": 4, "b2": 5},
    settings=SETTINGS,
)
PROGRESS = WorkerProgress(
    name="w",
    repaired=1,
    entries=2,
    copied_bytes=3,
    bytes_per_s=4,
    work=(LedgerWork(ledger_id=7, doing="recovery"),),
)
READERS: list[tuple[bytes, Callable[[bytes], object], object]] = [
    (SETTINGS.encode(), RepairSettings.decode_untrusted, SETTINGS),
    (TASK.encode(), lambda data: RepairTask.decode_untrusted(data, 7), TASK),
    (DRAINING.encode(), lambda data: Draining.decode_untrusted(data, "b1"), DRAINING),
    (AUDIT.encode(), AuditState.decode_untrusted, AUDIT),
    (PROGRESS.encode(), WorkerProgress.decode_untrusted, PROGRESS),
]


@pytest.mark.parametrize(("data", "read", "expected"), READERS)
def test_records_of_repair_read_back_as_they_were_written(
    data: bytes, read: Callable[[bytes], object], expected: object
) -> None:
    assert read(data) == expected


@pytest.mark.parametrize(("data", "read", "expected"), READERS)
@given(at=st.integers(0, 200), flip=st.integers(1, 255))
def test_damage_is_refused_or_reads_as_another_record(
    data: bytes, read: Callable[[bytes], object], expected: object, at: int, flip: int
) -> None:
    damaged = bytearray(data)
    damaged[at % len(data)] ^= flip
    with contextlib.suppress(MetadataCorrupt):
        assert read(bytes(damaged)) != expected
    with pytest.raises(MetadataCorrupt):
        read(data[: at % len(data)])


def test_a_record_about_something_else_is_refused() -> None:
    with pytest.raises(MetadataCorrupt, match="another ledger"):
        RepairTask.decode_untrusted(TASK.encode(), 8)
    with pytest.raises(MetadataCorrupt, match="another bookie"):
        Draining.decode_untrusted(DRAINING.encode(), "b2")
    with pytest.raises(MetadataCorrupt, match="format 2; this version of ledgerlog reads 1"):
        AuditState.decode_untrusted(encode_record({"v": 2}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes_per_s", 0),
        ("lost_after_ms", -1),
        ("checks_per_s", 0),
        ("bookie_check_ms", 0),
        ("grace_ms", -1),
        ("cluster_bytes_per_s", -1),
        ("cluster_bytes_per_s", 2**53 + 1),
        ("lost_after_ms", 2**63),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=name):
        attrs.evolve(RepairSettings(), **{name: value})


def test_a_task_grows_by_what_is_added_and_keeps_its_words_short() -> None:
    task = RepairTask(ledger_id=1, lost=("b2",))
    grown = task.merged(lost=["b1", "b2"], incomplete=["b3"])
    assert (grown.lost, grown.damaged, grown.incomplete) == (("b1", "b2"), (), ("b3",))
    assert grown.merged(lost=["b1"]) == grown
    assert not grown.is_about_all
    assert grown.merged(asks_all=True).merged(lost=["b1"]).is_about_all
    assert len(task.troubled("x" * 10_000).trouble or "") == 2000
    assert task.troubled(None).trouble is None


def test_tasks_lie_as_ledgers_do_and_locks_side_by_side() -> None:
    assert repair_task_path(258) == "repair/tasks/00000000/0000/0102"
    assert ledger_path(258) == "ledgers/00000000/0000/0102"
    assert repair_lock_path(258) == "repair/locks/0000000000000102"


def test_workers_share_what_the_cluster_may_copy_and_none_copies_more_than_one_may() -> None:
    settings = RepairSettings(bytes_per_s=100, cluster_bytes_per_s=250)
    assert [settings.worker_bytes_per_s(count) for count in (0, 1, 2, 3, 1000)] == [100, 100, 100, 83, 1]
    assert RepairSettings(bytes_per_s=100).worker_bytes_per_s(1000) == 100


def test_settings_of_before_the_clusters_rate_read_as_without_one() -> None:
    fields = {"v": 1, **attrs.asdict(RepairSettings(bytes_per_s=7))}
    del fields["cluster_bytes_per_s"]
    assert RepairSettings.decode_untrusted(encode_record(fields)) == RepairSettings(bytes_per_s=7)
