"""Do operators' deeds to a cluster of real processes while writers contend for a log; judge the result.

The other driver (``driver``) has the faults of machines. These are deeds of operators, drawn from a seed, one
at a time:

    emptied        a bookie's directory is emptied: it is refused until you start it with --fix-cookie
    rolled back    an old copy of a directory is put back after newer acknowledgements: the bookie notices
    exchanged      two bookies' directories are exchanged: both are refused; they are exchanged back
    damaged        a killed bookie's files, index, marks, cookie or gone ledgers are damaged: it serves with
                   --repair
    foreign store  a bookie is started with the metadata store of another cluster: it is refused
    rack lost      all bookies of a rack are killed: writing goes on, as ensembles are spread over racks
    versions       a bookie is stopped and started as the next version of the product, or as this one
    full disk      the disk of a bookie has no room for a while

**The budget.** A deed that costs copies waits until no ledger is in limbo, because an acknowledged entry may
be on an ack quorum of two only. After damage, the next deed waits until scrubbing has healed it. All
bookies run auto-recovery.

**Judgement.** A process may end, refuse or serve only as the table says. At the end, the log explains every
answer to a writer, ``repair status`` counts nothing, and every copy that the metadata promise is read from
its bookie and compared byte for byte.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio

import ledgerlog
from ledgerlog.cli.bookie import bookie_states
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import ChildFailed
from ledgerlog.cli.repair import status_fields
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.ledger.ranges import read_range
from ledgerlog.log.sweep import sweep
from ledgerlog.meta.uri import SqliteUri
from ledgerlog.model.missing import shares
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.testing.invariants import Violation
from ledgerlog.versions import NEXT_VERSION_VARIABLE
from tests.nemesis import small_disks
from tests.nemesis.damage import damage_files
from tests.nemesis.driver import PATIENCE_S, judge_log, write_config, writing
from tests.nemesis.proxies import open_proxies
from tests.nemesis.small_disks import SmallDisk, open_small_disk
from tests.nemesis.workload import LOG, NS, Writers, now_ns
from tests.waiting import until

__all__ = ["DEEDS", "PeopleReport", "compare_copies", "run_people"]

DEEDS: dict[str, float] = {
    "emptied": 2,
    "rolled back": 2,
    "exchanged": 1,
    "damaged": 3,
    "foreign store": 1,
    "rack lost": 2,
    "versions": 2,
    "full disk": 1,
}
"""Frequency of each deed, relative to the others."""

RACKS, PER_RACK = 3, 2
REPLICATION = Replication(3, 3, 2)
WRITERS = 2
_ACKS = 5
"""This many acknowledgements show that writing goes on."""
_SHOWN = 5


@attrs.frozen
class PeopleReport:
    """The deeds of a run, and their effects."""

    seed: int
    trouble_s: float
    deeds: dict[str, int]
    counts: dict[str, int]
    acked: int
    """Acknowledged records."""
    records: int
    """Records in the log at the end."""
    takeovers: int
    ledgers: int
    copies: int
    """Copies of entries that were read from their bookies and compared at the end."""
    longest_gap_s: float
    """The longest time without any acknowledgement."""
    longest_gap_during: list[str]
    """The deeds under way in that time; each with its start, in seconds after the start of the gap."""
    whole_after_s: float
    """Seconds after the last deed until nothing was under-replicated."""

    def as_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.define(eq=False)
class _Deed:
    name: str
    began_ns: int
    whom: tuple[str, ...]
    ended_ns: int = sys.maxsize


@attrs.define(eq=False)
class People:
    """Carries out deeds on a cluster."""

    local: LocalCluster
    writers: Writers
    options: dict[str, tuple[str, ...]]
    """More options for a bookie's next start."""
    versions: dict[str, str]
    """Value "1" for each bookie that runs the next version."""
    small_disk: tuple[str, SmallDisk] | None
    patience_s: float
    done: list[_Deed] = attrs.Factory(list)
    counts: Counter[str] = attrs.Factory(Counter)

    async def make_trouble(self, seconds: float, dice: Random, wanted: Sequence[str]) -> None:
        """Do the wanted deeds, then others for the rest of the time. Without a small disk, fill none."""
        deadline = trio.current_time() + seconds
        possible = [deed for deed in DEEDS if deed != "full disk" or self.small_disk is not None]
        weights = [DEEDS[deed] for deed in possible]
        rest = [deed for deed in wanted if deed in possible]
        while rest or trio.current_time() < deadline:
            deed = rest.pop(0) if rest else dice.choices(possible, weights)[0]
            await self._do(deed, dice)
            self.done[-1].ended_ns = now_ns()
            with trio.fail_after(self.patience_s):
                await self.until_acked()
                await until(self.is_out_of_limbo, every_s=0.5)

    async def _do(self, deed: str, dice: Random) -> None:
        # The directory on the small disk cannot be renamed, so its bookie sorts last and is cut off.
        small = "" if self.small_disk is None else self.small_disk[0]
        bookie, other = sorted(dice.sample(self.local.bookie_ids, 3), key=lambda each: each == small)[:2]
        self.done.append(_Deed(deed, now_ns(), (bookie, other)))
        match deed:
            case "emptied":
                await self._empty(bookie)
            case "rolled back":
                await self._roll_back(bookie)
            case "exchanged":
                await self._exchange(bookie, other)
            case "damaged":
                await self._damage(bookie, dice)
            case "foreign store":
                await self._foreign_store(bookie)
            case "rack lost":
                await self._lose_rack(dice.randrange(RACKS))
            case "versions":
                await self.local.bookies[bookie].stop()
                self.versions[bookie] = "" if self.versions[bookie] else "1"
                await self._start(bookie)
            case "full disk":
                assert self.small_disk is not None
                await self._fill(*self.small_disk)

    async def until_acked(self) -> None:
        """Wait until writing goes on."""
        for _ in range(_ACKS):
            await self.writers.wait_acked()

    async def is_out_of_limbo(self) -> bool:
        """Whether every bookie is writable, and none has ledgers in limbo."""
        states = await bookie_states(self.local.cluster)
        return all(state.state == "writable" and not state.ledgers_in_limbo for state in states)

    async def _start(self, bookie: str, *options: str) -> None:
        self.options[bookie] = options
        try:
            await self.local.start_serving(bookie)
        finally:
            self.options[bookie] = ()

    async def _is_refused(self, bookie: str, why: str, *options: str) -> None:
        self.options[bookie] = options
        try:
            await self.local.start_serving(bookie, attempts=1)
        except ChildFailed as refusal:
            if why not in str(refusal):
                raise Violation(f"{bookie} does not say {why}: {refusal}") from refusal
        else:
            raise Violation(f"{bookie} serves, though it must be refused: {why}")
        finally:
            self.options[bookie] = ()
        self.counts[f"refused: {why}"] += 1

    async def _kill(self, bookie: str) -> None:
        child = self.local.bookies[bookie]
        child.kill()
        if await child.wait() != -signal.SIGKILL:
            raise Violation(f"a bookie ended before it was killed: {child.how_it_ended()}")

    # --- directories --------------------------------------------------------------------------

    async def _empty(self, bookie: str) -> None:
        await self.local.bookies[bookie].stop()
        _empty_directory(self.local.data_path(bookie))
        await self._is_refused(bookie, "CookieMismatch")
        await self._start(bookie, "--fix-cookie")

    async def _roll_back(self, bookie: str) -> None:
        path, copy = self.local.data_path(bookie), self.local.path / f"copy-of-{bookie}"
        await self.local.bookies[bookie].stop()
        await trio.to_thread.run_sync(partial(_copy, path, copy))
        await self._start(bookie)
        with trio.fail_after(self.patience_s):
            await self.until_acked()
        await self._kill(bookie)
        _empty_directory(path)
        await trio.to_thread.run_sync(partial(_copy, copy, path))
        shutil.rmtree(copy)
        log_path = self.local.log_path(bookie)
        said = log_path.stat().st_size
        await self._start(bookie)
        if b"rolled back" not in log_path.read_bytes()[said:]:
            raise Violation(f"{bookie} serves an old copy of its directory and does not say so")

    async def _exchange(self, one: str, other: str) -> None:
        for bookie in (one, other):
            await self._kill(bookie)
        self._swap(one, other)
        await self._is_refused(one, "CookieMismatch")
        await self._is_refused(other, "CookieMismatch")
        self._swap(one, other)
        for bookie in (one, other):
            await self._start(bookie)

    def _swap(self, one: str, other: str) -> None:
        here, there = self.local.data_path(one), self.local.data_path(other)
        aside = here.with_name("aside")
        here.rename(aside)
        there.rename(here)
        aside.rename(there)

    async def _damage(self, bookie: str, dice: Random) -> None:
        path = self.local.data_path(bookie)
        await self._kill(bookie)
        match dice.choice(("files", "files", "index", "marks", "cookie", "gone")):
            case "index":
                tables = sorted((path / "index").glob("*.ldb")) or sorted((path / "index").glob("*.log"))
                _flip(dice.choice(tables), dice)
            case "files":
                damage_files(path, dice, flips=dice.choice((1, 3, 10)), cut=dice.random() < 0.4)
            case name:
                if (path / name).exists():
                    _flip(path / name, dice)
        await self._start(bookie, "--repair")
        # Flipped bits in a payload stop no start. Scrubbing finds them, and copies from other bookies.
        with trio.fail_after(self.patience_s):
            await until(partial(self.is_sound, bookie), every_s=1.0)

    async def is_sound(self, bookie: str) -> bool:
        """Whether the bookie returns all its copies of closed ledgers."""
        cluster = self.local.cluster
        for ledger_id in await cluster.ledgers.list():
            try:
                metadata = await cluster.ledgers.metadata(ledger_id)
            except ledgerlog.LedgerNotFound:
                continue  # It was deleted after the listing.
            for share in shares(metadata, bookie) if metadata.is_closed else ():
                at = share.first
                while at <= share.last:
                    connection = cluster.client.pool.connection(bookie)
                    answer = await read_range(connection, ledger_id, first=at, last=share.last)
                    if answer is None or answer.damaged is not None or answer.through < at:
                        return False
                    at = answer.through + 1
        return True

    # --- others -------------------------------------------------------------------------------

    async def _foreign_store(self, bookie: str) -> None:
        uri = str(SqliteUri(str((self.local.path / "foreign.sqlite").absolute())))
        async with ledgerlog.connect(uri, create=True):
            pass
        await self.local.bookies[bookie].stop()
        await self._is_refused(bookie, "CookieMismatch", "--metadata", uri)
        await self._start(bookie)

    async def _lose_rack(self, rack: int) -> None:
        lost = [bookie for bookie in self.local.bookie_ids if rack_of(bookie) == rack]
        self.done[-1].whom = tuple(lost)
        for bookie in lost:
            await self._kill(bookie)
        with trio.fail_after(self.patience_s):
            await self.until_acked()
        for bookie in lost:
            await self._start(bookie)

    async def _fill(self, bookie: str, disk: SmallDisk) -> None:
        child = self.local.bookies[bookie]
        disk.fill(0)
        try:
            with trio.fail_after(self.patience_s):
                await self.until_acked()
        finally:
            disk.free()
        if not child.is_running:
            if "DiskFull" not in child.how_it_ended():
                raise Violation(f"a bookie on a full disk does not say so: {child.how_it_ended()}")
            await self._start(bookie)


