"""Values of Python as those of TLA+."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

View = dict[str, Any]
"""A record."""


@attrs.frozen
class Function:
    """A function with numbers or text for arguments; a ``dict`` stands for a record."""

    values: tuple[tuple[Any, Any], ...]


@attrs.frozen
class Name:
    """The name of a definition."""

    text: str


def tla(value: Any) -> str:
    """The text of a value in TLA+: of numbers, booleans, text, sequences, sets, records, functions."""
    match value:
        case Name():
            return value.text
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            assert value.isascii(), value
            assert not {'"', "\\"} & set(value), value
            return f'"{value}"'
        case tuple() | list():
            return f"<<{', '.join(map(tla, value))}>>"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(tla, value)))}}}"
        case Function():
            assert value.values, "a function without arguments has no literal"
            return f"({' @@ '.join(f'{tla(key)} :> {tla(one)}' for key, one in value.values)})"
        case Mapping():
            return f"[{', '.join(f'{key} |-> {tla(one)}' for key, one in value.items())}]"
    raise TypeError(f"nobody said how a {type(value).__name__} looks in TLA+")
