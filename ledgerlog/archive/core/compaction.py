"""Latest-per-key compaction: which records of an archive stay.

A *rule* takes the key out of a record:

    prefix:N      its first N bytes; a shorter record has no key
    until:TEXT    what comes before the first TEXT in it; a record without TEXT has no key
    json:PATH     the value at PATH (names separated by dots) of the JSON that it is, by its canonical form;
                  what is no JSON, or has nothing there, has no key. Neither has a number that is written with
                  more digits than a double tells from others

or is any function from a record to a key, or to None. Of each key the record with the highest offset stays,
and so does every record without a key: compaction never drops what it does not understand.

A *tombstone* says that its key is to be forgotten. For ``prefix`` and ``until`` it is a record with nothing
behind its key, for ``json`` one whose value at a path of its own is ``true``. One that is the latest of its
key stays until it has a certain age, so that everybody who reads the log sees it, and goes then.

Keys are held as digests of 16 bytes, so the table of the latest offsets takes some 150 bytes a key in one
process, of at most ``KEYS_MAX`` keys; where there are more, Spark groups them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.model.record import RecordBatch

__all__ = [
    "KEYS_MAX",
    "KeyRule",
    "Latest",
    "TooManyKeys",
    "json_rule",
    "key_digest",
    "parse_key_rule",
    "prefix_rule",
    "survivors",
    "until_rule",
]

KEYS_MAX = 20_000_000

_DIGEST_BYTES = 16


class TooManyKeys(LedgerLogError):
    """An archive has more keys than one process holds; compact it on Spark."""


@attrs.frozen(kw_only=True)
class KeyRule:
    """How a record is read by compaction."""

    key: Callable[[bytes], bytes | None]
    """The key of a record; None: it has none, and stays."""
    is_tombstone: Callable[[bytes], bool] = attrs.field(default=lambda record: False)
    """Asked of records that have a key."""


def prefix_rule(length: int, *, tombstones: bool = False) -> KeyRule:
    """The first ``length`` bytes are the key. InvalidArgument."""
    if length < 1:
        raise InvalidArgument(f"a key has a byte at least, not {length}")
    return KeyRule(
        key=lambda record: record[:length] if len(record) >= length else None,
        is_tombstone=lambda record: tombstones and len(record) == length,
    )


def until_rule(separator: bytes, *, tombstones: bool = False) -> KeyRule:
    """What comes before the first ``separator`` is the key. InvalidArgument."""
    if not separator:
        raise InvalidArgument("what a key ends at must not be empty")

    def key(record: bytes) -> bytes | None:
        head, found, _ = record.partition(separator)
        return head if found else None

    return KeyRule(key=key, is_tombstone=lambda record: tombstones and record.partition(separator)[2] == b"")


def json_rule(path: str, *, tombstone: str | None = None) -> KeyRule:
    """The value at a path of a JSON object is the key; with ``tombstone`` a record whose value at that path
    is ``true`` is one. InvalidArgument."""
    names, mark = _path(path), None if tombstone is None else _path(tombstone)

    def key(record: bytes) -> bytes | None:
        found, value = _at(record, names)
        if not found or value is None:
            return None
        try:
            if not isinstance(value, str | int):
                # There may be fractions in it, of which two that differ can be one and the same double.
                value = _at(record, names, exact=True)[1]
            return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        except (TypeError, RecursionError):
            return None

    return KeyRule(
        key=key,
        is_tombstone=lambda record: mark is not None and _at(record, mark)[1] is True,
    )


def parse_key_rule(text: str, tombstones: str | None = None) -> KeyRule:
    """A rule as it is written for people: see the module. ``tombstones`` is "empty", or "json:PATH".
    InvalidArgument."""
    kind, _, rest = text.partition(":")
    if tombstones is not None and tombstones != "empty" and not tombstones.startswith("json:"):
        raise InvalidArgument(f"{tombstones!r} is not a kind of tombstones: 'empty' or 'json:PATH'")
    is_json = tombstones is not None and tombstones.startswith("json:")
    if tombstones is not None and is_json != (kind == "json"):
        raise InvalidArgument(f"tombstones {tombstones!r} do not go with the key {text!r}")
    if kind == "prefix" and rest.isascii() and rest.isdigit() and len(rest) < 10:
        return prefix_rule(int(rest), tombstones=tombstones is not None)
    if kind == "until" and rest:
        return until_rule(rest.encode(), tombstones=tombstones is not None)
    if kind == "json" and rest:
        return json_rule(rest, tombstone=None if tombstones is None else tombstones.removeprefix("json:"))
    raise InvalidArgument(f"{text!r} is not a key: prefix:N, until:TEXT or json:PATH")


def _path(text: str) -> tuple[str, ...]:
    names = tuple(text.split("."))
    if not all(names):
        raise InvalidArgument(f"{text!r} is not a path: names separated by dots")
    return names


def _at(record: bytes, names: tuple[str, ...], *, exact: bool = False) -> tuple[bool, Any]:
    """Whether there is a value at a path, and which. ``exact``: with what JSON cannot have in place of
    fractions that a double does not hold."""
    try:
        if exact:
            value = json.loads(record, parse_float=_exact_float, parse_constant=lambda text: _INEXACT)
        else:
            value = json.loads(record)
    except (ValueError, RecursionError):
        return False, None
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return False, None
        value = value[name]
    return True, value


_INEXACT = object()


def _exact_float(text: str) -> Any:
    value = float(text)
    try:
        return value if Decimal(text) == Decimal(repr(value)) else _INEXACT
    except ArithmeticError:  # An exponent beyond all bounds.
        return _INEXACT


def key_digest(key: bytes) -> bytes:
    """What stands for a key in tables."""
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Latest:
    """The highest offset of each key of an archive: fed with all records, in their order, then asked."""

    def __init__(self, rule: KeyRule, *, tombstones_before_ms: int = 0, keys_max: int = KEYS_MAX) -> None:
        self._rule = rule
        self._tombstones_before_ms = tombstones_before_ms
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def feed(self, batches: Iterable[RecordBatch]) -> None:
        """The next records. TooManyKeys."""
        for batch in batches:
            for offset, record in enumerate(batch.payloads, batch.first_offset):
                key = self._rule.key(record)
                if key is not None:
                    digest = key_digest(key)
                    assert offset > self._offsets.get(digest, -1), "records are fed in their order"
                    self._offsets[digest] = offset
        if len(self._offsets) > self._keys_max:
            raise TooManyKeys(f"more than {self._keys_max} keys; compact the archive on Spark")

    def keeps(self, offset: int, record: bytes, timestamp_ms: int) -> bool:
        """Whether a record stays."""
        key = self._rule.key(record)
        if key is None:
            return True
        # One that has a key only now, by a rule that does not always say the same, is in no table. It stays.
        if self._offsets.get(key_digest(key), offset) != offset:
            return False
        return timestamp_ms >= self._tombstones_before_ms or not self._rule.is_tombstone(record)


def survivors(batch: RecordBatch, keeps: Callable[[int, bytes, int], bool]) -> list[RecordBatch]:
    """What is left of a batch, as batches of consecutive records."""
    kept = [
        keeps(offset, record, batch.timestamp_ms)
        for offset, record in enumerate(batch.payloads, batch.first_offset)
    ]
    if all(kept):
        return [batch]
    left = []
    start: int | None = None
    for at, is_kept in enumerate([*kept, False]):
        if is_kept and start is None:
            start = at
        elif not is_kept and start is not None:
            left.append(batch.between(batch.first_offset + start, batch.first_offset + at))
            start = None
    return left
