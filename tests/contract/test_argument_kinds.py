"""Arguments that are no objects of their class, or objects of another API, are InvalidArgument."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from types import ModuleType
from typing import Any

import attrs
import pytest
import trio

import ledgerlog
from ledgerlog import aio, blocking
from ledgerlog.errors import InvalidArgument
from ledgerlog.testing import simulate
from tests.machine.machines import Keys


@attrs.frozen
class Made:
    """Objects of one API. Their connection is closed: a check of arguments needs none."""

    api: ModuleType
    cluster: Any
    log: Any
    election: Any


def by_tasks(api: ModuleType, run: Callable[..., Any]) -> Made:
    async def make() -> Made:
        async with api.connect("memory:") as cluster:
            return Made(api, cluster, await cluster.create_log("log"), cluster.election("log"))

    made: Made = run(make) if run is trio.run else run(make())
    return made


@pytest.fixture(scope="module")
def made() -> list[Made]:
    with blocking.connect("memory:") as cluster:
        by_threads = Made(blocking, cluster, cluster.create_log("log"), cluster.election("log"))
    return [by_tasks(ledgerlog, trio.run), by_tasks(aio, asyncio.run), by_threads]


def replica(api: ModuleType, log: Any, **options: Any) -> None:
    with pytest.raises(InvalidArgument, match=options.pop("words")):
        api.Replica(log, Keys(), **options)


def test_what_is_no_object_of_its_class_is_refused(made: list[Made]) -> None:
    for each in made:
        for wrong in ("orders", None, each.log):
            with pytest.raises(InvalidArgument, match="election must be a"):
                each.log.lead(wrong)
    for each in made[:2]:
        replica(each.api, "log", words="log must be a")
        replica(each.api, each.election, words="log must be a")
        replica(each.api, each.log, election="log", words="election must be a")
        replica(each.api, each.log, election=each.log, words="election must be a")
        replica(each.api, each.log, snapshots="dir", words="snapshots must be a store such as .* not 'dir'")
        for wrong in ("cluster", each.log):
            with pytest.raises(InvalidArgument, match="cluster must be a"):
                each.api.LedgerSnapshots(wrong)


def test_an_object_of_another_api_is_refused_and_both_are_named(made: list[Made]) -> None:
    for mine, theirs in permutations(made, 2):
        words = f"is of {theirs.api.__name__}: use the one of {mine.api.__name__}$"
        with pytest.raises(InvalidArgument, match=f"election {words}"):
            mine.log.lead(theirs.election)
        if mine.api is blocking:
            continue  # It has no replicas.
        replica(mine.api, theirs.log, words=f"log {words}")
        replica(mine.api, mine.log, election=theirs.election, words=f"election {words}")
        with pytest.raises(InvalidArgument, match=f"cluster {words}"):
            mine.api.LedgerSnapshots(theirs.cluster)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls": True}, "tls must be a ledgerlog.TLS or None, not True"),
        ({"append_deadline_s": None}, "append_deadline_s must be positive, not None"),
        ({"append_deadline_s": float("nan")}, "append_deadline_s must be positive, not nan"),
        ({"default_replication": 3}, "default_replication must be a ledgerlog.Replication or None, not 3"),
    ],
    ids=["tls", "none", "nan", "replication"],
)
def test_what_is_no_option_is_refused_by_each_connect(options: dict[str, Any], words: str) -> None:
    async def enter(api: ModuleType) -> None:
        with pytest.raises(InvalidArgument, match=words):
            async with api.connect("memory:", **options):
                pass

    trio.run(enter, ledgerlog)
    asyncio.run(enter(aio))
    with pytest.raises(InvalidArgument, match=words):
        blocking.connect("memory:", **options)


async def _connect_as_guest(guest: Any) -> None:
    async with aio.connect("memory:", guest=guest):
        pass


def test_a_guest_is_true_or_false() -> None:
    with pytest.raises(InvalidArgument, match="guest must be True or False, not 'no'"):
        asyncio.run(_connect_as_guest("no"))


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "1"])
def test_a_reader_waits_for_no_negative_time(timeout_s: Any) -> None:
    with blocking.connect("memory:") as cluster:
        log = cluster.create_log("log")
        with log.writer() as writer:
            writer.append(b"a")
        with log.read() as records:
            with pytest.raises(InvalidArgument, match="timeout_s must be None or 0 and more seconds, not"):
                records.next(timeout_s=timeout_s)
            record = records.next(timeout_s=10)
            assert record is not None
            assert record.offset == 0


def test_faults_are_drawn_faults() -> None:
    async def scenario(_: Any) -> None:
        raise AssertionError("not reached")

    faults: Any = "all"
    with pytest.raises(InvalidArgument, match=r"faults must be a ledgerlog\.testing\.DrawnFaults or None"):
        simulate(scenario, faults=faults)
