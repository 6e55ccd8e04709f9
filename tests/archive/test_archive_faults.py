"""A damaged file and a file that cannot be read just now cause different errors."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerlog.archive import file_reader
from ledgerlog.archive.destinations import Destination, log_directory, open_input
from ledgerlog.archive.file_reader import ArchiveFile, FileCheck
from ledgerlog.archive.file_writer import ArchiveWriter
from ledgerlog.archive.footer import read_end
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable
from ledgerlog.limits import KIB
from ledgerlog.model.archive import ArchivedFile, ArchivedLedger
from ledgerlog.model.record import RecordBatch
from tests.archive.archived_logs import path_of

ROWS = 6
GROUPS = 4


class Faulty:
    """A file of an object store. If a fault is due, a read fails with an error that has no error number."""

    def __init__(self, stream: Any, is_due: Callable[[], bool], reads: list[int]) -> None:
        self._stream = stream
        self._is_due = is_due
        self._reads = reads
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        if self._is_due():
            raise OSError("When reading information for key: AWS Error NETWORK_CONNECTION")
        data: bytes = self._stream.read(size)
        self._reads.append(len(data))
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        return int(self._stream.seek(position, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self.closed = True
        self._stream.close()


class Store:
    """Opens every file. ``faults``: the number of reads that fail from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults = 0
        self.opened = 0
        self.reads: list[int] = []
        monkeypatch.setattr(file_reader, "open_input", self._open)

    def _open(self, url: str) -> Any:
        self.opened += 1
        return pa.PythonFile(Faulty(open_input(url), self._is_due, self.reads), mode="r")

    def _is_due(self) -> bool:
        if self.faults:
            self.faults -= 1
            return True
        return False


