"""Cluster URIs: one line of text that says where a cluster's metadata is.

    memory:[?bookies=N]               in this process, nothing on disk
    file:PATH[?bookies=N]             a directory that one process owns, its bookies included
    sqlite:PATH                       a SQLite file that the processes of one machine share
    zk://HOST[:PORT],...[/CHROOT]     an ensemble of ZooKeeper servers
    zks://HOST[:PORT],...[/CHROOT]    the same, reached by TLS

``parse_uri`` depends on the text alone. It returns a small value whose class depends on the scheme. So a
caller can handle the schemes that it supports in a ``match`` statement. ``open_store`` opens the metadata
store of such a value. This module does not start bookies for ``file:`` and ``memory:`` clusters, and does not
decide which process owns a directory.

**Paths.** In ``file:`` and ``sqlite:`` the path follows the colon. It is relative to the working directory
unless it begins with a slash. ``file:///var/x``, with an empty host, is accepted because other programs write
paths in this form. "?" ends a path and "%" begins an escape: if a path contains one of them, write %3F or
%25. No other character is special. ``str()`` of a parsed URI is its one canonical spelling.

**Errors.** If a URI is wrong, the error is ``InvalidArgument``. It quotes the URI and says what is wrong with
it. An unknown option is an error: if ``file:data?bookie=3`` were accepted, it would start one bookie for a
user who asked for three.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote, unquote_to_bytes

import attrs
import trio

from ledgerlog.errors import ClusterNotFound, InvalidArgument, PermissionDenied
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import open_backup, write_backup
from ledgerlog.meta.belonging import join_cluster, make_cluster
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.restore import Restored, restore
from ledgerlog.meta.sqlite import open_sqlite_store, save_sqlite
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.admission import OPEN, Admission
from ledgerlog.model.credentials import NO_CREDENTIALS, Credentials
from ledgerlog.model.placement import DEFAULT_PLACEMENT, PlacementPolicy
from ledgerlog.redact import redact

if TYPE_CHECKING:
    from ledgerlog.meta.zookeeper.acl import ZkPrincipal
    from ledgerlog.meta.zookeeper.store import ZooKeeperStore

__all__ = [
    "ClusterUri",
    "FileUri",
    "MemoryUri",
    "SqliteUri",
    "StoreAccess",
    "ZooKeeperUri",
    "back_up",
    "make_cluster_at",
    "open_store",
    "parse_uri",
    "refuse_directory",
    "restore_at",
    "secure_at",
]

FORMS = "memory:, file:PATH[?bookies=N], sqlite:PATH, zk://HOST:PORT,.../CHROOT or zks://..."

MEMORY_BOOKIES = 3
"""The number of bookies that the default replication needs. A bookie in memory costs next to nothing."""

FILE_BOOKIES = 1

ZOOKEEPER_PORT = 2181
ZOOKEEPER_TLS_PORT = 2281


@attrs.frozen
class MemoryUri:
    """Metadata and ``bookies`` bookies in the calling process; nothing outlives the process."""

    bookies: int = MEMORY_BOOKIES

    def __str__(self) -> str:
        return "memory:" + _options(self.bookies, MEMORY_BOOKIES)


@attrs.frozen
class FileUri:
    """A cluster of ``bookies`` bookies in one directory, owned by one process at a time."""

    path: str
    bookies: int = FILE_BOOKIES

    @property
    def metadata_path(self) -> str:
        """The SQLite file of the cluster's metadata."""
        return str(PurePosixPath(self.path) / "metadata.sqlite")

    def bookie_path(self, number: int) -> str:
        """Return the directory of bookie ``number``, counted from 1."""
        return str(PurePosixPath(self.path) / f"bookie-{number}")

    def __str__(self) -> str:
        return f"file:{_quote_path(self.path)}{_options(self.bookies, FILE_BOOKIES)}"


@attrs.frozen
class SqliteUri:
    """Metadata in a SQLite file that the processes of one machine share."""

    path: str

    def __str__(self) -> str:
        return f"sqlite:{_quote_path(self.path)}"


