r"""Adds: the decision about a frame of entries, and its way into the journal or the write cache.

    ADD frame --> verdict of the ledger's state (key, fence, marks) --> the journal's arena --> position
                                                                    \-> the write cache (skips the journal)

Nothing here waits. The verdict and the append are one step on one object per ledger (rule 3). So no fence
comes between the verdict and the append, and of two adds of the same id, one always comes before the other.
The sync comes later, in a task of the journal. The bookie acknowledges the add once its position is durable.

**Positions.** The position of an add is the sequence of the journal block that holds its record. If an add
skips the journal, it has the position of the record that brought its ledger's key. The first add of a ledger
goes through the journal, like every fence. So if the bookie has acknowledged an entry of a ledger, no crash
makes the bookie forget that ledger.

**Stored ids.** An add may bring ids that are not above the ledger's last known id. The adder then compares
the digests of the new entries with the digests of the stored entries. If the stored entries are no longer in
memory, the adder reads them from the disk at once, in the event loop's thread. This is expensive but rare: a
writer sends an id again only after it has lost a connection. If a stored entry reads well, nothing more is
done for it. If it is damaged, the new copy replaces it (``bookie.storage.upkeep.read_repair``). Entries that
are not stored yet go into a separate frame (rules 6 and 7).
"""

from __future__ import annotations

from bookie.core.journal_items import ADD, EntryRun
from bookie.core.ledger import BookieLedger
from bookie.core.results import status_of
from bookie.storage.disk.loss_marks import LossMarkStore
from bookie.storage.engine.lac_watch import LacWatch
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.engine.write_cache import WriteCache
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.read_repair import ReadRepair, cut_to_size
from ledgerlog.errors import StorageError
from ledgerlog.limits import ENSEMBLE_MAX, FRAME_ENTRIES_MAX, WRITER_WINDOW_ENTRIES
from ledgerlog.model.record import tuple_new
from ledgerlog.wire.entries import Entries, compact_ids, encode_add
from ledgerlog.wire.frame import RECOVERY, SPARSE, Frame, Header, Status

_SPARSE_SLACK = 2 * (WRITER_WINDOW_ENTRIES + FRAME_ENTRIES_MAX)


