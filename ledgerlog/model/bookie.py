"""What the metadata store knows of a bookie: its registration and its cookie.

A *registration* is ephemeral and says where a running bookie serves. A *cookie* is for ever and says
which directory belongs to the identity: it is kept in the store and in the directory, and a bookie
whose directory does not carry the cookie of its identity (an emptied or swapped disk) does not boot,
because its "no such entry" would be a lie (scenario BP-46; #2612, #4812).
"""

from __future__ import annotations

import attrs

from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt

_FORMAT = 1


@attrs.frozen
class BookieInfo:
    """A registration: who serves where. ``instance`` is the cookie's; clients check it on connecting."""

    bookie_id: BookieId
    address: str
    """``host:port``, or the name of an in-process bookie."""
    instance: str
    """The identity of the bookie's data, new for each formatted directory."""
    labels: dict[str, str] = attrs.field(factory=dict)
    """Placement labels such as host, rack or zone."""
    journal_write_data: bool = True
    """Whether it syncs entries before it acknowledges them; without, it may come back through limbo (A.3)."""
    place: str = ""
    """The lock file that the bookie holds, and the boot of the machine that it holds it on: no two
    processes that live at one time have it in common, and a copy of a directory is another place. ""
    where it is not known."""
    fences_through: int = -1
    """It refuses ordinary adds of ledgers up to this id, for ever, since it came back from a stop that was
    not clean; -1: of none."""

    def encode(self) -> bytes:
        fences = {"fences_through": self.fences_through} if self.fences_through >= 0 else {}
        return encode_record(
            {
                "v": _FORMAT,
                "id": self.bookie_id,
                "address": self.address,
                "instance": self.instance,
                "labels": self.labels,
                "journal_write_data": self.journal_write_data,
                "place": self.place,
                **fences,
            },
            lambda data: BookieInfo.decode_untrusted(data, self.bookie_id),
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, bookie_id: BookieId) -> BookieInfo:
        """The inverse of ``encode``; MetadataCorrupt names the bookie and the field."""
        fields = _fields(data, f"registration of bookie {bookie_id}", bookie_id)
        return cls(
            bookie_id=bookie_id,
            address=fields.get("address", str),
            instance=fields.get("instance", str),
            labels=fields.strings("labels"),
            journal_write_data=fields.optional("journal_write_data", bool) is not False,
            place=fields.optional("place", str) or "",
            fences_through=-1
            if fields.optional("fences_through", int) is None
            else fields.integer("fences_through"),
        )


@attrs.frozen
class Cookie:
    """The identity of a bookie's directory. Equal in the store and on the disk, or the boot is refused."""

    bookie_id: BookieId
    instance: str
    """A random id made when the directory was formatted."""
    cluster: str
    """The id of the metadata store that the directory was formatted for."""
    directories: tuple[str, ...] = ()
    """The roles of the directories that make up the bookie's storage (``journal``, ``data``)."""

    def encode(self) -> bytes:
        return encode_record(
            {
                "v": _FORMAT,
                "id": self.bookie_id,
                "instance": self.instance,
                "cluster": self.cluster,
                "directories": list(self.directories),
            },
            lambda data: Cookie.decode_untrusted(data, self.bookie_id),
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, bookie_id: BookieId) -> Cookie:
        """The inverse of ``encode``; MetadataCorrupt names the bookie and the field."""
        fields = _fields(data, f"cookie of bookie {bookie_id}", bookie_id)
        return cls(
            bookie_id=bookie_id,
            instance=fields.get("instance", str),
            cluster=fields.get("cluster", str),
            directories=tuple(fields.sequence("directories", str)),
        )


def _fields(data: bytes, what: str, bookie_id: BookieId) -> Fields:
    check_bookie_id(bookie_id)
    fields = decode_record_untrusted(data, what, MetadataCorrupt)
    if fields.integer("v") != _FORMAT:
        fields.fail(f"this version reads format {_FORMAT}")
    if fields.get("id", str) != bookie_id:
        fields.fail("it names another bookie")
    return fields
