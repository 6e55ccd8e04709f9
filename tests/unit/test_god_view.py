"""What the simulator's view of the metadata lets through, and what it calls a violation."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

from ledgerlog.model.archive import ArchivedFile, ArchivedLedger
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.log import LogMetadata
from ledgerlog.testing.invariants import GodView, Violation
from tests.unit.test_log_metadata import NOW, closed_chain, counts

FILE = ArchivedFile(
    log="orders/eu",
    incarnation=5,
    file="/archive/100.parquet",
    file_bytes=1000,
    footer=bytes(32),
    ledgers=(ArchivedLedger(ledger_id=100, first_offset=0, end_offset=10, last_entry=3),),
    record_count=10,
    compacted=False,
    digest=bytes(32),
    archived_ms=NOW,
    token=b"t",
)


class Tree:
    """A metadata tree in which ledger 100 is archived."""

    writer = "somebody"

    def value(self, path: str) -> bytes:
        return FILE.encode()


def change(old: LogMetadata, new: LogMetadata) -> None:
    god = GodView()
    god.look_at(cast("Any", Tree()))
    path = log_record_path(5)
    god.on_metadata(path, None, old.encode())
    god.on_metadata(path, old.encode(), new.encode())


def test_a_merge_takes_empty_ledgers_behind_an_archived_one_off_the_list() -> None:
    log = closed_chain(2).rolled(102, b"r").counted(101, counts(0), b"c")
    first, _, last = log.segments
    change(log, attrs.evolve(log, segments=(first, last), token=b"m"))


def test_a_ledger_that_is_not_counted_may_not_leave_the_list_behind_an_archived_one() -> None:
    log = closed_chain(2)
    with pytest.raises(Violation, match="ListCas"):
        change(log, attrs.evolve(log, segments=log.segments[:1], token=b"m"))