class Adder:
    """Takes the adds of all ledgers. ``write_cache`` is the destination of adds that skip the journal."""

    def __init__(
        self,
        *,
        journal: Journal,
        ledgers: LedgerTable,
        mender: ReadRepair,
        marks: LossMarkStore,
        write_cache: WriteCache | None,
        lac_watch: LacWatch,
        frame_bytes_max: int,
    ) -> None:
        self.is_read_only = False
        """Whether ordinary adds are refused. Recovery adds are not."""
        self.entries = 0
        self.frames = 0
        self.bytes = 0
        self._journal = journal
        self._commit = journal.commit
        self._ledgers = ledgers
        self._loaded = ledgers.loaded
        self._mender = mender
        self._marks = marks
        self._write_cache = write_cache
        self._lac_watch = lac_watch
        self._frame_bytes_max = frame_bytes_max

    @property
    def is_disk_full(self) -> bool:
        """Whether ordinary adds are refused because the disk has no room for another file of entries."""
        return self._journal.is_disk_full or (
            self._write_cache is not None and self._write_cache.is_disk_full
        )

    def add(self, frame: Frame, entries: Entries) -> int | Status:
        """Do ``Engine.add``."""
        header = frame.header
        state = self._loaded.get(header.ledger_id)
        if state is None:
            try:
                state = self._ledgers.get(header.ledger_id)
            except StorageError as error:
                return status_of(error)
        is_recovery = header.flags & RECOVERY
        if state is not None:
            refusal = state.add_refusal(header.key, bool(is_recovery))
            if refusal is not None:
                state.is_fence_told = state.is_fence_told or refusal is Status.FENCED
                return refusal
            state.was_used = True
        if not is_recovery and self._marks.now.refuses_adds(header.ledger_id):
            return Status.FENCED  # The bookie may have answered a fence and then lost it (D27.1).
        if self._journal.stopped is not None:
            return self._journal.stopped
        if not header.entry_count:
            if state is not None:
                self._tell(state, header)
            return self._commit.durable
        if not is_recovery:
            if self.is_read_only:
                return Status.READ_ONLY
            if self.is_disk_full:
                return Status.DISK_FULL
        if header.flags & SPARSE and header.last - header.first > _sparse_span_max(header.entry_count):
            return Status.BAD_REQUEST
        is_known = state is not None
        if state is None:
            state = BookieLedger(header.ledger_id, header.key)
        is_misnamed = header.flags & SPARSE and header.entry_count == header.last - header.first + 1
        verdict: int | Status
        if header.first > state.last_entry and not is_misnamed:
            verdict = self._append(state, header, frame.raw)
        else:
            verdict = self._add_some(state, header, frame.raw, entries)
        if type(verdict) is Status:
            return verdict
        if not is_known:
            self._ledgers.add(state)
        self._tell(state, header)
        return verdict

    def _append(self, state: BookieLedger, header: Header, raw: bytes | memoryview) -> int | Status:
        """Append a frame of ids that are not stored yet. Return its position, or a status that refuses it."""
        if len(raw) > self._frame_bytes_max:
            return Status.BAD_REQUEST
        if self._write_cache is not None and state.key_sequence is not None:
            return self._append_unsynced(self._write_cache, state, header, raw)
        journal = self._journal
        offset = journal.append(ADD, raw)
        if offset is None:
            return Status.DISK_FULL if journal.is_disk_full else Status.TOO_MANY_REQUESTS
        segment = journal.active
        run: EntryRun = tuple_new(
            EntryRun,
            (
                header.ledger_id,
                header.first,
                header.last,
                header.entry_count,
                segment.image.number,
                offset,
                len(raw),
                self._commit.sequence,
            ),
        )
        segment.runs.append(run)
        state.on_run(run)
        if state.key_sequence is None:
            state.key_sequence = run.sequence
        self._count(header, raw)
        return self._commit.newest

    def _append_unsynced(
        self, cache: WriteCache, state: BookieLedger, header: Header, raw: bytes | memoryview
    ) -> int | Status:
        """Append a frame that skips the journal. A crash may lose it, acknowledged or not."""
        assert state.key_sequence is not None
        place = cache.append(raw)
        if place is None:
            return Status.DISK_FULL if self.is_disk_full else Status.TOO_MANY_REQUESTS
        number, offset = place
        run = EntryRun(
            header.ledger_id,
            header.first,
            header.last,
            header.entry_count,
            number,
            offset,
            len(raw),
            self._commit.durable,  # This position is durable already, so reads find the entries at once.
        )
        cache.on_run(run)
        state.on_run(run)
        self._count(header, raw)
        return state.key_sequence

    def _count(self, header: Header, raw: bytes | memoryview) -> None:
        self.frames += 1
        self.entries += header.entry_count
        self.bytes += len(raw)

    def _add_some(
        self, state: BookieLedger, header: Header, raw: memoryview, entries: Entries
    ) -> int | Status:
        """Take an add with ids that may be stored: compare the stored ones, store the others (rules 6, 7)."""
        try:
            standing = self._mender.look_now(state, entries.ids)
        except StorageError as error:
            return status_of(error)
        stored = standing.digests
        fresh = []
        for index, (entry_id, digest) in enumerate(zip(entries.ids, entries.digests, strict=True)):
            known = stored.get(entry_id)
            if known is None:
                fresh.append(index)
            elif known != digest:
                return Status.CONFLICT
        if standing.damaged:
            try:
                refusal = self._mender.repair_now(state, standing.damaged, entries, header)
            except StorageError as error:  # The index cannot be read, so nothing was replaced.
                return status_of(error)
            if refusal is not None:
                return refusal
            fresh = [index for index in fresh if not standing.is_damaged(entries.ids[index])]
        # If entries are here but not yet durable, they become durable with the newest block at the latest.
        newest = self._commit.newest
        if not fresh:
            return newest
        ids = compact_ids([entries.ids[index] for index in fresh])
        if len(fresh) == len(entries) and isinstance(ids, range) != bool(header.flags & SPARSE):
            return self._append(state, header, raw)
        # Entries with gaps take more bytes than without. So fewer entries may not fit one frame.
        parts = cut_to_size(entries.select(fresh), self._frame_bytes_max)
        if not parts:
            return Status.BAD_REQUEST
        for part in parts:
            buffers = encode_add(
                part,
                lac=header.lac,
                lafr=header.lafr,
                key=header.key,
                recovery=bool(header.flags & RECOVERY),
            )
            smaller = header._replace(first=part.ids[0], last=part.ids[-1], entry_count=len(part))
            verdict = self._append(state, smaller, b"".join(buffers))
            if type(verdict) is Status:
                return verdict
            newest = max(verdict, newest)
        return newest

    def _tell(self, state: BookieLedger, header: Header) -> None:
        if state.tell(header.lac, header.lafr):
            self._lac_watch.on_lac(state)


def _sparse_span_max(entry_count: int) -> int:
    """Return how far apart the first and the last id of a sparse add with ``entry_count`` ids may be.

    Striping gives each bookie at least one of ``ENSEMBLE_MAX`` consecutive entries, and a writer's window has
    gaps if some of its entries are stored already. The cost of adds and of reads grows with this distance, so
    a client must not choose it freely."""
    return entry_count * ENSEMBLE_MAX + _SPARSE_SLACK
