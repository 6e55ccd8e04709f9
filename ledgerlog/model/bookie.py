"""The metadata of a bookie: its registration and its cookie.

A *registration* is ephemeral and says where a running bookie serves. A *cookie* is permanent and says which
directory belongs to the bookie's identity. One copy is in the store and one in the directory. If the
directory does not have the cookie of the identity, the bookie does not boot. For example, if a bookie served
after its disk was emptied or swapped, its answer "no such entry" would be false (scenario BP-46; #2612,
#4812).
"""

from __future__ import annotations

import enum

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LEDGER_KEY_BYTES
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.protocol import ProtocolSupport

_FORMAT = 1
_BEGUN_TOKENS_MAX = 16
"""A directory remembers the generations that it began and that the store perhaps has not counted: at most
this many of them. If it forgets one, the worst result is a sound directory in limbo (its bookie answers
UNKNOWN instead of denying an entry)."""


class Age(enum.Enum):
    """How a directory's generation compares with the store's."""

    CURRENT = "current"
    BEHIND = "behind"
    """The store has a later generation than this directory. The directory may lack entries that were
    acknowledged since."""
    AHEAD = "ahead"
    """The store has an earlier generation than the directory: the store was restored from a backup."""


@attrs.frozen
class BookieInfo:
    """A registration: the address of a running bookie. Clients check ``instance`` when they connect."""

    bookie_id: BookieId
    address: str
    """``host:port``, or the name of an in-process bookie."""
    instance: str
    """The identity of the bookie's data, new for each formatted directory."""
    labels: dict[str, str] = attrs.field(factory=dict)
    """Placement labels, for example host, rack or zone."""
    journal_write_data: bool = True
    """Whether the bookie syncs entries before it acknowledges them. If not, it may come back from a crash in
    limbo: it does not know which entries it lost (A.3)."""
    place: str = ""
    """The lock file that the bookie holds, and the boot id of its machine; "" if not known. Two processes
    that run at the same time never have the same place, and a copy of a directory has another place."""
    fences_through: int = -1
    """The bookie refuses ordinary adds to all ledgers up to this id, forever, because it came back from an
    unclean stop. -1: it refuses none."""
    speaks: ProtocolSupport = attrs.field(factory=ProtocolSupport)
    """The protocol versions and features that the bookie speaks. If the record does not name them, a bookie
    of version 0.1 wrote it. Such a bookie speaks version 1 without features."""
    listing_key: bytes = attrs.field(default=b"", repr=False)
    """The secret with which the bookie lists its ledgers and their keys (``wire.ledgers``). b"": the bookie
    does not know that request."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def encode(self) -> bytes:
        fences = {"fences_through": self.fences_through} if self.fences_through >= 0 else {}
        listing = {"listing_key": self.listing_key} if self.listing_key else {}
        return encode_record(
            {
                "v": _FORMAT,
                "id": self.bookie_id,
                "address": self.address,
                "instance": self.instance,
                "labels": self.labels,
                "journal_write_data": self.journal_write_data,
                "place": self.place,
                "protocol": self.speaks.lowest,
                "protocol_max": self.speaks.highest,
                "features": list(self.speaks.features),
                **fences,
                **listing,
            },
            lambda data: BookieInfo.decode_untrusted(data, self.bookie_id),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, bookie_id: BookieId) -> BookieInfo:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the bookie and the field."""
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
            speaks=_support(fields),
            listing_key=_listing_key(fields),
            unknown=fields.unknown(),
        )


