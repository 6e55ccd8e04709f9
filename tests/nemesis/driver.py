"""Draw faults from a seed, do them to a cluster of real processes, and judge the result.

The system under test runs as in production: ``bookie run`` processes with real files, writers with real
clients over TCP, and metadata in SQLite or in an ensemble of ZooKeeper servers (``ensemble`` has their
faults). ``run`` starts the cluster, lets writers contend for one log, makes trouble for a given time, heals
everything, and judges.

    kill             SIGKILL a bookie; start it again after a while
    kill many        the same for several at once, perhaps all; meanwhile, nothing can be written
    kill writer      SIGKILL a writer; another one takes its place
    stop, stop writer   SIGSTOP, and SIGCONT after a while; a leader that wakes up has been replaced
    partition        between a writer and some bookies, sometimes one way only
    cut off          a bookie from everybody, the metadata servers included
    slow             a link delays its data
    reset, half reset, half close   connections break (``proxies``)
    sync fails       syncs of a bookie give EIO or ENOSPC, or are slow (``system_calls``; if strace can do it)
    full disk        the small tmpfs of a bookie (``small_disks``) has no room, or hardly any, for a while
    rot              kill a bookie, damage some of its files (``damage``), and start it again

**The budget.** Only one bookie of a run has a rotten disk, so that every acknowledged entry keeps an intact
copy at an ack quorum of two. This bookie must refuse to start, or start and report the damage to its readers.
If it refuses, its directory is emptied and taken into service again (``--fix-cookie``), and the bookie copies
the lost entries. Another bookie has the small disk: it goes on, or it stops and reports the failed write; it
serves again when there is room. If any other bookie fails to serve or ends by itself, that is a violation.

SIGKILL spares the page cache, so any number of bookies may be killed. Only one bookie at a time is stopped,
cut off, killed alone or rotten, so that the log is still written: a run without acknowledgements shows
nothing.

**The seed** decides the time, the kind, the target and the length of each fault. It does not decide how
processes are scheduled: the same seed gives the same pressure, not the same run.

**Stopping** spares a process that holds the lock of the metadata file (``stop_without_lock``): to stop it
would stop everybody, and that is a property of this file alone.

**Unavailability** is the longest time without an acknowledgement to any writer, with the faults under way in
that time. It includes situations beyond every promise, such as all bookies being down.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import attrs
import trio

from ledgerlog.cli.demo_driver import stop_without_lock
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import Child, ChildFailed
from ledgerlog.cli.zookeeper import prepare_servers
from ledgerlog.errors import LedgerLogError
from ledgerlog.limits import MIB
from ledgerlog.log.log import Log
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import Record
from ledgerlog.testing.invariants import Violation
from tests.nemesis import small_disks, system_calls
from tests.nemesis.damage import damage_files
from tests.nemesis.ensemble import SERVER_KINDS, ServerFaults
from tests.nemesis.namespaces import Cable, Namespaces, open_namespaces
from tests.nemesis.proxies import Link, Proxies, open_proxies
from tests.nemesis.small_disks import SmallDisk, open_small_disk
from tests.nemesis.system_calls import injected
from tests.nemesis.workload import LOG, NS, Writers, now_ns
from tests.waiting import until

__all__ = ["KINDS", "PATIENCE_S", "Report", "judge_log", "run", "write_config", "writing"]

KINDS: dict[str, float] = {
    "kill": 6,
    "kill many": 1,
    "kill writer": 4,
    "stop": 2,
    "stop writer": 3,
    "partition": 4,
    "cut off": 1.5,
    "slow": 2,
    "reset": 1.5,
    "half reset": 1,
    "half close": 1,
    "sync fails": 1,
    "full disk": 1,
    "rot": 1,
}
"""Frequency of each fault, relative to the others."""

OF_PROXIES = ("slow", "reset", "half reset", "half close")
"""Faults that need proxies."""

REPLICATION = Replication(3, 3, 2)
BOOKIES = 4
WRITERS = 3
PATIENCE_S = 600.0
"""Seconds that each of these may take on a busy machine: after the last fault, the first acknowledgement, and
then reading everything; and the start of a server, until it serves."""

SMALL_FILES = (
    "segment_bytes = 6291456\narenas = 2\nsegment_records_max = 300\ndisk_reserve_bytes = 67108864\n"
)
"""Make journals begin a new file every few seconds."""

WATCHED_DISKS = "disk_watch_interval_s = 1.0\n"
"""Make a read-only bookie writable again soon after there is room."""


@attrs.frozen
class Report:
    """The faults of a run, and their effects."""

    seed: int
    trouble_s: float
    faults: dict[str, int]
    kills: int
    partitions: int
    counts: dict[str, int]
    acked: int
    """Acknowledged records."""
    records: int
    """Records in the log at the end."""
    takeovers: int
    ledgers: int
    longest_gap_s: float
    """The longest time without any acknowledgement."""
    longest_gap_during: list[str]
    """The faults under way in that time."""
    first_ack_after_heal_s: float
    damaged_copies: int
    """Damaged copies, found by reading every copy at the end; all on the bookie with the rotten disk."""

    def as_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.define(eq=False)
class _Happened:
    number: int
    kind: str
    began_ns: int
    to_whom: str = "nobody"
    ended_ns: int | None = None

    def __str__(self) -> str:
        return f"#{self.number} {self.kind}: {self.to_whom}"


class Nemesis:
    """Carries out the faults of a seed on a cluster whose links can be cut."""

    def __init__(
        self,
        local: LocalCluster,
        network: Proxies | Namespaces,
        writers: Writers,
        seed: int,
        pace_s: float,
        fixed: set[str],
        can_inject: bool,
        small_disk: tuple[str, SmallDisk] | None,
        patience_s: float,
    ) -> None:
        self.happened: list[_Happened] = []
        self.counts: Counter[str] = Counter()
        self.rotten = _rotten(seed, local.bookie_ids)
        self._local = local
        self._network = network
        self._writers = writers
        self._seed = seed
        self._pace_s = pace_s
        self._fixed = fixed
        self._out: dict[str, None] = {}
        self._is_rotten = False
        self._can_inject = can_inject
        self._may_stop: dict[Child, None] = {}
        """Bookies whose system calls were made to fail, or whose disk was full."""
        self._small_disk = small_disk
        self._servers = ServerFaults(local, self.counts, patience_s) if local.servers else None

    @property
    def kills(self) -> int:
        counts = self.counts + self._writers.counts
        return (
            counts["kills of bookies"]
            + counts["kills of servers"]
            + sum(fault.kind == "kill writer" for fault in self.happened)
        )

    async def make_trouble(self, seconds: float, is_enough: Callable[[], bool] = lambda: True) -> None:
        """Inject faults for ``seconds``, and until ``is_enough``; then ``heal`` ends the rest."""
        plan = Random(f"plan/{self._seed}")
        kinds = KINDS | (SERVER_KINDS if self._servers is not None else {})
        if not isinstance(self._network, Proxies):
            kinds = {kind: share for kind, share in kinds.items() if kind not in OF_PROXIES}
        number = 0
        async with trio.open_nursery() as trouble:

            async def end() -> None:
                await trio.sleep(seconds)
                await until(is_enough)
                trouble.cancel_scope.cancel()

            trouble.start_soon(end)
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(plan.expovariate(1 / self._pace_s))
                    (kind,) = plan.choices(list(kinds), list(kinds.values()))
                    await self._restart_what_ended()
                    nursery.start_soon(self._inject, number, kind)
                    number += 1

    async def heal(self) -> None:
        """End all faults, and make every bookie serve."""
        self._network.heal()
        if self._small_disk is not None:
            self._small_disk[1].free()
        if self._servers is not None:
            await self._servers.heal()
        for child in (*self._local.bookies.values(), *self._writers.running.values()):
            child.send_signal(signal.SIGCONT)
        self._out.clear()
        async with trio.open_nursery() as nursery:
            for bookie in self._local.bookie_ids:
                child = self._local.bookies[bookie]
                if not child.is_running:
                    if child.exit_status != -signal.SIGKILL and not (
                        bookie == self.rotten and self._is_rotten
                    ):
                        self._require_reason(child)
                    nursery.start_soon(self._start, bookie)

    # --- one fault ----------------------------------------------------------------------------

    async def _inject(self, number: int, kind: str) -> None:
        dice = Random(f"{self._seed}/{number}")
        fault = _Happened(number, kind, now_ns())
        try:
            came_to_pass = await self._do(fault, dice)
        finally:
            fault.ended_ns = now_ns()
        if not came_to_pass:
            self.counts[f"nobody was there for: {kind}"] += 1

    async def _do(self, fault: _Happened, dice: Random) -> bool:
        free = [bookie for bookie in self._local.bookie_ids if bookie not in self._out]
        one = [] if self._out else free
        writers = [name for name, child in self._writers.running.items() if child.is_running]
        match fault.kind:
            case "kill" if one:
                await self._kill(fault, dice, [dice.choice(one)])
            case "kill many" if len(one) > 1:
                await self._kill(fault, dice, dice.sample(one, dice.randrange(2, len(one) + 1)))
            case "rot" if self.rotten in one:
                return await self._rot(fault, dice)
            case "sync fails" if one and self._can_inject:
                await self._fail_syncs(fault, dice, dice.choice(one))
            case "full disk" if self._small_disk is not None and self._small_disk[0] in one:
                await self._fill_disk(fault, dice, *self._small_disk)
            case "stop" if one:
                bookie = dice.choice(one)
                self._begin(fault, bookie)
                with self._is_out(bookie):
                    await self._stop(self._local.bookies[bookie], dice)
            case "cut off" if one:
                bookie = dice.choice(one)
                self._begin(fault, bookie)
                with self._is_out(bookie):
                    links = [*self._network.of(server=bookie), *self._network.of(client=bookie)]
                    await self._partition(links, dice)
            case "kill writer" if writers:
                name = dice.choice(writers)
                self._begin(fault, name)
                self._writers.running[name].kill()
            case "stop writer" if writers:
                name = dice.choice(writers)
                self._begin(fault, name)
                await self._stop(self._writers.running[name], dice)
            case "partition" if writers:
                name = dice.choice(writers)
                bookies = dice.sample(
                    self._local.bookie_ids, dice.choice((1, 1, 2, len(self._local.bookies)))
                )
                self._begin(fault, name, *bookies)
                links = [link for bookie in bookies for link in self._network.of(client=name, server=bookie)]
                await self._partition(links, dice)
            case kind if kind in OF_PROXIES:
                assert isinstance(self._network, Proxies)
                link = dice.choice(list(self._network.links.values()))
                self._begin(fault, link.client, link.server)
                match fault.kind:
                    case "slow":
                        link.delay(dice.choice((0.02, 0.1, 0.5)))
                        await trio.sleep(dice.uniform(1, 6))
                        link.delay(0.0)
                    case "half close":
                        self.counts["connections broken"] += link.half_close()
                    case kind:
                        self.counts["connections broken"] += link.reset(half=kind == "half reset")
            case kind if self._servers is not None and kind in SERVER_KINDS:
                return await self._meet_servers(fault, dice, self._servers, writers)
            case _:
                return False
        return True

    async def _meet_servers(
        self, fault: _Happened, dice: Random, servers: ServerFaults, writers: list[str]
    ) -> bool:
        if fault.kind == "cut metadata":
            client = dice.choice([*writers, *self._local.bookie_ids])
            names = dice.sample(servers.names, dice.choice((1, 2, len(servers.names), len(servers.names))))
            self._begin(fault, client, *names)
            links = [link for name in names for link in self._network.of(client=client, server=name)]
            await self._partition(links, dice)
            return True
        chosen = await servers.choose(dice)
        if servers.is_busy:
            return False
        match fault.kind:
            case "kill server":
                self._begin(fault, chosen)
                await servers.kill([chosen], dice)
            case "kill servers":
                names = dice.sample(servers.names, dice.choice((2, len(servers.names))))
                self._begin(fault, *names)
                await servers.kill(names, dice)
            case "stop server":
                self._begin(fault, chosen)
                await servers.stop(chosen, dice)
            case kind:
                raise AssertionError(kind)
        return True

    def _begin(self, fault: _Happened, *whom: str) -> None:
        fault.to_whom = " ".join(whom)
        self.happened.append(fault)

    @contextmanager
    def _is_out(self, *bookies: str) -> Iterator[None]:
        self._out.update(dict.fromkeys(bookies))
        try:
            yield
        finally:
            for bookie in bookies:
                self._out.pop(bookie, None)

    async def _kill(self, fault: _Happened, dice: Random, bookies: Sequence[str]) -> None:
        self._begin(fault, *bookies)
        with self._is_out(*bookies):
            for bookie in bookies:
                await self._kill_one(bookie)
            await trio.sleep(min(dice.expovariate(1), 5.0))
            async with trio.open_nursery() as nursery:
                for bookie in bookies:
                    nursery.start_soon(self._start, bookie)

    async def _kill_one(self, bookie: str) -> None:
        child = self._local.bookies[bookie]
        child.kill()
        self.counts["kills of bookies"] += 1
        if await child.wait() != -signal.SIGKILL:
            raise Violation(f"a bookie ended before it was killed: {child.how_it_ended()}")

    async def _stop(self, child: Child, dice: Random) -> None:
        if self._servers is None:
            await stop_without_lock(child, self._local.cluster.store)
        else:
            child.send_signal(signal.SIGSTOP)
        try:
            # Sometimes longer than a session lives.
            await trio.sleep(dice.choice((0.3, 2.0, 4.0, 9.0)) * dice.uniform(0.5, 1))
        finally:
            child.send_signal(signal.SIGCONT)

    async def _partition(self, links: Sequence[Link | Cable], dice: Random) -> None:
        way = dice.choice(("both", "both", "to_server", "to_client"))
        self.counts["partitions"] += 1
        self.counts["partitions one way"] += way != "both"
        for link in links:
            link.cut(to_server=way != "to_client", to_client=way != "to_server")
        try:
            await trio.sleep(min(dice.expovariate(1 / 4), 15.0))
        finally:
            for link in links:
                link.heal()

    async def _fail_syncs(self, fault: _Happened, dice: Random, bookie: str) -> None:
        what = dice.choice(("error=EIO", "error=ENOSPC", "delay_enter=200ms"))
        what += f":when={dice.randrange(1, 30)}{'+' if what.startswith('delay') else ''}"
        self._begin(fault, bookie, what)
        child, log_path = self._local.bookies[bookie], self._local.path / "strace.log"
        with self._is_out(bookie):
            self._may_stop[child] = None
            async with injected(self._local.children, child, what, log_path=log_path):
                with trio.move_on_after(dice.uniform(1, 5)):
                    await child.wait()
            await self._restart_if_it_stopped(bookie)

    async def _restart_if_it_stopped(self, bookie: str) -> None:
        child = self._local.bookies[bookie]
        if not child.is_running:
            self._require_reason(child)
            await self._start(bookie)

    def _require_reason(self, child: Child) -> None:
        """Raise Violation unless the bookie stopped, and said so, for a failed sync or a full disk."""
        said = child.how_it_ended()
        if child not in self._may_stop or not ("StorageError" in said or "DiskFull" in said):
            raise Violation(f"a bookie ended that nobody had killed: {said}")
        self.counts["stopped when a write failed"] += 1

    # --- disks --------------------------------------------------------------------------------

    async def _fill_disk(self, fault: _Happened, dice: Random, bookie: str, disk: SmallDisk) -> None:
        left_bytes = dice.choice((0, 0, MIB, 8 * MIB, 40 * MIB))
        self._begin(fault, bookie, f"{left_bytes} bytes left")
        with self._is_out(bookie):
            child = self._local.bookies[bookie]
            self._may_stop[child] = None
            disk.fill(left_bytes)
            try:
                with trio.move_on_after(dice.uniform(2, 12)):
                    await child.wait()
                if child.is_running and dice.random() < 0.3:
                    await self._kill_one(bookie)  # When it starts again, there will be room.
            finally:
                disk.free()
            if child.is_running or child.exit_status != -signal.SIGKILL:
                await self._restart_if_it_stopped(bookie)
            else:
                await self._start(bookie)

    async def _rot(self, fault: _Happened, dice: Random) -> bool:
        bookie = self.rotten
        with self._is_out(bookie):
            await self._kill_one(bookie)
            done = damage_files(
                self._local.data_path(bookie), dice, flips=dice.choice((1, 3, 10)), cut=dice.random() < 0.4
            )
            if done:
                self._is_rotten = True
                self._begin(fault, bookie, *map(str, done))
                self.counts["files cut"] += "cut" in done[0].what
                self.counts["bits flipped"] += sum("bit" in damage.what for damage in done)
            await self._start(bookie)
        return bool(done)

    async def _start(self, bookie: str) -> None:
        """Start a bookie until it serves. If it refuses a rotten disk, empty its directory first."""
        if bookie != self.rotten or not self._is_rotten:
            await self._local.start_serving(bookie)
            return
        while True:
            try:
                await self._local.start_serving(bookie, attempts=1)
                self.counts["starts on a damaged disk"] += 1
                return
            except ChildFailed as failure:
                if "MetadataUnavailable" not in str(failure):
                    await self._replace_disk(bookie, str(failure))
                    return

    async def _replace_disk(self, bookie: str, why: str) -> None:
        if "StorageCorrupt" not in why:
            raise Violation(f"a bookie with a damaged disk does not say what is wrong: {why}")
        self.counts["refused a damaged disk"] += 1
        for place in self._local.data_path(bookie).iterdir():
            if place.is_dir():
                rmtree(place)
            else:
                place.unlink()
        self._fixed.add(bookie)
        self._is_rotten = False
        await self._local.start_serving(bookie)

    async def _restart_what_ended(self) -> None:
        """Restart each bookie that ended because it found damage on a rotten disk or could not write.

        Raises:
            Violation: A bookie or server ended for another reason.
        """
        if self._servers is not None:
            self._servers.require_running()
        for bookie in self._local.bookie_ids:
            child = self._local.bookies[bookie]
            if bookie in self._out or child.is_running:
                continue
            with self._is_out(bookie):
                if bookie == self.rotten and self._is_rotten:
                    await self._replace_disk(bookie, child.how_it_ended())
                else:
                    await self._restart_if_it_stopped(bookie)


def _rotten(seed: int, bookies: Sequence[str]) -> str:
    """Return the bookie whose disk may rot."""
    return Random(f"rotten/{seed}").choice(bookies)


# --- a run ------------------------------------------------------------------------------------------


async def run(
    path: Path,
    *,
    seed: int,
    trouble_s: float,
    pace_s: float = 2.0,
    think_s: float = 0.1,
    term_s: float = 4.0,
    auto_recovery: bool = False,
    zookeepers: int = 0,
    namespaces: bool = False,
    patience_s: float = PATIENCE_S,
    is_enough: Callable[[Nemesis, Writers], bool] = lambda nemesis, writers: True,
) -> Report:
    """Make trouble in a new cluster below ``path``, and judge the result.

    Args:
        path: The cluster's directory.
        seed: Decides the faults.
        trouble_s: The least seconds of trouble.
        pace_s: Average seconds from one fault to the next.
        zookeepers: How many ZooKeeper servers hold the metadata; if 0, SQLite does.
        namespaces: Give each process its own network. This does not work with ZooKeeper servers, which are
            on the loopback address.
        is_enough: Trouble goes on until this is true.

    Raises:
        Violation: A rule was broken. Other errors pass through.
    """
    bookies = [f"bookie-{number}" for number in range(1, BOOKIES + 1)]
    names = [f"writer-{number}" for number in range(1, WRITERS + 1)]
    fixed: set[str] = set()
    config = write_config(path)
    can_inject = await trio.to_thread.run_sync(system_calls.why_not) is None
    servers = {server.name: server.client_port for server in prepare_servers(path, zookeepers)}
    async with AsyncExitStack() as around:
        small_disk = await _small_disk(around, path, seed, bookies)
        network: Proxies | Namespaces
        if namespaces:
            assert not servers
            network = around.enter_context(open_namespaces(bookies, names))
        else:
            network = await around.enter_async_context(open_proxies(bookies, names, metadata=servers))

        def options_of(bookie: str) -> list[str]:
            given = ["--fix-cookie"] if bookie in fixed else []
            if isinstance(network, Namespaces):
                return [*given, "--listen", f"{network.addresses[bookie]}:0"]
            given += ["--listen", network.listen_address(bookie), "--advertise", network.advertised(bookie)]
            return [*given, "--metadata", network.metadata_uri(bookie)] if servers else given

        async with local_cluster(
            path,
            bookies=BOOKIES,
            config=config,
            zookeepers=zookeepers,
            grace_s=2.0,
            auto_recovery=auto_recovery,
            options_of=options_of,
            prefix_of=network.command if isinstance(network, Namespaces) else lambda _: (),
        ) as local:
            log = await local.cluster.create_log(
                LOG, replication=REPLICATION, roll=RollPolicy(max_records=2000, max_age_s=20.0)
            )
            writers = Writers(local, network, seed, think_s, term_s)
            nemesis = Nemesis(
                local, network, writers, seed, pace_s, fixed, can_inject, small_disk, patience_s
            )
            async with writing(writers, names):
                with trio.fail_after(patience_s):
                    await writers.wait_acked()
                began = now_ns()
                await nemesis.make_trouble(trouble_s, partial(is_enough, nemesis, writers))
                await nemesis.heal()
                healed = now_ns()
                with trio.fail_after(patience_s):
                    await writers.wait_acked()
                first_s = (now_ns() - healed) / NS
            gap_s, gap_began = writers.longest_gap(began, healed)
            final = await judge_log(writers, log, patience_s)
            damaged = await _verify(local, final, nemesis.rotten)
    counts = nemesis.counts + writers.counts
    return Report(
        seed=seed,
        trouble_s=round((healed - began) / NS, 1),
        faults=dict(Counter(fault.kind for fault in nemesis.happened)),
        kills=nemesis.kills,
        partitions=counts["partitions"],
        counts=dict(counts),
        acked=writers.history.acked,
        records=len(final),
        takeovers=len(writers.history.begun),
        ledgers=len({record.position.ledger_id for record in final}),
        longest_gap_s=round(gap_s, 2),
        longest_gap_during=[
            str(fault)
            for fault in nemesis.happened
            if fault.began_ns < gap_began + gap_s * NS and (fault.ended_ns or healed) > gap_began
        ],
        first_ack_after_heal_s=round(first_s, 2),
        damaged_copies=damaged,
    )


def write_config(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    config = path / "bookies.toml"
    config.write_text(SMALL_FILES + WATCHED_DISKS, encoding="utf-8")
    return config


async def _small_disk(
    around: AsyncExitStack, path: Path, seed: int, bookies: Sequence[str]
) -> tuple[str, SmallDisk] | None:
    """Give one bookie a small disk, but never the one that rots. None if small disks cannot be made."""
    if await trio.to_thread.run_sync(small_disks.why_not) is not None:
        return None
    bookie = Random(f"small/{seed}").choice([each for each in bookies if each != _rotten(seed, bookies)])
    disk = around.enter_context(open_small_disk(path / f"disk-of-{bookie}"))
    (disk.path / bookie).mkdir(mode=0o700)
    (path / bookie).symlink_to(disk.path / bookie)
    return bookie, disk


@asynccontextmanager
async def writing(writers: Writers, names: list[str]) -> AsyncIterator[None]:
    """Run writers for the body, then kill them and read the rest of their output."""
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(writers.keep, name)
        yield
        writers.end()


async def judge_log(writers: Writers, log: Log, patience_s: float) -> list[Record]:
    """Check the log from outside, and return its records."""
    with trio.fail_after(patience_s):
        while True:
            try:
                await writers.append_the_last(log)
                break
            except LedgerLogError:
                await trio.sleep(0.2)  # Broken connections are being made again.
    # The size of the log depends on the length of the run.
    with trio.fail_after(patience_s + writers.history.acked / 1000):
        final, again = await _read_all(log), await _read_all(log)
    writers.judge_all(final, again)
    return final


async def _read_all(log: Log) -> list[Record]:
    async with log.read() as records:
        return [record async for record in records]


async def _verify(local: LocalCluster, final: list[Record], rotten: str) -> int:
    """Read every copy of every entry, and return how many are damaged.

    Raises:
        Violation: An entry has no intact copy, or a copy is damaged on another bookie than ``rotten``.
    """
    damaged = 0
    for ledger_id in sorted({record.position.ledger_id for record in final}):
        seen = await local.cluster.ledgers.verify(ledger_id)
        if seen.unreadable:
            raise Violation(f"ledger {ledger_id}: no intact copy of entries {seen.unreadable[:5]}")
        strange = [(entry, bookie) for entry, bookie in seen.damaged if bookie != rotten]
        if strange:
            raise Violation(f"ledger {ledger_id}: copies are damaged that nobody damaged: {strange[:5]}")
        damaged += len(seen.damaged)
    return damaged
