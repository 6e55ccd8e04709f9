"""A run in which the metadata store is lost or set back, and is restored from an older backup.

Leaders contend for a log that rolls, while bookies and leaders die. An operator saves a backup. If the store
answers slowly, the log rolls between two reads of the backup. The leaders make more ledgers, which the backup
does not have. Some backups are made in the middle of a roll. Then one of two things happens:

    lost        the store is emptied under live bookies and leaders, and restored
    set back    the leaders and the bookies stop, and the store is restored over its present content

The operator then follows docs/OPERATIONS.md: ``metadata check --bring-back``, and the leaders are started
again. If a takeover stops with ``LossUndecided``, the operator keeps the records behind the gap. Sometimes a
bookie is down meanwhile, and sometimes the operator accepts the loss in the end.

**What must hold:**

    RestoreRefused      a restore over a live cluster is refused, and changes nothing
    IdsAreNew           no ledger gets an id that was given out before the restore
    NothingDeleted      no bookie deletes a ledger because the backup lacks it
    KeptOrNamed         an acknowledged record is in the log, at its offset. Otherwise its ledger was named to
                        the operator, as not brought back or as lost. A record whose append had failed
                        definitely before the restore may be in the log, too
    WritesAgain         after the restore, a leader gets an acknowledgement within ``WRITES_AGAIN_S``
"""

from __future__ import annotations

import contextlib
from collections import Counter
from io import BytesIO
from random import Random

import trio

from bookie.core.block import BLOCK_HEADER_BYTES
from bookie.core.journal_items import DELETE, decode_delete, decode_records
from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, InvalidArgument, LedgerLogError, LossUndecided, RecordsLost
from ledgerlog.log.log import Log
from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import Backup, BackupWriter, open_backup
from ledgerlog.meta.memory import Content
from ledgerlog.meta.restore import Restored, accept_loss, restore
from ledgerlog.model.layout import LEDGERS, LOG_RECORDS, ledger_id_of, log_record_of
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.record import Record
from ledgerlog.model.restoration import EPOCH_MS
from ledgerlog.repair.bringing_back import bring_back
from ledgerlog.repair.metadata_check import look_at_metadata
from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.faulty_store import FaultyStore, latency
from ledgerlog.testing.invariants import BLOCK_MAGIC, Violation
from ledgerlog.testing.log_history import LogHistory, judge
from ledgerlog.testing.swarm import Swarm
from ledgerlog.testing.world import CONVERGE_S

__all__ = ["WRITES_AGAIN_S", "RestoredStore"]

LOG = "log"
LEADERS = ("leader-1", "leader-2")

WRITES_AGAIN_S = 60.0
"""The bound of WritesAgain, in seconds.

Before the next leader writes, a killed leader's session must end, and its ledger must be recovered.
"""

SESSIONS_END_S = 40.0
ROLLS_S = 5.0
"""Some backups are made during a roll. They wait at most this long for the roll."""

A_DAY_MS = 24 * 3600 * 1000

RECORDS_MAX = 60
"""How many records are sent in each of three phases: before the backup, from the backup to the restore, and
after the restore."""


