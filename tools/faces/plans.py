"""Which classes each face has, and what it leaves out and why."""

from __future__ import annotations

import attrs

from tools.faces.generator import Mirror, Plan

_CLASSES_LEFT_OUT = {
    "Term": "a thread cannot be cancelled when its leadership ends",
    "Replica": "a replica leads and follows, and a thread cannot be cancelled when its leadership ends",
    "DirectorySnapshots": "only a replica uses it",
    "LedgerSnapshots": "only a replica uses it",
    "SnapshotStore": "only a replica uses it",
}

_STAND_INS = {"LeadElection": "Election"}

_WORDS_OF_WHAT_IS_LEFT_OUT = (
    ("until ``sweep`` finds", "until `ledgerlog log sweep` finds"),
    ("``Ledgers.recover_accepting_loss``", "`ledgerlog ledger recover --accept-loss`"),
    (
        "Errors as for ``wait_confirmed``, and those of ``wait_room`` and ``push``, which say that it "
        "was not written",
        "LedgerFenced, AppendUnknown: it may or may not survive. NotEnoughBookies, LedgerClosed: the "
        "ledger was closed without it. WriteQuorumUnavailable, RecordTooLarge, InvalidArgument: it "
        "was not written",
    ),
)
"""Patterns in docstrings that name what every face leaves out, and what a face says instead."""

BLOCKING = Plan(
    name="blocking",
    file="ledgerlog/blocking/faces.py",
    support="ledgerlog.blocking.base",
    is_async=False,
    mirrors=(
        Mirror(
            "ledgerlog.cluster:Cluster",
            base="ledgerlog.blocking.base:ConnectedFace",
            left_out={
                "the asynchronous tools stand on it": "bookies store client",
                "for operators, who have `ledgerlog log sweep`": "sweep",
            },
            notes={
                "": "Close it, or use it in a ``with``; what is still open then is left in order, and the "
                "thread ends. For any number of threads."
            },
        ),
        Mirror(
            "ledgerlog.log.log:Log",
            notes={
                "writer": "A body that raises leaves as one that does not: what was taken is made durable "
                "and the ledger closed. KeyboardInterrupt leaves at once, and the ledger to the next leader."
            },
        ),
        Mirror("ledgerlog.log.campaign:Campaign"),
        Mirror("ledgerlog.log.cursors:Cursor"),
        Mirror(
            "ledgerlog.log.writer:LogWriter",
            left_out={"``failure`` says it, and a thread that waits could not be called back": "wait_over"},
            notes={
                "next_offset": "As of a moment ago, if other threads append.",
                "append_many": "This is the way to write much: it takes one hop for all of them.",
            },
        ),
        Mirror("ledgerlog.log.writer:Submission"),
        Mirror(
            "ledgerlog.log.reader:LogReader",
            base="ledgerlog.blocking.reading:RecordsFace",
            through="ledgerlog.crossing.fetching:fetch",
        ),
        Mirror(
            "ledgerlog.ledger.ledgers:Ledgers",
            left_out={
                "for operators, who have `ledgerlog ledger recover --accept-loss`": "recover_accepting_loss"
            },
            notes={"create": "The writer is a context manager as well."},
        ),
        Mirror(
            "ledgerlog.ledger.writer:LedgerWriter",
            base="ledgerlog.blocking.base:HeldLedger",
            left_out={
                "what ``append`` is made of, for callers in the loop": (
                    "frames_outstanding has_room last_add_pushed out_of_reach push set_progress_callback "
                    "set_reach_callback wait_confirmed wait_room"
                ),
                "``metadata.replication``": "replication",
                "the next call raises it": "failure denial",
                "a body that raises gives the ledger up": "aclose",
            },
        ),
        Mirror(
            "ledgerlog.ledger.reader:LedgerReader",
            base="ledgerlog.blocking.reading:EntriesFace",
            left_out={
                "``metadata`` says it": "ledger_id is_closed",
                "``Ledgers.metadata`` reads it anew": "refresh",
                "what ``read`` and ``follow`` are made of": (
                    "read_batch readable known_end find_readable is_readable wait_beyond"
                ),
            },
        ),
        Mirror(
            "ledgerlog.election.election:Election",
            left_out={_CLASSES_LEFT_OUT["Term"]: "leadership"},
            notes={"": "A thread takes part in it through ``Log.lead``."},
        ),
    ),
    classes_left_out=_CLASSES_LEFT_OUT,
    words=(
        *_WORDS_OF_WHAT_IS_LEFT_OUT,
        (
            r"Enter its ``leadership\(\)`` to take part\.(?s:.*?)(?=Args:)",
            "Give it to ``Log.lead`` to take part.\n\n",
        ),
        # Waiting is a call.
        (r"\ban (``)?async (?=with|context)", r"a \1"),
        (r"\basync (?=with|for|context|iterator)", ""),
        (r"\bawait ", ""),
        # A checkpoint is a point at which a task can be cancelled.
        (
            r"Always a checkpoint, before\s+the record is taken: if you cancel it there, the record is",
            "If it is interrupted before it takes the record, the record is",
        ),
        (r"\s*Always a checkpoint\.", ""),
        (r"Cheap; not a checkpoint\.", "Cheap."),
        (r"iterating is a checkpoint\.", "iterating waits."),
        # Ctrl-C cancels the call of a thread.
        (r"\ba cancellation", "an interruption"),
        (r"\bcancellation", "interruption"),
        (r"\bcancelled", "interrupted"),
        (r"\bCancelled", "Interrupted"),
        (r"\bcancelling", "interrupting"),
        (r"\bCancelling", "Interrupting"),
        (r"\b([Tt])ask", r"\1hread"),
    ),
    stand_ins=_STAND_INS,
    foreign=r"\b(async|await|checkpoint|[Cc]ancel\w*|task|trio|nursery)\b",
)


