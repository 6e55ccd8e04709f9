"""Logs as views of Spark SQL, in place of a catalog of a cluster.

A catalog of Spark is a class of the JVM, and a source in Python cannot be one. So ``register_logs`` makes a
temporary view for each log. You can only read from such a view.

**Each query reads the log as it is then.** A view that is made from a DataFrame, or by ``CREATE TEMPORARY
VIEW ... USING ledgerlog``, is a snapshot: Spark plans its tasks once. A view that selects from a table is
planned anew by each query. So each view here selects from a table.

**Each view has a table of its own.** Spark 4.3 resolves a table once for each query. If a query uses one
table twice, the second use gets the options of the first one: a join of two logs would join one log with
itself. The tables hold no rows and no options. Their database keeps them apart from yours.

**Archives as Parquet.** Spark 4.3 gives a source in Python no filters, no columns and no limits
(docs/SPARK.md). It gives them to its own reader of Parquet. So a view can be a union of two parts: the
archived beginning of the log, which Spark reads itself, and the rest, which the source reads. The archived
beginning is fixed when the view is made; ledgers that are archived later belong to the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from ledgerlog.archive.core.prefix import leading_files
from ledgerlog.archive.destinations import Destination, name_of_record, recorded
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.spark.connection import run_connected
from ledgerlog.spark.options import includes_headers, parse_read_options
from ledgerlog.spark.planning import select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register_logs"]

_PARQUET = (
    "offset LONG, timestamp TIMESTAMP, value BINARY, ledger_id LONG, entry_id LONG, epoch LONG, key BINARY, "
    "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
)
"""The columns of archived files (``archive.parquet``). Spark gives nulls for columns that a file lacks."""


def register_logs(
    spark: SparkSession,
    uri: str,
    *,
    pattern: str = ".*",
    prefix: str = "",
    database: str = "ledgerlog",
    archives_as_parquet: bool = False,
    **options: str | int | bool,
) -> dict[str, str]:
    """Make a temporary view for each log of a cluster, so that SQL reads the logs by their names.

    A query on such a view reads the log as it is when the query is planned. The views end with the session.
    To see logs that were made since, call this again. It replaces views of the same names, and leaves the
    views of logs that are gone.

    Args:
        spark: The session. This process connects to the cluster, too.
        uri: The URI of the cluster.
        pattern: A regular expression that the whole name of a log must match.
        prefix: The beginning of the name of each view, before the name of the log.
        database: The database of the empty tables that the views select from. It is made if there is none.
        archives_as_parquet: Whether Spark itself reads the files of each log that are archived now. Then it
            skips row groups by filters, and reads only the columns that a query needs. Spark must be able to
            read the destination. Call this again if an archived file of a view is gone.
        options: Options of reading for all these logs, for example ``startingTimestamp``; see docs/SPARK.md.
            A value may be a number or a truth value, as for ``option`` of Spark. With
            ``archives_as_parquet``, options that bound the read are refused; filter in the query.

    Returns:
        The names of the logs, by the names of their views.

    Raises:
        InvalidArgument: An option is wrong, or two views would have the same name, because Spark compares
            names without case. No view was made.
        ClusterNotFound: There is no cluster at ``uri``.
        MetadataUnavailable: The metadata store did not answer.
        MetadataCorrupt: The record of an archived file does not decode.
        ArchiveUnavailable: The file system of an archived file failed.

    Example:
        ```python
        from ledgerlog.spark.views import register_logs

        register_logs(spark, "zk://zk1/ledgerlog", pattern="shop/.*")
        spark.sql("SELECT count(*) FROM `shop/orders`").show()
        ```
    """
    texts = {name: str(value) for name, value in options.items()}
    selected = parse_read_options({"uri": uri, "logPattern": pattern, **texts}, is_stream=False)
    if archives_as_parquet and not selected.is_unbounded:
        raise InvalidArgument(
            "archives_as_parquet does not go with options that bound the read: filter in the query instead"
        )

    async def find(client: LedgerClient) -> dict[str, _Archived | None]:
        names = await select(client, selected)
        if not archives_as_parquet:
            return dict.fromkeys(names)
        found = [(name, await _archived(client, name)) for name in names]
        return {name: archived for name, archived in found if archived is not None}

    archives = run_connected(uri, find)
    views = {prefix + log: log for log in archives}
    _check(views, {"uri": uri, **texts})
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_name(database)}")
    with_headers = includes_headers(texts)
    for view, log in views.items():
        table = f"{_name(database)}.{_name(_table_of(view, with_headers=with_headers))}"
        columns = f"OPTIONS (includeHeaders {_text(str(with_headers).lower())})"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING ledgerlog {columns}")
        more, archived = {}, archives[log]
        if archived is not None and archived.files:
            more = {"startingOffsets": str(archived.end)}
        given = ", ".join(
            f"{key} = {_text(value)}" for key, value in {"uri": uri, "log": log, **texts, **more}.items()
        )
        query = f"SELECT * FROM {table} WITH ({given})"
        if archived is not None and archived.files:
            history = f"{view} (archived)"  # No log has such a name.
            _rows_of(spark, log, archived, with_headers=with_headers).createOrReplaceTempView(_name(history))
            rest = "" if archived.is_all else f" UNION ALL {query}"
            query = f"SELECT * FROM {_name(history)}{rest}"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {_name(view)} AS {query}")
    return views


@attrs.frozen
class _Archived:
    """The archived beginning of a log."""

    start: int
    end: int
    files: tuple[ArchivedFile, ...]
    """The records of its files, in order."""
    is_all: bool
    """Whether nothing can come after it: the log is sealed, and archived to its end."""


async def _archived(client: LedgerClient, log: str) -> _Archived | None:
    """Find the archived beginning of a log; None if the log is gone."""
    registry = LogRegistry(client.store, client.environment)
    incarnation = await registry.find(log)
    metadata = None if incarnation is None else (await registry.read(incarnation))[0]
    if metadata is None:
        return None
    records = await ArchiveRegistry(client.store).of_log(metadata.incarnation)
    files, end = leading_files(metadata.first_offset, [record for record, _ in records])
    is_all = metadata.sealed and end == metadata.counted_end
    return _Archived(metadata.first_offset, end, tuple(files), is_all)


def _rows_of(spark: SparkSession, log: str, archived: _Archived, *, with_headers: bool) -> DataFrame:
    """Return the archived rows of a log, in the columns of the source."""
    columns = [
        f"{_text(log)} AS log",
        "offset",
        "timestamp",
        "value",
        "ledger_id",
        "entry_id",
        "epoch",
        "key",
    ]
    if with_headers:
        columns.append("CAST(headers AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers")
    rows = (
        spark.read.schema(_PARQUET)
        .option("parquet.page.verify-checksum.enabled", "true")
        .parquet(*map(_path_of, archived.files))
    )
    if archived.files[0].first_offset < archived.start:  # Else a count would read the offsets for nothing.
        rows = rows.where(f"offset >= {archived.start}")
    return rows.selectExpr(*columns)


def _path_of(record: ArchivedFile) -> str:
    """Return the path under which Spark reads a file. Spark would treat some characters as a pattern."""
    where, name = name_of_record(record)
    with recorded(record.file):
        path = Destination(where).table_url(name)
    if path.startswith("s3://"):
        path = f"s3a://{path.removeprefix('s3://')}"
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)


def _check(views: Mapping[str, str], options: Mapping[str, str]) -> None:
    """Check the names of the views, and the options for each log."""
    seen: dict[str, str] = {}
    for view, log in views.items():
        other = seen.setdefault(view.lower(), log)
        if other != log:
            raise InvalidArgument(
                f"the names of the logs {other!r} and {log!r} differ only in case, and Spark compares the "
                "names of views without case: choose one of them by the pattern"
            )
        parse_read_options({"log": log, **options}, is_stream=False)


def _table_of(view: str, *, with_headers: bool) -> str:
    """Return the name of the table of a view. Spark allows only letters, digits and ``_`` in it."""
    name = view.lower()
    digest = sha256(f"{name} {with_headers}".encode()).hexdigest()[:16]
    return f"{re.sub(r'[^a-z0-9_]', '_', name)[:40]}_{digest}"


def _name(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    """Quote a text for SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
