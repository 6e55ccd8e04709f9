"""How a process proves to ZooKeeper who it is: the credentials file, and TLS.

**The credentials file** is TOML, and only its owner may read it (mode 0600, or 0400):

    scheme = "digest"               scheme = "sasl"                   scheme = "sasl"
    user = "ledgerlog"              mechanism = "DIGEST-MD5"          mechanism = "GSSAPI"
    password = "..."                user = "ledgerlog"                service = "zookeeper"
                                    password = "..."                  principal = "b1@EXAMPLE.ORG"

``digest`` sends the password as it is, so use it over TLS (``zks://``). A server accepts any digest: with a
wrong password you are another principal, and the znodes' lists give it no rights. SASL needs the package
pure-sasl (the extra ``sasl``); ``GSSAPI`` also needs a Kerberos package.

**TLS** (``zks://``) is mutual. Only the authorities of ``--tls-ca`` are trusted, not the machine's
authorities, and the server's certificate must be for the host's name. kazoo's own options trust the machine's
authorities too, so the context is made here. It is made for each connection, so the next connection uses new
files.

No message and no repr holds a password.
"""

from __future__ import annotations

import os
import ssl
import stat
import tomllib
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.zookeeper.acl import ZkPrincipal, digest_principal
from ledgerlog.model.credentials import TLS
from ledgerlog.optional_packages import how_to_install, is_installed

__all__ = ["NOBODY", "Login", "ZooKeeperAuth", "load_auth", "parse_auth", "principal_of_file", "tls_context"]

_FILE_BYTES_MAX = 64 * 1024
_TEXT_MAX = 1024

_DIGEST_MD5, _GSSAPI = "DIGEST-MD5", "GSSAPI"
_FIELDS = {
    ("digest", None): ({"user", "password"}, set()),
    ("sasl", _DIGEST_MD5): ({"user", "password"}, {"service"}),
    ("sasl", _GSSAPI): (set(), {"service", "principal"}),
}
"""For each scheme and mechanism: the fields that the file must have, and the fields that it may have."""


@attrs.frozen(kw_only=True)
class ZooKeeperAuth:
    """The content of a credentials file."""

    scheme: str
    """``digest`` or ``sasl``."""
    mechanism: str | None = None
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    service: str | None = None
    kerberos_principal: str | None = None

    def __str__(self) -> str:
        """Return who this is, for a message."""
        return f"{self.scheme} user {self.user or self.kerberos_principal or 'of the ticket cache'}"

    @property
    def principal(self) -> ZkPrincipal | None:
        """The principal that a server's lists use for this user; None if only the server knows it."""
        if self.user is None:
            return None
        if self.scheme == "digest":
            return digest_principal(self.user, self.password or "")
        return ZkPrincipal("sasl", self.user)

    @property
    def auth_data(self) -> list[tuple[str, str]]:
        """kazoo's option of this name."""
        return [("digest", f"{self.user}:{self.password}")] if self.scheme == "digest" else []

    @property
    def sasl_options(self) -> dict[str, str] | None:
        """kazoo's option of this name."""
        if self.scheme != "sasl" or self.mechanism is None:
            return None
        found = {
            "mechanism": self.mechanism,
            "service": self.service or "zookeeper",
            "username": self.user,
            "password": self.password,
            "principal": self.kerberos_principal,
        }
        return {name: value for name, value in found.items() if value is not None}


@attrs.frozen(kw_only=True)
class Login:
    """All credentials that a process shows to a server."""

    auth: ZooKeeperAuth | None = None
    tls: TLS | None = None
    """None: the connection is in plain text."""

    @property
    def is_somebody(self) -> bool:
        """Whether a server can know an identity of this process."""
        return self.auth is not None or self.tls is not None

    def __str__(self) -> str:
        """Return who this is, for a message."""
        if self.auth is not None:
            return str(self.auth)
        return "a client without credentials" if self.tls is None else f"the certificate in {self.tls.cert}"


NOBODY = Login()