@attrs.frozen
class ZooKeeperUri:
    """Metadata in Apache ZooKeeper, below the node ``chroot`` ("" is the root)."""

    servers: tuple[tuple[str, int], ...]
    """Host and port of each server to connect to."""
    chroot: str = ""
    is_tls: bool = False
    """Whether the servers speak TLS at these ports: ``zks:``."""

    @property
    def hosts(self) -> str:
        """``host:port`` of every server, joined by commas; IPv6 addresses are in brackets."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )

    def __str__(self) -> str:
        return f"{'zks' if self.is_tls else 'zk'}://{self.hosts}{self.chroot}"


ClusterUri = MemoryUri | FileUri | SqliteUri | ZooKeeperUri


def parse_uri(text: str) -> ClusterUri:
    """Parse a cluster URI.

    Args:
        text: The URI, for example "sqlite:/var/lib/ledgerlog/metadata.sqlite".

    Raises:
        InvalidArgument: The text is not a cluster URI. The message quotes the text, with "***" for anything
            that may be a secret, and names what is wrong.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"a cluster URI is a str, not {type(text).__name__}")
    shown = _shown(text)

    def fail(why: str) -> NoReturn:
        if shown != text:  # ``why`` may quote the secret.
            why = f"it takes no user, password or other secret; it must be {FORMS}"
        raise InvalidArgument(f"cluster URI {shown!r}: {why}")

    scheme, colon, rest = text.partition(":")
    if not colon:
        fail(f"it has no scheme; it must be {FORMS}")
    match scheme.lower():
        case "memory":
            path, options = _split_options(rest, fail)
            if path:
                fail("memory: takes no path")
            return MemoryUri(_bookies(options, MEMORY_BOOKIES, fail))
        case "file":
            path, options = _split_options(rest, fail)
            return FileUri(_path(path, "file", fail), _bookies(options, FILE_BOOKIES, fail))
        case "sqlite":
            path, options = _split_options(rest, fail)
            if options:
                fail(f"sqlite: takes no options, not {', '.join(map(repr, options))}")
            return SqliteUri(_path(path, "sqlite", fail))
        case "zk" | "zks" as name:
            return _parse_zookeeper(rest, name == "zks", fail)
        case _:
            raise InvalidArgument(f"cluster URI {shown!r}: there is no scheme {scheme!r}; it must be {FORMS}")


def refuse_directory(uri: ClusterUri) -> None:
    """Raise ClusterNotFound if a ``sqlite:`` URI leads to a directory.

    SQLite could only say that it is unable to open the file, and a later try would fail like this one.
    """
    if isinstance(uri, SqliteUri) and os.path.isdir(uri.path):
        file = FileUri(uri.path).metadata_path
        made = f"write sqlite:{file}" if os.path.exists(file) else "and it has no metadata.sqlite"
        raise ClusterNotFound(f"there is no cluster at {uri}: {uri.path} is a directory, {made}")


@asynccontextmanager
async def open_store(
    uri: ClusterUri,
    *,
    create: bool = False,
    cluster: str | None = None,
    credentials: Credentials = NO_CREDENTIALS,
) -> AsyncIterator[MetadataStore]:
    """Open the metadata store of a cluster for the body of the ``async with``.

    The store belongs to that cluster; see ``MetadataStore.belong_to``.

    Args:
        uri: Where the metadata is.
        create: Whether to make a cluster if the store holds none. ``memory:`` always makes a new one.
        cluster: The id that the cluster must have, if you know it from before. If you give an id, no cluster
            is made, even with ``create``.
        credentials: The files with which this process proves who it is.

    Raises:
        ClusterNotFound: There is no cluster, and ``create`` is false or ``cluster`` is given. Or a
            ``sqlite:`` URI leads to a directory.
        WrongCluster: The store does not belong to the cluster with the id ``cluster``.
        MetadataCorrupt: The cluster's id is damaged.
        LedgerLogError: Opening the store failed; see ``open_sqlite_store`` and ``open_zookeeper_store``.
    """
    refuse_directory(uri)
    async with AsyncExitStack() as stack:
        try:
            # A caller that knows the cluster's id expects the cluster to exist, so do not make another one.
            is_new_welcome = create and cluster is None
            store = await stack.enter_async_context(
                _open_any(uri, create=is_new_welcome, credentials=credentials)
            )
            if cluster is not None:
                store.belong_to(cluster)
                await store.sync()
            elif create or isinstance(uri, MemoryUri):
                await make_cluster(store, os.urandom)
            else:
                await join_cluster(store)
        except ClusterNotFound as none:
            raise ClusterNotFound(_nothing_there(uri)) from none
        yield store


