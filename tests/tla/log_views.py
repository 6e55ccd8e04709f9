"""The chain of a log and its messages as ``docs/tla/Log.tla`` names them.

Ledgers count from 1 there, and 0 is none. What a view leaves out is not observed; see ``LogTrace.tla``."""

from __future__ import annotations

from typing import NamedTuple

from ledgerlog.log.core.chain import LeaderChain, Takeover, TakeoverAim, TakeoverNeed
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import SegmentCounts
from tests.model.chain_nodes import LEADING, RESOLVING, TAKING, Ledger, ProcessNode, RecordWrite
from tests.model.chain_world import Stored
from tests.tla.values import View

NONE = -2
NO_LEDGER = 0

_PHASES = {
    TakeoverNeed.READ: "reading",
    TakeoverNeed.RECOVER: "recovering",
    TakeoverNeed.CREATE: "creating",
    TakeoverNeed.WRITE: "writing",
    TakeoverNeed.SETTLE: "settling",
}
AIMS = {TakeoverAim.LEAD: "lead", TakeoverAim.SEAL: "seal", TakeoverAim.RECOVER: "recover"}


class RecordAnswer(NamedTuple):
    """The store's answer to a write of the record."""

    process: str
    attempt: int
    ok: bool


LogMessage = RecordWrite | RecordAnswer


def number(ledger_id: int | None) -> int:
    return NO_LEDGER if ledger_id is None else ledger_id + 1


def _known(value: int | None) -> int:
    return NONE if value is None else value


def _maybe(value: View | None) -> tuple[View, ...]:
    return () if value is None else (value,)


def record_view(record: LogMetadata, version: int) -> View:
    return {
        "epoch": record.epoch,
        "segs": [
            {
                "l": number(one.ledger_id),
                "epoch": one.epoch,
                "first": _known(one.first_offset),
                "count": _known(one.record_count),
                "lost": one.lost_before,
            }
            for one in record.segments
        ],
        "first": record.first_offset,
        "before": record.before[0],
        "sealed": record.sealed,
        "token": _token_view(record.token),
        "version": version,
    }


def _token_view(token: bytes) -> tuple[str, int]:
    """Of ``A-1``, ``truncated at 3`` or ``made``: who made it, and its number."""
    words = token.decode().replace("-", " ").split()
    return words[0], int(words[-1]) if len(words) > 1 else 0


def stored_view(stored: Stored) -> View:
    return record_view(stored.record, stored.version)


def ledger_view(ledger: Ledger) -> View:
    return {
        "first": _known(ledger.first),
        "pushed": ledger.pushed,
        "confirmed": ledger.confirmed,
        "end": _known(ledger.end),
        "short": ledger.is_short,
        "deleted": ledger.is_deleted,
        "request": ledger.request,
        "acked": ledger.acked,
        "denied": _known(ledger.denied),
    }


def _counts_view(counts: SegmentCounts) -> View:
    return {"n": counts.record_count, "lost": counts.lost_before}


def process_view(node: ProcessNode) -> View:
    view: View = {
        "phase": node.phase,
        "tokens": node.tokens.count,
        "attempt": node.attempt,
        "waiting": node.is_waiting,
    }
    if node.phase == TAKING:
        assert node.takeover is not None
        return view | _takeover_view(node.takeover)
    if node.phase == LEADING:
        assert node.chain is not None
        return view | _sent_view(node) | _chain_view(node.chain)
    if node.phase == RESOLVING:
        return (
            view
            | _sent_view(node)
            | {
                "toEnd": [number(one) for one in node.to_end],
                "ends": {(number(one), end) for one, end in node.ends.items()},
                "shorts": {number(one) for one in node.short},
            }
        )
    return view


def _takeover_view(core: Takeover) -> View:
    counting = core._counting
    return {
        "phase": _PHASES[core.need],
        "aim": AIMS[core._aim],
        "base": _maybe(None if core.base is None else record_view(core.base, core.version)),
        "counts": [_counts_view(one) for one in counting.counts] if counting is not None else [],
        "short": counting is not None and counting._short is not None,
        "made": number(core.ledger_id),
        "tried": _maybe(None if core.record is None else record_view(core.record, core.version + 1)),
    }


def _chain_view(core: LeaderChain) -> View:
    splice = core._splice
    return {
        "known": (record_view(core.metadata, core.version),),
        "tried": _maybe(None if core._tried is None else record_view(core._tried, core.version + 1)),
        "current": number(core.current),
        "draining": number(core.draining),
        "spare": number(core.spare),
        "wants": core._roll_wanted,
        "asked": core._is_asked,
        "splice": () if splice is None else (number(splice.staged[0][0] if splice.staged else None),),
        "closed": _maybe(None if core._counts is None else _counts_view(core._counts)),
        "settling": core._settling,
        "refused": core._is_refused,
        "again": core._is_splice_refused,
        "finishing": core._finishing,
    }


def _sent_view(node: ProcessNode) -> View:
    queue = node.queue
    assert queue is not None
    return {
        "sent": [(number(one.ledger_id), one.entry_id, one.first_offset) for one in queue._sent],
        "next": queue.next_offset,
    }


def log_message_view(message: LogMessage) -> View:
    match message:
        case RecordWrite():
            return {
                "type": "write",
                "from": message.process,
                "attempt": message.attempt,
                "rec": record_view(message.record, message.version + 1),
                "spliced": number(message.staged),
            }
        case RecordAnswer():
            return {
                "type": "written",
                "to": message.process,
                "attempt": message.attempt,
                "ok": message.ok,
            }
