"""Writes an archived part of a log as a Parquet file (``archive.parquet`` has the format).

Everything here blocks; the jobs run it in threads. ``ArchiveUnavailable`` means: the file system failed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ledgerlog.archive.destinations import Destination, file_name, files_as_errors
from ledgerlog.archive.footer import digest_of, read_end
from ledgerlog.archive.parquet import (
    SCHEMA,
    SCHEMA_WITH_ATTRIBUTES,
    Facts,
    RecordsDigest,
    metadata_of,
    table_of,
)
from ledgerlog.errors import ArchiveUnavailable, LedgerLogError
from ledgerlog.limits import ARCHIVE_GROUP_BYTES, ARCHIVE_GROUP_ROWS
from ledgerlog.model.archive import ArchivedLedger
from ledgerlog.model.record import RecordBatch

__all__ = ["ArchiveWriter", "AttributesFound"]

_ENCODED = ("timestamp", "ledger_id", "entry_id", "epoch")
"""Columns with few different values. The file stores these columns as dictionaries."""

_KEY_FILTER: dict[str, Any] = (
    {"bloom_filter_options": {"key": {"ndv": ARCHIVE_GROUP_ROWS, "fpp": 0.05}}}
    if "bloom_filter_options" in inspect.signature(pq.write_table).parameters
    else {}
)
"""A Bloom filter of the keys of each row group, if this pyarrow writes such filters. pyarrow makes the filter
smaller if a group has fewer different keys."""


class AttributesFound(LedgerLogError):
    """A record has a key or headers, but the file has no columns for keys and headers. Begin a new file that
    has these columns."""


class ArchiveWriter:
    """Writes one file, from records in the order of their offsets. For one thread at a time.

    Args:
        destination: The destination of the file.
        directory: The log's directory at the destination.
        log: The name of the log.
        incarnation: The incarnation of the log.
        ledgers: The ledgers that the file holds, in the order of the log.
        compacted: Whether compaction may have dropped records.
        nonce: Hexadecimal digits that no other file has in its name.
        has_attributes: Whether the file gets columns for keys and headers.

    Raises:
        ArchiveUnavailable: The file cannot be created.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        directory: str,
        log: str,
        incarnation: int,
        ledgers: Sequence[ArchivedLedger],
        compacted: bool,
        nonce: str,
        has_attributes: bool = False,
    ) -> None:
        self._has_attributes = has_attributes
        self._schema = SCHEMA_WITH_ATTRIBUTES if has_attributes else SCHEMA
        self._destination = destination
        self._log = log
        self._incarnation = incarnation
        self._ledgers = tuple(ledgers)
        self._compacted = compacted
        self._nonce = nonce
        self._directory = directory
        self._temporary = f"{self._directory}/.{ledgers[0].first_offset:020d}.{nonce}.tmp"
        self._digest = RecordsDigest()
        self._count = 0
        self.file_bytes = 0
        """How many bytes were written so far."""
        self._gathered: list[RecordBatch] = []
        self._rows = self._bytes = 0
        self.end = b""
        """The digest of the file's end as it was written (``archive.footer``), once it is closed."""
        self._sink = _Sink(destination.create(self._temporary))
        try:
            with self._translated():
                self._writer = pq.ParquetWriter(
                    self._sink,
                    self._schema,
                    compression="zstd",
                    use_dictionary=list(_ENCODED),
                    write_statistics=[
                        name for name in self._schema.names if name not in ("value", "headers")
                    ],
                    write_page_checksum=True,
                    **(_KEY_FILTER if has_attributes else {}),
                )
        except ArchiveUnavailable:
            self._delete_unfinished(self._sink)
            raise

    def _translated(self) -> Any:
        return files_as_errors(self._destination.url_of(self._temporary))

    def add(self, batches: Sequence[RecordBatch]) -> None:
        """Add the next records.

        Raises:
            ArchiveUnavailable: The file system failed. Call ``discard``.
            AttributesFound: A record has a key or headers, and the file has no columns for them. Call
                ``discard`` and start again.
        """
        for batch in batches:
            if not self._has_attributes and batch.has_attributes:
                raise AttributesFound
            self._gathered.append(batch)
            self._rows += len(batch)
            self._bytes += batch.byte_length
            if self._rows >= ARCHIVE_GROUP_ROWS or self._bytes >= ARCHIVE_GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        batches, self._gathered = self._gathered, []
        self._rows = self._bytes = 0
        table = table_of(batches, self._schema)
        self._digest.add(table)
        self._count += table.num_rows
        with self._translated():
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self.file_bytes = self._sink.tell()

    def close(self) -> Facts:
        """End the file. It does not have its final name yet.

        Returns:
            The file's own description.

        Raises:
            ArchiveUnavailable: The file system failed. Call ``discard``.
        """
        if self._gathered:
            self._write_group()
        facts = Facts(
            log=self._log,
            incarnation=self._incarnation,
            ledgers=self._ledgers,
            record_count=self._count,
            compacted=self._compacted,
            digest=self._digest.digest(),
            has_attributes=self._has_attributes,
        )
        with self._translated():
            self._writer.add_key_value_metadata(metadata_of(facts))
            self._sink.keeps = True
            self._writer.close()
            self._sink.close()
        self.end = digest_of(read_end(pa.BufferReader(bytes(self._sink.kept))))
        return facts

    def publish(self, facts: Facts) -> str:
        """Give the closed file its final name.

        Args:
            facts: The result of ``close``.

        Returns:
            The URL of the file.

        Raises:
            ArchiveUnavailable: The file system failed. The file may or may not have its final name.
        """
        first, end = self._ledgers[0].first_offset, self._ledgers[-1].end_offset
        name = f"{self._directory}/{file_name(first, end, facts.digest, self._nonce)}"
        self._destination.publish(self._temporary, name)
        return self._destination.url_of(name)

    def discard(self) -> None:
        """Delete the unfinished file.

        Raises:
            ArchiveUnavailable: The file system failed. The file may be gone or not.
        """
        self._delete_unfinished(self._writer, self._sink)

    def _delete_unfinished(self, *parts: Any) -> None:
        for part in parts:
            # Closing the file writes buffered bytes. That fails on a full disk. Delete the file anyway.
            with suppress(OSError, pa.ArrowException):
                part.close()
        self._destination.delete(self._temporary)


class _Sink:
    """A file that is written, and what was written last. pyarrow calls its methods."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.keeps = False
        """Whether the next bytes are kept in memory, too."""
        self.kept = bytearray()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> None:
        self._stream.write(data)
        if self.keeps:
            self.kept += data

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()