def rack_of(bookie: str) -> int:
    return int(bookie.removeprefix("bookie-")) % RACKS


def _empty_directory(path: Path) -> None:
    for place in path.iterdir():
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()


def _copy(source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("ballast", "lock")
    shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)


def _flip(path: Path, dice: Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes(content)


async def run_people(
    path: Path,
    *,
    seed: int,
    trouble_s: float,
    wanted: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> PeopleReport:
    """Do deeds to a new cluster below ``path``.

    Args:
        path: The cluster's directory.
        seed: Decides the deeds and the bookies that they meet.
        trouble_s: Seconds during which deeds begin.
        wanted: Deeds to do first, even if that takes longer.
        patience_s: The most seconds that each wait may take.

    Raises:
        Violation: Data was lost, or a process ended, served or refused against the rules.
    """
    bookies = [f"bookie-{number}" for number in range(1, RACKS * PER_RACK + 1)]
    names = [f"writer-{number}" for number in range(1, WRITERS + 1)]
    options: dict[str, tuple[str, ...]] = dict.fromkeys(bookies, ())
    versions = dict.fromkeys(bookies, "")
    dice = Random(f"people/{seed}")
    config = write_config(path)
    with config.open("a", encoding="utf-8") as file:
        file.write("scrub_interval_s = 1.0\n")
    async with AsyncExitStack() as around:
        small_disk = None
        if await trio.to_thread.run_sync(small_disks.why_not) is None:
            chosen = dice.choice(bookies)
            disk = around.enter_context(open_small_disk(path / f"disk-of-{chosen}"))
            (disk.path / chosen).mkdir(mode=0o700)
            (path / chosen).symlink_to(disk.path / chosen)
            small_disk = chosen, disk
        network = await around.enter_async_context(open_proxies(bookies, names))

        def options_of(bookie: str) -> list[str]:
            places = ["--listen", network.listen_address(bookie), "--advertise", network.advertised(bookie)]
            return [*places, "--label", f"rack=r{rack_of(bookie)}", *options[bookie]]

        local = await around.enter_async_context(
            local_cluster(
                path,
                bookies=len(bookies),
                config=config,
                grace_s=10.0,
                auto_recovery=True,
                options_of=options_of,
                prefix_of=lambda bookie: ["/usr/bin/env", f"{NEXT_VERSION_VARIABLE}={versions[bookie]}"],
            )
        )
        log = await local.cluster.create_log(
            LOG, replication=REPLICATION, roll=RollPolicy(max_records=500, max_age_s=5.0)
        )
        writers = Writers(local, network, seed, 0.1, 4.0)
        people = People(local, writers, options, versions, small_disk, patience_s)
        async with writing(writers, names):
            with trio.fail_after(patience_s):
                await people.until_acked()
            began = now_ns()
            await people.make_trouble(trouble_s, dice, wanted)
            ended = now_ns()
        final = await judge_log(writers, log, patience_s)
        # A writer that was killed may have left a ledger open that its log did not list yet. Once the log is
        # sealed, it never will.
        await log.seal()
        await sweep(local.cluster.client, min_age_s=0)
        healing = trio.current_time()
        await _until_whole(local, people.is_out_of_limbo, patience_s)
        whole_after_s = trio.current_time() - healing
        with trio.fail_after(patience_s):
            for bookie in bookies:
                await until(partial(people.is_sound, bookie), every_s=1.0)
        copies = await compare_copies(local.cluster.ledgers, local.cluster.client.pool)
    gap_s, gap_began = writers.longest_gap(began, ended)
    return PeopleReport(
        seed=seed,
        trouble_s=round((ended - began) / NS, 1),
        deeds=dict(Counter(deed.name for deed in people.done)),
        counts=dict(people.counts + writers.counts),
        acked=writers.history.acked,
        records=len(final),
        takeovers=len(writers.history.begun),
        ledgers=len({record.position.ledger_id for record in final}),
        copies=copies,
        longest_gap_s=round(gap_s, 2),
        longest_gap_during=[
            f"{deed.name}: {' '.join(deed.whom)} ({(deed.began_ns - gap_began) / NS:+.1f} s)"
            for deed in people.done
            if deed.began_ns < gap_began + gap_s * NS and deed.ended_ns > gap_began
        ],
        whole_after_s=round(whole_after_s, 1),
    )


async def _until_whole(
    local: LocalCluster, is_out_of_limbo: Callable[[], Awaitable[bool]], patience_s: float
) -> None:
    """Wait until ``repair status`` counts nothing."""
    fields: dict[str, Any] = {}

    async def is_whole() -> bool:
        nonlocal fields
        fields = await status_fields(local.cluster)
        is_quiet = fields["is_complete"] and not fields["under_replicated"] and not fields["waiting"]
        return is_quiet and await is_out_of_limbo()

    try:
        with trio.fail_after(patience_s):
            await until(is_whole, every_s=0.5)
    except trio.TooSlowError as slow:
        raise Violation(f"not whole after {patience_s:g} s: {fields}") from slow


async def compare_copies(ledgers: Ledgers, pool: ConnectionPool) -> int:
    """Read every copy that the metadata promise from its bookie, and compare the copies of each entry.

    Returns:
        The number of copies.

    Raises:
        Violation: A copy is missing, or differs from another.
    """
    count = 0
    for ledger_id in await ledgers.list():
        metadata = await ledgers.metadata(ledger_id)
        if not metadata.is_closed:
            raise Violation(f"ledger {ledger_id} is {metadata.state.name}, though nobody writes any more")
        known: dict[int, bytes] = {}
        for bookie in sorted({bookie for part in metadata.fragments for bookie in part.ensemble}):
            for share in shares(metadata, bookie):
                found: dict[int, bytes] = {}
                at = share.first
                while at <= share.last:
                    connection = pool.connection(bookie)
                    answer = await read_range(connection, ledger_id, first=at, last=share.last)
                    if answer is None or answer.damaged is not None or answer.through < at:
                        raise Violation(
                            f"ledger {ledger_id}: {bookie} does not give its entries from {at} on"
                        )
                    found |= answer.found
                    at = answer.through + 1
                missing = [each for each in share.ids(share.first, share.last) if each not in found]
                if missing:
                    raise Violation(f"ledger {ledger_id}: {bookie} lacks entries {missing[:_SHOWN]}")
                for entry_id, payload in found.items():
                    if known.setdefault(entry_id, payload) != payload:
                        raise Violation(f"ledger {ledger_id}: copies of entry {entry_id} differ")
                count += len(found)
    return count
