"""When a bookie is short of space, read-only, and writable again; it depends only on the free bytes."""

from __future__ import annotations

import attrs
import pytest

from bookie.core.fullness import DiskSpace, Fullness, FullnessPolicy
from bookie.storage.engine.config import StorageConfig
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import MIB, SHARED_DISK

ROOMY, SHORT, READ_ONLY = Fullness.ROOMY, Fullness.SHORT, Fullness.READ_ONLY

SHARES = FullnessPolicy(warning_ratio=0.8, writable_ratio=0.85, read_only_ratio=0.95, reserve_bytes=0)
BYTES = FullnessPolicy(warning_ratio=0.8, writable_ratio=0.85, read_only_ratio=0.95, reserve_bytes=300)


def judge(policy: FullnessPolicy, free: int, was: Fullness = ROOMY) -> Fullness:
    return policy.judge([DiskSpace(1000, free)], was=was)


def test_a_disk_is_short_of_space_from_the_warning_on_and_read_only_from_its_mark_on() -> None:
    assert [judge(SHARES, free) for free in (201, 200, 199, 50, 49, 0)] == [
        *(ROOMY, ROOMY, SHORT, SHORT),
        *(READ_ONLY, READ_ONLY),
    ]


def test_a_read_only_bookie_comes_back_at_the_lower_mark_and_not_before() -> None:
    frees = (50, 149, 150, 200)
    assert [judge(SHARES, free, READ_ONLY) for free in frees] == [READ_ONLY, READ_ONLY, SHORT, ROOMY]


def test_the_reserve_holds_where_it_is_more_than_the_share_and_the_way_back_is_as_long() -> None:
    assert [judge(BYTES, free) for free in (300, 299)] == [SHORT, READ_ONLY]
    assert [judge(BYTES, free, READ_ONLY) for free in (399, 400)] == [READ_ONLY, SHORT]


def test_the_fullest_disk_decides_and_without_any_there_is_room() -> None:
    assert SHARES.judge([DiskSpace(1000, 900), DiskSpace(10, 0)], was=ROOMY) is READ_ONLY
    assert SHARES.judge([], was=READ_ONLY) is ROOMY


@pytest.mark.parametrize(
    ("warning", "writable", "read_only", "reserve"),
    [
        (0.96, 0.9, 0.95, 0),
        (0.9, 0.96, 0.95, 0),
        (0.9, 0.9, 1.1, 0),
        (0.0, 0.9, 0.95, 0),
        (0.9, 0.9, 0.95, -1),
    ],
)
def test_marks_that_make_no_sense_are_refused(
    warning: float, writable: float, read_only: float, reserve: int
) -> None:
    with pytest.raises(InvalidArgument):
        FullnessPolicy(
            warning_ratio=warning, writable_ratio=writable, read_only_ratio=read_only, reserve_bytes=reserve
        )


def test_on_a_disk_that_others_have_nearly_filled_bytes_decide_and_not_shares() -> None:
    policy = StorageConfig(**SHARED_DISK).fullness_policy()
    laptop = DiskSpace(total=252_000 * MIB, free=1_000 * MIB)
    assert policy.judge([laptop], was=Fullness.ROOMY) is not Fullness.READ_ONLY
    assert policy.judge([attrs.evolve(laptop, free=63 * MIB)], was=Fullness.ROOMY) is Fullness.READ_ONLY