class RestoredStore:
    """One run. ``on_durable`` and ``on_metadata`` are the observers of its cluster.

    Args:
        swarm: The parameters of the run: how the log rolls, and how long records are.
        random: The generator for all other choices.
        path: The path to write the backup to. No file is there yet.
        counts: The counts that the run adds to.
    """

    def __init__(self, swarm: Swarm, random: Random, path: str, counts: Counter[str]) -> None:
        self.counts = counts
        self.told: list[str] = []
        """What happened, as text for people."""
        self._swarm = swarm
        self._random = random
        self._path = path
        self._history = LogHistory()
        self._records = 0
        self._records_max = RECORDS_MAX
        self._made: dict[int, None] = {}
        """The ledgers that were made before the restore."""
        self._is_restored = False
        self._is_accepted = False
        self._named: dict[int, None] = {}
        self._acked = trio.Event()
        self._rolled = trio.Event()
        """The log has two open ledgers, for the first time since this was made."""

    # --- observers ----------------------------------------------------------------------------

    def on_metadata(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """A node of the metadata store was written."""
        room, *components = path.split("/")
        if room == LOG_RECORDS and after is not None and not self._rolled.is_set():
            log = LogMetadata.decode_untrusted(after, log_record_of(*components))
            if len(log.open_segments) == 2:
                self._rolled.set()
        if room != LEDGERS or before is not None or after is None:
            return
        ledger_id = ledger_id_of(*components)
        if not self._is_restored:
            self._made[ledger_id] = None
        elif ledger_id <= max(self._made) and ledger_id not in self._made:
            raise Violation(f"IdsAreNew: ledger {ledger_id} is made, and {max(self._made)} was before")

    def on_durable(self, bookie: str, path: str, offset: int, data: bytes) -> None:
        """Bytes became durable on a bookie's disk."""
        if data[:8] != BLOCK_MAGIC or self._is_accepted:
            return
        stop = BLOCK_HEADER_BYTES + int.from_bytes(data[28:32], "little")
        for record in decode_records(memoryview(data), BLOCK_HEADER_BYTES, stop, path):
            if record.kind == DELETE:
                gone = decode_delete(record, path)
                raise Violation(f"NothingDeleted: {bookie} deletes {gone}, but no user deleted a ledger")

    # --- the run ------------------------------------------------------------------------------

    async def run(self, cluster: SimulatedCluster) -> None:
        """Run it, and judge its outcome.

        Raises:
            Violation: A rule is broken.
        """
        random = self._random
        async with cluster.client("maker") as client:
            await client.create_log(LOG, roll=self._swarm.roll)
        for name in LEADERS:
            cluster.start(name, self._lead)
        await self._trouble(cluster, random.uniform(0.5, 4.0))
        self._acked, self._records_max = trio.Event(), self._records + RECORDS_MAX
        with trio.move_on_after(WRITES_AGAIN_S):
            await self._acked.wait()  # So the log rolls while the backup is made.
        backup = await self._saved(cluster)
        await self._trouble(cluster, random.uniform(0.5, 8.0))
        restored = await self._restore(cluster, backup)
        await self._bring_back(cluster, restored)
        self._acked, self._records_max = trio.Event(), self._records + RECORDS_MAX
        began = cluster.simulation.now
        for name in LEADERS:
            await cluster.restart(name)
        with trio.move_on_after(WRITES_AGAIN_S):
            await self._acked.wait()
        if not self._acked.is_set():
            raise Violation(f"WritesAgain: {WRITES_AGAIN_S:g} s after the restore nothing is acknowledged")
        self.counts["worst ms to converge"] = round(1000 * (cluster.simulation.now - began))
        if random.random() < 0.5:
            self._is_accepted = True
            async with cluster.tree.open_store() as store:
                store.belong_to(cluster.cluster_id)
                await accept_loss(store)
            self.counts["losses accepted"] += 1
        await self._trouble(cluster, random.uniform(0.5, 2.0))
        await self._judge(cluster)

    async def _lead(self, client: Cluster) -> None:
        random, history = self._random, self._history
        while True:
            try:
                log = await client.open_log(LOG)
                async with log.writer() as writer:
                    self.counts["takeovers"] += 1
                    history.on_leader(writer.epoch, writer.next_offset)
                    with trio.move_on_after(random.expovariate(0.5)):
                        while self._records < self._records_max:
                            await trio.sleep(random.expovariate(1 / 0.02))
                            names = []
                            for _ in range(random.choice((1, 1, 3))):
                                self._records += 1
                                names.append(b"%d %d" % (writer.epoch, self._records))
                            call = history.on_send(names)
                            try:
                                acks = await writer.append_many(names)
                            except AppendUnknown:
                                raise
                            except LedgerLogError:
                                history.on_refused(call)
                                raise
                            history.on_acks(call, acks)
                            self.counts["acked"] += len(acks)
                            self._acked.set()
            except LossUndecided as undecided:
                self.told.append(str(undecided))
                self.counts["losses of logs accepted"] += 1
                with contextlib.suppress(LedgerLogError):
                    await log.recover(accept_loss=True)
            except LedgerLogError as error:
                self.counts["terms that failed"] += 1
                self.counts[f"told {type(error).__name__}"] += 1
            await trio.sleep(random.expovariate(1 if self._records >= self._records_max else 10))

    async def _trouble(self, cluster: SimulatedCluster, seconds: float) -> None:
        """Kill processes and start them again, for a while."""
        random = self._random
        until = cluster.simulation.now + seconds
        while cluster.simulation.now < until:
            await trio.sleep(random.expovariate(2))
            name = random.choice((*cluster.bookies, *LEADERS))
            what = random.choice(("kill", "power cut", "cut off", "nothing"))
            if what == "nothing" or not cluster.is_running(name):
                continue
            self.told.append(f"at {cluster.simulation.now:.3f} s: {what} {name}")
            if what == "cut off":
                cluster.partition(name)
                await trio.sleep(random.expovariate(2))
                cluster.heal()
                continue
            cluster.kill(name, power_cut=what == "power cut")
            await trio.sleep(random.expovariate(5))
            await _started(cluster, name)

    async def _saved(self, cluster: SimulatedCluster) -> Backup:
        call_s = self._random.choice((None, 0.0, 0.01, 0.03))
        if call_s is None:  # In the middle of a roll.
            self._rolled = trio.Event()
            with trio.move_on_after(ROLLS_S):
                await self._rolled.wait()
                self.counts["backups during a roll"] += 1
        self.told.append(f"at {cluster.simulation.now:.3f} s: backup")
        store = FaultyStore(cluster.tree, latency(call_s or 0.0))
        store.belong_to(cluster.cluster_id)
        content = BytesIO()
        await save(store, BackupWriter(content), made_ms=_now_ms(cluster))
        return _written(self._path, content.getvalue())

    async def _restore(self, cluster: SimulatedCluster, backup: Backup) -> Restored:
        before = cluster.tree.content
        if any(cluster.process(bookie).node is not None for bookie in cluster.bookies):
            await self._require_refusal(cluster, backup)
        async with cluster.tree.open_store() as store:
            is_lost = self._random.random() < 0.5
            self.told.append(
                f"at {cluster.simulation.now:.3f} s: the store is {'lost' if is_lost else 'set back'}"
            )
            cluster.faults["store restored"] += 1
            self.counts["stores lost" if is_lost else "stores set back"] += 1
            if is_lost:
                cluster.tree.exchange(Content())
                await trio.sleep(self._random.uniform(0.0, 3.0))
            else:
                for name in LEADERS:
                    await cluster.put_down(name)
                for bookie in cluster.bookies:
                    await cluster.stop(bookie)
                await trio.sleep(SESSIONS_END_S)
            restored = await restore(store, backup, now_ms=_now_ms(cluster), random_bytes=Random(0).randbytes)
        self._is_restored = True
        for call in self._history.calls:
            # A leader told its user that a record is not in the log, because the leader's successor had ended
            # the ledger before the record. The store has forgotten that end. A bookie may hold the record.
            call.is_refused = False
        if not is_lost:
            kept = {path for path, _ in backup.read()}
            gone = sum(path.startswith(LEDGERS + "/") and path not in kept for path in before.nodes)
            if restored.lost_ledgers != gone:
                raise Violation(
                    f"KeptOrNamed: the backup lacks {gone} ledgers, and the restore names "
                    f"{restored.lost_ledgers}"
                )
        self.counts["ledgers that the backup lacks"] += restored.lost_ledgers
        return restored

    async def _require_refusal(self, cluster: SimulatedCluster, backup: Backup) -> None:
        before = cluster.tree.paths("")
        content = cluster.tree.content
        async with cluster.tree.open_store() as store:
            try:
                await restore(store, backup, now_ms=_now_ms(cluster), random_bytes=Random(0).randbytes)
            except InvalidArgument as refusal:
                if "is live" not in str(refusal):
                    raise
                self.counts["restores refused"] += 1
            else:
                raise Violation("RestoreRefused: a store was restored under a live cluster")
        if (cluster.tree.paths(""), cluster.tree.content) != (before, content):
            raise Violation("RestoreRefused: a restore was refused, and something was changed")

    async def _bring_back(self, cluster: SimulatedCluster, restored: Restored) -> None:
        absent = None
        if self._random.random() < 0.3 and cluster.replication.ack_quorum > 1:
            absent = self._random.choice(cluster.bookies)
            cluster.kill(absent)
            self.told.append(f"{absent} is down when ledgers are brought back")
        for name in LEADERS:
            if self._random.random() < 0.7:
                cluster.kill(name)
        for bookie in cluster.bookies:
            if bookie != absent:
                await _started(cluster, bookie)
        async with cluster.client("operator") as client:
            check = await look_at_metadata(client.client)
            until = cluster.simulation.now + CONVERGE_S
            while missing := {*check.unregistered, *check.silent} - {absent}:
                # A ledger that no bookie lists cannot be brought back. The check names the bookies that are
                # not registered or did not answer, so wait for them.
                if cluster.simulation.now > until:
                    raise Violation(f"Convergence: {sorted(missing)} have not registered in {CONVERGE_S:g} s")
                await trio.sleep(0.5)
                check = await look_at_metadata(client.client)
            back, left = await bring_back(client.client, check, accept_absent=absent is not None)
            after = await look_at_metadata(client.client)
        self.counts["brought back"] += len(back)
        self.counts["left out"] += len(left)
        self.told += [f"brought back: {ledger}" for ledger in back]
        self.told += [f"left out: {ledger}" for ledger in left]
        self._named.update(dict.fromkeys(ledger.ledger_id for ledger in left))
        self._named.update(dict.fromkeys(ledger.ledger_id for ledger in after.forgotten))
        for name, ledger_ids in after.missing.items():
            self.told.append(f"missing of {name}: {ledger_ids}")
            self._named.update(dict.fromkeys(ledger_ids))
        if absent is not None:
            await _started(cluster, absent)

    async def _judge(self, cluster: SimulatedCluster) -> None:
        for name in LEADERS:
            await cluster.put_down(name)
        for bookie in cluster.bookies:
            await _started(cluster, bookie)
        async with cluster.client("judge") as client:
            log = await client.open_log(LOG)
            async with log.writer() as writer:
                call = self._history.on_send([b"last"])
                self._history.on_acks(call, await writer.append_many([b"last"]))
            reads = [await _read(log) for _ in range(2)]
        for call in self._history.calls:
            ledgers = {ack.position.ledger_id for ack in call.acks if ack.position is not None}
            if ledgers & self._named.keys():
                self.counts["records named as lost"] += len(call.acks)
                call.acks, call.answered_at = [], None
        (final, behind_gap), (again, _) = reads
        kept = {record.data for record in final[: behind_gap or 0]}
        for call in self._history.calls:
            for record, ack in zip(call.names, call.acks, strict=False):
                if behind_gap is not None and ack.offset < final[behind_gap].offset and record not in kept:
                    raise Violation(f"KeptOrNamed: {record!r} was acknowledged at {ack.offset}, before a gap")
        if behind_gap is not None:
            self._history.truncation_asked = final[behind_gap].offset
        judge(self._history, final[behind_gap or 0 :], again[behind_gap or 0 :])
        self.counts["records judged"] += len(final)


async def _read(log: Log) -> tuple[list[Record], int | None]:
    """Return all records of a log, and how many of them are before its last gap; None if there is no gap."""
    found: list[Record] = []
    before: int | None = None
    async with log.read(0) as records:
        while True:
            try:
                async for record in records:
                    found.append(record)
            except RecordsLost:
                before = len(found)
            else:
                return found, before


async def _started(cluster: SimulatedCluster, name: str) -> None:
    """Start a process, and wait until a bookie serves."""
    last: LedgerLogError | None = None
    with trio.move_on_after(CONVERGE_S):
        while True:
            try:
                if not cluster.is_running(name):
                    await cluster.restart(name)
                return
            except LedgerLogError as error:
                last = error
                await trio.sleep(0.5)
    raise Violation(f"Convergence: {name} has not started within {CONVERGE_S:g} s") from last


def _written(path: str, content: bytes) -> Backup:
    with open(path, "wb") as file:
        file.write(content)
    return open_backup(path)


def _now_ms(cluster: SimulatedCluster) -> int:
    """Return the time of the operator's wall clock. New ids are derived from it."""
    return EPOCH_MS + A_DAY_MS + int(cluster.simulation.now * 1000)
