"""ledgerlog without ``await``: for scripts, and for threads that have no event loop.

    import ledgerlog.blocking

    with ledgerlog.blocking.connect("file:./data") as cluster:
        log = cluster.create_log("orders", exist_ok=True)
        with log.writer() as writer:
            writer.append(b"first")
            writer.append_many([b"a", b"b"])
        with log.read(start=0) as records:
            for record in records:
                print(record.offset, record.data)

One thread runs the event loop while the cluster is connected; every call is a hop to it and back. Names,
arguments and exceptions are the same as in the asynchronous library. Do not call this from coroutines: inside
trio, and in a thread that runs an asyncio loop, a call is refused. Ctrl-C interrupts a call as a cancellation
would. In a forked child every call raises WrongProcess: connect there again.
"""

from ledgerlog.blocking.connecting import connect
from ledgerlog.blocking.faces import (
    Campaign,
    Cluster,
    Cursor,
    Election,
    LedgerReader,
    Ledgers,
    LedgerWriter,
    Log,
    LogReader,
    LogWriter,
    Submission,
)

__all__ = [
    "Campaign",
    "Cluster",
    "Cursor",
    "Election",
    "LedgerReader",
    "LedgerWriter",
    "Ledgers",
    "Log",
    "LogReader",
    "LogWriter",
    "Submission",
    "connect",
]