async def make_cluster_at(
    uri: ClusterUri,
    *,
    credentials: Credentials = NO_CREDENTIALS,
    access: StoreAccess | None = None,
    admission: Admission = OPEN,
    placement: PlacementPolicy = DEFAULT_PLACEMENT,
) -> tuple[str, bool]:
    """Make a cluster unless the store holds one.

    In ZooKeeper, if this process has credentials for ZooKeeper or uses TLS, only this process and the
    principals of ``access`` may use the new cluster.

    Args:
        uri: Where to make the cluster.
        credentials: The files with which this process proves who it is.
        access: Which other principals may use the tree in ZooKeeper. None: no others.
        admission: How the new cluster is closed.
        placement: The placement policy of the new cluster.

    Returns:
        The cluster's id, and whether this call made the cluster.

    Raises:
        InvalidArgument: ``access`` is given, and the URI or the credentials have no use for it.
        ClusterNotFound: A ``sqlite:`` URI leads to a directory.
        LedgerLogError: As for ``open_store``.
    """
    refuse_directory(uri)
    is_secure = _is_secure(uri, credentials)
    if not is_secure and access is not None:
        raise InvalidArgument(
            f"{uri}: only a tree in ZooKeeper has access lists, and you need credentials to make one "
            f"(--zk-auth-file, or zks://)"
        )
    access = access or StoreAccess()
    if is_secure:
        access.check(uri)
    async with _open_any(uri, create=True, credentials=credentials, access=access) as store:
        is_new = await make_cluster(store, os.urandom, admission=admission, placement=placement)
        assert store.cluster is not None
        cluster = store.cluster
    if is_new and is_secure:
        # An operator may have made the chroot before, with another list.
        await secure_at(uri, credentials=credentials, access=access)
    return cluster, is_new


async def secure_at(
    uri: ClusterUri, *, credentials: Credentials = NO_CREDENTIALS, access: StoreAccess
) -> tuple[list[str], int, int]:
    """Let only this process and the principals of ``access`` use a tree in ZooKeeper, from now on.

    The cluster may work meanwhile; see ``meta.zookeeper.securing``.

    Args:
        uri: The cluster.
        credentials: The files with which this process proves who it is.
        access: Who else may use the tree.

    Returns:
        The list that every znode has now, as text for people; how many znodes had another list; and how many
        znodes there are.

    Raises:
        InvalidArgument: The URI does not lead to a tree in ZooKeeper, or the process has no credentials.
        LedgerLogError: As for ``ZooKeeperStore.secure`` and ``open_store``.
    """
    if not isinstance(uri, ZooKeeperUri):
        raise InvalidArgument(
            f"{uri}: only a tree in ZooKeeper has access lists. A SQLite file has a mode: the library "
            f"creates files with mode 0600 in directories with mode 0700"
        )
    access.check(uri)
    from ledgerlog.meta.zookeeper.acl import shown

    async with _open_zookeeper(uri, credentials, StoreAccess()) as store:
        done = await store.secure(
            all_of=access.principals(access.all_of),
            readers=access.principals(access.readers),
            with_root=access.with_root,
        )
    return shown(done.acl), done.changed, done.znodes


async def back_up(
    uri: ClusterUri, path: str, *, made_ms: int, credentials: Credentials = NO_CREDENTIALS
) -> tuple[str, int]:
    """Save the metadata of a cluster, which may be working, in a new file.

    Args:
        uri: The cluster.
        path: The backup file.
        made_ms: Wall clock, in milliseconds since 1970.
        credentials: The files with which this process proves who it is.

    Returns:
        The cluster's id, and the number of saved nodes.

    Raises:
        InvalidArgument: ``path`` exists already.
        ClusterNotFound: There is no cluster.
        LedgerLogError: As for ``open_store`` and ``write_backup``. No file was made.
    """
    async with open_store(uri, credentials=credentials) as store:
        assert store.cluster is not None
        with write_backup(path) as writer:
            match uri:
                case SqliteUri(path=file) | FileUri(metadata_path=file):
                    save_now = partial(save_sqlite, file, writer, made_ms=made_ms)
                    await trio.to_thread.run_sync(save_now)
                    await store.sync()
                case _:
                    await save(store, writer, made_ms=made_ms)
        return store.cluster, writer.nodes


