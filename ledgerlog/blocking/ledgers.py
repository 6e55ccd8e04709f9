"""Ledgers without ``await``: the faces of ``Ledgers``, ``LedgerWriter`` and ``LedgerReader``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType

from ledgerlog.blocking.portal import Held, Portal
from ledgerlog.client import ledgers, reader, writer
from ledgerlog.client.verify import LedgerVerification
from ledgerlog.limits import READ_REPLY_BYTES_TARGET
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication

__all__ = ["LedgerReader", "LedgerWriter", "Ledgers"]


class Ledgers:
    """Ledgers by their ids; see ``ledgerlog.Ledgers``."""

    def __init__(self, portal: Portal, inner: ledgers.Ledgers) -> None:
        self._portal = portal
        self._ledgers = inner

    def create(
        self,
        replication: Replication | None = None,
        metadata: Mapping[str, bytes] | None = None,
        *,
        full_pinning: bool = False,
    ) -> LedgerWriter:
        """A new, empty ledger and its only writer, which is a context manager as well."""
        made = self._portal.run(
            lambda: self._ledgers.create(
                replication=replication, metadata=metadata, full_pinning=full_pinning
            )
        )
        _, held = self._portal.enter(made)
        return LedgerWriter(self._portal, made, held)

    def open(self, ledger_id: int, recover: bool = False) -> LedgerReader:
        """A reader; with ``recover`` of a ledger that is brought to its end first."""
        return LedgerReader(
            self._portal, self._portal.run(lambda: self._ledgers.open(ledger_id, recover=recover))
        )

    def recover(self, ledger_id: int) -> LedgerMetadata:
        return self._portal.run(lambda: self._ledgers.recover(ledger_id))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._portal.run(lambda: self._ledgers.metadata(ledger_id))

    def list(self) -> list[int]:
        return self._portal.run(self._ledgers.list)

    def delete(self, ledger_id: int) -> None:
        self._portal.run(lambda: self._ledgers.delete(ledger_id))

    def verify(self, ledger_id: int) -> LedgerVerification:
        return self._portal.run(lambda: self._ledgers.verify(ledger_id))


class LedgerWriter:
    """The single writer of one ledger; see ``ledgerlog.LedgerWriter``. As a context manager it closes the
    ledger where the body succeeds, and leaves it open for recovery where it does not."""

    def __init__(self, portal: Portal, inner: writer.LedgerWriter, held: Held[writer.LedgerWriter]) -> None:
        self._portal = portal
        self._writer = inner
        self._held = held

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._writer.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        return self._writer.last_add_fully_replicated

    def append(self, payload: bytes) -> int:
        """Append one entry; its id once an ack quorum has it."""
        return self._portal.run(lambda: self._writer.append(payload))

    def append_many(self, payloads: Sequence[bytes]) -> range:
        """Append entries in their order; their ids once an ack quorum has all of them."""
        return self._portal.run(lambda: self._writer.append_many(payloads))

    def flush(self) -> None:
        self._portal.run(self._writer.flush)

    def close(self) -> int:
        """Close the ledger; its last entry."""
        last = self._portal.run(self._writer.close)
        self._held.leave()
        return last

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.leave(error)


class LedgerReader:
    """See ``ledgerlog.LedgerReader``."""

    def __init__(self, portal: Portal, inner: reader.LedgerReader) -> None:
        self._portal = portal
        self._reader = inner

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    def last_add_confirmed(self) -> int:
        return self._portal.run(self._reader.last_add_confirmed)

    def read(self, first: int, last: int) -> list[bytes]:
        """The entries from ``first`` to ``last``, both included."""
        return self._portal.run(lambda: self._reader.read(first, last))

    def follow(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Entry ids and payloads from ``first`` on, waiting for more, until the ledger is closed and read."""
        at = first
        while True:
            last = self._portal.run(partial(self._reader.wait_beyond, at - 1))
            while at <= last:
                read = partial(self._reader.read_batch, at, last, bytes_max=READ_REPLY_BYTES_TARGET)
                for payload in self._portal.run(read):
                    yield at, payload
                    at += 1
            end = self._reader.metadata.last_entry
            if end is not None and at > end:
                return
