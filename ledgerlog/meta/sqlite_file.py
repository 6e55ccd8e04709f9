"""The SQLite file that holds a metadata tree: its format, its transactions, its damage.

This module owns one connection to one file and knows SQL. It knows nothing of trio: every method blocks, and
is called from one thread at a time. ``sqlite_sessions`` knows which processes are alive. ``sqlite`` has the
waiting, deadlines and watches.

Format (application id "LLMD", user version 1)::

    nodes      path          the node's path, unique
               value         its bytes
               version       the revision that wrote it last
               session_id    the owner of an ephemeral node, else NULL
               checksum      CRC-32 over the other four
    counters   name, last    the highest id given out; checksum, CRC-32 over both
    sessions   session_id    see sqlite_sessions
    changes    revision      one row for each write of a node, numbered without gaps,
               path          the node's path. Only the newest CHANGES_KEPT rows stay

**Revisions.** A write of a node inserts a row into ``changes`` and takes its rowid as the node's version. The
newest row is never removed, so rowids only grow. No two writes in the life of the file have the same version.
So a node that was deleted and created again never shows an old version. The same rows tell a watcher which
paths have changed since the last revision that it saw. If those rows are gone already, any path may have
changed.

**Children.** A node needs no parent row. The nodes below P are the range [P + "/", P + "0") of the index on
``path``, since "0" follows "/". Listing a level walks that range and skips each subtree with one seek. The
cost depends on the length of the level only, even if millions of nodes lie below it.

**Durability.** The file uses a write-ahead log with ``synchronous=FULL``: a transaction that has returned is
on disk. If a process is killed, the next reader keeps its committed transactions and drops the rest. Writers
take the lock first (``BEGIN IMMEDIATE``), so nothing changes between their reads and their writes. A new file
is made complete, with its schema, under a temporary name, and then linked to its real name. So an empty or
half-made file under the real name is always damage, and never a file that is being made.

**Damage.** SQLite's pages carry no checksums. So each row carries a checksum, which is checked when the row
is read. The structure of the whole file is checked when it is opened. If either check fails, the
file is reported as ``StorageCorrupt`` and never repaired here. If a row were lost silently, a bookie would
believe that its ledger does not exist, and would collect the ledger's entries.

**Belonging** (``belonging``) is checked in each transaction that writes, and after each read. Before that,
each operation checks that the name still leads to the open file (``Displaced``): SQLite itself would continue
with a file that was renamed or deleted. If another file is copied over ours in place, our cache still holds
the old pages. So ``refresh`` drops the cache before it checks.

**Foreign exceptions** end here. ``translated`` turns sqlite3's exceptions into ours: damage, no room, a lock
that another process holds (``Busy``, private to the metadata room, retried until the deadline), and the rest.
If COMMIT itself fails, it is unknown whether the transaction is on disk. Only this case is
``MetadataOutcomeUnknown``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from ledgerlog import limits
from ledgerlog.durable_directories import make_directories, sync_directory
from ledgerlog.errors import (
    ClusterNotFound,
    IncompatibleVersion,
    InvalidArgument,
    LedgerLogError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    StorageCorrupt,
)
from ledgerlog.meta.arguments import AFTER_SLASH, ancestors
from ledgerlog.meta.belonging import Belonging
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    NodeExists,
    NodeHasChildren,
    NodeMissing,
    Operation,
    Set,
    VersionConflict,
    Versioned,
)
from ledgerlog.model.layout import CLUSTER

APPLICATION_ID = int.from_bytes(b"LLMD", "big")
SCHEMA_VERSION = 1
APPLICATION_ID_OFFSET = 68
"""The offset of the application id in SQLite's file header."""

CHANGES_KEPT = 4096
"""How many of the newest rows of ``changes`` stay."""

BUSY_TIMEOUT_MS = 100
"""How long one attempt waits inside SQLite for another process's lock.

It is short because this wait cannot be cancelled. The caller tries again until its own deadline.
"""

WAL_BYTES_KEPT = 16 * 1024 * 1024

