"""``ledgerlog log``: policies, retention on demand, cursors, and the sweep of ledgers that no log names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import click

from ledgerlog.cli.options import (
    OFFSET,
    FiniteNumber,
    connect,
    json_option,
    log_name_argument,
    parsed,
    uri_option,
)
from ledgerlog.cli.output import print_json, print_line, print_table
from ledgerlog.cli.running import run
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LOG_SWEEP_AGE_S
from ledgerlog.model.cursor import CursorState, check_cursor_name
from ledgerlog.model.policies import RetentionPolicy, RollPolicy

__all__ = [
    "cursor",
    "log_configure",
    "log_retain",
    "log_sweep",
    "parse_age",
    "parse_bytes",
    "parse_records",
    "policies_of",
    "policies_text",
    "policy_options",
]

F = TypeVar("F", bound=Callable[..., Any])

_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_RECORDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str) -> int | None:
    """Parse "none", or a whole number with k (1,024), m, g or t. InvalidArgument: it is neither."""
    return _parse_number(text, _BYTES, "bytes (like 500m)")


def parse_records(text: str) -> int | None:
    """Parse "none", or a whole number with k (1,000), m or g. InvalidArgument: it is neither."""
    return _parse_number(text, _RECORDS, "records (like 500k)")


def _parse_number(text: str, units: Mapping[str, int], what: str) -> int | None:
    if text == "none":
        return None
    unit = text.lstrip("0123456789")
    number = text[: len(text) - len(unit)]
    if not (number.isascii() and unit.lower() in units and int(number or "0")):
        raise InvalidArgument(f"{text!r} is not a number of {what}, or 'none'")
    return int(number) * units[unit.lower()]


def parse_age(text: str) -> float | None:
    """Parse "none", or a number with s, m, h or d. InvalidArgument: it is neither.

    A number without a unit is refused: whoever means 7 days must not lose what is older than 7 seconds."""
    if text == "none":
        return None
    try:
        age_s = float(text[:-1]) * _SECONDS[text[-1:].lower()]
    except (ValueError, KeyError):
        age_s = 0.0
    if not 0 < age_s < float("inf"):
        raise InvalidArgument(
            f"{text!r} is not an age, which is a number with s, m, h or d (like 90s, 12h or 7d), or 'none'"
        )
    return age_s


def policy_options(function: F) -> F:
    """Add ``--roll-bytes`` and the other policy options; see ``policies_of``."""
    for option in (
        click.option(
            "--retain-age", help="Keep records at least this long (7d). 'none': no limit, keep all."
        ),
        click.option(
            "--retain-bytes",
            help="Keep at least this many bytes of the newest records (10g). 'none': no limit, keep all.",
        ),
        click.option(
            "--roll-age",
            help="Start a new ledger when the first record of the present one has this age (12h), or 'none'.",
        ),
        click.option(
            "--roll-records", help="Start a new ledger after this many records (500k: 500,000), or 'none'."
        ),
        click.option("--roll-bytes", help="Start a new ledger after this many bytes (500m), or 'none'."),
    ):
        function = option(function)
    return function


def policies_of(
    roll_bytes: str | None,
    roll_records: str | None,
    roll_age: str | None,
    retain_bytes: str | None,
    retain_age: str | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of ``RollPolicy`` and ``RetentionPolicy`` that the options set. Raises UsageError."""
    roll: dict[str, Any] = {}
    retention: dict[str, Any] = {}
    try:
        if roll_bytes is not None:
            roll["max_bytes"] = parse_bytes(roll_bytes)
        if roll_records is not None:
            roll["max_records"] = parse_records(roll_records)
        if roll_age is not None:
            roll["max_age_s"] = parse_age(roll_age)
        if retain_bytes is not None:
            retention["max_bytes"] = parse_bytes(retain_bytes)
        if retain_age is not None:
            retention["max_age_s"] = parse_age(retain_age)
        RollPolicy(**roll), RetentionPolicy(**retention)  # Check that a record can hold the values.
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from error
    return roll, retention


@click.command("configure")
@log_name_argument
@policy_options
@uri_option
@json_option
def log_configure(name: str, uri: str, as_json: bool, **policies: str | None) -> None:
    """Change the policies of the log NAME, and print them. Options that you do not give keep their values.

    If you set both bounds of retention, a ledger is dropped as soon as one of them allows it. The present
    writer of the log is not interrupted. It uses the new policies as soon as it sees them."""
    roll, retention = policies_of(**policies)

    async def body() -> tuple[RollPolicy, RetentionPolicy]:
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            # Change the stored policies: another process may change another policy at the same time.
            await log.configure(
                roll=(lambda there: attrs.evolve(there, **roll)) if roll else None,
                retention=(lambda there: attrs.evolve(there, **retention)) if retention else None,
            )
            info = await log.counted_info()
            return info.roll, info.retention

    rolls, retains = run(body)
    if as_json:
        print_json({"name": name, "roll": attrs.asdict(rolls), "retention": attrs.asdict(retains)})
    else:
        print_line(f"{name}: {policies_text(attrs.asdict(rolls), attrs.asdict(retains))}")


def policies_text(roll: dict[str, Any], retention: dict[str, Any]) -> str:
    """Return the fields of a ``RollPolicy`` and of a ``RetentionPolicy`` as text for a person."""
    rolls = f"rolls at {_bounds(roll)}" if _bounds(roll) else "rolls at no bound"
    return f"{rolls}; keeps {_bounds(retention) or 'everything'}"


