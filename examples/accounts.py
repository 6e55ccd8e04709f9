"""An event-sourced service with snapshots: accounts, in one process, with all of its state in a durable log.

    python examples/accounts.py DIRECTORY deposit ALICE 100
    python examples/accounts.py DIRECTORY transfer ALICE BOB 30 [REQUEST]
    python examples/accounts.py DIRECTORY balances

Each run is the whole service: it opens DIRECTORY, loads the newest snapshot, applies the events after it,
does one thing, and ends. REQUEST is the name of a request. If you repeat a request under the same name, its
change is made only once, even if the first run crashed in the middle.

What to look at: ``Accounts.apply`` makes all decisions, and no other code changes a balance. It is
deterministic: "now" is ``command.timestamp_ms``, which the leader set. A refusal is an exception, and
replicas handle it like any other result. There are no tables, no migrations of rows and no fsync here. The
log is the truth. Snapshots make the start quick, and the log is truncated up to the snapshot."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import trio

import ledgerlog

SNAPSHOT_EVERY = 5  # In records. A real service would use thousands.


class Refused(Exception):
    """The event is refused."""


class Accounts(ledgerlog.StateMachine):
    """The balances, and the time of the last change of each account."""

    def __init__(self) -> None:
        self.balances: Counter[str] = Counter()
        self.moved_ms: dict[str, int] = {}

    def apply(self, command: ledgerlog.Command) -> bytes:
        match json.loads(command.data):
            case {"deposit": int(amount), "to": str(account)} if amount > 0:
                self._move(account, amount, command)
                return b"%d" % self.balances[account]
            case {"transfer": int(amount), "from": str(giver), "to": str(taker)} if amount > 0:
                if self.balances[giver] < amount:  # Refuse before you change anything.
                    raise Refused(f"{giver} has {self.balances[giver]}")
                self._move(giver, -amount, command)
                self._move(taker, amount, command)
                return b"%d" % self.balances[giver]
            case other:
                raise Refused(f"{other} is not an event of an account")

    def _move(self, account: str, amount: int, command: ledgerlog.Command) -> None:
        self.balances[account] += amount
        self.moved_ms[account] = command.timestamp_ms

    def snapshot(self) -> Iterable[bytes]:
        for account in sorted(self.moved_ms):
            yield json.dumps([account, self.balances[account], self.moved_ms[account]]).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        rows = [json.loads(chunk) for chunk in chunks]
        self.balances = Counter({account: balance for account, balance, _ in rows})
        self.moved_ms = {account: moved for account, _, moved in rows}


async def main(*arguments: str) -> None:
    where, verb, *words = arguments
    directory = Path(where)
    async with ledgerlog.connect(f"file:{directory / 'log'}") as cluster:
        log = await cluster.create_log("accounts", exist_ok=True)
        # Shared: this replica is the only one, so the log may be truncated up to its snapshots.
        snapshots = ledgerlog.DirectorySnapshots(directory / "snapshots", shared=True)
        replica = ledgerlog.Replica(log, Accounts(), snapshots=snapshots, snapshot_every=SNAPSHOT_EVERY)
        async with replica:
            await replica.wait_leading()
            match verb, words:
                case "deposit", [account, amount]:
                    await happen(replica, {"deposit": int(amount), "to": account})
                case "transfer", [giver, taker, amount]:
                    await happen(replica, {"transfer": int(amount), "from": giver, "to": taker})
                case "transfer", [giver, taker, amount, request]:
                    event = {"transfer": int(amount), "from": giver, "to": taker}
                    await happen(replica, event, request)
                case "balances", []:
                    for account, balance in sorted((await replica.read(balances)).items()):
                        print(account, balance)
                    done = replica.statistics()
                    print(
                        f"loaded a snapshot of {done.snapshot_offset} events, and applied {done.executed} "
                        "more"
                    )
                case _:
                    sys.exit(__doc__)


def balances(accounts: Accounts) -> dict[str, int]:
    return dict(accounts.balances)


async def happen(
    replica: ledgerlog.Replica[Accounts], event: dict[str, object], request: str | None = None
) -> None:
    """Apply an event once for each request id, and print the new balance."""
    try:
        print((await replica.propose(json.dumps(event).encode(), request_id=request)).decode())
    except ledgerlog.CommandFailed as failed:
        sys.exit(f"refused: {failed.message}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    trio.run(main, *sys.argv[1:])
