"""An event-sourced service with snapshots: accounts, in one process, with all of its state in a durable log.

    python examples/accounts.py DIRECTORY deposit ALICE 100
    python examples/accounts.py DIRECTORY transfer ALICE BOB 30 [REQUEST]
    python examples/accounts.py DIRECTORY balances

Each run is the service: it opens DIRECTORY, restores the snapshot, applies the events after it, executes
one command, and ends. REQUEST names a request. If you send a request again with the same name, it is not
executed again, even after a crash in the middle of the first time.

What to look at: only ``Accounts.apply`` checks commands and changes balances. It is deterministic: "now" is
``command.timestamp_ms``, which comes from the leader, and a refusal is an exception, which is a result like
any other. There are no tables, no migrations of rows and no fsync here. The log has the whole state.
Snapshots make the start fast, and the log is truncated up to them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import trio

import ledgerlog

SNAPSHOT_EVERY = 5  # Records. A real service would use thousands.


class Refused(Exception):
    """The event cannot happen."""


class Accounts(ledgerlog.StateMachine):
    """Balances, and the time of the last change of each account."""

    def __init__(self) -> None:
        self.balances: Counter[str] = Counter()
        self.moved_ms: dict[str, int] = {}

    def apply(self, command: ledgerlog.Command) -> bytes:
        match json.loads(command.data):
            case {"deposit": int(amount), "to": str(account)} if amount > 0:
                self._move(account, amount, command)
                return b"%d" % self.balances[account]
            case {"transfer": int(amount), "from": str(giver), "to": str(taker)} if amount > 0:
                if self.balances[giver] < amount:  # Refuse before anything is changed.
                    raise Refused(f"{giver} has {self.balances[giver]}")
                self._move(giver, -amount, command)
                self._move(taker, amount, command)
                return b"%d" % self.balances[giver]
            case other:
                raise Refused(f"{other} is no event of an account")

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
        # Shared: this is the only replica. So the log may be truncated up to its snapshots.
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
                    print(f"from a snapshot of {done.snapshot_offset} events and {done.executed} more")
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
