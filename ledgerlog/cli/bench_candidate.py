"""A process of the failover benchmark: it stands in an election and appends to a log while it leads.

    python -m ledgerlog.cli.bench_candidate URI LOG NAME

It prints JSON on standard output, one object per line. Every time is in milliseconds of the machine's
monotonic clock, which all its processes share:

    {"event": "standing"}                                  the process is ready to take over
    {"event": "leading", "term", "epoch", "marks": {...}}  the process's first append is durable
    {"event": "lost", "acknowledged"}                      the process has lost the lead. "acknowledged" is
                                                           the time at which its last append was durable

``marks`` has the times of the newest takeover: ``claiming`` and ``leading`` (the election); ``recovering``,
``fencing``, ``reading``, ``closing`` and ``done`` (recovery of the last ledger); ``created``, ``entered`` and
``appended``. After that, the process appends a record every few milliseconds, until it is killed or its
standard input ends. If it reads a byte from standard input, it cuts itself off from the bookies.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import trio

from ledgerlog.cli.bench_cut import CuttableNetwork
from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, LostLeadership
from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.environment import Environment
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.layout import candidates_path
from ledgerlog.net.tls import network_of
from ledgerlog.proving import open_prover, with_secret_beside

__all__ = ["MARKS"]

MARKS = {
    "election: claiming": "claiming",
    "election: leading": "leading",
    "recovery: announcing": "recovering",
    "recovery: fencing": "fencing",
    "recovery: reading": "reading",
    "recovery: closing": "closing",
    "recovery: done": "done",
    "ledger: created": "created",
}

_APPEND_EVERY_S = 0.005


class MarkingEnvironment(Environment):
    """An environment that keeps the time at which each step was last reached."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[str, float] = {}

    def mark(self, step: str) -> None:
        name = MARKS.get(step)
        if name is not None:
            self.note(name)

    def note(self, name: str) -> None:
        self.marks[name] = time.monotonic_ns() / 1e6


async def stand(uri: str, log_name: str, name: str) -> None:
    """Stand in the election and append while leading, until standard input ends."""
    environment = MarkingEnvironment()
    parsed = parse_uri(uri)
    credentials = with_secret_beside(Credentials.completed(os.environ), parsed)
    out = trio.lowlevel.FdStream(os.dup(sys.stdout.fileno()))

    async def say(**event: object) -> None:
        await out.send_all(f"{json.dumps(event)}\n".encode())

    async with (
        open_store(parsed, credentials=credentials) as store,
        open_prover(store, credentials) as prover,
        open_client(
            store,
            network := CuttableNetwork(network_of(credentials, cluster=store.cluster)),
            environment=environment,
            credentials=credentials,
            prover=prover,
        ) as client,
        trio.open_nursery() as nursery,
    ):
        cluster = Cluster(uri, client)

        async def lead() -> None:
            log = await cluster.open_log(log_name)
            election = cluster.election(log_name, candidate=name)
            while True:
                try:
                    async with election.leadership() as term, log.writer() as writer:
                        environment.note("entered")
                        await writer.append(name.encode())
                        environment.note("appended")
                        await say(
                            event="leading", term=int(term), epoch=writer.epoch, marks=environment.marks
                        )
                        while True:
                            await trio.sleep(_APPEND_EVERY_S)
                            await writer.append(name.encode())
                            environment.note("acknowledged")
                except (LostLeadership, AppendUnknown):
                    pass
                if "acknowledged" in environment.marks:
                    await say(event="lost", acknowledged=environment.marks.pop("acknowledged"))

        async def report() -> None:
            # Report this process's registration before it reports anything as the leader.
            async with store.watch(candidates_path(log_name)) as watch:
                while not await _is_registered(name):
                    await watch.wait()
            await say(event="standing")

        async def _is_registered(name: str) -> bool:
            for node in await store.children(candidates_path(log_name)):
                found = await store.get(f"{candidates_path(log_name)}/{node}")
                if found is not None and found.value == name.encode():
                    return True
            return False

        nursery.start_soon(lead)
        nursery.start_soon(report)
        stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        while await stdin.receive_some():
            network.cut()
        nursery.cancel_scope.cancel()


def main() -> None:
    uri, log_name, name = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trio.run(stand, uri, log_name, name)


if __name__ == "__main__":
    main()