async def restore_at(
    uri: ClusterUri, path: str, *, now_ms: int, credentials: Credentials = NO_CREDENTIALS
) -> Restored:
    """Replace the content of the metadata store at ``uri`` by a backup; see ``meta.restore``.

    Args:
        uri: Where the store is. If there is no store, it is made.
        path: The backup file.
        now_ms: Wall clock, in milliseconds since 1970.
        credentials: The files with which this process proves who it is.

    Raises:
        StorageCorrupt, IncompatibleVersion: The backup is damaged, or of a newer format. Nothing was changed.
        PermissionDenied: The store was empty, and this process may not set the access list of its chroot.
            Only another restore can use the store.
        ClusterNotFound: A ``sqlite:`` URI leads to a directory.
        LedgerLogError: As for ``restore`` and for opening the store.
    """
    refuse_directory(uri)
    backup = open_backup(path)

    async def secure() -> None:
        # The list of the chroot itself, if an operator has made that.
        try:
            await secure_at(uri, credentials=credentials, access=StoreAccess(with_root=True))
        except PermissionDenied as denied:
            raise PermissionDenied(
                f"{uri}: the nodes are restored, but this user may not set the access list of the chroot, so "
                f"nobody can use the store yet. Let the owner of the chroot give this user the ADMIN right, "
                f"and restore again"
            ) from denied

    async with _open_any(uri, create=True, credentials=credentials) as store:
        return await restore(
            store,
            backup,
            now_ms=now_ms,
            random_bytes=os.urandom,
            secure=secure if _is_secure(uri, credentials) else None,
        )


async def count_other_lists(store: MetadataStore) -> int:
    """Return how many znodes of a tree in ZooKeeper have another list of rights than the cluster's node.

    The number is 0 for other stores.
    """
    count = getattr(store, "count_other_lists", None)
    return 0 if count is None else int(await count())


def _is_secure(uri: ClusterUri, credentials: Credentials) -> bool:
    """Return whether znodes that this process makes at ``uri`` get a list of rights."""
    return isinstance(uri, ZooKeeperUri) and (uri.is_tls or credentials.zk_auth_file is not None)


@attrs.frozen(kw_only=True)
class StoreAccess:
    """Who may use a tree in ZooKeeper, besides the process that sets the lists of rights.

    Each text is a principal, ``SCHEME:ID`` (``meta.zookeeper.acl``), or ``@FILE`` for the user of a
    credentials file.
    """

    all_of: tuple[str, ...] = ()
    """Who may do everything."""
    readers: tuple[str, ...] = ()
    """Who may read."""
    with_root: bool = False
    """Whether to set the list of the znode "/", if the cluster lies there."""

    def check(self, uri: ClusterUri) -> None:
        """Check everything that can be checked without a server.

        Raises:
            InvalidArgument: A principal is wrong, or the cluster lies in the root and ``with_root`` is false.
        """
        self.principals(self.all_of + self.readers)
        if isinstance(uri, ZooKeeperUri) and not uri.chroot and not self.with_root:
            raise InvalidArgument(
                f"{uri} is ZooKeeper's root, whose list applies to all users of the ensemble: give a chroot "
                f"({uri}/ledgerlog), or --with-root if only this cluster uses the ensemble"
            )

    def principals(self, named: Sequence[str]) -> list[ZkPrincipal]:
        """Return the principals that these texts name.

        Raises:
            InvalidArgument: A text is not a principal, or a file is not a credentials file.
        """
        from ledgerlog.meta.zookeeper.acl import parse_principal
        from ledgerlog.meta.zookeeper.login import principal_of_file

        return [
            principal_of_file(each[1:]) if each.startswith("@") else parse_principal(each) for each in named
        ]


def _open_zookeeper(
    uri: ZooKeeperUri, credentials: Credentials, access: StoreAccess
) -> AbstractAsyncContextManager[ZooKeeperStore]:
    # Import here: kazoo takes a tenth of a second to import, and most programs use another store.
    from ledgerlog.meta.zookeeper.acl import OPEN, THE_CREATOR, acl_for
    from ledgerlog.meta.zookeeper.store import open_zookeeper_store

    everything = [THE_CREATOR, *access.principals(access.all_of)]
    return open_zookeeper_store(
        uri.hosts,
        chroot=uri.chroot,
        is_tls=uri.is_tls,
        credentials=credentials,
        new_acl=acl_for(everything, access.principals(access.readers))
        if _is_secure(uri, credentials)
        else OPEN,
    )


def _open_any(
    uri: ClusterUri, *, create: bool, credentials: Credentials, access: StoreAccess | None = None
) -> AbstractAsyncContextManager[MetadataStore]:
    match uri:
        case MemoryUri():
            return MemoryTree().open_store()
        case FileUri(metadata_path=path) | SqliteUri(path=path):
            return open_sqlite_store(path, create=create)
        case ZooKeeperUri():
            return _open_zookeeper(uri, credentials, access or StoreAccess())


