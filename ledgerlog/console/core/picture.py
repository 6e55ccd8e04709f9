"""Pictures: the content of a page as rows in sections, and the difference between two pictures.

A *picture* is a map of sections. A section is a map of rows by key. A row is a map of fields. All fields are
JSON values. A page that has one picture gets only the difference to the next picture, and makes the next
picture from it:

    {"set": {"bookies": {"b1": {"state": "unavailable"}}}, "gone": {"tasks": ["17"]}}

``set`` has the changed fields of changed rows and all fields of new rows. ``gone`` has the keys of removed
rows. A field that a row no longer has is set to None. A slow watcher may miss pictures, but no change: each
difference starts from the last picture that the watcher was told of. So nothing has to be queued for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["HAPPENINGS_MAX", "Happenings", "Picture", "Row", "difference", "patched", "significant"]

Row = Mapping[str, Any]
Picture = Mapping[str, Mapping[str, Row]]

HAPPENINGS_MAX = 40
"""How many of the last happenings (``Happenings``) a page shows."""


def difference(before: Picture, after: Picture) -> dict[str, Any] | None:
    """Return the difference between two pictures. None: they are equal."""
    changed: dict[str, dict[str, Row]] = {}
    gone: dict[str, list[str]] = {}
    for section, rows in after.items():
        held = before.get(section, {})
        new = {
            key: fields for key, row in rows.items() if (fields := _changed(held.get(key), row)) is not None
        }
        if new:
            changed[section] = new
        if missing := [key for key in held if key not in rows]:
            gone[section] = missing
    for section in before.keys() - after.keys():
        if before[section]:
            gone[section] = list(before[section])
    if not changed and not gone:
        return None
    return {"set": changed, "gone": gone}


def _changed(held: Row | None, row: Row) -> Row | None:
    if held is None:
        return row
    if held == row:
        return None
    fields = {name: value for name, value in row.items() if name not in held or held[name] != value}
    return {**fields, **{name: None for name in held if name not in row}}


def patched(picture: Picture, told: Mapping[str, Any]) -> Picture:
    """Apply a difference to a picture, as a page does. Return the next picture."""
    result = {section: dict(rows) for section, rows in picture.items()}
    for section, keys in told["gone"].items():
        for key in keys:
            result.get(section, {}).pop(key, None)
    for section, rows in told["set"].items():
        shown = result.setdefault(section, {})
        for key, fields in rows.items():
            shown[key] = {**shown.get(key, {}), **fields}
    return result


def significant(value: float | None, digits: int = 3) -> float | None:
    """Round to some significant digits, so that noise does not change a picture."""
    return None if value is None else float(f"{value:.{digits}g}")


@attrs.define(eq=False)
class Happenings:
    """The last things that the console saw happen, for people.

    Each is a line with a time, a subject, a text and a tone: ``good``, ``note`` or ``bad``. Its number comes
    from its time. So if a console is started again, a page that is still open tells its lines from the old
    ones.
    """

    _lines: deque[tuple[int, float, str, str, str]] = attrs.field(
        factory=lambda: deque(maxlen=HAPPENINGS_MAX)
    )
    _told: deque[tuple[str, str, object]] = attrs.field(factory=lambda: deque(maxlen=HAPPENINGS_MAX))
    """The last happenings that may be seen on several pages: subject, text and ``once``."""
    _last: int = 0

    def add(self, at_s: float, about: str, text: str, *, tone: str = "note", once: object = None) -> None:
        """Note that something happened.

        Args:
            at_s: When it happened, in seconds since 1970.
            about: The subject.
            text: What happened.
            tone: ``good``, ``note`` or ``bad``.
            once: Each open page may see this. Add only one line with this subject, text and value. None: it
                is seen once.
        """
        if once is not None:
            if (about, text, once) in self._told:
                return
            self._told.append((about, text, once))
        self._last = max(self._last + 1, round(1000 * at_s))
        self._lines.append((self._last, at_s, about, text, tone))

    def rows(self) -> dict[str, Row]:
        """Return the lines by their numbers."""
        return {
            str(number): {"at_s": round(at_s, 3), "about": about, "text": text, "tone": tone}
            for number, at_s, about, text, tone in self._lines
        }
