"""What a record must hold, said where the record is made, and refused wherever it comes from.

Records of metadata are made by our own code, where a broken rule is a bug, and decoded from bytes, where it
is damage; both go through the same constructors. So the rules are asserted there, in a form that no switch
of the interpreter turns off, and the decoder turns the failure into its own error.
"""

from __future__ import annotations

from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument


def require(holds: bool, rule: str) -> None:
    """An assertion that also guards decoding, and therefore also stands under ``python -O``."""
    if not holds:
        raise AssertionError(rule)


def positive(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A validator of attrs: a number above 0, or InvalidArgument that names the class and the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgument(f"{type(instance).__name__}.{attribute.name} must be positive, not {value!r}")


def utf8_size(text: str) -> int:
    """How many bytes a text takes in a record. InvalidArgument as for ``utf8``."""
    return len(utf8(text))


def utf8(text: str) -> bytes:
    """A text in UTF-8. InvalidArgument for a lone surrogate, which no record can hold: what Python makes of
    an argument of a command, or of a file's name, that is not UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{text!r} is not text in UTF-8") from None
