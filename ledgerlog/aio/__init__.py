"""ledgerlog for asyncio: the same names, under ``asyncio.run``, uvloop, FastAPI and the like.

    import asyncio
    import ledgerlog.aio

    async def main():
        async with ledgerlog.aio.connect("file:./data") as cluster:
            log = await cluster.create_log("orders", exist_ok=True)
            async with log.writer() as writer:
                await writer.append(b"first")
                await writer.append_many([b"a", b"b"])
            async with log.read(start=0) as records:
                async for record in records:
                    print(record.offset, record.data)

    asyncio.run(main())

The library itself runs under trio, in its own thread for each connection. Calls and answers cross between the
loops in batches, so tasks that append at the same time share the cost. Names, arguments and exceptions are
those of the trio library. If you cancel a call, it is cancelled in trio, too. Use a connection only in the
asyncio loop that made it.
"""

from ledgerlog.aio.connecting import connect
from ledgerlog.aio.faces import (
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
    Replica,
    Submission,
    Term,
)
from ledgerlog.aio.replicas import LedgerSnapshots

__all__ = [
    "Campaign",
    "Cluster",
    "Cursor",
    "Election",
    "LedgerReader",
    "LedgerSnapshots",
    "LedgerWriter",
    "Ledgers",
    "Log",
    "LogReader",
    "LogWriter",
    "Replica",
    "Submission",
    "Term",
    "connect",
]
