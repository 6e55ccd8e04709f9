"""Gone ledgers: which ledger ids a bookie refuses forever, kept as a few ranges.

A bookie must never mistake a deleted ledger for a new one (rule 4). A row for each deleted ledger would grow
without end. So once the bookie has removed everything of a deleted ledger, one value remembers all of them:

    gone     ranges of ledger ids. The bookie refuses every add of these ledgers, and has no entry of them

A bookie holds only some of a cluster's ledgers, so the ids that it has deleted are not adjacent. To get fewer
ranges, garbage collection also adds an id between them if the metadata store does not list the id and the
bookie knows nothing of it. For example, the bookie has deleted the ledgers 3, 7 and 9, and the store lists
nothing below 12. Then 0 to 9 is one range. So there are at most as many ranges as there are ledgers in the
cluster, plus one, no matter how many were deleted.

The value is one file, which is replaced in one step (``bookie.storage.disk.gone_ledgers``):

    offset  size  field
    0       8     magic "LLGONE01"
    8       4     format, 1
    12      4     number of ranges
    16      64    instance of the bookie, UTF-8, padded with zeros
    80      16    each range: first, last (u64); ascending, and not adjacent
            4     CRC-32C of all before it

This module does no I/O.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import attrs

from bookie.core.block import u64_array, u64_bytes
from ledgerlog.errors import IncompatibleVersion, StorageCorrupt
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.wire.checksum import checksum

Range = tuple[int, int]
"""The first and the last id, both included."""

MAGIC = b"LLGONE01"
"""The first bytes of the file."""
_FORMAT = 1
_INSTANCE_BYTES = 64
_HEAD = struct.Struct(f"<8sII{_INSTANCE_BYTES}s")
_RANGE_BYTES = 16
_CHECKSUM = struct.Struct("<I")


@attrs.frozen(hash=False)
class GoneLedgers:
    """The ledgers that are gone (see the module's text). A new directory has none."""

    bounds: array[int] = attrs.field(factory=lambda: array("Q"))
    """First and last id of each range, one after the other. Do not change the array."""

    @property
    def ranges(self) -> list[Range]:
        """The ranges, ascending and not adjacent."""
        return list(zip(self.bounds[::2], self.bounds[1::2], strict=True))

    def __contains__(self, ledger_id: int) -> bool:
        # If an odd number of bounds are at most ``ledger_id``, it lies in a range that ends after it. If the
        # number is even, ``ledger_id`` is in a range only if it is the last id of the range.
        at = bisect_right(self.bounds, ledger_id)
        return at % 2 == 1 or (at > 0 and self.bounds[at - 1] == ledger_id)

    def gap_around(self, first: int, last: int) -> Range:
        """Widen a range by the adjacent ids that are not gone, and return it.

        If no gone ledger comes after the range, its end stays: later ids may belong to ledgers that are being
        made.
        """
        before, after = bisect_left(self.bounds, first), bisect_right(self.bounds, last)
        low = self.bounds[before - 1] + 1 if before and before % 2 == 0 else 0 if not before else first
        high = self.bounds[after] - 1 if after < len(self.bounds) and after % 2 == 0 else last
        return low, high

    def joined(self, ranges: Sequence[Range]) -> GoneLedgers:
        """Return these ledgers and the ledgers in ``ranges``, which ascend.

        The cost depends on how many ranges this object has near ``ranges``, and hardly on how many it has in
        all.
        """
        if not ranges:
            return self
        bounds = self.bounds
        low, high = ranges[0][0], max(last for _, last in ranges)
        # Ranges that end before ``low - 1`` or begin after ``high + 1`` stay as they are.
        start = bisect_left(bounds, low - 1) // 2 * 2
        stop = (bisect_right(bounds, high + 1) + 1) // 2 * 2
        around = zip(bounds[start:stop:2], bounds[start + 1 : stop : 2], strict=True)
        middle = array("Q")
        for first, last in sorted((*around, *ranges)):
            if middle and first <= middle[-1] + 1:
                middle[-1] = max(middle[-1], last)
            else:
                middle.extend((first, last))
        return GoneLedgers(bounds[:start] + middle + bounds[stop:])

    # --- bytes --------------------------------------------------------------------------------

    def encode(self, instance: str) -> bytes:
        """Return the bytes of the file of this bookie instance."""
        name = instance.encode()
        assert len(name) <= _INSTANCE_BYTES
        body = _HEAD.pack(MAGIC, _FORMAT, len(self.bounds) // 2, name) + u64_bytes(self.bounds)
        return body + _CHECKSUM.pack(checksum(body))

    @classmethod
    def decode_untrusted(cls, data: bytes, *, path: str, instance: str) -> GoneLedgers:
        """Decode the bytes of the file.

        Raises:
            IncompatibleVersion: A newer version wrote the file.
            StorageCorrupt: The bytes are not such a file, or it belongs to another bookie instance. The error
                names ``path``.
        """
        if len(data) < _HEAD.size + _CHECKSUM.size:
            raise StorageCorrupt(path, 0, f"a file of gone ledgers of {len(data)} bytes")
        body = data[: -_CHECKSUM.size]
        if _CHECKSUM.pack(checksum(body)) != data[-_CHECKSUM.size :]:
            raise StorageCorrupt(path, 0, "the checksum of the gone ledgers does not match")
        magic, version, count, raw_instance = _HEAD.unpack_from(body)
        if magic == MAGIC and version > _FORMAT:
            raise IncompatibleVersion(path, (version, version), (_FORMAT, _FORMAT))
        if magic != MAGIC or version != _FORMAT:
            raise StorageCorrupt(path, 0, f"not a file of gone ledgers of format {_FORMAT}")
        owner = raw_instance.rstrip(b"\0").decode(errors="replace")
        if owner != instance:
            raise StorageCorrupt(path, 16, f"the file of bookie instance {owner}, not of {instance}")
        if len(body) != _HEAD.size + count * _RANGE_BYTES:
            raise StorageCorrupt(path, 12, f"{len(body)} bytes of {count} ranges")
        bounds = u64_array(body[_HEAD.size :])
        if not _is_growing(bounds):
            raise StorageCorrupt(path, _HEAD.size, f"ranges that do not ascend: {list(bounds[:8])}")
        return cls(bounds)


def _is_growing(bounds: array[int]) -> bool:
    previous = -2
    for first, last in zip(bounds[::2], bounds[1::2], strict=True):
        if not previous + 1 < first <= last <= LEDGER_ID_MAX:
            return False
        previous = last
    return True