@attrs.frozen
class Cookie:
    """The identity of a bookie's directory. If the store and the disk differ, the bookie refuses to boot."""

    bookie_id: BookieId
    instance: str
    """A random id made when the directory was formatted."""
    cluster: str
    """The id of the metadata store that the directory was formatted for."""
    directories: tuple[str, ...] = ()
    """The roles of the directories that make up the bookie's storage (``journal``, ``data``)."""
    generation: int = attrs.field(default=0, eq=False)
    """How many generations were counted (see ``bookie.server.generations``); 0 in a cookie of version 0.1.
    Two cookies are equal if they name the same data, even if their generations differ. ``age`` compares the
    generations."""
    generation_token: str = attrs.field(default="", eq=False)
    """The random name of the last counted generation; "" if none was counted."""
    begun_tokens: tuple[str, ...] = attrs.field(default=(), eq=False)
    """Only in a directory: the names of generations that it began. The store may have counted one of them."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def age(self, there: Cookie) -> Age:
        """Compare this cookie of a directory with the store's.

        For example, a directory has generation 3 and began two more, named x and y. It is current if the
        store has generation 3 under the same name, or a generation named x or y.
        """
        if there.generation_token in self.begun_tokens:
            return Age.CURRENT
        if (self.generation, self.generation_token) == (there.generation, there.generation_token):
            return Age.CURRENT
        return Age.AHEAD if self.generation > there.generation else Age.BEHIND

    def begin_generation(self, there: Cookie | None, token: str) -> Cookie:
        """Return the cookie that the directory must carry before the store counts generation ``token``.

        The names of earlier generations stay, because the store may still apply a write whose answer was
        lost.
        """
        counted = None if there is None or self.age(there) is not Age.CURRENT else there
        if counted is None or counted.generation_token == self.generation_token:
            return attrs.evolve(self, begun_tokens=(*self.begun_tokens, token)[-_BEGUN_TOKENS_MAX:])
        return attrs.evolve(
            self,
            generation=counted.generation,
            generation_token=counted.generation_token,
            begun_tokens=(token,),
        )

    def counted(self, there: Cookie | None, token: str) -> Cookie:
        """Return the cookie that the store must have once it counted generation ``token``."""
        generation = max(self.generation, 0 if there is None else there.generation) + 1
        return attrs.evolve(
            self,
            generation=generation,
            generation_token=token,
            begun_tokens=(),
            unknown=self.unknown if there is None else there.unknown,
        )

    def encode(self) -> bytes:
        counted: dict[str, object] = {}
        if self.generation:
            counted |= {"generation": self.generation, "generation_token": self.generation_token}
        if self.begun_tokens:
            counted["begun_tokens"] = list(self.begun_tokens)
        return encode_record(
            {
                "v": _FORMAT,
                "id": self.bookie_id,
                "instance": self.instance,
                "cluster": self.cluster,
                "directories": list(self.directories),
                **counted,
            },
            lambda data: Cookie.decode_untrusted(data, self.bookie_id),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, bookie_id: BookieId) -> Cookie:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the bookie and the field."""
        fields = _fields(data, f"cookie of bookie {bookie_id}", bookie_id)
        return cls(
            bookie_id=bookie_id,
            instance=fields.get("instance", str),
            cluster=fields.get("cluster", str),
            directories=tuple(fields.sequence("directories", str)),
            generation=0 if fields.optional("generation", int) is None else fields.integer("generation"),
            generation_token=fields.optional("generation_token", str) or "",
            begun_tokens=()
            if fields.optional("begun_tokens", list) is None
            else tuple(fields.sequence("begun_tokens", str)),
            unknown=fields.unknown(),
        )


def _listing_key(fields: Fields) -> bytes:
    key = fields.optional("listing_key", bytes) or b""
    if key and len(key) != LEDGER_KEY_BYTES:
        fields.fail(f"the field 'listing_key' has {len(key)} bytes, not {LEDGER_KEY_BYTES}")
    return key


def _support(fields: Fields) -> ProtocolSupport:
    if fields.optional("protocol", int) is None:
        return ProtocolSupport()
    lowest = fields.integer("protocol", low=1)
    highest = fields.integer("protocol_max", low=lowest)
    return ProtocolSupport(lowest, highest, tuple(fields.sequence("features", str)))


def _fields(data: bytes, what: str, bookie_id: BookieId) -> Fields:
    try:
        check_bookie_id(bookie_id)
    except InvalidArgument as cause:
        raise MetadataCorrupt(f"{what}: {cause}") from cause
    fields = decode_record_untrusted(data, what, MetadataCorrupt)
    fields.format(_FORMAT)
    if fields.get("id", str) != bookie_id:
        fields.fail("it names another bookie")
    return fields
