"""kill -9 in a loop, on real bookie processes, with the journal's copy of the data and without it: nothing
that was acknowledged is lost while fewer than an ack quorum lose their unsynced data at once.

Every round writes new ledgers, kills bookies in the middle of it, starts them again, and then reads
everything that was ever acknowledged. Without the journal's copy only one bookie at a time dies, of ledgers
with an ack quorum of two, and the next one only when the one before is out of limbo; its unsynced data is
really lost, because it was in its memory. With the copy any number may die at once.

``LEDGERLOG_LOOP_ROUNDS`` says how many rounds the soak has (default 100), ``LEDGERLOG_LOOP_SEED`` from which
seed. The seed of a round is in its message, and decides which bookies die and when they do, not how the
processes run.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path

import attrs
import pytest
import trio
from running_cluster import ledgerlog_ok

from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.errors import BookieUnavailable, LedgerLogError, NotEnoughBookies
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.wire.frame import Kind
from tests.commands import run_command
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

R332 = Replication(3, 3, 2)
BOOKIES = 4
WRITERS = 3
ROUND_S = 600.0
"""Long enough for a busy machine. A bookie that hangs still fails the test."""
SOAK_ROUNDS = int(os.environ.get("LEDGERLOG_LOOP_ROUNDS", "100"))
SEED = int(os.environ.get("LEDGERLOG_LOOP_SEED", "1"))

WITH_JOURNAL = "segment_bytes = 16777216\narenas = 2\n"
WITHOUT = WITH_JOURNAL + "journal_write_data = false\nwrite_cache_age_s = 0.5\n"


@attrs.define(eq=False)
class Written:
    """The acknowledged payloads, by ledger and entry."""

    ledgers: dict[int, dict[int, bytes]] = attrs.Factory(dict)

    copied: int = 0
    """How many entries bookies lost and copied from others, by their logs."""

    @property
    def count(self) -> int:
        return sum(map(len, self.ledgers.values()))


async def write(writer: LedgerWriter, name: str, kept: dict[int, bytes]) -> None:
    """Append, several entries at once, until the writer has ended."""
    numbers = iter(range(10**9))

    async def append() -> None:
        for number in numbers:
            payload = b"%s entry %d " % (name.encode(), number) + bytes(number % 900)
            try:
                kept[await writer.append(payload)] = payload
            except LedgerLogError:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(append)


async def info(local: LocalCluster, bookie_id: BookieId) -> dict[str, int]:
    reply = await local.cluster.client.pool.connection(bookie_id).request(Kind.INFO, timeout_s=5)
    fields = decode_record_untrusted(bytes(reply.body), "figures", LedgerLogError)
    return {name: fields.integer(name, low=-1) for name in ("ledgers_in_limbo", "fenced_through", "entries")}


async def wait_out_of_limbo(local: LocalCluster, bookie_id: BookieId) -> None:
    while True:
        try:
            if (await info(local, bookie_id))["ledgers_in_limbo"] == 0:
                return
        except BookieUnavailable:
            pass  # The registration may still be the previous process's.
        await trio.sleep(0.05)


async def one_round(
    local: LocalCluster, written: Written, chance: random.Random, *, one_at_a_time: bool
) -> None:
    new: list[int] = []
    victims = chance.sample(local.bookie_ids, 1 if one_at_a_time else chance.randrange(1, BOOKIES + 1))
    async with trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            writer = await created(local)
            kept = written.ledgers[writer.ledger_id] = {}
            new.append(writer.ledger_id)
            nursery.start_soon(write, writer, f"ledger {writer.ledger_id}", kept)
        await trio.sleep(chance.random() * 0.6)
        for victim in victims:
            local.bookies[victim].kill()
        for victim in victims:
            await local.bookies[victim].wait()
        await trio.sleep(chance.random() * 0.3)
        nursery.cancel_scope.cancel()
    for victim in victims:
        await local.start_serving(victim)
    for ledger_id in new:
        await recovered(local, ledger_id)
    for victim in victims:
        await wait_out_of_limbo(local, victim)


async def created(local: LocalCluster) -> LedgerWriter:
    while True:
        try:
            return await local.cluster.ledgers.create(replication=R332)
        except NotEnoughBookies:
            pass  # On a busy machine the sessions of living bookies may run out.


async def recovered(local: LocalCluster, ledger_id: int) -> None:
    while True:
        try:
            await local.cluster.ledgers.recover(ledger_id)
            return
        except LedgerLogError:
            await trio.sleep(0.1)  # Not all clients know a bookie yet that has just come back.


async def check(local: LocalCluster, written: Written, ledger_ids: list[int]) -> None:
    for ledger_id in ledger_ids:
        kept = written.ledgers[ledger_id]
        reader = await local.cluster.ledgers.open(ledger_id)
        last = await reader.last_add_confirmed()
        assert last >= max(kept, default=-1), f"LOSS: ledger {ledger_id} ends at {last}"
        found = await reader.read(0, last) if last >= 0 else []
        assert {e: found[e] for e in kept} == kept, f"LOSS: ledger {ledger_id}"
        seen = await local.cluster.ledgers.verify(ledger_id)
        assert seen.unreadable == [], f"LOSS: ledger {ledger_id}: {seen.unreadable[:5]}"


async def loop(path: Path, rounds: int, *, config: str, one_at_a_time: bool) -> Written:
    configured = trio.Path(path).with_suffix(".toml")
    await configured.write_text(config)
    written = Written()
    async with local_cluster(path, bookies=BOOKIES, config=Path(configured)) as local:
        for number in range(rounds):
            seed = SEED + number
            chance = random.Random(seed)
            before = set(written.ledgers)
            try:
                with trio.fail_after(ROUND_S):
                    await one_round(local, written, chance, one_at_a_time=one_at_a_time)
                    await check(local, written, sorted(set(written.ledgers) - before))
                if number % 10 == 9:
                    print(f"rounds={number + 1} seed={seed} acknowledged={written.count}", flush=True)
            except BaseException:
                print(f"round {number}, seed {seed}", file=sys.stderr)
                raise
        with trio.fail_after(PATIENCE_S + rounds):
            await check(local, written, sorted(written.ledgers))
        for bookie_id in local.bookie_ids:
            said = local.log_path(bookie_id).read_text(encoding="utf-8")
            written.copied += sum(map(int, re.findall(r"in limbo now; copied=(\d+)", said)))
    assert written.count > rounds, "something was acknowledged"
    return written


async def test_killing_bookies_with_the_journals_data_loses_nothing_acknowledged(tmp_path: Path) -> None:
    await loop(tmp_path / "with", 3, config=WITH_JOURNAL, one_at_a_time=False)


async def test_killing_one_bookie_at_a_time_without_the_journals_data_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    written = await loop(tmp_path / "without", 4, config=WITHOUT, one_at_a_time=True)
    assert written.copied, "they really lost something"


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["with", "without"])
async def test_many_rounds_of_kills_lose_nothing_acknowledged(tmp_path: Path, kind: str) -> None:
    config = WITH_JOURNAL if kind == "with" else WITHOUT
    written = await loop(tmp_path / kind, SOAK_ROUNDS, config=config, one_at_a_time=kind == "without")
    print(
        f"kill loop {kind} the journal's data: rounds={SOAK_ROUNDS} seeds={SEED}..{SEED + SOAK_ROUNDS - 1} "
        f"ledgers={len(written.ledgers)} acknowledged={written.count} copied={written.copied}"
    )
    assert bool(written.copied) == (kind == "without")


async def test_an_emptied_directory_comes_back_when_its_operator_says_so(tmp_path: Path) -> None:
    """Runs the commands: a start is refused, fixed, and serves, and the bookie is whole again. Accepting a
    loss where there is none changes nothing."""
    async with local_cluster(tmp_path / "cluster", bookies=3) as local:
        writer = await local.cluster.ledgers.create(replication=R332)
        for number in range(100):
            await writer.append(b"%d" % number)
        victim = local.bookies["bookie-2"]
        victim.kill()
        await victim.wait()
        for place in ("journal", "entries", "index"):
            for file in (local.data_path("bookie-2") / place).glob("*"):
                file.unlink()
            if (local.data_path("bookie-2") / place).exists():
                (local.data_path("bookie-2") / place).rmdir()
        for file in local.data_path("bookie-2").glob("*"):
            file.unlink()
        directory = str(local.data_path("bookie-2"))
        metadata = ("--metadata", local.uri, "--id", "bookie-2")
        refused = await run_command("bookie", "run", directory, *metadata)
        assert refused.status == 1
        assert "CookieMismatch" in refused.stderr
        assert "bookie cookie fix" in refused.stderr
        fixed = await run_command("bookie", "cookie", "fix", directory, *metadata, "--json")
        said = json.loads(fixed.stdout)
        assert said["id"] == "bookie-2"
        assert said["is_unclean"]
        assert said["fenced_through"] == writer.ledger_id
        await local.start_serving("bookie-2")
        with trio.fail_after(PATIENCE_S):
            await wait_out_of_limbo(local, "bookie-2")
        seen = await local.cluster.ledgers.verify(writer.ledger_id)
        assert (seen.entries, seen.under_replicated) == (100, [])
        said = await ledgerlog_ok("ledger", "recover", str(writer.ledger_id), "--accept-loss", uri=local.uri)
        assert said.decode().splitlines()[-1] == "nothing is lost"
