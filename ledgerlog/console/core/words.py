"""Turn rows into text for a terminal: the text of each column, and the line of a log in characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgerlog.console.core.picture import Row

__all__ = ["BOOKIES", "CURSORS", "LOGS", "TASKS", "Column", "line_text", "summary", "takeover_text"]

Column = tuple[str, Callable[[Row], str]]
"""The title of a column, and the function that returns its text for a row."""

_SIGNS = {
    "writable": "●",
    "led": "●",
    "read-only": "◐",
    "taken over": "▲",
    "unavailable": "✕",
    "deleted": "✕",
}
_LINE_CHARS = 32


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def _state(word: str, why: str | None) -> str:
    return f"{_SIGNS.get(word, '○')} {word}{f': {why}' if why else ''}"


def _disk(row: Row) -> str:
    if row["disk_bytes"] is None or row["disk_used_bytes"] is None:
        return "-"
    return f"{row['disk_used_bytes'] / row['disk_bytes']:.0%} of {_bytes(row['disk_bytes'])}"


def _log_state(row: Row) -> str:
    word = row["lead"] if row["state"] == "there" else row["state"]
    return _state("no leader" if word == "nobody" else word, row.get("why"))


def line_text(parts: Sequence[Row], chars: int = _LINE_CHARS) -> str:
    """Return the line of a log: a run of equal characters for each part, at least one.

    Neighbours differ: ``█`` and ``▓``. The part of an open ledger is ``░``, one in recovery ``▲``, and a gap
    ``·``. If there are more parts than characters, the oldest are left out.
    """
    known = [part for part in parts[-chars:] if part["first_offset"] is not None]
    sizes = [max(0, (part["end_offset"] or part["first_offset"]) - part["first_offset"]) for part in known]
    spare, total = max(0, chars - len(known)), max(1, sum(sizes))
    text = ""
    for index, (part, size) in enumerate(zip(known, sizes, strict=True)):
        sign = "▲" if part["is_fenced"] else "░" if part["is_open"] else "█▓"[index % 2]
        text += ("·" if part["lost_before"] else "") + sign * (1 + spare * size // total)
    return text


BOOKIES: tuple[Column, ...] = (
    ("Bookie", lambda row: str(row["id"])),
    ("State", lambda row: _state(row["state"], row["why"])),
    ("Disk", _disk),
    ("Entries/s", lambda row: _count(row["entries_per_s"])),
    ("Bytes/s", lambda row: _bytes(row["bytes_per_s"])),
    ("Reads/s", lambda row: _count(row["reads_per_s"])),
    ("Sync", lambda row: _ms(row["sync_ms"])),
    ("Answers in", lambda row: _ms(row["answer_ms"])),
)
LOGS: tuple[Column, ...] = (
    ("Log", lambda row: str(row["name"])),
    ("State", _log_state),
    ("Leader", lambda row: str(row.get("leader") or "-")),
    ("Epoch", lambda row: _count(row.get("epoch"))),
    ("Ledgers", lambda row: _count(row.get("ledgers"))),
    ("Next offset", lambda row: _count(row.get("next_offset"))),
    ("Records/s", lambda row: _count(row.get("records_per_s"))),
    ("On a line", lambda row: line_text(row["line"])),
)
CURSORS: tuple[Column, ...] = (
    ("Cursor", lambda row: str(row["name"])),
    ("Offset", lambda row: _count(row["offset"])),
    ("Lag", lambda row: _count(row["lag"])),
    ("Pins", lambda row: "yes" if row["pins"] else "no"),
)
TASKS: tuple[Column, ...] = (
    ("Ledger", lambda row: str(row["ledger"])),
    ("Bookies", lambda row: " ".join((*row["lost"], *row["damaged"], *row["incomplete"], *row["misplaced"]))),
    ("Worker", lambda row: str(row["worker"] or "-")),
    ("What is done, or why it is not", lambda row: str(row["doing"] or row["trouble"] or "waits")),
)


def takeover_text(row: Row) -> str:
    """Return a takeover in one line: its steps so far, each with ``✓`` (done) or ``▲`` (under way)."""
    fenced = ", ".join(map(str, row["fenced"]))
    ends = ", ".join(
        f"{ledger} ends {'empty' if last < 0 else f'at {_count(last)}'}" for ledger, last in row["closed"]
    )
    is_closed = row["is_closed"]
    steps = [f"{'✓' if ends or row['is_over'] else '▲'} fence epoch {row['epoch_before']}"]
    if fenced:
        steps[-1] += f" ({fenced})"
    if fenced or is_closed:
        steps.append(f"{'✓' if is_closed else '▲'} find the end{f' ({ends})' if ends else ''}")
    if is_closed:
        steps.append(f"{'✓' if row['is_over'] else '▲'} lead on")
    if row["is_over"]:
        steps[-1] += f" in epoch {row['epoch']}"
        if row["ledger"] is not None:
            steps[-1] += f", ledger {row['ledger']}"
        if row["seconds"] is not None:
            steps[-1] += f", after {row['seconds']:.2f} s"
    return "  ".join(steps)


def summary(bookies: Sequence[Row], repair: Row | None, troubles: Sequence[Row]) -> str:
    """Return the line above the tables."""
    writable = sum(row["state"] == "writable" for row in bookies)
    text = f"{writable} of {len(bookies)} bookies are writable"
    if repair is not None:
        text += f" · {_count(repair['waiting'])} ledgers wait for repair"
        text += f" · {repair['workers']} workers{', paused' if repair['paused'] else ''}"
    return "\n".join((text, *(f"✕ {row['what']}: {row['why']}" for row in troubles)))
