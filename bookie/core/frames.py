"""Check a frame of entries that was read back, and decide which parts of it to trust.

A frame is checked in two parts. Its checksum covers the header and the index part (lengths, digests and ids
of its entries). Each digest covers one payload, together with the ledger's id and the entry's id. So if the
checksum matches, the ids and the digests of the run's entries are known, and each payload can be checked.

If the checksum does not match, an entry may still match its digest in the frame. Then the entry is the one
that was written: damage does not make a payload match a digest by accident.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bookie.core.journal_items import ADD, EntryRun, JournalItem, decode_add
from ledgerlog.errors import StorageCorrupt, WireError
from ledgerlog.wire.checksum import checksum, entry_digests, u32_array
from ledgerlog.wire.entries import Entries, compact_ids, decode_entries_untrusted
from ledgerlog.wire.frame import HEADER, HEADER_BYTES, SPARSE, Frame, Header, Kind
from ledgerlog.wire.pieces import split_pieces


def _is_frame_of(run: EntryRun, header: Header) -> bool:
    return (
        header.kind == Kind.ADD
        and header.length + 4 == run.length
        and header.ledger_id == run.ledger_id
        and header.first == run.first
        and header.last == run.last
        and header.entry_count == run.entry_count
        and bool(header.flags & SPARSE) != run.is_dense
    )


def decode_head(run: EntryRun, head: bytes, path: str) -> tuple[Sequence[int], Sequence[int]]:
    """Return the ids and the digests of a run's entries.

    Args:
        run: The run according to the index.
        head: The first ``run.head_length`` bytes of its frame.
        path: The file, for the error.

    Raises:
        StorageCorrupt: ``head`` does not have the bytes that were written. The error names ``path``.
    """
    count = run.entry_count
    if len(head) != run.head_length:
        raise StorageCorrupt(path, run.offset, "the file ends inside a frame")
    header = Header._make(HEADER.unpack_from(head))
    if checksum(head[8:]) != header.checksum or not _is_frame_of(run, header):
        raise StorageCorrupt(path, run.offset, f"not the frame of entries {run.first}..{run.last}")
    digests = u32_array(head[HEADER_BYTES + 4 * count : HEADER_BYTES + 8 * count])
    if run.is_dense:
        return range(run.first, run.last + 1), digests
    offsets = u32_array(head[HEADER_BYTES + 8 * count :])
    return [run.first + offset for offset in offsets], digests


def is_head_sound(frame: memoryview) -> bool:
    """Whether the head of an ADD's frame is intact, including the ids and the length. Payloads may be
    damaged."""
    try:
        run, _ = decode_add(JournalItem(ADD, 0, frame), file=0, sequence=0, path="")
        head = bytes(frame[: run.head_length])
        decode_head(run, head, "")
    except StorageCorrupt:
        return False
    lengths = u32_array(head[HEADER_BYTES : HEADER_BYTES + 4 * run.entry_count])
    return run.head_length + sum(lengths) == run.length


def decode_run(run: EntryRun, raw: bytes) -> Entries:
    """Return the entries of a run's frame. Digests are not checked.

    Raises:
        WireError: The bytes are not the frame of this run, or the head of the frame is damaged.
    """
    if len(raw) != run.length or run.head_length > run.length:
        raise WireError(f"{len(raw)} bytes of a frame of {run.length}")
    header = Header._make(HEADER.unpack_from(raw))
    if not _is_frame_of(run, header):
        raise WireError(f"not the frame of entries {run.first}..{run.last} of ledger {run.ledger_id}")
    if checksum(raw[8 : run.head_length]) != header.checksum:
        raise WireError("the frame's checksum does not match")
    entries = decode_entries_untrusted(Frame(header, memoryview(raw)))
    entries.ids = compact_ids(list(entries.ids)) if not run.is_dense else entries.ids
    return entries


def salvage(run: EntryRun, raw: bytes) -> dict[int, tuple[int, bytes]]:
    """Return the entries that match their digests in a frame with a damaged head.

    Returns:
        The digest and the payload of each such entry, by id. Empty if the lengths or the ids are damaged.
    """
    count, start = run.entry_count, run.head_length
    if len(raw) != run.length or start > run.length:
        return {}
    lengths = u32_array(raw[HEADER_BYTES : HEADER_BYTES + 4 * count])
    if sum(lengths) != run.length - start:
        return {}
    digests = u32_array(raw[HEADER_BYTES + 4 * count : HEADER_BYTES + 8 * count])
    ids: Sequence[int] = range(run.first, run.last + 1)
    if not run.is_dense:
        ids = [run.first + offset for offset in u32_array(raw[HEADER_BYTES + 8 * count : start])]
        if ids[-1] > run.last or any(a >= b for a, b in itertools.pairwise(ids)):
            return {}
    payload = raw[start:]
    payloads = split_pieces(payload, lengths)
    actual = entry_digests(run.ledger_id, ids, payload, lengths, payloads)
    return {
        entry_id: (digest, payload)
        for entry_id, digest, payload, found in zip(ids, digests, payloads, actual, strict=True)
        if digest == found
    }