def _mirror(name: str) -> Mirror:
    (found,) = (mirror for mirror in BLOCKING.mirrors if mirror.name == name)
    return found


_AIO_LEFT_OUT = {
    "DirectorySnapshots": "only the replica calls it, in trio's loop: programs give it the library's own",
    "LedgerSnapshots": "only the replica calls it; `ledgerlog.aio.LedgerSnapshots` makes one of a face",
    "SnapshotStore": "only the replica calls it, in trio's loop",
}

AIO = Plan(
    name="aio",
    file="ledgerlog/aio/faces.py",
    support="ledgerlog.aio.base",
    face="AioFace",
    entered="AioEntered",
    is_async=True,
    mirrors=(
        Mirror(
            "ledgerlog.cluster:Cluster",
            base="ledgerlog.aio.base:AioCluster",
            left_out={
                "the asynchronous tools stand on it": "bookies store client",
                "for operators, who have `ledgerlog log sweep`": "sweep",
            },
            notes={"": "For any number of tasks of the loop that connected."},
        ),
        Mirror(
            "ledgerlog.log.log:Log",
            notes={
                "writer": "A body that raises leaves as one that does not: what was taken is made durable "
                "and the ledger closed. A body that is cancelled leaves at once, and the ledger to the next "
                "leader."
            },
        ),
        Mirror("ledgerlog.log.campaign:Campaign"),
        Mirror("ledgerlog.log.cursors:Cursor"),
        Mirror(
            "ledgerlog.log.writer:LogWriter",
            base="ledgerlog.aio.base:AioWriter",
            calls={"append": "_append"},
            notes={
                "next_offset": "As of a moment ago, if other tasks append.",
                "append": "Appends of many tasks cross to trio together.",
            },
        ),
        Mirror("ledgerlog.log.writer:Submission"),
        Mirror(
            "ledgerlog.log.reader:LogReader",
            base="ledgerlog.aio.reading:AioRecords",
            through="ledgerlog.crossing.fetching:fetch",
        ),
        attrs.evolve(_mirror("Ledgers"), notes={"create": "The writer is an async context manager as well."}),
        attrs.evolve(_mirror("LedgerWriter"), base="ledgerlog.aio.base:AioLedger"),
        attrs.evolve(_mirror("LedgerReader"), base="ledgerlog.aio.reading:AioEntries"),
        Mirror(
            "ledgerlog.election.election:Election",
            entered={"leadership": "ledgerlog.aio.base:LeadershipEntered"},
            notes={
                "leadership": "If the leadership ends, the task that entered it is cancelled, and the "
                "``async with`` ends as if its body had returned. A cancellation from elsewhere goes on."
            },
        ),
        Mirror("ledgerlog.election.election:Term", base="ledgerlog.aio.base:AioTerm"),
        Mirror(
            "ledgerlog.machine.replica:Replica",
            base="ledgerlog.aio.replicas:AioReplica",
            notes={
                "": "The machine runs in trio's loop: in another thread than yours, unless you connected "
                "with ``guest=True``. Touch it only through ``propose`` and ``read``."
            },
        ),
    ),
    classes_left_out=_AIO_LEFT_OUT,
    words=(
        *_WORDS_OF_WHAT_IS_LEFT_OUT,
        (r"ledgerlog\.(Replica|LedgerSnapshots)\(", r"ledgerlog.aio.\1("),
    ),
    stand_ins=_STAND_INS,
    foreign=r"\b(trio\.|nursery)\b",
)

PLANS = (BLOCKING, AIO)
