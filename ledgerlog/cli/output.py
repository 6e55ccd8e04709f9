"""The output of commands: JSON objects, tables, records, progress.

Standard output carries only results. With ``--json`` the result is one JSON object, or one JSON object a
line. Without ``--json`` it is tables and lines for a person. Standard error carries complaints and, on a
terminal, progress.

**JSON** is UTF-8 without line breaks inside an object. Bytes are in the field ``data`` if they are UTF-8,
otherwise in ``data_base64``. One of the two is always there.

**Lines and tables for a person** never bring control characters to a terminal, whatever is stored:
unprintable characters are escaped. ``--raw`` prints bytes as they are.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import click

__all__ = [
    "bytes_fields",
    "human_bytes",
    "human_ms",
    "print_as_is",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "raw_output",
    "shown",
    "telling_of_output",
    "to_json",
]


def print_json(value: Any) -> None:
    """Print one object on one line of standard output."""
    print_as_is(to_json(value))


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def print_line(text: str) -> None:
    """Print a line for a person on standard output."""
    print_as_is(shown(text))


def print_as_is(text: str) -> None:
    """Print text for a shell or a program on standard output."""
    with telling_of_output():
        click.echo(text.encode("utf-8", "surrogateescape"))


@contextmanager
def telling_of_output() -> Iterator[None]:
    """Name standard output in an OSError of the body, so that you can find the full disk, for example."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "standard output"
        raise


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    numbers: Sequence[str] = (),
) -> None:
    """Print a table on standard output. ``numbers`` names the columns that are aligned to the right."""
    # Import rich only here: most commands print JSON or lines, and rich would take a fifth of their start.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(str(cell))) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    # A pipe has no width. If a table were cut or folded, programs would not find its text.
    console.width = 10_000
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print_as_is(line.rstrip())


def shown(text: str) -> str:
    """Return text as a line for a person: unprintable characters are escaped. The bytes of a file's name that
    are not UTF-8 stay (``surrogateescape``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _stays(c) else c.encode("unicode_escape").decode() for c in text)


def _stays(character: str) -> bool:
    return character == "\t" or "\udc80" <= character <= "\udcff"


def printable(data: bytes) -> str:
    """Return bytes as a line for a person: UTF-8 as it is; other bytes and unprintable characters escaped."""
    return shown(data.decode("utf-8", "backslashreplace"))


def bytes_fields(data: bytes, name: str = "data") -> dict[str, str]:
    """Return bytes as a field of a JSON object: as text, or in base64 under another name."""
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def raw_output() -> BinaryIO:
    """Return standard output for bytes. Flush it at the end: buffered bytes are not printed."""
    return sys.stdout.buffer


def human_bytes(count: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_ms(milliseconds: float) -> str:
    return f"{milliseconds:.2f} ms" if milliseconds < 100 else f"{milliseconds:,.0f} ms"