def parse_auth(text: str, where: str) -> ZooKeeperAuth:
    """Read the content of a credentials file.

    Args:
        text: The content.
        where: The file, for messages.

    Raises:
        InvalidArgument: It is not a credentials file. The message quotes no value of the file.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # Its message may quote the password.
        raise InvalidArgument(f'{where}: it is not TOML; write lines such as scheme = "digest"') from None
    kind = (found.pop("scheme", None), found.pop("mechanism", None))
    known = _FIELDS.get(kind) if all(isinstance(each, str | None) for each in kind) else None
    if known is None:
        raise InvalidArgument(
            f'{where}: scheme must be "digest", or "sasl" with mechanism "{_DIGEST_MD5}" or "{_GSSAPI}"'
        )
    needed, optional = known
    for name, value in found.items():
        if name not in needed | optional:
            raise InvalidArgument(f"{where}: there is no field {name[:80]!r} for this scheme")
        if not isinstance(value, str) or not 0 < len(value) <= _TEXT_MAX or "\0" in value:
            raise InvalidArgument(f"{where}: {name} must be a text of 1 to {_TEXT_MAX} characters")
    for name in sorted(needed - found.keys()):
        raise InvalidArgument(f"{where}: {name} is missing")
    if ":" in found.get("user", ""):
        raise InvalidArgument(f"{where}: user must not hold a colon")
    scheme, mechanism = kind
    return ZooKeeperAuth(
        scheme=scheme,
        mechanism=mechanism,
        user=found.get("user"),
        password=found.get("password"),
        service=found.get("service"),
        kerberos_principal=found.get("principal"),
    )


def load_auth(path: str) -> ZooKeeperAuth:
    """Read a credentials file.

    Raises:
        InvalidArgument: The file cannot be read, others may read it, it is not a credentials file, or the
            package that its scheme needs is missing.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise InvalidArgument(
            f"the credentials file for ZooKeeper, {path}, cannot be read: {cause.strerror}"
        ) from cause
    if stat.S_ISREG(mode) and mode & 0o077:
        raise InvalidArgument(
            f"the credentials file for ZooKeeper, {path}, can be accessed by other users (mode "
            f"{stat.S_IMODE(mode):04o}): chmod 600 it"
        )
    try:
        if len(content) > _FILE_BYTES_MAX:
            raise ValueError
        text = content.decode()
    except ValueError:
        raise InvalidArgument(f"{path}: it is not a credentials file for ZooKeeper") from None
    auth = parse_auth(text, path)
    if auth.scheme == "sasl" and not is_installed("puresasl"):
        raise InvalidArgument(
            f"{path}: SASL needs the package pure-sasl, which is not installed: {how_to_install('pure-sasl')}"
        )
    return auth


def principal_of_file(path: str) -> ZkPrincipal:
    """Return the principal that the lists of znodes use for the user of a credentials file.

    Raises:
        InvalidArgument: As for ``load_auth``; or only the server knows the user's name (GSSAPI).
    """
    principal = load_auth(path).principal
    if principal is None:
        raise InvalidArgument(f"{path}: only the servers know how they name this user; write sasl:NAME")
    return principal


def tls_context(tls: TLS) -> ssl.SSLContext:
    """Return the context for one connection.

    Raises:
        OSError: A file cannot be read, or has the wrong content (``ssl.SSLError``).
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.cert, tls.key)
    return context


def check_tls(tls: TLS) -> None:
    """Check that a context can be made.

    Raises:
        InvalidArgument: No context can be made. The message names the file.
    """
    for file in (tls.cert, tls.key, tls.ca):
        if not os.access(file, os.R_OK):
            raise InvalidArgument(f"the TLS file {file} cannot be read")
    try:
        tls_context(tls)
    except OSError as cause:
        raise InvalidArgument(
            f"{tls.cert}, {tls.key} and {tls.ca} are not a TLS identity: {_reason(cause)}"
        ) from cause


def _reason(cause: Any) -> str:
    return getattr(cause, "reason", None) or str(cause)
