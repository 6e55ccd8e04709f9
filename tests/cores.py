"""What tests of the protocol cores share: ledgers to start from, and a register for their metadata."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ledgerlog.ledger.core.recovery import LedgerRecovery
from ledgerlog.ledger.core.writer import MetadataIntent, WriterCore
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication

LEDGER = 7
KEY = b"k" * 16


def bookies(count: int, start: int = 0) -> tuple[str, ...]:
    """The names b0, b1, ..."""
    return tuple(f"b{i}" for i in range(start, start + count))


def new_metadata(
    shape: tuple[int, int, int] = (3, 3, 2),
    *,
    guaranteed: bool = False,
    state: LedgerState = LedgerState.OPEN,
    fragments: tuple[Fragment, ...] | None = None,
    last_entry: int | None = None,
) -> LedgerMetadata:
    """A ledger on b0, b1, ... where no fragments are given."""
    replication = Replication(*shape, guaranteed=guaranteed)
    return LedgerMetadata(
        ledger_id=LEDGER,
        replication=replication,
        state=state,
        fragments=fragments or (Fragment(0, bookies(shape[0])),),
        last_entry=last_entry,
        key=KEY,
        token=b"creator",
        created_ms=0,
    )


class Register:
    """A place for one ledger's metadata, with compare-and-set."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.stored: LedgerMetadata | None = metadata
        self.version = 1

    def put(self, metadata: LedgerMetadata) -> None:
        """Somebody else writes."""
        self.stored = metadata
        self.version += 1

    def write(self, intent: MetadataIntent) -> bool:
        """Whether the write was applied."""
        if self.stored is None or intent.version != self.version:
            return False
        self.put(intent.metadata)
        return True

    def carry_out(self, client: WriterCore | LedgerRecovery) -> None:
        """Do what a shell does: attempt the write, and return the stored metadata to the core."""
        assert client.intent is not None
        self.write(client.intent)
        self.show(client)

    def show(self, client: WriterCore | LedgerRecovery) -> None:
        """Return the stored metadata to the client, as a shell does after a lost write."""
        client.on_metadata_read(self.stored, self.version)


def new_token(owner: str = "token") -> Callable[[], bytes]:
    """A source of tokens; each is different."""
    numbers = itertools.count()

    def draw() -> bytes:
        return f"{owner}-{next(numbers)}".encode()

    return draw
