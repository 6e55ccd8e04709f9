"""The decisions of a splice: which of its staged ledgers nobody needs."""

from __future__ import annotations

import attrs
import pytest

from ledgerlog.log.core import attach as core_attach
from ledgerlog.log.core.attach import Commit, Splice, SpliceNeed, Staged, StagedLedger
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication

IDS = (1, 2, 3)
COMMIT = Commit(
    producer="p", source="s", run="r", batch=0, staged=tuple(Staged(each, 1, 1, 0) for each in IDS)
)
MARK = SpliceMark(
    producer="p", source="s", batch=0, run="r", former=(), epoch=1, token=b"t", records=3, end_offset=3
)


def ledger(ledger_id: int, *, is_spliced: bool) -> StagedLedger:
    metadata = LedgerMetadata.create(
        ledger_id=ledger_id,
        replication=Replication(1, 1, 1),
        ensemble=["b"],
        key=bytes(16),
        token=b"t",
        created_ms=1,
        custom={},
    )
    return StagedLedger(metadata, 0, is_spliced=is_spliced)


@pytest.mark.parametrize(
    ("labelled", "listed", "garbage"),
    [
        ((3,), (1, 2, 3), []),
        ((3,), (), []),  # They are truncated, or a gathered ledger replaced them.
        ((), (1, 2), [3]),  # The witness is gone, and somebody staged another ledger under its number.
        ((), (), [1, 2, 3]),
    ],
)
def test_only_ledgers_of_another_attempt_are_garbage(
    monkeypatch: pytest.MonkeyPatch, labelled: tuple[int, ...], listed: tuple[int, ...], garbage: list[int]
) -> None:
    monkeypatch.setattr(core_attach, "LOG_SPLICE_LABELS_MAX", 1)
    log = LogMetadata.create(
        name="log", incarnation=5, created_ms=1, token=b"t", replication=Replication(1, 1, 1)
    )
    log = attrs.evolve(log, epoch=1).spliced(
        [(each if each in listed else 10 + each, 1, 1) for each in IDS], 1, b"s", counts=None
    )
    core = Splice("log", COMMIT, new_token=lambda: b"new")
    core.on_read(log, 1, MARK, 1, [ledger(each, is_spliced=each in labelled) for each in IDS], 1)
    assert (core.need, core.was_there) == (SpliceNeed.DONE, True)
    assert [each.metadata.ledger_id for each in core.garbage()] == garbage
    assert [each.ledger_id for each in core.witnesses] == [3]
