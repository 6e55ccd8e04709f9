"""Encoding a core's batches as frames: each batch is encoded once for all bookies.

All bookies get the same bytes, unless the ledger is striped or a bookie joined in the middle of a batch.
The batch keeps the encoding (``AddBatch.encoded``) from its first send to its retirement. The encoding
replaces the list of payloads, so a window of entries is in memory only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgerlog.ledger.core.pending import AddBatch, Send
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.quorum import Replication
from ledgerlog.net.transport import Buffer
from ledgerlog.wire.entries import Entries, encode_add


class _Encoded:
    __slots__ = ("entries", "frame", "parts")

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.frame: Sequence[Buffer] | None = None
        self.parts: dict[tuple[int, int], Sequence[Buffer]] = {}  # by (slot, first)


class AddEncoder:
    """Encodes the adds of one ledger.

    Args:
        ledger_id: The ledger.
        replication: The quorums of the ledger.
        key: The key of the ledger.
        recovery: Whether these are adds of a recovery, which fenced bookies take.
        marks: Returns the LAC and the LAFR that the bookies may be told now.
    """

    def __init__(
        self,
        ledger_id: int,
        replication: Replication,
        key: bytes,
        *,
        recovery: bool,
        marks: Callable[[], tuple[int, int]],
    ) -> None:
        self._ledger_id = ledger_id
        self._marks = marks
        self._replication = replication
        self._is_striped = replication.is_striped
        self._key = key
        self._recovery = recovery
        self.told_lac = NO_ENTRY
        """The LAC in the first frame of the newest batch. All bookies receive this batch, so they learn this
        LAC.

        Frames that are encoded or sent again later do not count: each goes to one bookie only."""

    def encode(self, send: Send, slot: int) -> Sequence[Buffer]:
        """Return the frame with the entries of ``send`` that the slot of this number in the ensemble holds.

        The frame carries the LAC and LAFR of the time when it was first encoded: an older LAC is still
        true."""
        batch = send.batch
        encoded: _Encoded = batch.encoded or self._encode_entries(batch)
        if send.first == batch.first and not self._is_striped:
            if encoded.frame is None:
                encoded.frame, self.told_lac = self._frame(encoded.entries)
            return encoded.frame
        part = encoded.parts.get((slot, send.first))
        if part is None:
            wanted = [
                entry_id - batch.first
                for entry_id in range(send.first, send.last + 1)
                if self._replication.holds(slot, entry_id)
            ]
            part, lac = self._frame(encoded.entries.select(wanted))
            if not encoded.parts:
                self.told_lac = lac
            encoded.parts[slot, send.first] = part
        return part

    def _encode_entries(self, batch: AddBatch) -> _Encoded:
        encoded = batch.encoded = _Encoded(Entries.build(self._ledger_id, batch.first, batch.payloads))
        batch.payloads = ()
        return encoded

    def _frame(self, entries: Entries) -> tuple[Sequence[Buffer], int]:
        """Return a frame, and the LAC in it."""
        lac, lafr = self._marks()
        return encode_add(entries, lac=lac, lafr=lafr, key=self._key, recovery=self._recovery), lac
