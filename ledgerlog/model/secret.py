"""The shared secret of a cluster, and the secrets of principals that are computed from it.

A cluster's secret is 32 random bytes. The secret of a principal is

    HMAC-SHA256(cluster secret, "principal " + the principal's text form)

A process with the cluster's secret can compute the secret of every principal, and so it can verify every
principal. Bookies and operators have the cluster's secret. A process with the cluster's secret may claim any
identity: a bookie claims ``bookie/ID``, and a process that claims no identity is ``admin/cluster``.

A program that writes one log has only the secret of its own principal. The cluster's secret, or the secret of
another principal, cannot be computed from that secret. No table of principals is needed, so none can be
stolen or lost.

A file holds one of the two kinds, as lines of text:

    cluster:HEX               the cluster's secret
    client/billing:HEX        the secret of the principal client/billing

HEX are 64 hexadecimal digits. Blank lines and lines that begin with "#" are skipped.

While you replace a secret, a file may hold two secrets of the same holder: the new one first, then the old
one, which is still accepted. Two processes can connect if they have one secret in common. So you can replace
the files one after the other, in any order.

A secret has a *fingerprint*: 8 bytes of another HMAC. Frames and messages name a secret by its fingerprint,
which reveals nothing about the secret.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Protocol

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.principal import Principal, PrincipalKind

__all__ = [
    "ADMIN",
    "FINGERPRINT_BYTES",
    "SECRETS_MAX",
    "SECRET_BYTES",
    "SECRET_FILE_BYTES_MAX",
    "SecretSource",
    "Secrets",
    "common_secret",
    "fingerprint_of",
]

SECRET_BYTES = 32
FINGERPRINT_BYTES = 8
SECRETS_MAX = 2
"""How many secrets a file may hold: the present one and the previous one."""
SECRET_FILE_BYTES_MAX = 4096

ADMIN = Principal(PrincipalKind.ADMIN, "cluster")
"""The identity of a process that has the cluster's secret and claims no other identity."""

_CLUSTER = "cluster"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), hashlib.sha256)


def fingerprint_of(secret: bytes) -> bytes:
    """Return the fingerprint of a secret."""
    return _hmac(secret, "fingerprint")[:FINGERPRINT_BYTES]


def _no_file(where: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{where} is not a secret file: {why}; 'ledgerlog metadata init' makes the file of a new cluster, "
        "'ledgerlog access secret' makes the file of a principal"
    )


@attrs.frozen(repr=False)
class Secrets:
    """The secrets in one file. ``repr`` shows no secret."""

    holder: Principal | None
    """The principal that the secrets belong to. None: they belong to the cluster."""
    values: tuple[bytes, ...] = attrs.field()
    """One or two, the newest first."""

    @values.validator
    def _check_values(self, attribute: object, values: tuple[bytes, ...]) -> None:
        if not 1 <= len(values) <= SECRETS_MAX or len({*values}) != len(values):
            raise InvalidArgument(f"{len(values)} secrets; 1 or 2 different ones can be used")
        if any(type(value) is not bytes or len(value) != SECRET_BYTES for value in values):
            raise InvalidArgument(f"a secret has {SECRET_BYTES} bytes")

    def __repr__(self) -> str:
        shown = ", ".join(fingerprint_of(value).hex() for value in self.values)
        return f"<Secrets of {self.holder or _CLUSTER}: {shown}>"

    @property
    def principal(self) -> Principal:
        """The identity of a process with this file that claims no other identity."""
        return self.holder or ADMIN

    def of(self, principal: Principal) -> tuple[bytes, ...]:
        """Return the secrets of a principal, the newest first. Return () if they cannot be computed from this
        file."""
        if self.holder is not None:
            return self.values if principal == self.holder else ()
        return tuple(_hmac(value, f"principal {principal}") for value in self.values)

    def derived(self, principal: Principal) -> Secrets:
        """Return the secrets of a principal, to write into a file of its own.

        Raises:
            InvalidArgument: These are not the cluster's secrets.
        """
        if self.holder is not None:
            raise InvalidArgument(
                f"this is the secret of {self.holder}; the secret of {principal} is made from the cluster's "
                "secret"
            )
        return Secrets(principal, self.of(principal))

    def rotated(self, new: bytes) -> Secrets:
        """Return two secrets: ``new``, then the newest of the present ones."""
        return Secrets(self.holder, (new, self.values[0]))

    def settled(self) -> Secrets:
        """Return only the newest secret."""
        return Secrets(self.holder, self.values[:1])

    def encode(self) -> str:
        """Return the text of a secret file."""
        return "".join(f"{self.holder or _CLUSTER}:{value.hex()}\n" for value in self.values)

    @classmethod
    def parse(cls, text: str, where: str) -> Secrets:
        """Parse the text of a secret file.

        Args:
            text: The text.
            where: The file, for messages.

        Raises:
            InvalidArgument: The text is malformed. The message quotes nothing that could be a secret.
        """
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if not 1 <= len(lines) <= SECRETS_MAX:
            raise _no_file(where, f"it holds {len(lines)} secrets, not 1 or 2")
        holders: list[Principal | None] = []
        values: list[bytes] = []
        for line in lines:
            name, _, digits = line.rpartition(":")
            try:
                value = bytes.fromhex(digits)
                holder = None if name == _CLUSTER else Principal.parse(name)
            except (ValueError, InvalidArgument):
                raise _no_file(where, "a line is not cluster:HEX or KIND/NAME:HEX") from None
            if len(value) != SECRET_BYTES or len(digits) != 2 * SECRET_BYTES:
                raise _no_file(where, f"a secret does not have {2 * SECRET_BYTES} hexadecimal digits")
            holders.append(holder)
            values.append(value)
        if len({*holders}) != 1:
            raise _no_file(where, "its two secrets are of different holders")
        if len({*values}) != len(values):
            raise _no_file(where, "its two secrets are the same")
        return cls(holders[0], tuple(values))


class SecretSource(Protocol):
    """The source of a process's secrets. They may change while the process runs."""

    @property
    def where(self) -> str:
        """The file, for messages."""
        ...

    def current(self) -> Secrets:
        """Return the present secrets."""
        ...

    def reload(self) -> None:
        """Read the secrets again now, and log the result."""
        ...


def common_secret(ours: Sequence[bytes], fingerprints: Sequence[bytes]) -> bytes | None:
    """Return our secret that the peer has too. If there are several, return the one that the peer prefers.
    Return None if there is none.

    Args:
        ours: Our secrets.
        fingerprints: The fingerprints of the peer's secrets, the preferred one first.
    """
    by_fingerprint = {fingerprint_of(secret): secret for secret in ours}
    return next((by_fingerprint[each] for each in fingerprints if each in by_fingerprint), None)
