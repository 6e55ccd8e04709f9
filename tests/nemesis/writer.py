"""A log writer as a process: take a log over again and again, append unique records, and report it.

    python -m tests.nemesis.writer NAME URI LOG HOST SEED THINK_S TERM_S

Every line on its standard output is a JSON object, written whole with one system call. A line that announces
an append is written *before* the append begins. A line that reports the end of an append is written *after*
it. So the answers to this process survive its SIGKILL, in the pipe:

    {"event": "leads", "epoch", "offset"}
    {"event": "sent", "call", "records"}
    {"event": "acked", "call", "at", "acks": [[offset, [ledger, entry, slot], epoch], ...]}
    {"event": "refused", "call", "error"}      surely not in the log
    {"event": "unknown", "call"}
    {"event": "term failed", "error"}

``at`` is the system's monotonic clock in nanoseconds, which all processes of a machine share. It is read
before a call begins and after it has ended, so order by ``at`` is order in real time. HOST is the address of
this process's proxies (``proxies``), or ``ANYWHERE`` if there are none.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
from random import Random
from typing import Any

import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, LedgerLogError, MetadataUnavailable
from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.environment import Environment
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.model.credentials import NO_CREDENTIALS
from ledgerlog.net.tcp import TcpNetwork, parse_address
from ledgerlog.net.transport import Stream
from ledgerlog.proving import open_prover, with_secret_beside

ANYWHERE = "anywhere"
TASKS = 3
APPEND_DEADLINE_S = 5.0
CALLS = itertools.count()
"""Numbers of this process's calls."""


class NetworkFrom(TcpNetwork):
    """TCP to the advertised ports, but on this client's own address."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host

    async def connect(self, address: str) -> Stream:
        return await super().connect(f"{self._host}:{parse_address(address)[1]}")


def say(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic_ns(), **fields}).encode() + b"\n"
    written = os.write(1, line)
    assert written == len(line) <= 4096, "one write puts a whole line into the pipe"


class Writer:
    def __init__(self, name: str, log: Log, dice: Random, think_s: float, term_s: float) -> None:
        self._name = name
        self._log = log
        self._dice = dice
        self._think_s = think_s
        self._term_s = term_s

    async def run(self) -> None:
        while True:
            try:
                async with self._log.writer() as writer:
                    say("leads", epoch=writer.epoch, offset=writer.next_offset)
                    with trio.move_on_after(self._dice.expovariate(1 / self._term_s)):
                        async with trio.open_nursery() as nursery:
                            for _ in range(TASKS):
                                nursery.start_soon(self._append, writer)
            except LedgerLogError as error:
                say("term failed", error=type(error).__name__)
            await trio.sleep(self._dice.expovariate(2 / self._term_s))

    async def _append(self, writer: LogWriter) -> None:
        while True:
            await trio.sleep(self._dice.expovariate(1 / self._think_s))
            call = next(CALLS)
            size = self._dice.randrange(40, 200)
            records = [
                f"{self._name}.{call}.{n} ".ljust(size, "x") for n in range(self._dice.choice((1, 1, 2, 5)))
            ]
            say("sent", call=call, records=records)
            try:
                acks = await writer.append_many([record.encode() for record in records])
            except AppendUnknown:
                say("unknown", call=call)
                return
            except LedgerLogError as error:
                say("refused", call=call, error=type(error).__name__)
                return
            said = [(ack.offset, ack.position and tuple(ack.position), ack.epoch) for ack in acks]
            say("acked", call=call, acks=said)


async def main(*arguments: str) -> None:
    name, uri, log_name, host, seed, think_s, term_s = arguments
    parsed = parse_uri(uri)
    network = TcpNetwork() if host == ANYWHERE else NetworkFrom(host)
    while True:
        try:
            async with (
                open_store(parsed) as store,
                open_prover(store, with_secret_beside(NO_CREDENTIALS, parsed)) as prover,
                open_client(
                    store,
                    network,
                    environment=Environment(),
                    append_deadline_s=APPEND_DEADLINE_S,
                    prover=prover,
                ) as client,
            ):
                log = await Cluster(uri, client).open_log(log_name)
                await Writer(name, log, Random(seed), float(think_s), float(term_s)).run()
        except* MetadataUnavailable as errors:
            # Perhaps another process was stopped while it held the lock of the metadata file.
            logging.warning("starting over: %s", errors.exceptions)
            say("term failed", error="MetadataUnavailable")
        await trio.sleep(float(term_s) / 4)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trio.run(main, *sys.argv[1:])
