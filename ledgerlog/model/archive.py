"""The metadata of an archived part of a log: the record that makes a file part of the log.

A closed ledger of a log can be copied to a file outside of the cluster. As soon as this record exists, the
file is part of the log: a reader that finds no copies of the ledger on bookies reads the file. The record has
its own node, below the incarnation of the log and named by the ledger:

    archives/HHHHHHHHHHHHHHHH/HHHHHHHHHHHHHHHH

The record does not change the ledger's metadata or the log's list of ledgers. Once the copies on bookies are
given up, the ledger's metadata are deleted as for any other ledger, in one transaction that requires the
version of the archive's record. So the metadata always say where the log's records are. Bookies,
auto-recovery and programs that know nothing of archives just see a deleted ledger.

A file may hold the records of several consecutive ledgers. The first ledger names the archive's record, and
represents all these ledgers in the log's list. A *compacted* file holds the latest record of each key and has
gaps. Then ``end_offset`` - ``first_offset`` is the number of offsets that the file covers, and
``record_count`` is the number of records left in it.

**Bytes.** One canonical CBOR map:

    v             1, or 2 with destination    record_count  records in the file
    log           the log's name, for people  compacted     bool
    incarnation   of the log                  digest        32 bytes over the records (docs/ARCHIVE.md)
    file          its name, see below         archived_ms   wall clock; deletion waits from here
    file_bytes    its size                    token         random, of the writer of this record
    footer        32 bytes over the file's end, which has no checksum of its own (``archive.footer``)
    ledgers       [id, first offset, end offset, last entry, ...], four numbers for each ledger
    destination   8 bytes, the id of the file's destination

``file`` is the name of the file below its destination. A record of format 1 has no ``destination``; there
``file`` is a whole URL. ``archive.registry`` makes whole URLs of names. So if an archive is moved, only the
record of its destination changes.

**Destinations.** One destination can be mistaken for another. For example, if a disk is not mounted, its
mount point is an empty directory. So each destination has a marker, a file whose name ends with a random id.
The metadata store holds the expected id: ``ArchiveDestination``, one canonical CBOR map in the node
``destinations/HASH``. HASH is the first 16 bytes of the SHA-256 of ``where``, in hexadecimal:

    v             1, or 2 with id             marker        8 bytes, the id of its marker
    where         text that identifies the    made_ms       wall clock, when the marker was made; for
                  destination                               people
    id            8 bytes, which records of   url           where jobs and readers find the files
                  files have                  moved_to      the URL to which the archive was moved; ""
"""

from __future__ import annotations

import itertools
from typing import Self

import attrs

from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.checks import require
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ids import check_ledger_id, check_log_name
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.redact import redact

__all__ = [
    "DESTINATION_ID_BYTES",
    "DIGEST_BYTES",
    "MARKER_BYTES",
    "ArchiveDestination",
    "ArchivedFile",
    "ArchivedLedger",
    "url_below",
]

_FORMAT = 1
_FORMAT_WITH_ID = 2
_OFFSET_MAX = 2**63 - 1

DIGEST_BYTES = 32
MARKER_BYTES = 8
DESTINATION_ID_BYTES = 8


def url_below(url: str, name: str) -> str:
    """Return the URL of a file, by the URL of its destination and its name there. Options stay at the end."""
    base, mark, query = url.partition("?")
    return f"{base}/{name}{mark}{query}"


@attrs.frozen(kw_only=True)
class ArchivedLedger:
    """One ledger of a log whose records lie in a file."""

    ledger_id: int
    first_offset: int
    end_offset: int
    """The offset after its last record."""
    last_entry: int