def _nothing_there(uri: ClusterUri) -> str:
    match uri:
        case SqliteUri(path=path) | FileUri(metadata_path=path):
            looked = f"file {path}" if os.path.exists(path) else f"file {path}, which is not there"
            doubt = "the path"
        case ZooKeeperUri(chroot=chroot):
            looked, doubt = f"chroot {chroot or '/'}", "the chroot (what follows the hosts)"
        case _:
            looked, doubt = "memory", "the URI"
    return (
        f"there is no cluster at {uri} (looked in the {looked}). Is {doubt} spelled right? "
        f"'ledgerlog metadata init --uri {uri}' makes a new cluster there"
    )


# --- parts ----------------------------------------------------------------------------------------

Fail = Callable[[str], NoReturn]


def _shown(text: str) -> str:
    """Return the text of a cluster URI with its secrets hidden, for a message."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() not in ("file", "sqlite") and not rest.startswith("//") and "@" in rest:
        text = f"{scheme}:***@{rest.rpartition('@')[2]}"  # A user name without the slashes before it.
    # ``redact`` works on sentences, in which a blank or a quote ends a URI. This text is a URI and nothing
    # else, so blanks and quotes belong to the password.
    unbroken = re.sub(r"[\s'\"]", "_", text)
    hidden = redact(unbroken)
    return text if hidden == unbroken else hidden


def _split_options(rest: str, fail: Fail) -> tuple[str, dict[str, str]]:
    path, mark, query = rest.partition("?")
    options: dict[str, str] = {}
    if mark:
        for item in query.split("&"):
            name, equals, value = item.partition("=")
            if not name or not equals:
                fail("the text after ? is not NAME=VALUE")
            if name in options:
                fail(f"the option {name!r} is given twice")
            options[name] = value
    return path, options


def _bookies(options: dict[str, str], default: int, fail: Fail) -> int:
    unknown = [name for name in options if name != "bookies"]
    if unknown:
        fail(f"there is no option {unknown[0]!r}; the only one is bookies")
    value = options.get("bookies", str(default))
    if not re.fullmatch(r"[0-9]{1,4}", value) or not 1 <= int(value) <= ENSEMBLE_MAX:
        fail(f"bookies must be a number from 1 to {ENSEMBLE_MAX}, not {value!r}")
    return int(value)


def _path(raw: str, scheme: str, fail: Fail) -> str:
    if raw.startswith("//"):
        host, slash, rest = raw[2:].partition("/")
        if host:
            fail(f"{host!r} is where a host would be; write {scheme}:PATH")
        raw = slash + rest
    if re.search(r"%(?![0-9A-Fa-f]{2})", raw):
        fail("a % that does not begin an escape; write %25 for a % in the path")
    try:
        path = unquote_to_bytes(raw).decode()
    except UnicodeError:  # The escapes do not decode, or a command line passed bytes that are not UTF-8.
        fail("its path is not UTF-8")
    if not path:
        fail(f"it has no path; write {scheme}:PATH")
    if "\0" in path:
        fail("its path contains a zero byte")
    return path


def _quote_path(path: str) -> str:
    # A path that begins with two slashes would be read as a host.
    quoted = re.sub("[%?]", lambda found: quote(found[0], safe=""), path)
    return f"//{quoted}" if quoted.startswith("//") else quoted


def _options(bookies: int, default: int) -> str:
    return "" if bookies == default else f"?bookies={bookies}"


_SERVER = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._\-]+))(?::([0-9]{1,5}))?\Z")


def _parse_zookeeper(rest: str, is_tls: bool, fail: Fail) -> ZooKeeperUri:
    scheme = "zks" if is_tls else "zk"
    if not rest.startswith("//"):
        fail(f"it must be {scheme}://HOST:PORT,.../CHROOT")
    if "?" in rest:
        fail(f"{scheme}: takes no options")
    hosts, slash, chroot = rest[2:].partition("/")
    servers = []
    for item in hosts.split(","):
        found = _SERVER.match(item)
        if found is None:
            fail(f"{item!r} is not HOST or HOST:PORT")
        port = int(found[3] or (ZOOKEEPER_TLS_PORT if is_tls else ZOOKEEPER_PORT))
        if not 1 <= port <= 65535:
            fail(f"port {port} is not from 1 to 65535")
        servers.append((found[1] or found[2], port))
    chroot = chroot.rstrip("/")
    if any(part in ("", ".", "..") for part in chroot.split("/")) and chroot:
        fail(f"the chroot {slash + chroot!r} has an empty component, '.' or '..'")
    if re.search(r"[\x00-\x20\x7f?%]", chroot):
        fail(f"the chroot {slash + chroot!r} contains a blank, a control character, ? or %")
    return ZooKeeperUri(tuple(servers), slash + chroot if chroot else "", is_tls)
