"""The invariants of part C.4 of the protocol, for the checker of the chain.

They are stated over the record that is stored, the ledgers as they are, and what was told to whoever
appended; never over what a core believes. ``check_edge`` looks at every write of the record, ``check_ack`` at
every acknowledgement, ``check_log`` at every state.

Two are stated more exactly than in part C. *LogOrder*: an acknowledgement may reach its caller late, also
after a successor has acknowledged others, if it is for a record that lies before all that the successor has
(the caller did not know meanwhile, so no order is broken). *DeletedIsUnlisted* is added: what its maker took
for garbage is in no list, then or ever.

A ledger that was written apart is listed at most once, while its request is there (*SplicedOnce*), and stays
then, as an acknowledged record does.

Readers that fence nothing have no events: they change nothing. What they may see of a state is compared with
each later record instead (*ReadersSeeAPrefix*).

Where an operator accepted the loss of a ledger's end, *ReplayComplete* is about what can still be read: an
acknowledged record of which there is a copy stays in the log. *GapsAreLosses*: offsets are passed over only
behind such a ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ledgerlog.model.log import LogMetadata
from tests.model.chain_nodes import ASKED, SPLICED, Ledger
from tests.model.invariants import Violation

Ledgers = Mapping[int, Ledger]


def check_edge(old: LogMetadata, new: LogMetadata, ledgers: Ledgers, writer: str) -> Iterator[Violation]:
    """Every write of the record, truncation aside."""
    before = [segment.ledger_id for segment in old.segments]
    after = [segment.ledger_id for segment in new.segments]
    written = [ledger_id for ledger_id in after[len(before) :] if not ledgers[ledger_id].request]
    if after[: len(before)] != before or len(written) > 1 or len(set(after)) != len(after):
        yield Violation("ListCas", f"{writer} makes {after} of {before}")
    for ledger_id in after[len(before) :]:
        if ledgers[ledger_id].request not in ("", ASKED):
            yield Violation("SplicedOnce", f"{writer} lists ledger {ledger_id}: {ledgers[ledger_id].request}")
    if old.sealed:
        yield Violation("ListCas", f"{writer} writes to a sealed log")
    if new.epoch not in (old.epoch, old.epoch + 1):
        yield Violation("ListCas", f"{writer} goes from epoch {old.epoch} to {new.epoch}")
    for was, now in zip(old.segments, new.segments, strict=False):
        if was.is_counted and was != now:
            yield Violation("TakeoverPrefixStable", f"{writer} makes {now} of {was}")
    seen = seen_by_readers(old, ledgers)
    for now in new.segments:
        count = min(seen.get(now.ledger_id, 0), ledgers[now.ledger_id].kept)
        if now.record_count is not None and count > now.record_count:
            yield Violation(
                "ReadersSeeAPrefix", f"readers saw {count} records of {now} before {writer} wrote"
            )
    if new.epoch > old.epoch:
        for segment in new.segments[: len(before)]:
            if not segment.is_counted or not ledgers[segment.ledger_id].is_closed:
                yield Violation("TakeoverPrefixStable", f"{writer} leads behind {segment}, which may grow")


def seen_by_readers(record: LogMetadata, ledgers: Ledgers) -> dict[int, int]:
    """How many records of each open ledger a reader may have seen that fences nothing (``log.positions``).

    Bookies tell a reader no more than what the ledger's owner knows to be confirmed, and of a closed ledger
    its end. The reader goes on in the newer ledger only if that continues what it saw of the older one, or if
    the older one is closed.
    """
    seen: dict[int, int] = {}
    end = record.counted_end
    for index, segment in enumerate(record.open_segments):
        ledger = ledgers[segment.ledger_id]
        count = ledger.confirmed if ledger.end is None else ledger.end + 1
        if index and not continues(ledger, end):
            break
        seen[segment.ledger_id] = count
        end += count
    return seen


def continues(ledger: Ledger, offset: int) -> bool:
    """Whether a newer ledger continues an older one that ends at ``offset``, for a reader."""
    return ledger.first == offset


def check_ack(
    record: LogMetadata, ledgers: Ledgers, ledger_id: int, entry_id: int, offset: int, epoch: int
) -> Iterator[Violation]:
    """A caller is told that a record is in the log at an offset."""
    told = f"e{entry_id} of ledger {ledger_id}, offset {offset}, epoch {epoch}"
    ledger = ledgers[ledger_id]
    if ledger.first is None or ledger.first + entry_id != offset:
        yield Violation("LogOrder", f"{told} is acked; the ledger starts at {ledger.first}")
    if ledger.is_short and ledger.end is not None and entry_id > ledger.end:
        return  # Bookies confirmed the record before they lost it, and the answer was late.
    index = record.index_of(ledger_id)
    if index is None:
        if offset >= record.before[0]:
            yield Violation("LogAckedInList", f"{told} is acked and the list is {_list(record)}")
        return
    if record.epoch > epoch and (end := record.segments[index].end_offset) is not None and offset >= end:
        yield Violation("OneLeader", f"{told} is acked in epoch {record.epoch}, behind the end {end}")
    if record.epoch > epoch and not record.segments[index].is_counted:
        yield Violation("OneLeader", f"{told} is acked in epoch {record.epoch}")
    for segment in record.segments[:index]:
        older = ledgers[segment.ledger_id]
        if not segment.is_counted and older.acked < older.pushed:
            yield Violation("LogOrder", f"{told} is acked, ledger {segment.ledger_id} before it is not")


def check_log(record: LogMetadata, ledgers: Ledgers) -> Iterator[Violation]:
    """Every state."""
    listed = {segment.ledger_id: segment for segment in record.segments}
    for segment in record.segments[:-2]:
        if not ledgers[segment.ledger_id].is_closed:
            yield Violation("OnlyLastTwoOpen", f"ledger {segment.ledger_id} of {_list(record)} is open")
    start: int | None = record.before[0]
    is_behind_loss = True  # Truncated records are not checked any more.
    for segment in record.segments:
        ledger = ledgers[segment.ledger_id]
        if segment.lost_before and not is_behind_loss:
            yield Violation("GapsAreLosses", f"{segment} follows a ledger that lost nothing")
        is_behind_loss = ledger.is_short
        if ledger.request not in ("", SPLICED):
            yield Violation("SplicedOnce", f"ledger {segment.ledger_id} is listed: {ledger.request}")
        if ledger.is_deleted:
            yield Violation("DeletedIsUnlisted", f"ledger {segment.ledger_id} of {_list(record)} is deleted")
        if segment.first_offset != (None if start is None else start + segment.lost_before):
            yield Violation("OffsetsDense", f"{segment} begins elsewhere than at {start}")
        start = segment.end_offset
        if segment.record_count is None:
            continue
        if ledger.end is None:
            yield Violation("TakeoverPrefixStable", f"{segment} is counted and not closed")
        elif segment.record_count and (
            segment.record_count != ledger.end + 1 or segment.first_offset != ledger.first
        ):
            yield Violation("OffsetsDense", f"{segment} is counted, the ledger is {ledger}")
        elif not segment.record_count and ledger.end >= 0 and ledger.first == segment.first_offset:
            yield Violation("ReplayComplete", f"{segment} counts as empty, the ledger is {ledger}")
        if ledger.acked_and_kept > segment.record_count:
            yield Violation("ReplayComplete", f"{ledger.acked_and_kept} records of {segment} were acked")
        if ledger.denied is not None and ledger.denied < segment.record_count:
            yield Violation("FailedMeansAbsent", f"e{ledger.denied} of {segment} was said to be lost")
    for ledger_id, ledger in ledgers.items():
        if ledger.acked_and_kept and ledger_id not in listed:
            assert ledger.first is not None
            if ledger.first + ledger.acked_and_kept > record.before[0]:
                yield Violation("LogAckedInList", f"ledger {ledger_id} is not in {_list(record)}")


def _list(record: LogMetadata) -> list[int]:
    return [segment.ledger_id for segment in record.segments]
