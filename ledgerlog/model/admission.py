"""How a cluster is closed: the record at ``access/mode`` says which proof bookies ask of a client.

    open       a bookie serves every process that reaches it. A cluster without this record is open, too
    closing    clients and bookies prove who they are if they can; the others are served, too
    closed     a bookie serves only clients that proved who they are; a client uses only such bookies

A process proves who it is with a secret (``model.secret``) or a certificate (TLS). A certificate is always
accepted where a secret is, because it proves more. A bookie that has a certificate takes no connection
without one. So ``TLS`` in this record only decides the message to a process without credentials.

The record is a canonical CBOR map (``model.codec``):

    v         1
    by        "nothing", "secret" or "tls"
    required  false while the cluster is being closed
    file      absent, or the path of the secret file on the one machine that all processes run on

**Why a path.** The processes of a local cluster share a machine and a user, and a URI of ZooKeeper says
nothing about files. So the record tells them where the secret is. It does not contain the secret, and the
file has mode 0600.

A record that cannot be read is an error and never means "open".
"""

from __future__ import annotations

import enum

import attrs

from ledgerlog.errors import MetadataCorrupt
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown

__all__ = ["OPEN", "Admission", "ProvenBy"]

_FORMAT = 1


class ProvenBy(enum.Enum):
    """The kind of proof of who a process is."""

    NOTHING = "nothing"
    SECRET = "secret"
    TLS = "tls"


@attrs.frozen
class Admission:
    """The proof that bookies ask of a client."""

    by: ProvenBy = ProvenBy.NOTHING
    is_required: bool = attrs.field(
        default=attrs.Factory(lambda self: self.by is not ProvenBy.NOTHING, takes_self=True)
    )
    """Whether bookies refuse a client that has not proved who it is."""
    file: str = ""
    """The path of the secret file for processes that were given none; "": there is no such path."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __str__(self) -> str:
        if self.by is ProvenBy.NOTHING:
            return "open"
        how = "a secret" if self.by is ProvenBy.SECRET else "certificates"
        return f"closed by {how}" if self.is_required else f"being closed by {how}"

    @property
    def name(self) -> str:
        """``open``, ``closing`` or ``closed``."""
        if self.by is ProvenBy.NOTHING:
            return "open"
        return "closed" if self.is_required else "closing"

    def encode(self) -> bytes:
        """Return the record."""
        return encode_record(
            {
                "v": _FORMAT,
                "by": self.by.value,
                "required": self.is_required,
                **({"file": self.file} if self.file else {}),
            },
            Admission.decode_untrusted,
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes) -> Admission:
        """Decode the record. Raise MetadataCorrupt with the field."""
        fields = decode_record_untrusted(data, "how the cluster is closed", MetadataCorrupt)
        fields.format(_FORMAT)
        name = fields.get("by", str)
        required = fields.get("required", bool)
        if name not in {by.value for by in ProvenBy}:
            fields.fail(f"the field 'by' is {name[:40]!r}")
        by = ProvenBy(name)
        if required and by is ProvenBy.NOTHING:
            fields.fail("a proof is required, but no kind of proof is accepted")
        file = fields.optional("file", str) or ""
        return cls(by, required, file, unknown=fields.unknown())


OPEN = Admission()
"""The admission of an open cluster, and of a cluster without a record."""