def written(where: Path, value: bytes = b"record") -> ArchivedFile:
    """Write a file, and return its record."""
    writer = ArchiveWriter(
        Destination(str(where)),
        directory=log_directory("log", 0, "cluster"),
        log="log",
        incarnation=0,
        ledgers=[
            ArchivedLedger(ledger_id=0, first_offset=0, end_offset=ROWS * GROUPS, last_entry=GROUPS - 1)
        ],
        compacted=False,
        nonce="00",
    )
    for group in range(GROUPS):
        batch = RecordBatch(
            ledger_id=0,
            entry_id=group,
            first_offset=group * ROWS,
            first_slot=0,
            epoch=1,
            timestamp_ms=1000 + group,
            payloads=[b"%d %s" % (at, value[at * len(value) // ROWS :]) for at in range(ROWS)],
        )
        writer.add([batch])
        writer._write_group()
    facts = writer.close()
    url = writer.publish(facts)
    return ArchivedFile(
        log=facts.log,
        incarnation=facts.incarnation,
        file=url,
        file_bytes=Path(url.removeprefix("file://")).stat().st_size,
        footer=writer.end,
        ledgers=facts.ledgers,
        record_count=facts.record_count,
        compacted=facts.compacted,
        digest=facts.digest,
        archived_ms=0,
        token=b"token",
    )


def payloads_of(file: ArchiveFile, group: int) -> list[bytes]:
    return [payload for batch in file.read_group(group) for payload in batch.payloads]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


def test_a_fault_of_the_store_while_a_file_is_opened_is_not_damage(tmp_path: Path, store: Store) -> None:
    record = written(tmp_path)
    store.faults = 1
    file = ArchiveFile(record)
    assert (store.opened, file.groups) == (2, GROUPS)
    file.close()


def test_a_fault_of_the_store_while_a_group_is_read_is_not_damage(tmp_path: Path, store: Store) -> None:
    file = ArchiveFile(written(tmp_path))
    before = [payloads_of(file, group) for group in range(GROUPS)]
    for group in range(GROUPS):
        opened = store.opened
        store.faults = 1
        assert payloads_of(file, group) == before[group]
        assert store.opened == opened + 1, "it reopened the file"
        store.faults = 1
        assert file.offset_of_moment(1000 + group) == group * ROWS
    file.close()


@pytest.mark.parametrize("faults", [3, 100])
def test_a_fault_that_stays_is_unavailable_and_never_damage(
    tmp_path: Path, store: Store, faults: int
) -> None:
    record = written(tmp_path)
    file = ArchiveFile(record)
    store.faults = faults
    with pytest.raises(ArchiveUnavailable, match="NETWORK"):
        file.read_group(1)
    store.faults = faults
    with pytest.raises(ArchiveUnavailable, match="NETWORK"):
        ArchiveFile(record)
    store.faults = 0
    file.close()


def test_a_damaged_group_is_told_without_reading_the_others(tmp_path: Path, store: Store) -> None:
    record = written(tmp_path, value=random.Random(0).randbytes(100_000))
    path = path_of(record)
    size = path.stat().st_size
    assert size > GROUPS * 50_000
    file = ArchiveFile(record)
    with path.open("r+b") as stream:
        stream.seek(size // GROUPS // 2)
        damaged = stream.read(1)[0] ^ 1
        stream.seek(size // GROUPS // 2)
        stream.write(bytes([damaged]))
    store.reads.clear()
    with pytest.raises(ArchiveCorrupt, match="damaged"):
        file.read_group(0)
    assert sum(store.reads) < size, "it reads one group, a fourth of the file, three times, and the footer"
    for group in range(1, GROUPS):
        assert file.read_group(group)
    file.close()


@pytest.mark.parametrize("room", [0, 1000])
def test_a_disk_that_is_full_is_told_and_gets_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    create = Destination.create

    def small(destination: Destination, name: str) -> Any:
        return pa.PythonFile(Full(create(destination, name), room), mode="w")

    monkeypatch.setattr(Destination, "create", small)
    ledger = ArchivedLedger(ledger_id=0, first_offset=0, end_offset=1, last_entry=0)
    batch = RecordBatch(
        ledger_id=0,
        entry_id=0,
        first_offset=0,
        first_slot=0,
        epoch=1,
        timestamp_ms=1000,
        payloads=[random.Random(0).randbytes(100_000)],
    )
    made: list[ArchiveWriter] = []

    def work() -> None:
        writer = ArchiveWriter(
            Destination(str(tmp_path)),
            directory="log",
            log="log",
            incarnation=0,
            ledgers=[ledger],
            compacted=False,
            nonce="nonce",
        )
        made.append(writer)
        writer.add([batch])
        writer._write_group()

    with pytest.raises(ArchiveUnavailable, match="No space left"):
        work()
    assert len(made) == bool(room)
    for writer in made:
        writer.discard()
    assert list((tmp_path / "log").iterdir()) == []


class Full:
    """A file on a disk with room for its first bytes only. A write fails, and close fails once more."""

    def __init__(self, stream: Any, room: int) -> None:
        self._stream = stream
        self._left = room
        self.closed = False

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._stream.write(data)
        return len(data)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()
            raise OSError(errno.ENOSPC, "No space left on device")


def test_any_wrong_bit_in_the_end_of_a_file_is_told_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = written(tmp_path)
    path = path_of(record)
    ArchiveFile(record).close()
    decoded: list[object] = []
    monkeypatch.setattr(file_reader.pq, "read_metadata", decoded.append)
    good = path.read_bytes()
    length = int.from_bytes(good[-8:-4], "little") + 8
    for at in range(len(good) - length, len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(ArchiveCorrupt, match=path.name):
            ArchiveFile(record)
    assert decoded == []


def test_an_end_that_is_longer_than_what_is_read_at_once_is_read_whole(tmp_path: Path) -> None:
    table = pa.table({f"column {at}": pa.array([at]) for at in range(2000)})
    pq.write_table(table, tmp_path / "wide.parquet")
    data = (tmp_path / "wide.parquet").read_bytes()
    with (tmp_path / "wide.parquet").open("rb") as stream:
        end = read_end(pa.PythonFile(stream, mode="r"))
    assert len(end) > 64 * KIB
    assert data.endswith(end)
    assert pq.read_metadata(pa.BufferReader(end)).num_columns == 2000
    for wrong in (b"", b"PAR1", b"\xff\xff\xff\xffPAR1", data[:-1]):
        with pytest.raises(ValueError, match="end"):
            read_end(pa.BufferReader(wrong))


def test_a_file_whose_bounds_are_not_those_of_its_records_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = written(tmp_path)
    bounds = ArchiveFile.bounds

    def check() -> None:
        whole = FileCheck(record)
        while whole.step():
            pass
        whole.end()

    check()
    for wrong in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):

        def other(file: ArchiveFile, group: int, wrong: tuple[int, int, int] = wrong) -> tuple[int, ...]:
            return tuple(a + b for a, b in zip(bounds(file, group), wrong, strict=True))

        monkeypatch.setattr(ArchiveFile, "bounds", other)
        with pytest.raises(ArchiveCorrupt, match="bounds"):
            check()


def test_a_footer_that_is_damaged_is_told(tmp_path: Path, store: Store) -> None:
    record = written(tmp_path)
    path = path_of(record)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ArchiveCorrupt, match="damaged"):
        ArchiveFile(record)
    path.write_bytes(b"")
    with pytest.raises(ArchiveCorrupt, match="damaged"):
        ArchiveFile(record)
