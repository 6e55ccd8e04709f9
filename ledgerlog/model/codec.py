"""CBOR for metadata records: strict, bounded, and plain data only.

A record is one CBOR map with text keys. Encoding is canonical, so equal records are equal bytes. Decoding
refuses many things that cbor2 accepts by default and that no record needs: tags (they build regular
expressions, decimals, shared references), simple values other than false, true and null, indefinite lengths,
duplicate keys, trailing bytes, deep nesting. ``Fields`` then reads the map field by field with exact types.
Every error names the record and the field.

A key that the decoder does not read is not an error: a later version may have added it. It is kept if the
record is rewritten (``Fields.unknown``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import attrs
import cbor2

from ledgerlog.errors import IncompatibleVersion, InvalidArgument, LedgerLogError, MetadataCorrupt
from ledgerlog.limits import METADATA_BYTES_MAX

T = TypeVar("T")

_DEPTH_MAX = 8
_TAG_MAJOR = 6
_SIMPLE_MAJOR = 7
_PLAIN_SIMPLE = frozenset((20, 21, 22, 25, 26, 27))
"""false, true, null and the three sizes of floats."""


class RecordTooLong(InvalidArgument):
    """A record is larger than ``limits.METADATA_BYTES_MAX``."""


class NewerRecord(IncompatibleVersion, MetadataCorrupt):
    """A record in the metadata store has a format that this version does not read.

    This error is a MetadataCorrupt, because one record that cannot be read must not stop the work on all
    others. But never replace or remove such a record as if it were damaged: catch IncompatibleVersion first.
    """


def encode_record(
    fields: dict[str, Any], read_back: Callable[[bytes], object] | None = None, *, unknown: bytes = b""
) -> bytes:
    """Encode a record as one canonical CBOR map.

    If a stored record cannot be read again, it is lost, with everything that it describes. So this function
    checks that the bytes can be read.

    Args:
        fields: The map.
        read_back: The decoder of this kind of record. If it is given, it reads the bytes back. Pass it for
            small records. Leave it out for large records, whose values are checked before.
        unknown: The keys of a later version that the record had when it was read, from ``Fields.unknown``.
            They are written again. If ``fields`` has the same key, the value in ``fields`` is written.

    Returns:
        The bytes.

    Raises:
        RecordTooLong: The record is larger than ``limits.METADATA_BYTES_MAX``.
        InvalidArgument: ``read_back``, or ``decode_record_untrusted``, would refuse the bytes.
    """
    if unknown:
        fields = {**cbor2.loads(unknown), **fields}
    try:
        data = cbor2.dumps(fields, canonical=True)
    except (cbor2.CBOREncodeError, ValueError, OverflowError) as cause:
        raise InvalidArgument(f"no record can hold this: {cause}") from cause
    if len(data) > METADATA_BYTES_MAX:
        raise RecordTooLong(f"a record of {len(data)} bytes, over the limit of {METADATA_BYTES_MAX}")
    try:
        if read_back is None:
            decode_record_untrusted(data, "no record can hold this", InvalidArgument)
        else:
            read_back(data)
    except InvalidArgument:
        raise
    except LedgerLogError as cause:
        raise InvalidArgument(f"a record with this value could not be read again: {cause}") from cause
    return data


def _refuse_special(data: bytes, fail: Callable[[str], NoReturn]) -> None:
    """Walk over the heads of all items and refuse items that are not plain, before cbor2 builds anything.

    The hooks of cbor2 cannot switch off its built-in tags, so this walk is needed. It is linear in the input:
    every head takes at least one byte, and strings are skipped by their length.
    """
    position = 0
    size = len(data)
    while position < size:
        head = data[position]
        major, info = head >> 5, head & 31
        position += 1
        if major == _TAG_MAJOR:
            fail("a tagged item")
        if info >= 28:
            fail("an indefinite or reserved length")
        if major == _SIMPLE_MAJOR and info not in _PLAIN_SIMPLE:
            fail("a simple value other than false, true and null")
        argument = info
        if info >= 24:
            width = 1 << (info - 24)
            argument = int.from_bytes(data[position : position + width], "big")
            position += width
        if major in (2, 3):
            position += argument


def decode_record_untrusted(data: bytes, what: str, error: Callable[[str], LedgerLogError]) -> Fields:
    """Decode the map in ``data``.

    Args:
        data: The bytes.
        what: The name of the record, for messages.
        error: Makes the exception to raise: WireError for bytes of a peer, StorageCorrupt for a file,
            MetadataCorrupt for the store.

    Returns:
        The map, ready to be read field by field.
    """

    def fail(why: str) -> NoReturn:
        raise error(f"{what}: {why}")

    if len(data) > METADATA_BYTES_MAX:
        fail(f"{len(data)} bytes, over the limit of {METADATA_BYTES_MAX}")
    _refuse_special(data, fail)
    try:
        value = cbor2.loads(data, max_depth=_DEPTH_MAX, allow_indefinite=False, allow_duplicate_keys=False)
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError, OverflowError) as cause:
        raise error(f"{what}: not valid CBOR") from cause
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        fail("not a map with text keys")
    if cbor2.dumps(value, canonical=True) != data:
        fail("not in canonical form, or followed by more bytes")
    return Fields(value, fail, what, NewerRecord if error is MetadataCorrupt else IncompatibleVersion)


def kept_unknown() -> bytes:
    """Declare the attribute ``unknown`` of a record: the keys that this version does not know.

    Two records are equal even if these keys differ, because no rule of this version depends on them. For
    example, a bookie still starts if a later version added a key to only one of its two cookies.
    """
    unknown: bytes = attrs.field(default=b"", eq=False, repr=False, kw_only=True)
    return unknown


def known_fields(record: attrs.AttrsInstance) -> dict[str, Any]:
    """Return the attributes of a record whose keys have the names of its attributes, without ``unknown``."""
    fields = attrs.asdict(record, recurse=False)
    del fields["unknown"]
    return fields


class Fields:
    """Typed access to a decoded map. Each method names the field in its error."""

    def __init__(
        self,
        value: dict[str, Any],
        fail: Callable[[str], NoReturn],
        what: str,
        newer: type[IncompatibleVersion],
    ) -> None:
        self._value = value
        self._what = what
        self._newer = newer
        self._read: set[str] = set()
        self.fail = fail

    def names(self) -> frozenset[str]:
        """Return the names of all fields, unknown ones too."""
        return frozenset(self._value)

    def unknown(self) -> bytes:
        """Return the keys that were not read, for ``encode_record``; b"" if there are none.

        A later version may have added them. They are written again with the record, so that an older process
        does not destroy data of a newer one. Call this after all fields are read, and keep the result in an
        attribute made by ``kept_unknown``.
        """
        left = {name: value for name, value in self._value.items() if name not in self._read}
        return cbor2.dumps(left, canonical=True) if left else b""

    def format(self, oldest: int, newest: int | None = None) -> int:
        """Return the format of the record, the field ``v``.

        Args:
            oldest: The oldest format that the caller reads.
            newest: The newest one; None: ``oldest`` is the only one.

        Raises:
            IncompatibleVersion: The format is newer. For a record of the metadata store, the error is
                NewerRecord.
        """
        newest = oldest if newest is None else newest
        version = self.integer("v")
        if version > newest:
            raise self._newer(self._what, (version, version), (oldest, newest))
        if version < oldest:
            self.fail(f"it has format {version}, but the oldest format is {oldest}")
        return version

    def get(self, name: str, kind: type[T]) -> T:
        """Return the field ``name``, which must be exactly a ``kind`` (a bool is not an int)."""
        self._read.add(name)
        if name not in self._value:
            self.fail(f"the field {name!r} is missing")
        value = self._value[name]
        if type(value) is not kind:
            self.fail(f"the field {name!r} is {type(value).__name__}, not {kind.__name__}")
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Return the field; None if it is absent or null."""
        self._read.add(name)
        if self._value.get(name) is None:
            return None
        return self.get(name, kind)

    def integer(self, name: str, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return an int within ``low..high``."""
        value = self.get(name, int)
        if not low <= value <= high:
            self.fail(f"the field {name!r} is {value}, outside {low}..{high}")
        return value

    def sequence(self, name: str, kind: type[T]) -> list[T]:
        """Return a list whose items are all exactly of ``kind``."""
        values = self.get(name, list)
        for value in values:
            if type(value) is not kind:
                self.fail(f"the field {name!r} holds a {type(value).__name__}, not only {kind.__name__}")
        return values

    def strings(self, name: str) -> dict[str, str]:
        """Return a map from text to text."""
        value = self.get(name, dict)
        if not all(type(k) is str and type(v) is str for k, v in value.items()):
            self.fail(f"the field {name!r} is not a map of text to text")
        return value

    def blobs(self, name: str) -> dict[str, bytes]:
        """Return a map from text to bytes."""
        value = self.get(name, dict)
        if not all(type(k) is str and type(v) is bytes for k, v in value.items()):
            self.fail(f"the field {name!r} is not a map of text to bytes")
        return value
