"""The archive of a log as an Iceberg table. The table names the files that the archive has now.

The metadata store decides which files belong to a log: it has a record for each of them. The table shows the
files to programs that do not know ledgerlog. Each commit makes the table name exactly the files that these
records name. So a merge or a compaction is one snapshot that exchanges old files for new ones, and a reader
of the table sees no row twice. ``archive.jobs.publishing`` says when a job commits.

    namespace, table   "ledgerlog" and the log's name, with ``__`` for each slash
    columns            the columns of ``archive.parquet``; ``key`` and ``headers`` are null where a file lacks
                       them
    location           the log's directory; the table's own files are in ``metadata/`` below it
    snapshots          have ``ledgerlog.first-offset`` and ``ledgerlog.end-offset`` as properties

**The catalog** is an SQLite file in the destination by default. The destination must then be a local
directory. To use another catalog, give its name in pyiceberg's configuration. That configuration also has the
credentials.

**Two jobs at once.** A commit requires that the table still has the snapshot that ``load`` found. A job loads
the table before it reads the records in the metadata store. So if two jobs run, the job that read older
records cannot commit last. The same holds for a commit that a job no longer waits for: it has its own
``LoadedTable``, so it and the job's next commit do not see each other's snapshots.

**Changed by others.** Programs may rewrite the table's manifests, expire snapshots, and add tags. But if
another program changed which files the table names, ``load`` refuses the table: it may no longer show the
files of the log. Other programs may remove every snapshot that a job made. So the table's property
``ledgerlog.files`` has a digest of the names of the files that the last commit left, and its property
``ledgerlog.first-offset`` has the first offset of the log at that commit.

Everything here blocks; ``archive.jobs.publishing`` runs it in threads. Errors of pyiceberg and of the
libraries below pyiceberg become ``ArchiveUnavailable``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from ledgerlog.archive.destinations import (
    TABLE_DIRECTORY,
    Destination,
    StoredFile,
    base_name,
    files_as_errors,
    name_of_record,
    open_input,
    recorded,
)
from ledgerlog.archive.footer import read_recorded_end
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, InvalidArgument, LedgerLogError
from ledgerlog.model.archive import ArchivedFile

__all__ = ["CATALOG_FILE", "CATALOG_NAME", "LoadedTable", "LogTable", "TableChanged", "table_name"]

CATALOG_NAME = "ledgerlog"
"""The name of the catalog in ``CATALOG_FILE``."""
CATALOG_FILE = "_ledgerlog-catalog.sqlite"
"""The default catalog, in the destination. Readers of directories of Parquet skip names with ``_``."""

_HOW_TO_MAKE_ANEW = "`ledgerlog spark archive ... --new-table`, or TableOptions(is_anew=True) from Python"
_DAMAGED = (FileNotFoundError, ValidationError, ValueError)
"""The errors of pyiceberg if it finds no table in the file that the catalog names."""
_UNREADABLE = "unreadable"
_FIRST = "ledgerlog.first-offset"
_END = "ledgerlog.end-offset"
_LOG = "ledgerlog.log"
_CLUSTER = "ledgerlog.cluster"
_INCARNATION = "ledgerlog.incarnation"
_FILES = "ledgerlog.files"

_SCHEMA = Schema(
    NestedField(1, "offset", LongType(), required=True),
    NestedField(2, "timestamp", TimestamptzType(), required=True),
    NestedField(3, "value", BinaryType(), required=True),
    NestedField(4, "ledger_id", LongType(), required=True),
    NestedField(5, "entry_id", LongType(), required=True),
    NestedField(6, "slot", IntegerType(), required=True),
    NestedField(7, "epoch", LongType(), required=True),
    NestedField(8, "key", BinaryType(), required=False),
    NestedField(
        9,
        "headers",
        ListType(
            10,
            StructType(
                NestedField(11, "name", StringType(), required=True),
                NestedField(12, "value", BinaryType(), required=True),
            ),
            element_required=True,
        ),
        required=False,
    ),
)

_PROPERTIES = {
    # Do not let pyiceberg try a commit again. If another job committed first, ``archive.jobs.publishing``
    # decides again.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # The files have no statistics for these columns.
    "write.metadata.metrics.column.value": "none",
    "write.metadata.metrics.column.headers.element.name": "none",
    "write.metadata.metrics.column.headers.element.value": "none",
    # The files do not store ids of columns.
    "schema.name-mapping.default": _SCHEMA.name_mapping.model_dump_json(),
}


class TableChanged(Exception):
    """The table has another snapshot than ``LogTable.load`` found. Nothing was committed."""


def table_name(log: str) -> str:
    """Return the name of a log's table in its namespace."""
    return log.replace("/", "__")


