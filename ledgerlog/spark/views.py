"""Logs as views of Spark SQL: what stands in for a catalog of a cluster.

A catalog of Spark is a class of the JVM, and a source in Python cannot be one. So ``register_logs`` makes a
temporary view for each log. You can only read from such a view.

**Each query reads the log as it is then.** A view that is made from a DataFrame, or by ``CREATE TEMPORARY
VIEW ... USING ledgerlog``, is a snapshot: Spark plans its tasks once. A view that selects from a table is
planned anew by each query. So each view here selects from a table.

**Each view has a table of its own.** Spark 4.3 resolves a table once for each query. If a query uses one
table twice, the second use gets the options of the first one: a join of two logs would join one log with
itself. The tables hold nothing, neither rows nor options. Their database keeps them apart from yours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from ledgerlog.errors import InvalidArgument
from ledgerlog.spark.connection import run_connected
from ledgerlog.spark.options import includes_headers, parse_read_options
from ledgerlog.spark.planning import select

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_logs"]


def register_logs(
    spark: SparkSession,
    uri: str,
    *,
    pattern: str = ".*",
    prefix: str = "",
    database: str = "ledgerlog",
    **options: str,
) -> dict[str, str]:
    """Make a temporary view for each log of a cluster, so that SQL reads the logs by their names.

    A query on such a view reads the log as it is when the query is planned. The views end with the session.
    To see logs that were made since, call this again. It replaces views of the same names, and leaves the
    views of logs that are gone.

    Args:
        spark: The session. This process connects to the cluster, too.
        uri: The URI of the cluster.
        pattern: A regular expression that the whole name of a log must match.
        prefix: What the name of each view begins with, before the name of the log.
        database: The database of the empty tables that the views select from. It is made if there is none.
        options: Options of reading for all these logs, for example ``startingTimestamp``; see docs/SPARK.md.

    Returns:
        The names of the logs, by the names of their views.

    Raises:
        InvalidArgument: An option is wrong, or two views would have the same name, because Spark compares
            names without case. No view was made.
        ClusterNotFound: There is no cluster at ``uri``.
        MetadataUnavailable: The metadata store did not answer.

    Example:
        ```python
        from ledgerlog.spark.views import register_logs

        register_logs(spark, "zk://zk1/ledgerlog", pattern="shop/.*")
        spark.sql("SELECT count(*) FROM `shop/orders`").show()
        ```
    """
    selected = parse_read_options({"uri": uri, "logPattern": pattern, **options}, is_stream=False)
    logs = run_connected(uri, lambda client: select(client, selected))
    views = {prefix + log: log for log in logs}
    _check(views, {"uri": uri, **options})
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_name(database)}")
    with_headers = includes_headers(options)
    for view, log in views.items():
        table = f"{_name(database)}.{_name(_table_of(view, with_headers=with_headers))}"
        columns = f"OPTIONS (includeHeaders {_text(str(with_headers).lower())})"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING ledgerlog {columns}")
        given = ", ".join(
            f"{key} = {_text(value)}" for key, value in {"uri": uri, "log": log, **options}.items()
        )
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {_name(view)} AS SELECT * FROM {table} WITH ({given})")
    return views


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
