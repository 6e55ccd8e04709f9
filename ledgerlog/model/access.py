"""Roles and grants: the rights of each principal on the ledgers of a cluster.

    role            rights
    reader PREFIX   READ on the ledgers of every log whose name begins with PREFIX
    writer PREFIX   READ, RECOVER and WRITE on the same ledgers
    bookie          READ, RECOVER and OPERATE, on all ledgers: what repair needs
    admin           everything

For example, "writer orders" allows a principal to write the logs "orders" and "orders-eu".

A principal of the kind "bookie" or "admin" has the role of that name without a grant. It proves its kind by a
certificate or by the cluster's secret. ``Grants.is_revoked`` takes this role away. A bookie or an admin may
have grants, too: they add to its role. A "client" has only the roles in its record of grants.

A writer needs READ and RECOVER because of takeovers: a new writer recovers the last ledgers of the previous
one, and reads their ends.

**Ledgers and logs.** The labels in a ledger's metadata name its log (``log_of_labels``). The ledgers of a
snapshot belong to the log of the snapshot. If a ledger belongs to no log, the name is "", and only the prefix
"" matches that name. So such a ledger is open only to a bookie, an admin, or a reader or writer of every log.

**Bytes.** The node ``access/grants/PRINCIPAL`` is one canonical CBOR map. If there is no node, the principal
has no grants.

    v 1      principal  its text      grants  [[role, prefix], ...]      revoked  true or false
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.codec import decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log_key import NAME_LABEL
from ledgerlog.model.principal import Principal, PrincipalKind
from ledgerlog.model.snapshots import SNAPSHOT_LOG_LABEL

__all__ = [
    "ALL_RIGHTS",
    "GRANTS_MAX",
    "NO_RIGHTS",
    "Grant",
    "Grants",
    "Right",
    "Rights",
    "Role",
    "log_of_labels",
    "may_administer",
    "rights_of",
]

_FORMAT = 1

GRANTS_MAX = 256
"""The most grants of one principal."""

_PREFIX = re.compile(r"[A-Za-z0-9._\-/]{0,255}\Z")


class Role(enum.Enum):
    """A set of rights that a grant gives to a principal."""

    READER = "reader"
    WRITER = "writer"
    BOOKIE = "bookie"
    ADMIN = "admin"

    @property
    def has_prefix(self) -> bool:
        """Whether a grant of this role names a prefix of logs."""
        return self in (Role.READER, Role.WRITER)


class Right(enum.Enum):
    """A kind of access. Each request to a bookie needs one right."""

    READ = "read"
    """Read entries, LACs and lists of a ledger, and let a bookie check its copies of the entries."""
    WRITE = "write"
    """Append entries to a ledger."""
    RECOVER = "recover"
    """Fence a ledger, and store copies of entries that exist already."""
    OPERATE = "operate"
    """See a bookie's figures, and the list of all ledgers that it holds."""


_ON_PREFIX = {
    Role.READER: frozenset((Right.READ,)),
    Role.WRITER: frozenset((Right.READ, Right.RECOVER, Right.WRITE)),
}
_EVERYWHERE = {
    Role.BOOKIE: frozenset((Right.READ, Right.RECOVER, Right.OPERATE)),
    Role.ADMIN: frozenset(Right),
}
_ROLE_OF_KIND = {PrincipalKind.BOOKIE: Role.BOOKIE, PrincipalKind.ADMIN: Role.ADMIN}


@attrs.frozen
class Grant:
    """One role of a principal. A reader or a writer also has a ``prefix``: the grant is for the logs whose
    names begin with it."""

    role: Role
    prefix: str = ""

    def __attrs_post_init__(self) -> None:
        if not self.role.has_prefix and self.prefix:
            raise InvalidArgument(f"the role {self.role.value} has no prefix: it holds for all logs")
        if not _PREFIX.match(self.prefix):
            raise InvalidArgument(
                f"{self.prefix!r} is not the beginning of a log's name: up to 255 letters, digits and . _ - /"
            )

    def __str__(self) -> str:
        return f"{self.role.value} {self.prefix!r}" if self.role.has_prefix else self.role.value

    @property
    def sort_key(self) -> tuple[str, str]:
        return self.role.value, self.prefix