@attrs.frozen(kw_only=True)
class ArchivedFile:
    """A file that is part of a log. See the module docstring for the fields."""

    log: str
    incarnation: int
    file: str = attrs.field(repr=redact)
    """The file's URL, with everything that you need to read the file. The URL may contain secrets.

    ``decode_untrusted`` does not know the URL of a destination. It gives ``destination://ID/NAME`` instead.
    """
    file_bytes: int
    footer: bytes
    """The digest of the file's end."""
    ledgers: tuple[ArchivedLedger, ...]
    """The ledgers in the order of their offsets, without gaps, at least one. The first ledger names the
    record."""
    record_count: int
    compacted: bool
    digest: bytes
    archived_ms: int
    token: bytes
    destination: bytes = b""
    """The id of the destination; b"": the record has none and keeps the whole URL."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __attrs_post_init__(self) -> None:
        require(len(self.destination) in (0, DESTINATION_ID_BYTES), "an id of a destination has 8 bytes")
        require(bool(self.ledgers), "an archived file holds at least one ledger")
        for ledger in self.ledgers:
            require(ledger.first_offset < ledger.end_offset, "an archived ledger holds records")
            require(0 <= ledger.last_entry <= ENTRY_ID_MAX, "an archived ledger has entries")
        for one, other in itertools.pairwise(self.ledgers):
            require(one.end_offset == other.first_offset, "the ledgers of a file adjoin each other")
        ids = {ledger.ledger_id for ledger in self.ledgers}
        require(len(ids) == len(self.ledgers), "no ledger is in a file twice")
        span = self.end_offset - self.first_offset
        require(0 <= self.record_count <= span, "a file holds at most one record for each offset")
        require(self.compacted or self.record_count == span, "only a compacted file has gaps")
        for digest in (self.digest, self.footer):
            require(len(digest) == DIGEST_BYTES, f"a digest has {DIGEST_BYTES} bytes")

    @property
    def ledger_id(self) -> int:
        """The ledger whose id names the record. It also represents the file in the log's list."""
        return self.ledgers[0].ledger_id

    @property
    def first_offset(self) -> int:
        return self.ledgers[0].first_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the file covers."""
        return self.ledgers[-1].end_offset

    @property
    def name(self) -> str:
        """The name of the file below its destination: a directory and a file."""
        return "/".join(self.file.partition("?")[0].rsplit("/", 2)[1:])

    def below(self, url: str) -> Self:
        """Return the same record, with the URL of the file below the destination ``url``."""
        return attrs.evolve(self, file=url_below(url, self.name))

    def with_url(self) -> Self:
        """Return the same record without the id of the destination, so its bytes have the whole URL.

        Processes that read the file, but not the metadata store, need it.
        """
        return attrs.evolve(self, destination=b"")

    def holds(self, offset: int) -> bool:
        """Return whether the file covers ``offset``."""
        return self.first_offset <= offset < self.end_offset

    def ledger(self, ledger_id: int) -> ArchivedLedger | None:
        """Return the ledger with that id; None if it is not in the file."""
        return next((ledger for ledger in self.ledgers if ledger.ledger_id == ledger_id), None)

    def encode(self) -> bytes:
        """Encode the record as canonical CBOR."""
        place = {"destination": self.destination} if self.destination else {}
        return encode_record(
            {
                "v": _FORMAT_WITH_ID if self.destination else _FORMAT,
                "log": self.log,
                "incarnation": self.incarnation,
                "file": self.name if self.destination else self.file,
                **place,
                "file_bytes": self.file_bytes,
                "footer": self.footer,
                "ledgers": [number for ledger in self.ledgers for number in attrs.astuple(ledger)],
                "record_count": self.record_count,
                "compacted": self.compacted,
                "digest": self.digest,
                "archived_ms": self.archived_ms,
                "token": self.token,
            },
            lambda data: self.decode_untrusted(data, self.incarnation),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, incarnation: int, ledger_id: int | None = None) -> Self:
        """Decode the bytes that ``encode`` gave.

        Args:
            data: The bytes.
            incarnation: The incarnation of the log that the record must belong to.
            ledger_id: The ledger that must name the record; None if it is not known.

        Raises:
            MetadataCorrupt: The bytes are damaged or belong to another record. The message names the record
                and the field.
        """
        whose = "a ledger" if ledger_id is None else f"ledger {ledger_id}"
        what = f"archive of {whose} of log incarnation {incarnation}"
        fields = decode_record_untrusted(data, what, MetadataCorrupt)
        has_id = fields.format(_FORMAT, _FORMAT_WITH_ID) == _FORMAT_WITH_ID
        destination, file = b"", fields.get("file", str)
        if has_id:
            destination = fields.get("destination", bytes)
            if not destination or file.count("/") != 1 or "?" in file:
                fields.fail("the field 'file' is not a name below a destination")
            file = f"destination://{destination.hex()}/{file}"
        if fields.integer("incarnation") != incarnation:
            fields.fail("it belongs to another incarnation")
        numbers = fields.sequence("ledgers", int)
        if not numbers or len(numbers) % 4 or ledger_id not in (None, numbers[0]):
            fields.fail("the field 'ledgers' is not four numbers for each ledger, this one first")
        if min(numbers) < 0 or max(numbers) > _OFFSET_MAX:
            fields.fail("a number of the field 'ledgers' is out of range")
        try:
            return cls(
                log=check_log_name(fields.get("log", str)),
                incarnation=incarnation,
                file=file,
                destination=destination,
                file_bytes=fields.integer("file_bytes"),
                footer=fields.get("footer", bytes),
                ledgers=tuple(
                    ArchivedLedger(
                        ledger_id=check_ledger_id(numbers[at]),
                        first_offset=numbers[at + 1],
                        end_offset=numbers[at + 2],
                        last_entry=numbers[at + 3],
                    )
                    for at in range(0, len(numbers), 4)
                ),
                record_count=fields.integer("record_count"),
                compacted=fields.get("compacted", bool),
                digest=fields.get("digest", bytes),
                archived_ms=fields.integer("archived_ms"),
                token=fields.get("token", bytes),
                unknown=fields.unknown(),
            )
        except (ValueError, AssertionError) as cause:
            raise MetadataCorrupt(f"{what}: {cause}") from cause


@attrs.frozen(kw_only=True)
class ArchiveDestination:
    """A destination of archived files. See the module docstring for the fields."""

    where: str = attrs.field(repr=redact)
    """``archive.destinations.Destination.where``."""
    marker: bytes
    """The id of the destination's marker."""
    made_ms: int
    id: bytes = b""
    """The id that records of files have; b"": no job of a version with ids has worked there yet."""
    url: str = attrs.field(default="", repr=redact)
    """Where jobs and readers find the files."""
    moved_to: str = attrs.field(default="", repr=redact)
    """The URL to which the archive was moved. Another record then has this id; "": it was not moved."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def encode(self) -> bytes:
        """Encode the record as canonical CBOR."""
        place = {"id": self.id, "url": self.url, "moved_to": self.moved_to} if self.id else {}
        return encode_record(
            {
                "v": _FORMAT_WITH_ID if self.id else _FORMAT,
                "where": self.where,
                "marker": self.marker,
                "made_ms": self.made_ms,
                **place,
            },
            lambda data: self.decode_untrusted(data, self.where),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, node: str) -> Self:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the node and the field."""
        fields = decode_record_untrusted(data, f"destination of archives {node}", MetadataCorrupt)
        has_id = fields.format(_FORMAT, _FORMAT_WITH_ID) == _FORMAT_WITH_ID
        marker = fields.get("marker", bytes)
        if len(marker) != MARKER_BYTES:
            fields.fail(f"the field 'marker' has {len(marker)} bytes and not {MARKER_BYTES}")
        if has_id and len(fields.get("id", bytes)) != DESTINATION_ID_BYTES:
            fields.fail(f"the field 'id' does not have {DESTINATION_ID_BYTES} bytes")
        return cls(
            where=fields.get("where", str),
            marker=marker,
            made_ms=fields.integer("made_ms"),
            id=fields.get("id", bytes) if has_id else b"",
            url=fields.get("url", str) if has_id else "",
            moved_to=fields.get("moved_to", str) if has_id else "",
            unknown=fields.unknown(),
        )