def _bounds(policy: dict[str, Any]) -> str:
    units = {"max_bytes": "bytes", "max_records": "records", "max_age_s": "s"}
    return ", ".join(
        f"{bound:g} {units[key]}" if key == "max_age_s" else f"{bound} {units[key]}"
        for key, bound in policy.items()
        if bound is not None
    )


@click.command("retain")
@log_name_argument
@uri_option
@json_option
def log_retain(name: str, uri: str, as_json: bool) -> None:
    """Drop now the records that the log's retention allows to drop. While the log NAME has a writer, the
    writer does this itself."""

    async def body() -> tuple[int, int]:
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            dropped = await log.apply_retention()
            return dropped, (await log.counted_info()).first_offset

    dropped, first_offset = run(body)
    if as_json:
        print_json({"name": name, "dropped": dropped, "first_offset": first_offset})
    else:
        print_line(f"{name}: {dropped} records dropped, begins at offset {first_offset}")


@click.command("sweep")
@click.option(
    "--min-age",
    type=FiniteNumber(0),
    default=LOG_SWEEP_AGE_S,
    show_default=True,
    help="Keep ledgers that are younger than this many seconds.",
)
@click.option("--dry-run", is_flag=True, help="Print what the command would delete, but delete nothing.")
@uri_option
@json_option
def log_sweep(min_age: float, dry_run: bool, uri: str, as_json: bool) -> None:
    """Delete ledgers that crashes left behind and that no log can list."""

    async def body() -> list[dict[str, Any]]:
        async with connect(uri) as cluster:
            return [
                {
                    "ledger": orphan.ledger_id,
                    "log": orphan.log,
                    "age_s": round(orphan.age_s, 3),
                    "why": orphan.why,
                    "deleted": orphan.is_deleted,
                }
                for orphan in await cluster.sweep(min_age_s=min_age, delete=not dry_run)
            ]

    orphans = run(body)
    if not orphans and not as_json:
        print_line("nothing to sweep")
    for orphan in orphans:
        if as_json:
            print_json(orphan)
        else:
            verb = "deleted" if orphan["deleted"] else "orphan"
            print_line(f"{verb}: ledger {orphan['ledger']} of log {orphan['log']}: {orphan['why']}")


# --- cursors --------------------------------------------------------------------------------------


@click.group("cursor")
def cursor() -> None:
    """Work with cursors: named, durable positions in a log, which can pin the records after them."""


_cursor_argument = click.argument("cursor_name", metavar="CURSOR", callback=parsed(check_cursor_name))


def _fields(state: CursorState) -> dict[str, Any]:
    return {
        "name": state.name,
        "offset": state.offset,
        "pins": state.pins,
        "properties": state.properties,
        "updated": state.updated.isoformat(timespec="milliseconds"),
    }


@cursor.command("list")
@log_name_argument
@uri_option
@json_option
def cursor_list(name: str, uri: str, as_json: bool) -> None:
    """Print the cursors of the log NAME, each with its lag: how many records follow its position."""

    async def body() -> tuple[list[CursorState], int]:
        async with connect(uri) as cluster:
            log = await cluster.open_log(name)
            # The end is read last, so no lag is below 0.
            return await log.cursors(), (await log.info()).next_offset

    states, end = run(body)
    if as_json:
        for state in states:
            print_json({**_fields(state), "lag": max(0, end - state.offset)})
        return
    rows = [
        (
            state.name,
            state.offset,
            max(0, end - state.offset),
            "pins" if state.pins else "",
            state.updated.isoformat(timespec="seconds"),
            " ".join(f"{key}={value}" for key, value in state.properties.items()),
        )
        for state in states
    ]
    columns = ("cursor", "offset", "lag", "pins", "moved", "properties")
    print_table(columns, rows, numbers=("offset", "lag"))


@cursor.command("set")
@log_name_argument
@_cursor_argument
@click.argument("offset", type=OFFSET)
@click.option(
    "--pin/--no-pin",
    default=None,
    help="Protect the records from OFFSET on from truncation, or stop protecting them.",
)
@click.option(
    "--property",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A property of the cursor. Repeat it for more. The given properties replace all stored ones.",
)
@uri_option
@json_option
def cursor_set(
    name: str,
    cursor_name: str,
    offset: int,
    pin: bool | None,
    pairs: tuple[str, ...],
    uri: str,
    as_json: bool,
) -> None:
    """Move CURSOR of the log NAME to OFFSET, or create it there. A process that uses the cursor notices the
    move."""
    if not all("=" in pair for pair in pairs):
        raise click.UsageError("--property takes KEY=VALUE")
    properties = dict(pair.split("=", 1) for pair in pairs) if pairs else None

    async def body() -> CursorState:
        async with connect(uri) as cluster:
            place = (await cluster.open_log(name)).cursor(cursor_name)
            return await place.set(offset, properties=properties, pins=pin)

    state = run(body)
    if as_json:
        print_json(_fields(state))
    else:
        pins = "; it pins what follows" if state.pins else ""
        print_line(f"{name}: cursor {state.name} is at offset {state.offset}{pins}")


@cursor.command("delete")
@log_name_argument
@_cursor_argument
@uri_option
@json_option
def cursor_delete(name: str, cursor_name: str, uri: str, as_json: bool) -> None:
    """Delete CURSOR of the log NAME. It no longer pins records."""

    async def body() -> bool:
        async with connect(uri) as cluster:
            await (await cluster.open_log(name)).cursor(cursor_name).delete()
            return True

    run(body)
    if as_json:
        print_json({"log": name, "cursor": cursor_name, "deleted": True})
    else:
        print_line(f"{name}: cursor {cursor_name} deleted")