@attrs.frozen
class Grants:
    """The record of one principal."""

    principal: str
    """The text form of the principal, for example "client/billing"."""
    grants: tuple[Grant, ...] = ()
    """The grants, sorted, each once."""
    is_revoked: bool = False
    """Whether the role that the principal has by its kind is taken away."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __attrs_post_init__(self) -> None:
        Principal.parse(self.principal)
        if len(self.grants) > GRANTS_MAX:
            raise InvalidArgument(f"{self.principal} would have {len(self.grants)} grants, over {GRANTS_MAX}")
        if list(self.grants) != sorted(set(self.grants), key=lambda grant: grant.sort_key):
            raise InvalidArgument(f"the grants of {self.principal} are not sorted, or not unique")

    @property
    def own_role(self) -> Role | None:
        """The role that the principal has by its kind, unless ``is_revoked``; None for a client."""
        return _ROLE_OF_KIND.get(Principal.parse(self.principal).kind)

    @property
    def is_empty(self) -> bool:
        """Whether the record grants and revokes nothing. Then it means the same as no record."""
        return not self.grants and not self.is_revoked and not self.unknown

    def granted(self, grant: Grant) -> Grants:
        """Return the record with one more grant. If the principal has this role by its kind and it was
        revoked, the new record no longer revokes it."""
        if grant.role is self.own_role:
            return attrs.evolve(self, is_revoked=False)
        return self._with({*self.grants, grant})

    def revoked(self, grant: Grant | None) -> Grants:
        """Return the record without a grant.

        Args:
            grant: The grant to take away. None: all of them, and the role that the principal has by its kind.

        Raises:
            InvalidArgument: The principal does not have this grant.
        """
        if grant is None:
            return attrs.evolve(self, grants=(), is_revoked=self.own_role is not None)
        if grant.role is self.own_role:
            return attrs.evolve(self, is_revoked=True)
        if grant not in self.grants:
            has = ", ".join(map(str, self.grants)) or "nothing"
            raise InvalidArgument(f"{self.principal} is not granted {grant}; it is granted {has}")
        return self._with({*self.grants} - {grant})

    def _with(self, grants: set[Grant]) -> Grants:
        return attrs.evolve(self, grants=tuple(sorted(grants, key=lambda grant: grant.sort_key)))

    def encode(self) -> bytes:
        """Encode the record as canonical CBOR."""
        return encode_record(
            {
                "v": _FORMAT,
                "principal": self.principal,
                "grants": [[grant.role.value, grant.prefix] for grant in self.grants],
                "revoked": self.is_revoked,
            },
            lambda data: self.decode_untrusted(data, self.principal),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, principal: str) -> Grants:
        """Decode the bytes that ``encode`` gave.

        Args:
            data: The bytes.
            principal: The principal that the record must name.

        Raises:
            MetadataCorrupt: The bytes are damaged, or are the record of another principal. The message names
                the principal and the field.
        """
        fields = decode_record_untrusted(data, f"grants of {principal}", MetadataCorrupt)
        fields.format(_FORMAT)
        if fields.get("principal", str) != principal:
            fields.fail("the record has the grants of another principal")
        grants = []
        try:
            for pair in fields.sequence("grants", list):
                role, prefix = pair
                if type(role) is not str or type(prefix) is not str:
                    fields.fail("a grant is two texts")
                grants.append(Grant(Role(role), prefix))
            return cls(principal, tuple(grants), fields.get("revoked", bool), unknown=fields.unknown())
        except ValueError as cause:
            fields.fail(f"the field 'grants': {cause}")


@attrs.frozen
class Rights:
    """The rights of a principal."""

    everywhere: frozenset[Right] = frozenset()
    """Rights on all ledgers."""
    on_logs: tuple[tuple[str, frozenset[Right]], ...] = ()
    """Pairs of a prefix and the rights on the ledgers of all logs whose names begin with it."""

    def allows(self, right: Right, log: str) -> bool:
        """Whether the principal has a right on the ledgers of this log ("": ledgers of no log)."""
        return right in self.everywhere or any(
            right in rights and log.startswith(prefix) for prefix, rights in self.on_logs
        )

    def allows_some(self, right: Right) -> bool:
        """Whether there may be a ledger on which the principal has this right."""
        return right in self.everywhere or any(right in rights for _, rights in self.on_logs)


NO_RIGHTS = Rights()
ALL_RIGHTS = Rights(frozenset(Right))
"""The rights of every client in an open cluster."""


def rights_of(principal: Principal, grants: Grants | None) -> Rights:
    """Return the rights of a principal.

    Args:
        principal: The principal.
        grants: Its record; None if there is none.
    """
    own = _ROLE_OF_KIND.get(principal.kind)
    everywhere: set[Right] = set()
    on_logs: dict[str, frozenset[Right]] = {}
    if own is not None and not (grants is not None and grants.is_revoked):
        everywhere |= _EVERYWHERE[own]
    for grant in () if grants is None else grants.grants:
        if grant.role in _EVERYWHERE:
            everywhere |= _EVERYWHERE[grant.role]
        elif grant.prefix:
            on_logs[grant.prefix] = on_logs.get(grant.prefix, frozenset()) | _ON_PREFIX[grant.role]
        else:
            everywhere |= _ON_PREFIX[grant.role]
    return Rights(frozenset(everywhere), tuple(sorted(on_logs.items(), key=lambda item: item[0])))


def may_administer(rights: Rights) -> bool:
    """Whether a principal with these rights may do everything that an admin may."""
    return rights.everywhere == ALL_RIGHTS.everywhere


def log_of_labels(labels: Mapping[str, bytes]) -> str:
    """Return the name of the log that a ledger with these labels belongs to; "" if it belongs to no log."""
    name = labels.get(NAME_LABEL, labels.get(SNAPSHOT_LOG_LABEL, b""))
    try:
        return name.decode()
    except UnicodeDecodeError:
        return ""
