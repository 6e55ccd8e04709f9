"""Checks in the constructors of metadata records.

Our own code makes records, and a broken rule there is a bug. Decoders make them from bytes, and a broken rule
there is damage. Both use the same constructors. So the constructors check the rules with ``require``, which
``python -O`` does not turn off, and the decoder turns the failure into its own error.
"""

from __future__ import annotations

from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument


def require(holds: bool, rule: str) -> None:
    """Raise AssertionError(rule) unless ``holds``, also under ``python -O``: decoding relies on it."""
    if not holds:
        raise AssertionError(rule)


def positive(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validate for attrs that a number is above 0. InvalidArgument names the class and the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgument(f"{type(instance).__name__}.{attribute.name} must be positive, not {value!r}")


def utf8_size(text: str) -> int:
    """Return how many bytes a text takes in a record. Raise InvalidArgument as ``utf8`` does."""
    return len(utf8(text))


def utf8(text: str) -> bytes:
    """Encode a text in UTF-8.

    A lone surrogate raises InvalidArgument, because no record can hold it. Python makes one from a command's
    argument or a file's name that is not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{text!r} is not text in UTF-8") from None
