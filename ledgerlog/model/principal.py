"""Principals: the proven identities of processes, as text and as names in certificates.

A principal has a kind and a name, written ``client/billing``. The kinds:

* ``bookie``: a storage node. Its name is the bookie's id.
* ``admin``: a person or a tool that looks after the cluster.
* ``client``: a program that writes or reads logs. Grants say what a client may do.

A certificate names its principal in a subject alternative name (SAN) of type URI:

    ledgerlog://CLUSTER/KIND/NAME

CLUSTER is the id of a cluster, or ``*`` for every cluster that trusts the certificate's issuer. Use the id if
one authority issues certificates for several clusters. Then the production cluster does not accept a
certificate of the test cluster. Use ``*`` if every cluster has an authority of its own. Then you can make
certificates before the cluster has an id, and they stay valid if you rebuild the cluster.

A certificate may hold such names for several clusters. For one cluster it must name exactly one principal. If
it named two, its holder could choose between them. If the certificate has names with the id of the cluster,
its names with ``*`` do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

import attrs

from ledgerlog.errors import InvalidArgument, Unauthenticated

__all__ = ["ANY_CLUSTER", "CERTIFICATE_URIS_MAX", "Principal", "PrincipalKind", "named_in_certificate"]

ANY_CLUSTER = "*"
CERTIFICATE_URIS_MAX = 64
"""The most names of the form ``ledgerlog://...`` that a certificate may hold."""

_SCHEME = "ledgerlog://"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}\Z")
_CLUSTER = re.compile(r"(?:\*|[A-Za-z0-9_\-]{1,64})\Z")
_SHOWN_CHARACTERS = 100


class PrincipalKind(StrEnum):
    """The kind of process or person that a principal is."""

    BOOKIE = "bookie"
    ADMIN = "admin"
    CLIENT = "client"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _checked_kind(kind: str) -> PrincipalKind:
    try:
        return PrincipalKind(kind)
    except ValueError:
        raise InvalidArgument(
            f"{_shown(kind)} is not a kind of principal: {', '.join(PrincipalKind)}"
        ) from None


@attrs.frozen
class Principal:
    """The identity that a peer has proved. ``str()`` is its text form, for example ``client/billing``."""

    kind: PrincipalKind = attrs.field(converter=_checked_kind)
    name: str = attrs.field()
    """1 to 128 letters, digits and ``. _ : -``, starting with a letter or digit, as for bookie ids."""

    @name.validator
    def _check_name(self, attribute: object, value: str) -> None:
        if not isinstance(value, str) or not _NAME.match(value):
            raise InvalidArgument(
                f"{_shown(value)} does not name a principal: 1 to 128 letters, digits and . _ : -, "
                "starting with a letter or digit"
            )

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse the text form.

        Raises:
            InvalidArgument: The text is not KIND/NAME.
        """
        kind, slash, name = text.partition("/")
        if not slash:
            raise InvalidArgument(
                f"{_shown(text)} is not a principal: bookie/NAME, admin/NAME or client/NAME"
            )
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    def certificate_uri(self, cluster: str = ANY_CLUSTER) -> str:
        """Return the name of this principal in a certificate.

        Args:
            cluster: The id of the cluster that the certificate is for; ``*``: any.

        Raises:
            InvalidArgument: ``cluster`` is not ``*`` and not a well-formed id.
        """
        if not _CLUSTER.match(cluster):
            raise InvalidArgument(f"{_shown(cluster)} is not the id of a cluster")
        return f"{_SCHEME}{cluster}/{self}"


def named_in_certificate(uris: Iterable[str], cluster: str | None) -> Principal:
    """Return the principal that a certificate names for a cluster.

    Args:
        uris: The URIs among the certificate's subject alternative names. URIs of other forms are ignored.
        cluster: The id of this cluster. None: the cluster is not known yet, and only ``*`` matches.

    Raises:
        Unauthenticated: The certificate names no principal for this cluster, or more than one, or a name of
            our form is malformed.
    """
    ours = [uri for uri in uris if uri[: len(_SCHEME)].lower() == _SCHEME]
    if not ours:
        raise Unauthenticated(
            f"the certificate names no principal: its SAN has no URI {_SCHEME}CLUSTER/KIND/NAME"
        )
    if len(ours) > CERTIFICATE_URIS_MAX:
        raise Unauthenticated(
            f"the certificate names {len(ours)} principals, more than {CERTIFICATE_URIS_MAX}"
        )
    by_cluster: dict[str, set[Principal]] = {}
    for uri in ours:
        where, principal = _parse_uri(uri)
        by_cluster.setdefault(where, set()).add(principal)
    found = by_cluster.get(cluster or ANY_CLUSTER) or by_cluster.get(ANY_CLUSTER)
    if not found:
        others = ", ".join(sorted(by_cluster))
        raise Unauthenticated(
            f"the certificate is for cluster {others[:_SHOWN_CHARACTERS]}, but this is cluster {cluster}"
        )
    if len(found) > 1:
        raise Unauthenticated(f"the certificate names {len(found)} principals for one cluster, not one")
    return found.pop()


def _parse_uri(uri: str) -> tuple[str, Principal]:
    cluster, slash, principal = uri[len(_SCHEME) :].partition("/")
    try:
        if not slash or not _CLUSTER.match(cluster):
            raise InvalidArgument(f"it is not {_SCHEME}CLUSTER/KIND/NAME")
        return cluster, Principal.parse(principal)
    except InvalidArgument as wrong:
        raise Unauthenticated(f"the certificate's SAN has the malformed URI {_shown(uri)}: {wrong}") from None