_SCHEMA = (
    "CREATE TABLE nodes (node_id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, value BLOB NOT NULL, "
    "version INTEGER NOT NULL, session_id TEXT, checksum INTEGER NOT NULL)",
    "CREATE INDEX nodes_by_session ON nodes (session_id) WHERE session_id IS NOT NULL",
    "CREATE TABLE counters (name TEXT PRIMARY KEY NOT NULL, last INTEGER NOT NULL, "
    "checksum INTEGER NOT NULL)",
    "CREATE TABLE sessions (session_id TEXT PRIMARY KEY NOT NULL, pid INTEGER NOT NULL, "
    "boot_id TEXT NOT NULL, lease_until_ns INTEGER NOT NULL)",
    "CREATE TABLE changes (revision INTEGER PRIMARY KEY, path TEXT NOT NULL)",
)


class Busy(Exception):
    """Another process holds the lock. Nothing was done; another attempt may succeed."""


class Displaced(Exception):
    """The name leads to another file than the open one, or to no file. Nothing was done.

    ``why`` continues "the metadata store at PATH ...".
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@attrs.frozen
class StoredNode:
    """A row of ``nodes``."""

    value: bytes
    version: int
    session_id: str | None


def _text(value: bytes) -> str:
    # SQLite hands over any bytes that the file holds. If they are damaged, let the checksum report it, and
    # not a UnicodeDecodeError from inside the cursor.
    return value.decode("utf-8", "surrogateescape")


def _checksum(path: str, value: bytes, version: int, session_id: str | None) -> int:
    about = f"{path}\0{version}\0{'' if session_id is None else session_id}\0"
    return zlib.crc32(value, zlib.crc32(about.encode("utf-8", "surrogateescape")))


def _counter_checksum(name: str, last: int) -> int:
    return zlib.crc32(f"{name}\0{last}".encode("utf-8", "surrogateescape"))


class MetadataFile:
    """One connection to one metadata file. ``path`` is the file's real path.

    ``open_metadata_file`` makes it. Do not use it from two threads at once, or after a fork.
    """

    def __init__(
        self, path: str, place: tuple[int, int], connection: sqlite3.Connection, belonging: Belonging
    ) -> None:
        self.path = path
        self._connection = connection
        self._belonging = belonging
        self._place = place
        self._log_place: tuple[int, int] | None = None
        self._revision = 0
        """The newest revision in the transaction that is open now."""
        self.execute = connection.execute

    def close(self) -> None:
        """Close the connection."""
        with translated(self.path):
            self._connection.close()

    # --- the right file --------------------------------------------------------------------------

    def require_in_place(self) -> None:
        """Raise ``Displaced`` unless the name leads to this file.

        It checks only the name, which takes some microseconds.
        """
        found = _look_at(self.path)
        if found is None:
            raise Displaced("is gone: there is no such file")
        if (found.st_dev, found.st_ino) != self._place:
            raise Displaced("was replaced by another file")
        if found.st_size == 0:
            raise Displaced("was emptied: the file has no bytes")

    def owns_log(self) -> bool:
        """Return whether the write-ahead log beside the name is this file's, even if this file was moved."""
        return self._log_place is not None and _place_of(self.path + "-wal") == self._log_place

    def remember_log(self) -> None:
        """Remember which file is the write-ahead log. Call it after a write.

        The log stays the same file while this connection is open.
        """
        self._log_place = _place_of(self.path + "-wal")

    def refresh(self) -> None:
        """Drop the cache, and check which cluster the file belongs to.

        Raises:
            WrongCluster: The file belongs to another cluster, or to none, or it is an older state of the file
                that was open before.
        """
        with self._asking():
            self.execute("PRAGMA shrink_memory")

    def _prove(self) -> None:
        if self._belonging.cluster is not None:
            node = self.node(CLUSTER)
            self._revision = self._newest_revision()
            self._belonging.judge(None if node is None else node.value, self._revision)

    # --- transactions ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Make sure that no transaction is open, even one whose rollback failed earlier."""
        with translated(self.path):
            self._undo()
            yield

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Run a read in the body. Raise WrongCluster at its end if the file does not belong to the right
        cluster."""
        with self._looking():
            yield
            self._prove()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read one snapshot: all reads in the body see the same state."""
        with self._looking():
            self.execute("BEGIN")
            try:
                yield
                self._prove()
            finally:
                self._undo()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run the body in one transaction: committed and durable when the body ends, undone if it raises.

        Raises:
            WrongCluster: The file belongs to another cluster. The body was not run.
            Busy: Another process holds the lock. Nothing was written.
            MetadataOutcomeUnknown: COMMIT failed. The write may or may not be on disk.
        """
        with self._looking():
            self.execute("BEGIN IMMEDIATE")
            try:
                self._prove()
                yield
            except BaseException:
                self._undo()
                raise
            try:
                self.execute("COMMIT")
            except sqlite3.Error as error:
                # Even if the rollback fails as well, the commit may have succeeded. The next operation tries
                # the rollback again.
                with contextlib.suppress(sqlite3.Error):
                    self._undo()
                raise MetadataOutcomeUnknown(
                    f"{self.path}: the commit failed ({error}); the write may or may not be on disk"
                ) from error
            self._belonging.wrote(self._revision)

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")

    # --- reading ---------------------------------------------------------------------------------

    def node(self, path: str) -> StoredNode | None:
        """Read a node's row and check its checksum; None if there is no such row."""
        row = self.execute(
            "SELECT value, version, session_id, checksum FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        if row is None:
            return None
        value, version, session_id, checksum = row
        if not isinstance(value, bytes) or _checksum(path, value, version, session_id) != checksum:
            raise damaged_file(self.path, None, f"the row of metadata node {path!r} fails its checksum")
        return StoredNode(value, version, session_id)

    def get(self, path: str) -> tuple[Versioned | None, str | None]:
        """Return the node's value, and the session that owns it if it is ephemeral."""
        with self._asking():
            node = self.node(path)
        if node is None:
            return None, None
        return Versioned(node.value, node.version), node.session_id

    def children(self, path: str) -> list[str]:
        """Return the names directly below a path, sorted."""
        names = set()
        start, end = path + "/", path + AFTER_SLASH
        lower: str | None = start
        with self.reading():
            while lower is not None:
                rows = self.execute(
                    "SELECT path FROM nodes WHERE path >= ? AND path < ? ORDER BY path", (lower, end)
                )
                lower = None
                for (below,) in rows:
                    name, slash, _ = below[len(start) :].partition("/")
                    names.add(name)
                    if slash:
                        lower = start + name + AFTER_SLASH
                        break
        return sorted(names)

    def has_children(self, path: str) -> bool:
        """Return whether a node lies below ``path``."""
        found = self.execute(
            "SELECT 1 FROM nodes WHERE path >= ? AND path < ? LIMIT 1", (path + "/", path + AFTER_SLASH)
        )
        return found.fetchone() is not None

    def highest_id(self, counter: str) -> int:
        """Return the highest id that the counter has given out; -1 if none."""
        with self._asking():
            return self._counter(counter)

    def _counter(self, counter: str) -> int:
        row = self.execute("SELECT last, checksum FROM counters WHERE name = ?", (counter,)).fetchone()
        if row is None:
            return -1
        last, checksum = row
        if _counter_checksum(counter, last) != checksum:
            raise damaged_file(self.path, None, f"the row of metadata counter {counter!r} fails its checksum")
        return int(last)

    def data_version(self) -> int:
        """Return a number that changes if another connection has committed."""
        with translated(self.path):
            return int(self.execute("PRAGMA data_version").fetchone()[0])

    def newest_revision(self) -> int:
        """Return the revision of the newest write."""
        with translated(self.path):
            return self._newest_revision()

    def _newest_revision(self) -> int:
        (newest,) = self.execute("SELECT max(revision) FROM changes").fetchone()
        if newest is None:
            raise damaged_file(self.path, None, "the list of changes is empty")
        return int(newest)

    def changes_since(self, revision: int) -> tuple[int, list[str] | None]:
        """Return the newest revision, and the paths written after ``revision``.

        In place of the paths there is None if the oldest of these changes are no longer stored.
        """
        with self.reading():
            oldest, newest = self.execute("SELECT min(revision), max(revision) FROM changes").fetchone()
            if oldest is None:
                raise damaged_file(self.path, None, "the list of changes is empty")
            if oldest > revision + 1:
                return newest, None
            rows = self.execute("SELECT path FROM changes WHERE revision > ?", (revision,)).fetchall()
        return newest, [path for (path,) in rows]

    # --- writing, always inside ``writing`` ------------------------------------------------------

    def apply(
        self, operations: Sequence[Operation], session_id: str, require_session: Callable[[str], None]
    ) -> list[int]:
        """Do the operations in order. Call it inside ``writing``, which undoes all of them if one fails.

        Args:
            operations: What to do.
            session_id: The session that owns the new ephemeral nodes.
            require_session: Raises if the session is over. It is called only for an ephemeral create.

        Returns:
            The version for each operation, as for ``MetadataStore.transaction``.

        Raises:
            NodeExists, NodeMissing, NodeHasChildren, VersionConflict, InvalidArgument: The first failing
                operation raised it.
            SessionExpired: An operation creates an ephemeral node, and the session is over.
        """
        versions = []
        for operation in operations:
            if isinstance(operation, Create):
                if operation.ephemeral:
                    require_session(session_id)
                versions.append(self._create(operation, session_id))
                continue
            path = operation.path
            node = self.node(path)
            if node is None:
                raise NodeMissing(f"there is no node at {path!r}")
            if operation.version is not None and operation.version != node.version:
                raise VersionConflict(f"{path!r} is at version {node.version}, not at {operation.version}")
            match operation:
                case Set(value=value):
                    version = self._next_revision(path)
                    self.execute(
                        "UPDATE nodes SET value = ?, version = ?, checksum = ? WHERE path = ?",
                        (value, version, _checksum(path, value, version, node.session_id), path),
                    )
                    versions.append(version)
                case Delete():
                    if self.has_children(path):
                        raise NodeHasChildren(f"{path!r} has children; nothing was deleted")
                    self.remove(path)
                    versions.append(0)
                case Check():
                    versions.append(node.version)
        self.trim_changes()
        return versions

    def _create(self, operation: Create, session_id: str) -> int:
        path, value = operation.path, operation.value
        if self.node(path) is not None:
            raise NodeExists(f"{path!r} exists already")
        for above in ancestors(path):
            holder = self.execute("SELECT session_id FROM nodes WHERE path = ?", (above,)).fetchone()
            if holder is not None and holder[0] is not None:
                raise InvalidArgument(f"{path!r} would be a child of {above!r}, which is ephemeral")
        if operation.ephemeral and self.has_children(path):
            raise InvalidArgument(f"{path!r} has children, so it cannot be ephemeral")
        owner = session_id if operation.ephemeral else None
        version = self._next_revision(path)
        self.execute(
            "INSERT INTO nodes (path, value, version, session_id, checksum) VALUES (?, ?, ?, ?, ?)",
            (path, value, version, owner, _checksum(path, value, version, owner)),
        )
        return version

    def remove(self, path: str) -> None:
        """Delete a node's row, and record the change."""
        self._next_revision(path)
        self.execute("DELETE FROM nodes WHERE path = ?", (path,))

    def next_id(self, counter: str) -> int:
        """Return the counter's next id."""
        given = self._counter(counter) + 1
        self._set_counter(counter, given)
        return given

    def skip_ids(self, counter: str, through: int) -> None:
        """Give out no id up to ``through`` from now on."""
        if self._counter(counter) < through:
            self._set_counter(counter, through)

    def _set_counter(self, counter: str, last: int) -> None:
        self.execute(
            "INSERT OR REPLACE INTO counters (name, last, checksum) VALUES (?, ?, ?)",
            (counter, last, _counter_checksum(counter, last)),
        )

    def _next_revision(self, path: str) -> int:
        revision = self.execute("INSERT INTO changes (path) VALUES (?)", (path,)).lastrowid
        assert revision is not None
        self._revision = revision
        return revision

    def trim_changes(self) -> None:
        """Delete the oldest changes, but never the newest one: its rowid makes the next revision larger."""
        self.execute(
            "DELETE FROM changes WHERE revision <= (SELECT max(revision) FROM changes) - ?", (CHANGES_KEPT,)
        )


def read_snapshot(path: str) -> Iterator[tuple[str, bytes] | tuple[str, int]]:
    """Yield the state of a metadata file at one instant, by one read transaction.

    Yields:
        First the path and the value of each node that belongs to no session, in the order of paths. Then the
        name and the highest id (an int) of each counter.

    Raises:
        StorageCorrupt: A row fails its checksum.
        MetadataUnavailable: The file cannot be read, or another process holds its lock for longer than
            ``limits.METADATA_TIMEOUT_S``.
    """
    # Wait inside SQLite: the caller is a thread of its own.
    waiting_ms = int(limits.METADATA_TIMEOUT_S * 1000)
    try:
        yield from _read_snapshot(path, waiting_ms)
    except Busy as busy:
        raise MetadataUnavailable(f"{busy}, for {limits.METADATA_TIMEOUT_S:g} s already") from busy


def _read_snapshot(path: str, waiting_ms: int) -> Iterator[tuple[str, bytes] | tuple[str, int]]:
    with translated(path), contextlib.closing(_connect(path, waiting_ms)) as connection:
        _check_identity(path, connection)
        connection.execute("BEGIN")
        for name, value, version, owner, checksum in connection.execute(
            "SELECT path, value, version, session_id, checksum FROM nodes WHERE session_id IS NULL "
            "ORDER BY path"
        ):
            if _checksum(name, value, version, owner) != checksum:
                raise damaged_file(path, None, f"the row of metadata node {name!r} fails its checksum")
            yield name, value
        for name, last, checksum in connection.execute("SELECT name, last, checksum FROM counters"):
            if _counter_checksum(name, last) != checksum:
                raise damaged_file(path, None, f"the row of metadata counter {name!r} fails its checksum")
            yield name, int(last)


# --- opening ------------------------------------------------------------------------------------


def damaged_file(path: str, offset: int | None, why: str) -> StorageCorrupt:
    """Return the error for damage of the metadata file."""
    return StorageCorrupt(
        path,
        offset,
        why,
        advice=f"is it the right file? If it is, stop everything, move it, {path}-wal and {path}-shm away; "
        "then 'ledgerlog metadata restore' restores a backup",
    )


def open_metadata_file(path: str, belonging: Belonging, *, create: bool) -> MetadataFile:
    """Open a metadata file and check it.

    Args:
        path: The file, with all symbolic links resolved, so that all processes use the same names beside it.
        belonging: The cluster that the file must belong to.
        create: Whether to make the file (0600) and its directory (0700) if they do not exist.

    Raises:
        ClusterNotFound: There is no file, and ``create`` is false.
        StorageCorrupt: The file is damaged, or is not a metadata file.
        IncompatibleVersion: A newer version of ledgerlog has written the file. Nothing was written.
        MetadataUnavailable: The file system refuses, or the file was replaced while it was opened.
    """
    try:
        if create:
            make_directories(Path(path).parent)
        # Look for the log before the file. No process removes the file. So a log without its file is damage,
        # even if two processes create the file at once. SQLite would read the old log into a new file.
        has_log = os.path.exists(path + "-wal")
        if not os.path.exists(path):
            if has_log:
                raise StorageCorrupt(
                    path,
                    None,
                    f"the file is gone, but its write-ahead log {path}-wal is there",
                    advice=f"put the file back; if it is lost, stop everything, move {path}-wal and "
                    f"{path}-shm away; then 'ledgerlog metadata restore' restores a backup",
                )
            if not create:
                raise ClusterNotFound(f"there is no file {path}")
            _create(path)
        place = _place_of(path)
        if os.path.getsize(path) == 0:
            raise damaged_file(path, 0, "the file is empty; a metadata file is never shorter than its schema")
    except OSError as error:
        raise MetadataUnavailable(f"cannot open the metadata file {path}: {error}") from error
    with translated(path):
        connection = _connect(path)
        try:
            # Check before anything writes: a file that is not ours must stay exactly as it was.
            _check_identity(path, connection)
            _configure(path, connection)
            _check_structure(path, connection)
            # Make sure that the name still leads to the file that was checked above, which SQLite opened.
            if place is None or _place_of(path) != place:
                raise MetadataUnavailable(f"the metadata file {path} was replaced while it was opened")
        except BaseException:
            connection.close()
            raise
    return MetadataFile(path, place, connection, belonging)


def _look_at(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetadataUnavailable(f"cannot look for the metadata file {path}: {error}") from error


def _place_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file that a name leads to; None if there is no file."""
    found = _look_at(path)
    return None if found is None else (found.st_dev, found.st_ino)


def _create(path: str) -> None:
    """Make a complete file under another name and link it into place, unless another process was faster.

    We never open the real name ourselves. If a process closes any descriptor of a file, POSIX drops all locks
    of that process on the file, so another connection in this process would lose its locks.
    """
    temporary = f"{path}.{secrets.token_hex(8)}.new"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        with translated(temporary):
            connection = _connect(temporary)
            try:
                _configure(temporary, connection)
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute("INSERT INTO changes (revision, path) VALUES (1, '')")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("COMMIT")
                # Closing writes the log back and removes it. The log has the temporary name, so the file must
                # not need it under the real name.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        for leftover in (temporary, temporary + "-wal", temporary + "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
    sync_directory(Path(path).parent)


def _connect(path: str, waiting_ms: int = BUSY_TIMEOUT_MS) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        timeout=waiting_ms / 1000,
        # The worker threads of trio take turns on the connection; a limiter of one keeps them apart.
        check_same_thread=False,
    )
    connection.text_factory = _text
    return connection


def _configure(path: str, connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise MetadataUnavailable(
            f"{path}: this file system cannot hold a shared write-ahead log (mode {mode!r})"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")


def _check_identity(path: str, connection: sqlite3.Connection) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise damaged_file(
            path,
            APPLICATION_ID_OFFSET,
            f"this is a SQLite file, but not ledgerlog metadata (application id {application_id:#x})",
        )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise IncompatibleVersion(path, (version, version), (SCHEMA_VERSION, SCHEMA_VERSION))
    found = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")]
    if version != SCHEMA_VERSION or sorted(found) != sorted(_SCHEMA):
        raise damaged_file(path, None, f"its tables do not match metadata schema {version}")


def _check_structure(path: str, connection: sqlite3.Connection) -> None:
    complaint = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if complaint != "ok":
        raise damaged_file(path, None, f"SQLite finds it damaged: {complaint}")
    oldest, newest, count = connection.execute(
        "SELECT min(revision), max(revision), count(*) FROM changes"
    ).fetchone()
    if count == 0 or newest - oldest + 1 != count:
        raise damaged_file(path, None, "the list of changes has a gap, so versions could come back")


# --- translation --------------------------------------------------------------------------------

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
# SQLITE_ERROR means "this statement makes no sense for this file". Our statements fit the schema that every
# file is made with, so the file has changed.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn every sqlite3 exception of the body into one of ours, with the original as its cause."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(path, error) from error
    except UnicodeDecodeError as error:
        # SQLite quotes the damaged part of a schema in its message, and sqlite3 cannot decode it.
        raise damaged_file(path, None, "its schema contains bytes that are not text") from error


def _translate(path: str, error: sqlite3.Error) -> LedgerLogError | Busy:
    # Extended codes have the primary code in their low byte. Errors of the Python module itself (for example,
    # of a closed connection) have no code.
    extended = getattr(error, "sqlite_errorcode", -1)
    code = extended & 0xFF
    if code in _BUSY:
        return Busy(f"{path} is locked by another process")
    if code in _DAMAGED:
        return damaged_file(path, None, f"SQLite finds it damaged: {error}")
    if extended == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK):
        return damaged_file(
            path, 18, "its header says that it is read-only, but ledgerlog never writes such a header"
        )
    if code == sqlite3.SQLITE_FULL:
        return MetadataUnavailable(f"{path}: there is no room on its disk; nothing was written")
    return MetadataUnavailable(f"{path}: {error}; nothing was written")
