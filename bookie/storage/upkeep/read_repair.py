"""Entries that are brought again: what stands under their ids, and good copies in the place of rotten ones.

An add may bring ids that are stored. That it is acknowledged says that this bookie has the entries, so what
stands there is read and proved, not looked up alone: a copy whose bytes have rotted is none, and an add that
brings the entry again, as a recovery or a repair does, replaces it. ``Mender`` does both, within the step of
the add's verdict, so that nothing gets between the look and the place in the journal (rule 3).

    look_now   the digests of what is stored of the ids, and the runs of which something is damaged
    mend_now   another run in the place of each of these, of the same entries, in the journal

**What may replace what.** Where a frame's head holds, it is known what each entry was, rotten or not, and
another under its id is a conflict (rule 6). Where it does not, an entry that proves itself by its digest
counts as stored just so. Only what neither proves is given up for what the add brings.

**The run that takes the place** (``bookie.storage.upkeep.replacing``) holds every entry of the rotten one, or
is the first of several that do if one frame is too small: those that the add brings, those that are sound,
and those that are damaged and were not brought, as they are, with the digest that they do not match. These
stay damaged, and are told of as such, until somebody brings them too. If one of them can be neither carried
on nor replaced, because the frame does not say what it was or its bytes cannot be read, nothing is done and
the add is refused: its row would be lost, and what the index names is never denied. Scrubbing then has the
whole run restored.

**A run on its way** is left alone too: one in a file that compaction writes again now, and one that took the
place of another and is still in memory. It may be put together with what follows it, and have one row for all
of that, which the row of what mends it would then take the place of. The add is refused, and may come again.

It takes a read of each run on the disk that holds some of the ids. Runs in memory were verified when they
came, but for those that were put there like this.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import attrs

from bookie.core.frames import damaged_entries, decode_head, decode_run, salvage
from bookie.core.ledger import LedgerState
from bookie.core.records import Run
from bookie.core.results import status_of
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
"""What an entry takes in a frame besides its payload: length, digest, and offset of its id."""


@attrs.frozen
class Damaged:
    """A run of which something does not read as it was written."""

    run: Run
    ids: Sequence[int] | None
    """Which entries it holds; None where nothing proves it."""
    kept: Mapping[int, tuple[int, bytes]]
    """Digest and payload of those that can be carried on as they are."""
    error: StorageError

    def replaced_by(self, brought: Entries) -> Entries | None:
        """The same entries, those that are brought in place of what is there; None where that cannot be."""
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
    """What stands under some ids."""

    digests: Mapping[int, int]
    """Of each entry of which it is known that it is stored and what it was."""
    damaged: Sequence[Damaged]
    """Runs that hold some of the ids, of which some are damaged."""

    def is_damaged(self, entry_id: int) -> bool:
        """Whether one of the damaged runs holds it."""
        return any(
            damaged.ids is not None
            and (at := bisect_left(damaged.ids, entry_id)) < len(damaged.ids)
            and damaged.ids[at] == entry_id
            for damaged in self.damaged
        )


class Mender:
    """Looks at what is stored of ids that are brought again, and mends what is damaged of it."""

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

    def look_now(self, state: LedgerState, ids: Sequence[int]) -> Standing:
        """What is stored of these ids (growing), durable or pending.

        Does not let other tasks run, because an add's verdict depends on it (rule 3); it reads the disk where
        those entries left memory, which takes a re-sent or repaired entry of an older time. StorageError if
        the index cannot be read, or what was verified in memory is damaged there."""
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

    def _look(self, run: Run, wanted: frozenset[int]) -> tuple[Mapping[int, int], Damaged | None]:
        """The digests of a run's entries as far as they are known, and what is damaged."""
        path = self._pool.path_of(run.file)
        resident = self._residents.get(run.file)
        is_verified = resident is not None and (run.ledger_id, run.first) not in resident.restored
        try:
            ids, digests = decode_head(run, self._bytes_now(run, run.head_length), path)
        except StorageError as error:
            if is_verified:
                raise  # Memory is failing: nothing that is done about it here would help.
            return self._look_without_head(run, error)
        known = dict(zip(ids, digests, strict=True))
        if is_verified or wanted.isdisjoint(known):
            return known, None
        try:
            entries = decode_run(run, self._bytes_now(run, run.length))
        except WireError as error:  # Other bytes than a moment ago.
            return known, Damaged(run, ids, {}, StorageCorrupt(path, run.offset, str(error)))
        except StorageError as error:
            return known, Damaged(run, ids, {}, error)
        bad = wanted.intersection(damaged_entries(entries))
        if not bad:
            return known, None
        why = StorageCorrupt(path, run.offset, f"entry {min(bad)} does not match its digest")
        kept = zip(entries.digests, entries.payloads(), strict=True)
        return known, Damaged(run, ids, dict(zip(entries.ids, kept, strict=True)), why)

    def _look_without_head(self, run: Run, error: StorageError) -> tuple[Mapping[int, int], Damaged]:
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

    def _bytes_now(self, run: Run, length: int) -> bytes:
        """The first bytes of a run's frame."""
        resident = self._residents.get(run.file)
        if resident is None:
            return self._pool.read_now(run.file, run.offset, length)
        return bytes(resident.image.view[run.offset : run.offset + length])

    # --- mending ----------------------------------------------------------------------------------

    def mend_now(
        self, state: LedgerState, damaged: Sequence[Damaged], brought: Entries, header: Header
    ) -> Status | None:
        """Put a run in the place of each damaged one, with what is brought; None once they are in the
        journal, or why they are not: CORRUPT or IO_ERROR where what is damaged stays so, and DISK_FULL or
        TOO_MANY_REQUESTS where there is no room. What was not mended is as it was."""
        journal = self._journal
        mended: list[tuple[Damaged, list[Entries]]] = []
        for each in damaged:
            is_settled = not self._compactor.is_moving(each.run.file) and each.run.file not in self._residents
            entries = each.replaced_by(brought) if is_settled else None
            parts = [] if entries is None else _cut(entries, self._frame_bytes_max)
            if not parts or not self._replacer.fits(state, parts):
                return status_of(each.error)
            mended.append((each, parts))
        for each, parts in mended:
            if not self._replacer.replace(state, each.run, parts, lac=header.lac, lafr=header.lafr):
                return Status.DISK_FULL if journal.is_disk_full else Status.TOO_MANY_REQUESTS
        return None


def _cut(entries: Entries, frame_bytes_max: int) -> list[Entries]:
    """The same entries, in parts that each fit a frame of so many bytes; nothing where one of them does
    not."""
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