@attrs.frozen(kw_only=True)
class LoadedTable:
    """What ``LogTable.load`` found. It is the base of one ``commit``."""

    files: Mapping[str, DataFile] = attrs.field(factory=dict)
    """The files that the table names, by their URLs as ``LogTable.by_url`` makes them. Empty if there is no
    table, or if ``commit`` has to make a new table."""
    table: Table | None = None
    """The table; None: ``commit`` makes one."""
    first_offset: str | None = None
    """The first offset of the log at the last commit of a job; None: an earlier version made that commit."""
    replaced: str | None = None
    """The table that ``commit`` replaces: the place of its metadata, or ``_UNREADABLE``. None: replace
    none."""


class LogTable:
    """The table of one log. A thread that nobody waits for any more may still use it.

    Args:
        destination: The destination of the archive. The table's own files go there.
        catalog: The name of a catalog in pyiceberg's configuration; None: the SQLite file in the destination.
        namespace: The namespace of the table.
        directory: The log's directory at the destination.
        log: The name of the log.
        incarnation: The incarnation of the log.
        cluster: The cluster's id.
        is_anew: Whether the first ``commit`` makes a new table, even if the present table is damaged or
            names files that the log does not have.

    Raises:
        InvalidArgument: pyiceberg has no catalog of this name, or the destination is not a local directory
            and no catalog is named.
        ArchiveUnavailable: The catalog did not answer.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        catalog: str | None,
        namespace: str,
        directory: str,
        log: str,
        incarnation: int,
        cluster: str,
        is_anew: bool = False,
    ) -> None:
        self._destination = destination
        self._places: dict[str, Destination] = {}
        """The destinations of files, by their URLs in records."""
        self._directory = directory
        self._namespace = namespace
        self._identifier = (namespace, table_name(log))
        self._mine = {_LOG: log, _CLUSTER: cluster, _INCARNATION: f"{incarnation}"}
        self.name = ".".join(self._identifier)
        """The namespace and the name of the table."""
        self._is_anew = is_anew
        with self._translated():
            self._catalog = self._open_catalog(catalog)

    def _open_catalog(self, name: str | None) -> Catalog:
        if name is not None:
            try:
                catalog = load_catalog(name)
            except ValueError as cause:
                raise InvalidArgument(f"pyiceberg has no catalog {name!r}: {cause}") from None
            # Without these, pyiceberg ignores AWS_ENDPOINT_URL, and waits without a bound for a dead server.
            for key, value in self._destination.table_properties().items():
                catalog.properties.setdefault(key, value)
            return catalog
        path = self._destination.local_path(CATALOG_FILE)
        if path is None:
            raise InvalidArgument(
                f"{self._destination!r} is not a local directory, so the catalog of its tables cannot be a "
                f"file in it: name a catalog from pyiceberg's configuration"
            )
        return SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{path}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (LedgerLogError, TableChanged):
            raise
        except CommitFailedException as cause:
            raise TableChanged(self.name) from cause
        except Exception as cause:  # pyiceberg's errors have no common base; its catalogs raise any error.
            raise ArchiveUnavailable(
                f"of table {self.name}",
                f"{type(cause).__name__}: {' '.join(str(cause).split())}; check the catalog and the "
                "destination, then run the job again",
            ) from cause

    def close(self) -> None:
        """Close the catalog's connections."""
        self._catalog.close()

    # --- reading ------------------------------------------------------------------------------

    def load(self) -> LoadedTable:
        """Read the table.

        Raises:
            InvalidArgument: The table belongs to another log or another cluster.
            ArchiveCorrupt: The table is damaged, or another program changed which files it names.
            ArchiveUnavailable: The catalog or the destination did not answer.
        """
        with self._translated():
            try:
                table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                return LoadedTable()
            except _DAMAGED as cause:
                if self._is_anew:
                    return LoadedTable(replaced=_UNREADABLE)
                raise self._damage(cause) from cause
            if not self._is_of(table):
                self._expect_superseded(table)
            elif not self._is_anew:
                try:
                    return LoadedTable(
                        files=self._files(table), table=table, first_offset=table.properties.get(_FIRST)
                    )
                except _DAMAGED as cause:
                    raise self._damage(cause) from cause
            return LoadedTable(replaced=table.metadata_location)

    def _files(self, table: Table) -> dict[str, DataFile]:
        """Return the files of a table. Refuse the table if another program changed its files."""
        head = table.current_snapshot()
        if head is None:
            return {}
        files, has_deletes = _files_in(table, head)
        ours = next(filter(_is_ours, ancestors_of(head, table.metadata)), None)
        if ours == head:
            return files
        if not has_deletes:
            if _digest(files) == table.properties.get(_FILES):
                return files
            # The table was rolled back before that, or its last commit is from version 0.1.
            if ours is not None and files.keys() == _files_in(table, ours)[0].keys():
                return files
        raise self._refusal(
            f"another program changed it: snapshot {head.snapshot_id} does not list the files of the log. "
            f"Roll the table back to the previous snapshot"
        )

    def _damage(self, cause: Exception) -> ArchiveCorrupt:
        return self._refusal(f"it is damaged: {' '.join(str(cause).split())}")

    def _refusal(self, why: str) -> ArchiveCorrupt:
        return ArchiveCorrupt(f"of table {self.name}", f"{why}; or make a new table: {_HOW_TO_MAKE_ANEW}")

    def _expect_superseded(self, table: Table) -> None:
        """Check that a table belongs to an earlier, deleted log of this name."""
        found = table.properties
        earlier = self._incarnation_in(table)
        if earlier is None or earlier > int(self._mine[_INCARNATION]):
            raise InvalidArgument(
                f"table {self.name} belongs to log {found.get(_LOG)!r}, incarnation "
                f"{found.get(_INCARNATION)}, of cluster {found.get(_CLUSTER)}: choose another namespace or "
                "another catalog"
            )

    def _is_superseded_by(self, table: Table) -> bool:
        """Whether a table belongs to a later log of this name. It has replaced the table of this log."""
        later = self._incarnation_in(table)
        return later is not None and later > int(self._mine[_INCARNATION])

    def _incarnation_in(self, table: Table) -> int | None:
        """Return the incarnation of the log of this name that a table belongs to; None: of no such log."""
        found = table.properties
        incarnation = found.get(_INCARNATION, "")
        is_named = all(found.get(key) == self._mine[key] for key in (_LOG, _CLUSTER))
        return int(incarnation) if is_named and incarnation.isdecimal() else None

    def by_url(self, records: Iterable[ArchivedFile]) -> dict[str, ArchivedFile]:
        """Return the records by the URLs of their files. As in tables, URLs lack options and passwords.

        Raises:
            ArchiveUnavailable: pyarrow on this machine does not know the place of a file.
            ArchiveCorrupt: A record names a file that cannot be its own.
        """
        return {self._url_of(record): record for record in records}

    def _url_of(self, record: ArchivedFile) -> str:
        where, name = name_of_record(record)
        if where not in self._places:  # Finding an object store may take a request.
            with recorded(record.file):
                self._places[where] = Destination(where)
        return self._places[where].table_url(name)

    def data_file(self, record: ArchivedFile) -> DataFile:
        """Describe the file of a record for the table. The description comes from the file's checked footer.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged, or it is not the one that was recorded.
        """
        with open_input(record) as stream, files_as_errors(record.file):
            try:
                end = read_recorded_end(stream, record)
            except ValueError as cause:
                raise ArchiveCorrupt(record.file, f"it is damaged: {cause}") from cause
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(pa.BufferReader(end)),
            stats_columns=compute_statistics_plan(_SCHEMA, _PROPERTIES),
            parquet_column_mapping=parquet_path_to_id_mapping(_SCHEMA),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._url_of(record),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=record.file_bytes,
            sort_order_id=None,
            spec_id=0,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    # --- changing -----------------------------------------------------------------------------

    def commit(
        self,
        base: LoadedTable,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        *,
        first_offset: int,
        end_offset: int,
        expire_before: datetime,
    ) -> Table:
        """Add and remove files in one snapshot, which also has the log's first offset. If there is no table
        yet, make it first.

        Args:
            base: What ``load`` returned. Do not use it again.
            added: The new files.
            removed: Files of ``base``.
            first_offset: The first offset of the log.
            end_offset: The offset after the last one that the files cover.
            expire_before: Forget the snapshots made before this moment, because files that they name may be
                gone.

        Returns:
            The table with the new snapshot.

        Raises:
            TableChanged: Another job committed since ``load``. Nothing was committed.
            ArchiveUnavailable: The catalog or the destination did not answer. The commit may have happened or
                not; the next ``load`` shows it.
        """
        properties = self._mine | {_FIRST: f"{first_offset}", _END: f"{end_offset}"}
        with self._translated():
            table = base.table or self._make(base.replaced)
            old = {each.snapshot_id for each in table.snapshots() if _moment(each) < expire_before}
            with table.transaction() as transaction:
                files = base.files.keys() - {file.file_path for file in removed}
                files |= {file.file_path for file in added}
                transaction.set_properties({_FILES: _digest(files), _FIRST: f"{first_offset}"})
                update = transaction.update_snapshot(snapshot_properties=properties)
                with update.overwrite() if removed else update.merge_append() as producer:
                    for file in removed:
                        producer.delete_data_file(file)
                    for file in added:
                        producer.append_data_file(file)
                if old:
                    # The current snapshot stays, and all that have a tag or a branch, also a tag that
                    # another program has made since ``load``.
                    now = self._catalog.load_table(self._identifier).metadata
                    old &= {each.snapshot_id for each in now.snapshots}
                    for metadata in (table.metadata, now):
                        old -= {ref.snapshot_id for ref in metadata.refs.values()}
                    ExpireSnapshots(transaction).by_ids(sorted(old)).commit()
            self._is_anew = False
            return table

    def _make(self, replaced: str | None) -> Table:
        self._drop_replaced(replaced)
        self._catalog.create_namespace_if_not_exists(self._namespace)
        location = self._destination.table_url(self._directory)
        try:
            return self._catalog.create_table(
                self._identifier,
                _SCHEMA,
                location=location,
                properties=_PROPERTIES
                | self._mine
                | {"write.metadata.path": f"{location}/{TABLE_DIRECTORY}"},
            )
        except TableAlreadyExistsError as cause:
            raise TableChanged(self.name) from cause

    def _drop_replaced(self, replaced: str | None) -> None:
        """Drop the table that ``load`` chose to replace. Refuse if another job has replaced it since."""
        try:
            now = self._catalog.load_table(self._identifier).metadata_location
        except NoSuchTableError:
            return
        except _DAMAGED:
            now = _UNREADABLE
        if now != replaced:
            raise TableChanged(self.name)
        self._catalog.drop_table(self._identifier)

    def forget_files(self, table: Table, before: datetime) -> None:
        """Delete the table's own files that were made before a moment and that the table no longer needs.

        Args:
            table: What ``commit`` returned.
            before: The moment.

        Raises:
            ArchiveUnavailable: The catalog or the destination did not answer.
        """
        with self._translated():
            old = [file for file in self._list_own_files() if file.modified < before]
            kept = _own_files(table) if old else ()
            for file in old:
                if base_name(file.name) not in kept:
                    self._destination.delete(file.name)

    def drop(self) -> bool:
        """Drop the table, if it is this log's, and delete its own files. The files of the archive stay.

        Returns:
            Whether the log has no table now. False: its table has manifests, but is not in this catalog, so
            another catalog may have it. Or the table in this catalog is damaged, so it does not say which log
            it belongs to. Then nothing was changed.

        Raises:
            ArchiveUnavailable: The catalog or the destination did not answer.
        """
        with self._translated():
            own = self._list_own_files()
            manifests = [file for file in own if file.name.endswith(".avro")]
            try:
                table = self._catalog.load_table(self._identifier)
            except (NoSuchTableError, *_DAMAGED):
                table = None
            if table is not None and self._is_of(table):
                # Delete the manifests first. Without them, after a crash, the files that are left do not look
                # like a table in another catalog.
                for file in manifests:
                    self._destination.delete(file.name)
                self._catalog.drop_table(self._identifier)
            elif manifests and (table is None or not self._is_superseded_by(table)):
                return False
            for file in own:
                self._destination.delete(file.name)
            return True

    def _list_own_files(self) -> list[StoredFile]:
        return self._destination.list(f"{self._directory}/{TABLE_DIRECTORY}")

    def _is_of(self, table: Table) -> bool:
        return all(table.properties.get(key) == value for key, value in self._mine.items())


def _moment(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def _is_ours(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and _INCARNATION in snapshot.summary.additional_properties


def _files_in(table: Table, snapshot: Snapshot) -> tuple[dict[str, DataFile], bool]:
    """Return the files that a snapshot names, and whether the snapshot deletes rows of these files."""
    tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
    return {task.file.file_path: task.file for task in tasks}, any(task.delete_files for task in tasks)


def _digest(files: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()


def _own_files(table: Table) -> set[str]:
    """Return the names of the files that the table and its snapshots consist of."""
    urls = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        urls.add(snapshot.manifest_list)
        urls.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    return {base_name(url) for url in urls}
