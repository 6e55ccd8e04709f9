"""Read repair: if an add brings stored entries again, verify the stored copies and replace damaged ones.

An add may bring ids that are stored already. If the bookie acknowledges the add, it promises that it has the
entries. So it reads and verifies the stored copies; finding them in the index is not enough. If a stored copy
is damaged, the bookie does not count as having the entry, and the copy in the add replaces the damaged one.
Recovery and repair send such adds. ``ReadRepair`` verifies and replaces in the same step as the add's
verdict, so nothing gets between the look and the append (rule 3).

    look_now     return the digests of the stored entries among the ids, and the runs with damage
    repair_now   replace each damaged run by a new run with the same entries, in the journal

**Conflicts.** The head of a frame has its own checksum. If the head is sound, it gives the digest of each
entry, even if the payload is damaged. If an add has another digest for such an entry, that is a conflict
(rule 6). If the head is damaged, an entry still counts as stored if its payload matches its digest. If the
head is damaged and the payload does not match, the add replaces the entry.

**The replacing run** (``bookie.storage.upkeep.replacing``) holds every entry of the damaged run. If one frame
is too small, several runs replace it. Each entry comes from one of these:

- the add, if the add brings the entry,
- the damaged run, if the entry is sound there,
- the damaged run even if the entry is damaged there: its bytes and its digest are copied, although they do
  not match. So the entry still counts as damaged until an add brings it.

If the frame does not say what an entry was, or its bytes cannot be read, the entry cannot be copied or
replaced. Then nothing is replaced and the add is refused. Otherwise the entry would lose its row in the
index, and the bookie would deny an entry that it has stored. Scrubbing then has the whole run restored.

**Runs that move** are not replaced either. These are runs in a file that compaction is rewriting, and
replacing runs that are still in memory. Such a run may be merged with the runs after it under one row. The
row of its replacement would overwrite that row, so the runs after it would be lost. The bookie refuses the
add, and the client may send it again.

The cost is one read of each run on the disk that holds some of the ids. Runs in memory need no read: they
were verified when they came, except replacing runs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import attrs

from bookie.core.frames import decode_head, decode_run, salvage
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger
from bookie.core.results import status_of
from bookie.storage.engine.config import LARGEST_FRAME_BYTES
from bookie.storage.engine.reader import Resident
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.compaction import Compactor
from bookie.storage.upkeep.replacing import Replacer
from ledgerlog.errors import StorageCorrupt, StorageError, WireError
from ledgerlog.wire.entries import Entries, compact_ids
from ledgerlog.wire.frame import HEADER_BYTES, Header, Status

_ENTRY_HEAD_BYTES = 12
"""Bytes of an entry in a frame in addition to its payload: length, digest, and offset of its id."""


@attrs.frozen
class Damaged:
    """A run with bytes that cannot be read as they were written."""

    run: EntryRun
    ids: Sequence[int] | None
    """The entries in the run; None if no sound bytes say which they are."""
    kept: Mapping[int, tuple[int, bytes]]
    """Digest and payload of the entries that can be copied as they are, by id."""
    error: StorageError

    def replaced_by(self, brought: Entries) -> Entries | None:
        """Return the entries of the replacing run. If ``brought`` has an entry, use that copy; otherwise use
        the stored one. Return None if an entry is missing from both, or if the ids are unknown."""
        if self.ids is None:
            return None
        payloads = dict(zip(brought.ids, zip(brought.digests, brought.payloads(), strict=True), strict=True))
        found = [payloads.get(entry_id) or self.kept.get(entry_id) for entry_id in self.ids]
        parts = [part for part in found if part is not None]
        if len(parts) < len(found):
            return None
        return Entries(
            self.run.ledger_id,
            compact_ids(list(self.ids)),
            array("I", [len(payload) for _, payload in parts]),
            array("I", [digest for digest, _ in parts]),
            b"".join([payload for _, payload in parts]),
        )


@attrs.frozen
class Standing:
    """The stored entries under some ids."""

    digests: Mapping[int, int]
    """The digests of the entries that are known to be stored, by id."""
    damaged: Sequence[Damaged]
    """The damaged runs that hold, or may hold, some of the ids."""

    def is_damaged(self, entry_id: int) -> bool:
        """Whether a damaged run is known to hold the entry."""
        return any(
            damaged.ids is not None
            and (at := bisect_left(damaged.ids, entry_id)) < len(damaged.ids)
            and damaged.ids[at] == entry_id
            for damaged in self.damaged
        )


class ReadRepair:
    """Verifies stored entries that an add brings again, and replaces the damaged ones."""

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Mapping[int, Resident],
        pool: FilePool,
        catalogue: Catalogue,
        compactor: Compactor,
        replacer: Replacer,
        frame_bytes_max: int,
    ) -> None:
        self._journal = journal
        self._residents = residents
        self._pool = pool
        self._catalogue = catalogue
        self._compactor = compactor
        self._replacer = replacer
        self._frame_bytes_max = frame_bytes_max

    # --- looking ----------------------------------------------------------------------------------

    def look_now(self, state: BookieLedger, ids: Sequence[int]) -> Standing:
        """Look up the stored entries among these ids, durable or pending.

        Other tasks do not run during this call, because an add's verdict depends on the result (rule 3). If
        the entries have left memory, this reads the disk. That happens only if an old entry is sent again or
        repaired.

        Args:
            state: The ledger.
            ids: The ids, in ascending order, at least one.

        Raises:
            StorageError: The index cannot be read, or bytes in memory that were verified are damaged now.
        """
        first, last = ids[0], ids[-1]
        runs = {run.first: run for run in state.runs_between(first, last)}
        if first <= state.index_last:
            for run in self._catalogue.runs_now(
                state.ledger_id, first=first, last=last, straddle=state.straddle
            ):
                if not state.is_replaced(run.first, self._journal.commit.newest):
                    runs.setdefault(run.first, run)
        digests: dict[int, int] = {}
        damaged: list[Damaged] = []
        wanted = frozenset(ids)
        for run in runs.values():
            at = bisect_left(ids, run.first)
            if at == len(ids) or ids[at] > run.last:
                continue
            found, damage = self._look(run, wanted)
            digests.update((e, d) for e, d in found.items() if e in wanted)
            if damage is not None:
                damaged.append(damage)
        return Standing(digests, damaged)

    def _look(self, run: EntryRun, wanted: frozenset[int]) -> tuple[Mapping[int, int], Damaged | None]:
        """Return the known digests of a run's entries, and the damage if it may affect some of ``wanted``."""
        path = self._pool.path_of(run.file)
        resident = self._residents.get(run.file)
        is_verified = resident is not None and (run.ledger_id, run.first) not in resident.restored
        try:
            ids, digests = decode_head(run, self._bytes_now(run, run.head_length), path)
        except StorageError as error:
            if is_verified:
                raise  # The computer's memory is failing; a repair would not help.
            return self._look_without_head(run, error)
        known = dict(zip(ids, digests, strict=True))
        if is_verified or wanted.isdisjoint(known):
            return known, None
        try:
            entries = decode_run(run, self._bytes_now(run, run.length))
        except WireError as error:  # For example, this read returned other bytes than the previous one.
            return known, Damaged(run, ids, {}, StorageCorrupt(path, run.offset, str(error)))
        except StorageError as error:
            return known, Damaged(run, ids, {}, error)
        bad = wanted.intersection(entries.damaged())
        if not bad:
            return known, None
        why = StorageCorrupt(path, run.offset, f"entry {min(bad)} does not match its digest")
        kept = zip(entries.digests, entries.payloads(), strict=True)
        return known, Damaged(run, ids, dict(zip(entries.ids, kept, strict=True)), why)

    def _look_without_head(self, run: EntryRun, error: StorageError) -> tuple[Mapping[int, int], Damaged]:
        try:
            kept = salvage(run, self._bytes_now(run, run.length))
        except StorageError:
            kept = {}
        ids: Sequence[int] | None = None
        if run.is_dense:
            ids = range(run.first, run.last + 1)
        elif len(kept) == run.entry_count:
            ids = list(kept)
        return {e: digest for e, (digest, _) in kept.items()}, Damaged(run, ids, kept, error)

    def _bytes_now(self, run: EntryRun, length: int) -> bytes:
        """Read the first ``length`` bytes of a run's frame, without a wait."""
        resident = self._residents.get(run.file)
        if resident is None:
            return self._pool.read_now(run.file, run.offset, length)
        return bytes(resident.image.view[run.offset : run.offset + length])

    # --- repairing --------------------------------------------------------------------------------

    def repair_now(
        self, state: BookieLedger, damaged: Sequence[Damaged], brought: Entries, header: Header
    ) -> Status | None:
        """Replace each damaged run, using the brought entries.

        Args:
            state: The ledger.
            damaged: The damaged runs, from ``look_now``.
            brought: The entries of the add.
            header: The header of the add.

        Returns:
            None if all replacements are in the journal. CORRUPT or IO_ERROR if some run cannot be replaced;
            then no run was replaced. DISK_FULL or TOO_MANY_REQUESTS if the journal has no room; then some
            runs may be replaced already, and the others are as before.
        """
        journal = self._journal
        mended: list[tuple[Damaged, list[Entries]]] = []
        for each in damaged:
            is_settled = not self._compactor.is_moving(each.run.file) and each.run.file not in self._residents
            entries = each.replaced_by(brought) if is_settled else None
            parts = [] if entries is None else cut_to_size(entries, self._frame_bytes_max)
            if not parts or not self._replacer.fits(state, parts):
                return status_of(each.error)
            mended.append((each, parts))
        for each, parts in mended:
            if not self._replacer.replace(state, each.run, parts, lac=header.lac, lafr=header.lafr):
                return Status.DISK_FULL if journal.is_disk_full else Status.TOO_MANY_REQUESTS
        return None


def cut_to_size(entries: Entries, frame_bytes_max: int) -> list[Entries]:
    """Cut entries into parts that each fit a frame of ``frame_bytes_max`` bytes, and the largest frame that
    there is. Empty if an entry does not fit."""
    frame_bytes_max = min(frame_bytes_max, LARGEST_FRAME_BYTES)
    parts: list[list[int]] = [[]]
    size = HEADER_BYTES
    for index, length in enumerate(entries.lengths):
        if parts[-1] and size + length + _ENTRY_HEAD_BYTES > frame_bytes_max:
            parts.append([])
            size = HEADER_BYTES
        size += length + _ENTRY_HEAD_BYTES
        if size > frame_bytes_max:
            return []
        parts[-1].append(index)
    return [entries.select(part) for part in parts]
