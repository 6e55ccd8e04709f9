"""Docstrings as the site shows them."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_CANCELLING = re.compile(r"^Cancelling: (.)", re.MULTILINE)


class Sections(Extension):
    """What a cancellation does is a section of its own, as the errors are."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change an object that was read.

        Args:
            obj: The object.
        """
        if obj.docstring is not None:
            obj.docstring.value = _CANCELLING.sub(
                lambda first: f"**Cancelling:**\n\n{first[1].upper()}", obj.docstring.value
            )
        obj.labels -= {"class-attribute", "instance-attribute", "module-attribute"}
