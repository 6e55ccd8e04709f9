"""Latest-per-key compaction: choose which records of an archive stay.

A *rule* says which key a record has. It is one of these, or any function from the record's data to a key or
None:

    key           The key that the record was appended with.
    prefix:N      The first N bytes. A shorter record has no key.
    until:TEXT    The bytes before the first TEXT. A record without TEXT has no key.
    json:PATH     The value at PATH (names separated by dots) of a JSON record, in its canonical form. For
                  example, ``json:user.id`` finds 7 in ``{"user": {"id": 7}}``. A record has no key if it is
                  not JSON, if it has nothing at PATH, or if the value there has a number with more digits
                  than a double can hold.

The record with the highest offset of each key stays. Every record without a key stays too: compaction never
drops a record that it does not understand.

A *tombstone* is a record that deletes its key. For ``key`` a tombstone is a record without data; for
``prefix`` and ``until``, a record with nothing after its key; for ``json``, a record with the value ``true``
at a separate path. If a tombstone is the latest record of its key, it stays until it reaches a certain age,
so that every reader of the log sees it. Then compaction drops it.

Keys are held as digests of 16 bytes. The table of the latest offsets takes about 150 bytes for each key, in
one process, and holds at most ``KEYS_MAX`` keys. If there are more, compact on Spark, which groups the keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
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
    "own_rule",
    "parse_key_rule",
    "prefix_rule",
    "survivors",
    "until_rule",
]

KEYS_MAX = 20_000_000
"""The most keys that one process holds."""

_DIGEST_BYTES = 16


class TooManyKeys(LedgerLogError):
    """An archive has more keys than one process can hold. Nothing was changed. Compact it on Spark."""


@attrs.frozen(kw_only=True)
class KeyRule:
    """How compaction reads a record."""

    key: Callable[[bytes], bytes | None]
    """Returns the key of a record with this data. None: the record has no key, and stays."""
    is_tombstone: Callable[[bytes], bool] = attrs.field(default=lambda record: False)
    """Whether a record with this data is a tombstone. Called only for records that have a key."""
    is_own: bool = False
    """Whether the key is the one that the record was appended with. ``key`` is not called then."""

    def keys_of(self, batch: RecordBatch) -> list[bytes | None]:
        """Return the key of each record of a batch."""
        if not self.is_own:
            return list(map(self.key, batch.payloads))
        return [None] * len(batch) if batch.keys is None else batch.keys


def own_rule(*, tombstones: bool = False) -> KeyRule:
    """Make a rule: the key is the one that the record was appended with.

    Args:
        tombstones: Whether a record with a key and without data is a tombstone, as in Kafka.
    """
    return KeyRule(
        key=lambda record: None, is_tombstone=lambda record: tombstones and not record, is_own=True
    )


def prefix_rule(length: int, *, tombstones: bool = False) -> KeyRule:
    """Make a rule: the first ``length`` bytes of a record are its key.

    Args:
        length: The length of a key, at least 1 byte.
        tombstones: Whether a record of exactly ``length`` bytes is a tombstone.

    Raises:
        InvalidArgument: ``length`` is below 1.
    """
    if length < 1:
        raise InvalidArgument(f"a key has at least 1 byte, not {length}")
    return KeyRule(
        key=lambda record: record[:length] if len(record) >= length else None,
        is_tombstone=lambda record: tombstones and len(record) == length,
    )


def until_rule(separator: bytes, *, tombstones: bool = False) -> KeyRule:
    """Make a rule: the bytes before the first ``separator`` are the key.

    Args:
        separator: The bytes that end a key; at least one byte.
        tombstones: Whether a record with nothing after ``separator`` is a tombstone.

    Raises:
        InvalidArgument: ``separator`` is empty.
    """
    if not separator:
        raise InvalidArgument("the separator that ends a key must not be empty")

    def key(record: bytes) -> bytes | None:
        head, found, _ = record.partition(separator)
        return head if found else None

    return KeyRule(key=key, is_tombstone=lambda record: tombstones and record.partition(separator)[2] == b"")


def json_rule(path: str, *, tombstone: str | None = None) -> KeyRule:
    """Make a rule: the value at a path of a JSON object is the key.

    Args:
        path: Names separated by dots, for example ``user.id``.
        tombstone: A path; a record with the value ``true`` there is a tombstone. None: no record is one.

    Raises:
        InvalidArgument: A path has an empty name.
    """
    names, mark = _path(path), None if tombstone is None else _path(tombstone)

    def key(record: bytes) -> bytes | None:
        found, value = _at(record, names)
        if not found or value is None:
            return None
        try:
            if not isinstance(value, str | int):
                # The value may contain fractions. Two different fractions may be the same double.
                value = _at(record, names, exact=True)[1]
            return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        except (TypeError, RecursionError):
            return None

    return KeyRule(
        key=key,
        is_tombstone=lambda record: mark is not None and _at(record, mark)[1] is True,
    )


def parse_key_rule(text: str, tombstones: str | None = None) -> KeyRule:
    """Parse a rule as people write it; the module explains the forms.

    Args:
        text: ``key``, ``prefix:N``, ``until:TEXT`` or ``json:PATH``.
        tombstones: ``empty`` for all but ``json``: a record with nothing besides its key is a tombstone.
            ``json:PATH`` for ``json``: a record with ``true`` at PATH is one. None: no record is one.

    Raises:
        InvalidArgument: ``text`` or ``tombstones`` is malformed, or they do not go together.
    """
    kind, _, rest = text.partition(":")
    if tombstones is not None and tombstones != "empty" and not tombstones.startswith("json:"):
        raise InvalidArgument(f"{tombstones!r} is not a way to mark tombstones: 'empty' or 'json:PATH'")
    is_json = tombstones is not None and tombstones.startswith("json:")
    if tombstones is not None and is_json != (kind == "json"):
        raise InvalidArgument(f"tombstones {tombstones!r} cannot be used with the key {text!r}")
    if text == "key":
        return own_rule(tombstones=tombstones is not None)
    if kind == "prefix" and rest.isascii() and rest.isdigit() and len(rest) < 10:
        return prefix_rule(int(rest), tombstones=tombstones is not None)
    if kind == "until" and rest:
        return until_rule(rest.encode(), tombstones=tombstones is not None)
    if kind == "json" and rest:
        return json_rule(rest, tombstone=None if tombstones is None else tombstones.removeprefix("json:"))
    raise InvalidArgument(f"{text!r} is not a key: key, prefix:N, until:TEXT or json:PATH")


def _path(text: str) -> tuple[str, ...]:
    names = tuple(text.split("."))
    if not all(names):
        raise InvalidArgument(f"{text!r} is not a path: names separated by dots")
    return names


def _at(record: bytes, names: tuple[str, ...], *, exact: bool = False) -> tuple[bool, Any]:
    """Return whether a JSON record has a value at a path, and the value.

    With ``exact``, a fraction that a double cannot hold is replaced by an object that JSON cannot encode.
    """
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
    except ArithmeticError:  # The exponent is out of bounds.
        return _INEXACT


def key_digest(key: bytes) -> bytes:
    """Return the digest that replaces a key in tables."""
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Latest:
    """The highest offset of each key of an archive. First feed it all records, in order; then ask ``keeps``.

    Args:
        rule: The rule that takes the key out of a record.
        tombstones_before_ms: Drop tombstones that were appended before this time, in milliseconds since the
            epoch. 0: drop none.
        keys_max: How many keys to hold at most.
    """

    def __init__(self, rule: KeyRule, *, tombstones_before_ms: int = 0, keys_max: int = KEYS_MAX) -> None:
        self._rule = rule
        self._tombstones_before_ms = tombstones_before_ms
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def feed(self, batches: Iterable[RecordBatch]) -> None:
        """Take the next records.

        Raises:
            TooManyKeys: There are more than ``keys_max`` keys.
        """
        for batch in batches:
            for offset, key in enumerate(self._rule.keys_of(batch), batch.first_offset):
                if key is not None:
                    digest = key_digest(key)
                    assert offset > self._offsets.get(digest, -1), "records are fed in their order"
                    self._offsets[digest] = offset
        if len(self._offsets) > self._keys_max:
            raise TooManyKeys(f"more than {self._keys_max} keys; compact the archive on Spark")

    def keeps(self, batch: RecordBatch) -> list[bool]:
        """Say of each record of a batch whether it stays."""
        is_old = batch.timestamp_ms < self._tombstones_before_ms
        kept = []
        for offset, (key, record) in enumerate(
            zip(self._rule.keys_of(batch), batch.payloads, strict=True), batch.first_offset
        ):
            # A rule that is not deterministic may find a key now although it found none during ``feed``. Then
            # ``_offsets`` lacks this key, and the record stays.
            is_latest = key is None or self._offsets.get(key_digest(key), offset) == offset
            kept.append(is_latest and not (is_old and key is not None and self._rule.is_tombstone(record)))
        return kept


def survivors(batch: RecordBatch, keeps: Callable[[RecordBatch], Sequence[bool]]) -> list[RecordBatch]:
    """Return the records of a batch that stay, as batches of consecutive records."""
    kept = keeps(batch)
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
