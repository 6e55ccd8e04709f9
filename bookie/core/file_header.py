"""The header page that a segment of the journal and an entry log begin with.

All numbers are little endian:

    offset  size  field
    0       8     magic      says which kind of file this is
    8       4     format
    12      4     page size  4096
    16      8     number     of the file; the file's name says the same
    24      8     size       of the file, in bytes
    32      16    nonce      random
    48      64    instance   of the bookie, UTF-8, padded with zeros
    112           fields of this kind of file, then padding of 0xA5
    4092    4     checksum   CRC-32C of bytes 0 to 4091
"""

from __future__ import annotations

import struct

import attrs

from bookie.core.block import NONCE_BYTES, PADDING, PAGE_BYTES
from ledgerlog.errors import IncompatibleVersion, StorageCorrupt
from ledgerlog.wire.checksum import checksum

__all__ = ["FileKind"]

_FIELDS = struct.Struct("<8sIIQQ16s64s")
_CHECKSUM = struct.Struct("<I")
_INSTANCE_BYTES = 64


@attrs.frozen
class FileKind:
    """One of the two kinds of files: journal segments or entry logs."""

    name: str
    """For messages: "journal segment"."""
    magic: bytes
    format: int

    def encode(self, number: int, size: int, nonce: bytes, instance: str, more: bytes = b"") -> bytes:
        """Return the header page. ``more``: the fields that only this kind of file has."""
        raw_instance = instance.encode()
        assert len(raw_instance) <= _INSTANCE_BYTES
        assert len(nonce) == NONCE_BYTES
        fields = _FIELDS.pack(self.magic, self.format, PAGE_BYTES, number, size, nonce, raw_instance) + more
        page = fields + PADDING * (PAGE_BYTES - len(fields) - _CHECKSUM.size)
        return page + _CHECKSUM.pack(checksum(page))

    def decode(
        self, page: bytes, *, path: str, number: int, instance: str | None
    ) -> tuple[int, bytes, str, bytes]:
        """Decode a header page, and check that it belongs to this kind, this file and this bookie.

        Args:
            page: The first page of the file.
            path: The file, for the error.
            number: The number that the file's name says.
            instance: The instance of this bookie. None: any.

        Returns:
            The size, the nonce, the instance, and the rest of the page, which begins with the fields that
            only this kind of file has.

        Raises:
            IncompatibleVersion: The file has a newer format.
            StorageCorrupt: The header is damaged, or belongs to another file or another bookie instance.
        """
        if len(page) != PAGE_BYTES:
            raise StorageCorrupt(path, 0, f"{len(page)} bytes are less than the header of this {self.name}")
        if _CHECKSUM.unpack_from(page, PAGE_BYTES - _CHECKSUM.size)[0] != checksum(page[: -_CHECKSUM.size]):
            raise StorageCorrupt(path, 0, f"the checksum in the header of this {self.name} does not match")
        magic, version, page_bytes, found, size, nonce, raw_instance = _FIELDS.unpack_from(page)
        if magic == self.magic and version > self.format:
            raise IncompatibleVersion(path, (version, version), (self.format, self.format))
        if magic != self.magic or version != self.format or page_bytes != PAGE_BYTES:
            raise StorageCorrupt(
                path,
                0,
                f"the header of this {self.name} does not have format {self.format} "
                f"(magic {magic!r}, format {version})",
            )
        if found != number:
            raise StorageCorrupt(path, 0, f"this is {self.name} {found}, not {number}")
        owner = raw_instance.rstrip(b"\0").decode(errors="replace")
        if instance is not None and owner != instance:
            raise StorageCorrupt(path, 0, f"the file belongs to bookie instance {owner}, not {instance}")
        return size, nonce, owner, page[_FIELDS.size :]
