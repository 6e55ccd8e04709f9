"""Checks in the constructors of metadata records, and of the arguments of users.

If our own code makes a record that breaks a rule, that is a bug. If a decoder makes one from bytes, the bytes
are damaged. Both use the same constructors. So the constructors check the rules with ``require``, which
``python -O`` does not turn off, and a decoder turns the AssertionError into its own error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument


def require(holds: bool, rule: str) -> None:
    """Raise AssertionError(rule) unless ``holds``. Decoding relies on this, so it works under ``python -O``,
    too."""
    if not holds:
        raise AssertionError(rule)


def positive(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """An attrs validator: a number must be above 0. InvalidArgument names the class and the field."""
    check_positive(value, f"{type(instance).__name__}.{attribute.name}")


def check_positive(value: object, what: str) -> None:
    """Raise InvalidArgument unless ``value`` is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgument(f"{what} must be positive, not {value!r}")


def check_kind(value: object, kind: type[Any], what: str, name: str, *, api: str = "ledgerlog") -> None:
    """Check that an argument is an object of a class.

    The three APIs (``ledgerlog``, ``ledgerlog.aio`` and ``ledgerlog.blocking``) have classes with the same
    names. If the argument is an object of another API, the error says so.

    Args:
        value: The argument.
        kind: The class, or a protocol that may be checked at run time.
        what: The name of the argument.
        name: The class in words, for example "a ledgerlog.Log".
        api: The API to which the argument must belong.

    Raises:
        InvalidArgument: It is no such object.
    """
    package, _, rest = type(value).__module__.partition(".")
    if package == "ledgerlog":
        part = rest.partition(".")[0]
        theirs = f"ledgerlog.{part}" if part in ("aio", "blocking") else "ledgerlog"
        if theirs != api:
            raise InvalidArgument(f"{what} is of {theirs}: use the one of {api}")
    if not isinstance(value, kind):
        raise InvalidArgument(f"{what} must be {name}, not {value!r:.300}")


def utf8_size(text: str) -> int:
    """Return how many bytes a text takes in a record. Raise InvalidArgument as ``utf8`` does."""
    return len(utf8(text))


def utf8(text: str) -> bytes:
    """Encode a text in UTF-8.

    A lone surrogate raises InvalidArgument, because no record can hold it. Python makes lone surrogates from
    a command-line argument or a file name that is not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{text!r} is not text in UTF-8") from None


def checked_properties(properties: Mapping[str, str], whose: str, bytes_max: int) -> dict[str, str]:
    """Return a copy of the properties of a log or a cursor.

    Args:
        properties: The properties.
        whose: Whose they are, for the error.
        bytes_max: The most bytes that they may have together.

    Raises:
        InvalidArgument: The properties are not text, or are too large.
    """
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in properties.items()):
        raise InvalidArgument(f"the properties of {whose} are text, keys and values alike")
    size = sum(utf8_size(k) + utf8_size(v) for k, v in properties.items())
    if size > bytes_max:
        raise InvalidArgument(f"properties of {size} bytes, over the limit of {bytes_max}")
    return dict(properties)
