"""A store that is read node by node changes between two reads: a backup has each log as of one instant."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import open_backup, write_backup
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.store import Create, Delete, MetadataStore, Operation, Set
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.layout import (
    LOG_NAMES,
    LOG_RECORDS,
    archive_path,
    cookie_path,
    cursor_path,
    ledger_id_of,
    ledger_path,
    log_name_path,
    log_record_path,
    snapshots_path,
    splice_path,
)
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import LogSegment
from ledgerlog.model.snapshots import ListedSnapshot, decode_snapshot_list_untrusted, encode_snapshot_list
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn
from ledgerlog.testing.memory_cluster import CLUSTER, new_tree

_REPLICATION = Replication(3, 3, 2)
_EMPTY = LogMetadata.create(name="x", incarnation=0, created_ms=0, token=b"t", replication=_REPLICATION)
_BEFORE = _EMPTY.spliced([(1, 10, 100), (2, 10, 100)], 0, b"t")
_MARK = SpliceMark(
    producer="p",
    source="s",
    batch=0,
    run="r",
    former=(),
    epoch=1,
    token=b"t",
    records=20,
    end_offset=20,
)
_CURSOR = CursorState(name="c", offset=20, pins=True, updated_ms=0, token=b"t")


def _ledger(ledger_id: int, *bookies: str) -> LedgerMetadata:
    return LedgerMetadata.create(
        ledger_id=ledger_id,
        replication=_REPLICATION,
        ensemble=bookies or ("b1", "b2", "b3"),
        key=bytes(16),
        token=b"t",
        created_ms=0,
    )


def _closed(ledger_id: int) -> bytes:
    return _ledger(ledger_id).closed(0, b"t").encode()


def _set(path: str, value: bytes) -> Set:
    return Set(path, value, 0)


_RECORD = log_record_path(0)
_AT_FIRST = {
    "cookies/b1": b"",
    "cookies/b2": b"",
    "cookies/b3": b"",
    ledger_path(1): _closed(1),
    ledger_path(2): _closed(2),
    ledger_path(6): _closed(6),
    ledger_path(7): _ledger(7).encode(),
    log_name_path("x"): b"x",
    _RECORD: _BEFORE.encode(),
    splice_path(0, "p"): _MARK.encode(),
    cursor_path(0, "c"): _CURSOR.encode(),
    archive_path(0, 1): b"file of 1",
    archive_path(0, 2): b"file of 2",
    snapshots_path(0): encode_snapshot_list([ListedSnapshot(6, 5, 1), ListedSnapshot(7, 9)]),
}
_AFTER_SPLICE = _BEFORE.spliced([(3, 5, 50)], 0, b"u")

CHANGES: dict[str, list[Operation]] = {
    "a splice": [
        Create(ledger_path(3), _closed(3)),
        _set(_RECORD, _AFTER_SPLICE.encode()),
        _set(
            splice_path(0, "p"),
            _MARK.moved(batch=1, run="r", epoch=1, token=b"u", records=5, end_offset=25).encode(),
        ),
    ],
    "a consumer of new records": [
        Create(ledger_path(3), _closed(3)),
        _set(_RECORD, _AFTER_SPLICE.encode()),
        _set(cursor_path(0, "c"), attrs.evolve(_CURSOR, offset=25).encode()),
    ],
    "a merge of archived files": [
        _set(_RECORD, _BEFORE.merged(1, 20, b"u")[0].encode()),
        _set(archive_path(0, 1), b"file of 1 and 2"),
        Delete(archive_path(0, 2), 0),
        Delete(ledger_path(1), 0),
        Delete(ledger_path(2), 0),
    ],
    "a snapshot and a truncation": [
        _set(ledger_path(7), _closed(7)),
        Create(ledger_path(8), _closed(8)),
        _set(
            snapshots_path(0),
            encode_snapshot_list([ListedSnapshot(7, 9, 1), ListedSnapshot(8, 15, 1)]),
        ),
        Delete(ledger_path(6), 0),
        _set(_RECORD, _BEFORE.truncated(9, 20, b"u")[0].encode()),
    ],
    "a new log": [
        Create(log_name_path("y"), b"y"),
        Create(log_record_path(1), attrs.evolve(_EMPTY, name="y", incarnation=1).encode()),
    ],
    "a new log with an archived file": [
        Create(log_name_path("y"), b"y"),
        Create(log_record_path(1), attrs.evolve(_EMPTY, name="y", incarnation=1).encode()),
        Create(archive_path(1, 5), b"file of 5"),
    ],
    "a deleted log": [Delete(path, 0) for path in _AT_FIRST if "/" in path and "cookies" not in path],
    "a leader on new bookies": [
        *(Create(cookie_path(bookie), b"") for bookie in ("b4", "b5", "b6")),
        Create(ledger_path(3), _ledger(3, "b4", "b5", "b6").encode()),
        _set(_RECORD, attrs.evolve(_BEFORE, segments=(*_BEFORE.segments, LogSegment(3, 1, 20))).encode()),
    ],
}


def _of_logs(nodes: Mapping[str, bytes]) -> dict[str, bytes]:
    roots = ("log", "logs", "cursors", "splices", "archives", "snapshots")
    return {path: value for path, value in nodes.items() if path.partition("/")[0] in roots}


def _nodes(tree: MemoryTree) -> dict[str, bytes]:
    return {path: node.value for path, node in tree.content.nodes.items()}


async def _saved(path: str, store: MetadataStore) -> dict[str, bytes]:
    with write_backup(path) as writer:
        await save(store, writer, made_ms=0)
    return dict(open_backup(path).read())


@attrs.define
class _ChangeAt:
    """A fault: the tree changes before the call number ``at``."""

    tree: MemoryTree
    operations: list[Operation]
    at: int
    calls: int = 0

    async def __call__(self, _: Call, go_on: GoOn) -> Any:
        call, self.calls = self.calls, self.calls + 1
        if call == self.at:
            async with self.tree.open_store() as other:
                await other.transaction(self.operations)
        return await go_on()


@pytest.mark.parametrize("change", CHANGES)
async def test_a_log_in_a_backup_is_as_it_was_at_one_instant_and_has_its_ledgers(
    tmp_path: Path, change: str
) -> None:
    for at in itertools.count():
        tree = new_tree()
        store = FaultyStore(tree)
        await store.transaction([Create(path, value) for path, value in _AT_FIRST.items()])
        before = _of_logs(_nodes(tree))
        changed = _ChangeAt(tree, CHANGES[change], at)
        store.faults.append(changed)
        store.belong_to(CLUSTER)
        found = await _saved(f"{tmp_path}/{at}", store)
        if changed.calls <= at:
            assert at > 10
            return
        assert _of_logs(found) in (before, _of_logs(_nodes(tree))), f"changed at call {at}"
        _require_ledgers(found)


async def test_a_log_that_was_made_and_deleted_during_a_backup_leaves_no_name_in_it(tmp_path: Path) -> None:
    tree = new_tree()
    store = FaultyStore(tree)
    new = CHANGES["a new log"]
    asked: list[Call] = []

    async def make_and_delete(call: Call, go_on: GoOn) -> Any:
        if call == Call("children", LOG_NAMES):
            async with tree.open_store() as other:
                await other.transaction(new)
        found = await go_on()
        if call == Call("children", LOG_RECORDS):
            asked.append(call)
            if len(asked) == 2:  # The name is read, and its record is looked for.
                async with tree.open_store() as other:
                    await other.transaction([Delete(each.path, 0) for each in new])
        return found

    store.faults.append(make_and_delete)
    store.belong_to(CLUSTER)
    assert not _of_logs(await _saved(str(tmp_path / "backup"), store))
    assert len(asked) == 2


async def test_a_snapshot_that_was_made_and_replaced_during_a_backup_is_not_listed_without_its_ledger(
    tmp_path: Path,
) -> None:
    """The record of the log does not change."""
    tree = new_tree()
    store = FaultyStore(tree)
    await store.transaction([Create(path, value) for path, value in _AT_FIRST.items()])
    asked: list[Call] = []

    async def change(call: Call, go_on: GoOn) -> Any:
        if call == Call("children", LOG_RECORDS):
            async with tree.open_store() as other:
                await other.transaction(
                    [
                        Create(ledger_path(8), _closed(8)),
                        _set(snapshots_path(0), encode_snapshot_list([ListedSnapshot(8, 15, 1)])),
                    ]
                )
        found = await go_on()
        if call == Call("get", snapshots_path(0)):
            asked.append(call)
            if len(asked) == 1:
                async with tree.open_store() as other:
                    await other.transaction(
                        [
                            Create(ledger_path(9), _closed(9)),
                            Set(snapshots_path(0), encode_snapshot_list([ListedSnapshot(9, 16, 1)]), 1),
                            Delete(ledger_path(8), 0),
                        ]
                    )
        return found

    store.faults.append(change)
    store.belong_to(CLUSTER)
    _require_ledgers(await _saved(str(tmp_path / "backup"), store))
    assert asked


def _require_ledgers(found: Mapping[str, bytes]) -> None:
    """Require that what a log lists is there, closed if it counts on that, with cookies of its bookies."""
    ledgers = {
        ledger_id: LedgerMetadata.decode_untrusted(value, ledger_id)
        for path, value in found.items()
        if path.startswith("ledgers/")
        for ledger_id in [ledger_id_of(*path.split("/")[1:])]
    }
    for ledger in ledgers.values():
        assert all(cookie_path(bookie) in found for bookie in ledger.last_fragment.ensemble)
    closed = {ledger_id for ledger_id, ledger in ledgers.items() if ledger.is_closed}
    if _RECORD in found:
        log = LogMetadata.decode_untrusted(found[_RECORD], 0)
        for segment in log.segments:
            there = closed if segment.is_counted else ledgers.keys()
            assert segment.ledger_id in there or archive_path(0, segment.ledger_id) in found
        snapshots = decode_snapshot_list_untrusted(found[snapshots_path(0)], 0)
        assert closed >= {snapshot.ledger_id for snapshot in snapshots if snapshot.is_finished}
