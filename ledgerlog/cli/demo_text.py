"""The demo's records: lines of real text, each with its own number.

    000000017\\tdef main() -> None:

By default the text is the source files of the running Python's standard library, in the order of their names.
They are on every machine and have lines of every length. If there are fewer lines than records, the text is
read again from its start; the numbers tell the records apart.
"""

from __future__ import annotations

import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import RECORD_BYTES_MAX

__all__ = ["NUMBER_DIGITS", "number_of", "numbered", "record_of", "text_lines"]

NUMBER_DIGITS = 9
_LINE_BYTES_MAX = RECORD_BYTES_MAX - NUMBER_DIGITS - 1


def text_lines(path: Path | None) -> Iterator[bytes]:
    """Yield the lines of a file, or of the standard library's source files, once and without newlines."""
    paths = [path] if path is not None else _standard_library()
    for each in paths:
        with each.open("rb") as file:
            for line in file:
                line = line.removesuffix(b"\n")
                if len(line) > _LINE_BYTES_MAX:
                    raise InvalidArgument(f"{each} has a line of {len(line)} bytes; a record is smaller")
                yield line


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(p for p in root.rglob("*.py") if p.is_file() and "site-packages" not in p.parts)


def numbered(path: Path | None, count: int) -> Iterator[bytes]:
    """Yield ``count`` records. Raises InvalidArgument if the text has no line."""
    for number, line in enumerate(itertools.islice(_forever(path), count)):
        yield record_of(number, line)


def record_of(number: int, line: bytes) -> bytes:
    return b"%0*d\t%b" % (NUMBER_DIGITS, number, line)


def _forever(path: Path | None) -> Iterator[bytes]:
    while True:
        is_empty = True
        for line in text_lines(path):
            is_empty = False
            yield line
        if is_empty:
            raise InvalidArgument(f"{path or 'the standard library'} has no line")


def number_of(record: bytes) -> int | None:
    """Return the number that a record carries; None if the record is not one of the demo's."""
    digits = record[:NUMBER_DIGITS]
    if len(digits) != NUMBER_DIGITS or record[NUMBER_DIGITS : NUMBER_DIGITS + 1] != b"\t":
        return None
    return int(digits) if digits.isdigit() else None
