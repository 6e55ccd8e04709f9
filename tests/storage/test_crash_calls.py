"""Power cuts of a bookie on real files, between any two of its system calls, those of LevelDB and RocksDB
included.

The stores write their files by code of their own, past the disk capability. So a bookie runs in a process
into which ``recording_calls.c`` is preloaded: it records what every library does to the files, and what was
synced. The log gives the files that a power cut at any place may leave (``recorded_calls``), also the
bookie's own. A bookie is started from each and asked for everything that it had promised.

If the file system keeps some order, the bookie always starts. If it does not, the bookie may also refuse the
index; then the index is made again, and nothing else was lost.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from crashing import check, going_of
from recorded_bookie import CONFIG
from recorded_calls import Call, Files, read_calls
from storing import opened

from bookie.storage.engine.opening import open_engine
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import StorageCorrupt
from tests.index_kinds import KINDS_HERE

HERE = Path(__file__).parent
_STATES = 30
_SOAK_STATES = 20_000


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("recording system calls needs Linux and a C compiler")
    path = tmp_path_factory.mktemp("library") / "recording_calls.so"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(path),
            str(HERE / "recording_calls.c"),
            "-ldl",
            "-lpthread",
        ],
        check=True,
    )
    return path


def record(library: Path, tmp_path: Path, kind: str) -> list[Call]:
    below, log = tmp_path / "disk", tmp_path / "calls"
    below.mkdir()
    subprocess.run(
        [sys.executable, str(HERE / "recorded_bookie.py"), str(below / "b"), kind],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
            "LD_PRELOAD": str(library),
            "RECORDED_BELOW": str(below),
            "RECORDED_TO": str(log),
        },
    )
    return list(read_calls(log))


async def refusal(path: Path, notes: list[object], story: str, *, rebuilds: bool = False) -> str:
    """Start a bookie from files and check it. Return why it refuses them, or nothing."""
    try:
        async with opened(str(path)) as directory:
            if rebuilds:
                await rebuild_index(directory)
            async with open_engine(directory, CONFIG) as engine:
                await check(engine, notes, f"{story}, {rebuilds=}, gone are {going_of(notes)}")
    except StorageCorrupt as damage:
        return str(damage)
    return ""


def unsynced_cuts(calls: list[Call]) -> list[str]:
    """Segments that were truncated and not synced then. Repeated crashes would take the space again."""
    names: dict[int, str] = {}
    found, cuts = [], 0
    for number, call in enumerate(calls):
        if call.kind == "o":
            names[call.file] = call.path
        path = call.path or names.get(call.file, "")
        if call.kind == "t" and path.endswith(".journal"):
            cuts += 1
            following = next((later.kind for later in calls[number + 1 :] if later.file == call.file), "")
            if call.file < 0 or following != "s":
                found.append(path)
    assert cuts, "no segment was truncated"
    return found


@pytest.mark.parametrize("is_soak", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["few", "all"])
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_a_power_cut_between_any_two_system_calls_takes_nothing_that_was_promised(
    library: Path, tmp_path: Path, kind: str, is_soak: bool
) -> None:
    calls = record(library, tmp_path, kind)
    assert unsynced_cuts(calls) == []
    below = tmp_path / "disk"
    dice = random.Random(f"calls {kind}")
    cuts = Counter(dice.randrange(len(calls)) for _ in range(_SOAK_STATES if is_soak else _STATES))
    index = below / "b" / "index"
    unseen = [str(path) for path in index.glob("LOG*")]
    files = Files(str(below), str(below / "notes"), str(index), unseen)
    looked: Counter[str] = Counter()
    for number, call in enumerate(calls):
        # Some cuts come during a call, the others after it.
        is_within = dice.random() < 0.5
        (files.begin if is_within else files.take)(call)
        for turn in range(cuts[number] if ("formatted",) in files.notes else 0):
            is_rough = dice.random() < 0.5
            target = tmp_path / "cut"
            for path, content in files.after_power_cut(dice, is_rough=is_rough).items():
                place = target / Path(path).relative_to(below)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            story = f"call {number} of {len(calls)}, {is_within=}, {turn=}, {is_rough=}"
            why = await refusal(target / "b", files.notes, story)
            if why:
                assert is_rough, f"{story}: {why}"
                assert str(target / "b" / "index") in why, f"{story}: {why}"
                assert not await refusal(target / "b", files.notes, story, rebuilds=True)
            looked[f"{'rough' if is_rough else 'ordered'} {'refuses' if why else 'starts'}"] += 1
            shutil.rmtree(target)
        if is_within:
            files.take(call)
    there = {str(path): path.read_bytes() for path in below.rglob("*") if path.is_file()}
    seen = files.now()
    for path in unseen:
        del there[path]
        seen.pop(path, None)
    assert seen == there, "the recorder has seen all calls"
    if is_soak:
        print(f"{kind}: {len(calls)} calls, {dict(looked)}")
    assert looked["ordered starts"] > 5
