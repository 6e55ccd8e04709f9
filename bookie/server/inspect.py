"""Looking into a stopped bookie's directory: its cookie, its journal and its index.

These functions are for people who want to know which files exist and why. If something is damaged, the output
shows that in its place and continues. Nothing is changed or repaired. The results are plain data, ready to be
printed or written as JSON. Ledger keys are secrets and are left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from bookie.core.facts import Add, Close, Start, block_facts
from bookie.core.journal_items import Fence
from bookie.core.segment import SegmentScan, scan_segment
from bookie.server.identity import read_cookie
from bookie.server.inspect_entries import is_healed, kept_because, known_files
from bookie.storage.disk.loss_marks import read_marks
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.kinds import kind_of
from bookie.storage.journal.segments import SegmentFiles
from ledgerlog.errors import StorageCorrupt, StorageError
from ledgerlog.model.bookie import Cookie


async def show_cookie(directory: StorageDirectory) -> dict[str, Any]:
    """Return the content of the directory's cookie.

    Raises:
        StorageError: The directory has no cookie.
        StorageCorrupt: The cookie does not decode.
    """
    cookie = await _cookie(directory)
    return {
        "id": cookie.bookie_id,
        "instance": cookie.instance,
        "cluster": cookie.cluster,
        "directories": list(cookie.directories),
    }


async def show_marks(directory: StorageDirectory) -> dict[str, Any]:
    """Return the loss marks: which ledgers are fenced or in limbo because data may have been lost.

    Raises:
        StorageCorrupt: The marks are damaged.
    """
    marks = await read_marks(directory.disk, directory.path)
    if marks is None:
        return {"marks": None}
    return {
        "is_unclean": marks.is_unclean,
        "fenced_through": marks.fenced_through,
        "ledgers_in_limbo": marks.limbo_count,
    }


async def show_journal(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
    """Yield one item for each segment, in order.

    The item of a damaged segment has ``damage``. It has ``healed`` instead if the next start does not replay
    the segment, and all entries in it that the bookie still needs are intact (``is_healed``).
    """
    cookie = await _cookie(directory)
    files = SegmentFiles(directory.disk, directory.journal_path, cookie.instance)
    known = await known_files(directory)
    begins = await _replay_begins_at(directory)
    for number in await files.numbers():
        path = files.path(number)
        item: dict[str, Any] = {"segment": number, "file": path}
        try:
            header, image = await files.read(number)
            scan = scan_segment(image, header, path=path, sequence=None)
            item |= _segment_figures(image, scan, path)
        except StorageCorrupt as damage:
            is_past = begins is not None and number < begins
            healed = is_past and await is_healed(directory, cookie.instance, number)
            item["healed" if healed else "damage"] = str(damage)
        if begins is not None and number >= begins:
            item["kept_because"] = "the journal: the next start replays it"
        else:
            item["kept_because"] = kept_because(directory, known, number)
        yield item


async def _replay_begins_at(directory: StorageDirectory) -> int | None:
    """Return the segment at which replay begins; None if it is unknown."""
    try:
        index = await directory.indexes.open(directory.index_path)
    except StorageError:
        return None
    try:
        return Catalogue(index).mark_now().segment
    except StorageError:
        return None
    finally:
        await index.aclose()


def _segment_figures(image: memoryview, scan: SegmentScan, path: str) -> dict[str, Any]:
    adds = entries = entry_bytes = fences = 0
    ledgers = set()
    started_at = None
    is_closed = False
    for fact in (fact for block in scan.blocks for fact in block_facts(image, block, path)):
        is_closed = isinstance(fact, Close)
        match fact:
            case Add(run):
                adds += 1
                entries += run.entry_count
                entry_bytes += run.length - run.head_length
                ledgers.add(run.ledger_id)
            case Fence():
                fences += 1
                ledgers.add(fact.ledger_id)
            case Start(end):
                started_at = list(end)
    return {
        "bytes": len(image),
        "used_bytes": scan.end,
        "first_block": scan.blocks[0].header.sequence if scan.blocks else None,
        "last_block": scan.blocks[-1].header.sequence if scan.blocks else None,
        "adds": adds,
        "entries": entries,
        "entry_bytes": entry_bytes,
        "fences": fences,
        "ledgers": len(ledgers),
        "journal_before_ends_at": started_at,
        "is_closed": is_closed,
        "is_torn": scan.is_torn,
    }


async def show_index(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
    """Yield one item about the index itself, then one for each ledger."""
    index = await directory.indexes.open(directory.index_path)
    kind = kind_of(directory.index_path)
    try:
        catalogue = Catalogue(index)
        mark = catalogue.mark_now()
        segments, logs = await catalogue.segments(), await catalogue.logs()
        yield {
            "kind": None if kind is None else kind.name,
            "instance": catalogue.instance_now(),
            "replay_begins_at_segment": mark.segment,
            "replay_begins_at_block": mark.sequence,
            "segments": len(segments),
            "entry_logs": len(logs),
            "runs": sum(row.runs for row in (*segments, *logs)),
            "live_bytes": sum(row.live_bytes for row in (*segments, *logs)),
        }
        async with aclosing(catalogue.ledgers()) as pages:
            async for page in pages:
                for ledger_id, stored in page:
                    yield {
                        "ledger": ledger_id,
                        "is_fenced": stored.is_fenced,
                        "is_deleted": stored.is_deleted,
                        "last_add_confirmed": stored.lac,
                        "last_add_fully_replicated": stored.lafr,
                        "last_entry": stored.last_entry,
                    }
    finally:
        await index.aclose()


async def _cookie(directory: StorageDirectory) -> Cookie:
    cookie = await read_cookie(directory)
    if cookie is None:
        raise StorageError(f"{directory.path} is not a bookie's directory: it has no cookie")
    return cookie
