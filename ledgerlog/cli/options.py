"""The options that commands share, and the connection to the cluster that a command names."""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import trio
from click.core import ParameterSource

from ledgerlog.cluster import Cluster, open_cluster
from ledgerlog.credential_options import credential_options, given_credentials
from ledgerlog.errors import ClusterNotFound, InvalidArgument, LedgerLogError, MetadataUnavailable
from ledgerlog.event_log import log_to_stderr
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.log.reader import Start
from ledgerlog.meta.uri import FileUri, SqliteUri, parse_uri, refuse_directory
from ledgerlog.model.ids import Position, check_log_name
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import parse_moment

__all__ = [
    "OFFSET",
    "FiniteNumber",
    "WholeNumber",
    "bench_uri_option",
    "check_there",
    "check_uri",
    "confirmed",
    "connect",
    "json_option",
    "keep_a_log",
    "ledger_id_argument",
    "log_name_argument",
    "needs",
    "numbers",
    "parse_start",
    "parse_time",
    "parsed",
    "quorum_options",
    "replication_of",
    "replication_options",
    "uri_option",
    "yes_option",
]

F = TypeVar("F", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A whole number between bounds. Its messages do not speak of an "integer range"."""

    name = "integer"


class FiniteNumber(click.FloatRange):
    """A finite number between bounds.

    A plain ``FloatRange`` accepts NaN, because no comparison of NaN with a bound is true. Later comparisons
    would be false too: for example, no ledger would be too young for a sweep.
    """

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that parses a parameter with ``parse``. Its InvalidArgument counts as wrong usage."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except InvalidArgument as error:
            raise click.BadParameter(str(error), ctx=ctx, param=param) from error

    return callback


def numbers(low: int, high: int) -> Callable[[click.Context, click.Parameter, str], tuple[int, ...]]:
    """Return a callback that parses "1,2,3": whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> tuple[int, ...]:
        found = []
        for part in text.split(","):
            part = part.strip()
            if not (part.isascii() and part.isdigit() and low <= int(part) <= high):
                raise InvalidArgument(f"{part!r} is not a whole number from {low} to {high}")
            found.append(int(part))
        return tuple(found)

    return parsed(parse)


def check_uri(text: str) -> str:
    """Check that a text is a cluster URI, and return it. Otherwise raise InvalidArgument."""
    parse_uri(text)
    return text


def parse_start(text: str) -> Start:
    """Parse the place at which to start reading a log. Raises InvalidArgument if the text does not name a
    place."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    if text.count(":") == 2 and "-" not in text:
        return Position.parse(text)
    try:
        return parse_moment(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not an offset, a position (ledger:entry:slot), a time (2026-01-31T12:00:00+00:00, "
            "UTC if it names no zone), 'earliest' or 'latest'"
        ) from None


def _named_logs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a log in a shell. If the cluster does not answer at once, complete nothing."""
    uri = ctx.params.get("uri") or ctx.find_root().params.get("uri") or os.environ.get("LEDGERLOG_URI")
    names: list[str] = []

    async def find() -> None:
        with trio.move_on_after(_COMPLETION_S):
            async with connect(uri or "") as cluster:
                names.extend(await cluster.logs(incomplete))

    try:
        if not isinstance(parse_uri(uri or ""), FileUri):  # Opening it would start its bookies.
            with ctx.scope(cleanup=False):  # The credentials are in the options.
                trio.run(find)
    except (LedgerLogError, OSError, click.ClickException):
        return []
    return names


_COMPLETION_S = 2.0
log_name_argument = click.argument("name", callback=parsed(check_log_name), shell_complete=_named_logs)
ledger_id_argument = click.argument("ledger_id", metavar="ID", type=WholeNumber(0, LEDGER_ID_MAX))
OFFSET = WholeNumber(0, LEDGER_ID_MAX)


def keep_a_log() -> None:
    """Log progress to standard error even without ``-v``, as ``bookie run`` does.

    A command that serves until it is stopped calls this first: nobody watches it, so only its log tells what
    happened. Other commands report a fault in one line.
    """
    given = click.get_current_context().find_root().params
    if not given.get("verbose"):
        log_to_stderr(logging.INFO, given.get("log_format", "text"))


def parse_time(text: str) -> datetime:
    """Parse a time. Raise InvalidArgument if the text is not a time."""
    try:
        return parse_moment(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a time (2026-01-31T12:00:00+00:00, UTC if it names no zone)"
        ) from None


class UriOption(click.Option):
    """``--uri`` of a command. ``ledgerlog --uri URI COMMAND`` also wins over the environment."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        given = ctx.find_root().params.get("uri")
        return super().value_from_envvar(ctx) if given is None else given


_uri = click.option(
    "--uri",
    cls=UriOption,
    callback=parsed(check_uri),
    envvar="LEDGERLOG_URI",
    required=True,
    show_envvar=True,
    help="The cluster: sqlite:PATH, zk://HOST:PORT/CHROOT or file:PATH.",
)

_bench_uri = click.option(
    "--uri",
    cls=UriOption,
    callback=parsed(check_uri),
    # If LEDGERLOG_URI is set, ignore it: a cluster in service is measured only if you name it.
    help="Measure on this cluster instead of a temporary one. LEDGERLOG_URI is ignored.",
)


def uri_option(function: F) -> F:
    """Add ``--uri``, and the options that name files of credentials (``ledgerlog.credential_options``)."""
    return _uri(credential_options(function))


def bench_uri_option(function: F) -> F:
    """Add ``--uri`` of a benchmark, and the options that name files of credentials."""
    return _bench_uri(credential_options(function))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def confirmed(question: str, *, is_sure: bool) -> None:
    """Ask before something that cannot be undone, if a person is there: standard input is a terminal.

    Args:
        question: The question, without a question mark.
        is_sure: Whether ``--yes`` was given.

    Raises:
        click.Abort: The person said no.
    """
    if not is_sure and sys.stdin.isatty():
        click.confirm(f"{question}?", abort=True, err=True)


yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation. Without a terminal, the command never asks."
)


def quorum_options(function: F) -> F:
    """Add ``--ensemble``, ``--write-quorum``, ``--ack-quorum`` and ``--guaranteed``."""
    for option in (
        click.option(
            "--guaranteed",
            is_flag=True,
            help="Guarantee that every entry of a closed ledger is on its whole write quorum.",
        ),
        click.option(
            "--ack-quorum",
            type=WholeNumber(1),
            help="How many copies must be synced before an acknowledgement.",
        ),
        click.option("--write-quorum", type=WholeNumber(1), help="How many copies of each entry to store."),
        click.option("--ensemble", type=WholeNumber(1), help="How many bookies each ledger is spread over."),
    ):
        function = option(function)
    return function


def replication_options(function: F) -> F:
    """Add the ``quorum_options``, and give the command the ``replication`` that they make.

    If the options give none, it is ``Replication()``.
    """

    @functools.wraps(function)
    def command(
        *args: Any,
        ensemble: int | None,
        write_quorum: int | None,
        ack_quorum: int | None,
        guaranteed: bool,
        **others: Any,
    ) -> Any:
        given = replication_of(ensemble, write_quorum, ack_quorum, guaranteed)
        return function(*args, replication=given or Replication(), **others)

    return quorum_options(cast(F, command))


def replication_of(
    ensemble: int | None, write_quorum: int | None, ack_quorum: int | None, guaranteed: bool
) -> Replication | None:
    """Return the replication in the options. None if the options give none, so the cluster's default holds.

    If no write quorum is given, the default's is used, or the whole ensemble if that is less. If no ack
    quorum is given, a majority of the write quorum is used.

    Raises:
        click.UsageError: The numbers contradict each other.
    """
    if ensemble is None and write_quorum is None and ack_quorum is None and not guaranteed:
        return None
    default = Replication()
    if ensemble is None:
        ensemble = max(default.ensemble, write_quorum or 1)
    if write_quorum is None:
        write_quorum = min(ensemble, max(default.write_quorum, ack_quorum or 1))
    if ack_quorum is None:
        ack_quorum = write_quorum // 2 + 1
    try:
        return Replication(ensemble, write_quorum, ack_quorum, guaranteed)
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from error


def needs(option: str, other: str, *, is_given: bool) -> None:
    """Refuse an option that means nothing without another one.

    Args:
        option: The option, like ``--merge-bytes``.
        other: The one that it needs.
        is_given: Whether the other one is given.

    Raises:
        click.UsageError: The option is given, and the other one is not.
    """
    source = click.get_current_context().get_parameter_source(option[2:].replace("-", "_"))
    if not is_given and source is not ParameterSource.DEFAULT:
        raise click.UsageError(f"{option} needs {other}")


@asynccontextmanager
async def connect(uri: str, *, make: bool = False) -> AsyncIterator[Cluster]:
    """Connect to the cluster that a command names, with the credentials in its options.

    Args:
        uri: The cluster's URI.
        make: Allow that opening makes the cluster. Opening ``file:`` makes its directory. If this were always
            allowed, a mistyped path would be an empty cluster.

    Raises:
        ClusterNotFound: There is no such cluster.
        MetadataUnavailable: The metadata store cannot be opened.
    """
    check_there(uri, make=make)
    async with open_cluster(uri, given_credentials()) as cluster:
        yield cluster


def check_there(uri: str, *, make: bool = False) -> None:
    """Check that there is a cluster to open.

    Raises:
        ClusterNotFound: Opening would make the cluster (see ``connect``), or a ``sqlite:`` URI leads to a
            directory.
        MetadataUnavailable: This user may not write the metadata.
    """
    parsed = parse_uri(uri)
    refuse_directory(parsed)
    match parsed:
        case SqliteUri(path=path) if Path(path).exists() and not (
            _may_write(Path(path)) and _may_write(Path(path).parent)
        ):
            raise MetadataUnavailable(
                f"the cluster at {uri} cannot be opened: even to read, this user must be able to write to "
                f"{path} and to its directory"
            )
        case FileUri(path=path) if not make and not Path(path).is_dir():
            raise ClusterNotFound(f"there is no cluster at {uri}: no directory {path}")
        case _:
            pass


def _may_write(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)
