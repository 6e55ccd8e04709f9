"""Credentials: the files with which a process proves who it is.

``Credentials`` names files and holds no secret itself, so it may be printed and sent to another process of
the same machine. The code that opens a network or a metadata store reads the files.

A file that you do not name comes from the environment:

    LEDGERLOG_TLS_CERT      the certificate of this process, followed by the certificates between it and the
                            authority
    LEDGERLOG_TLS_KEY       its private key
    LEDGERLOG_TLS_CA        the authorities whose certificates are trusted
    LEDGERLOG_SECRET_FILE   the cluster's shared secret
    LEDGERLOG_ZK_AUTH_FILE  the credentials for ZooKeeper

An empty variable counts as not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.checks import check_kind

__all__ = [
    "CREDENTIAL_VARIABLES",
    "HOW_TO_GIVE_CERTIFICATE",
    "HOW_TO_GIVE_SECRET",
    "NO_CREDENTIALS",
    "SECRET_FILE_VARIABLE",
    "TLS",
    "TLS_VARIABLES",
    "ZK_AUTH_FILE_VARIABLE",
    "Credentials",
    "FilePath",
    "tls_given",
]

TLS_VARIABLES = {
    "cert": "LEDGERLOG_TLS_CERT",
    "key": "LEDGERLOG_TLS_KEY",
    "ca": "LEDGERLOG_TLS_CA",
}
SECRET_FILE_VARIABLE = "LEDGERLOG_SECRET_FILE"
ZK_AUTH_FILE_VARIABLE = "LEDGERLOG_ZK_AUTH_FILE"
CREDENTIAL_VARIABLES = (*TLS_VARIABLES.values(), SECRET_FILE_VARIABLE, ZK_AUTH_FILE_VARIABLE)
"""Every environment variable that names a credential."""

HOW_TO_GIVE_SECRET = (
    f"give --secret-file FILE, or secret_file= of connect, or set {SECRET_FILE_VARIABLE} (as in Spark)"
)
HOW_TO_GIVE_CERTIFICATE = (
    "give --tls-cert, --tls-key and --tls-ca, or tls= of connect, or set "
    f"{', '.join(TLS_VARIABLES.values())} (as in Spark)"
)


class _PathLike(Protocol):
    def __fspath__(self) -> str: ...


FilePath = str | _PathLike
"""The path of a file, as text or as an object such as ``pathlib.Path``."""


def _path(value: FilePath) -> str:
    text = value if isinstance(value, str) else getattr(value, "__fspath__", lambda: None)()
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"{value!r} is not the path of a file")
    return text


def _path_or_none(value: FilePath | None) -> str | None:
    return None if value is None else _path(value)


@attrs.frozen(kw_only=True)
class TLS:
    """The files of a TLS identity, in PEM format.

    ledgerlog.connect(uri, tls=ledgerlog.TLS(cert="me.pem", key="me.key", ca="ca.pem"))
    """

    cert: str = attrs.field(converter=_path)
    """The certificate of this process, followed by the certificates between it and the authority."""
    key: str = attrs.field(converter=_path)
    """The private key of the certificate."""
    ca: str = attrs.field(converter=_path)
    """The certificates of the authorities to trust, a PEM file."""


def tls_given(*, cert: FilePath | None, key: FilePath | None, ca: FilePath | None) -> TLS | None:
    """Return the identity that three files make; None if none of them is given.

    Raises:
        InvalidArgument: Some are given and some are not. The message names what is missing.
    """
    files = {"cert": cert, "key": key, "ca": ca}
    missing = [name for name, file in files.items() if file is None]
    if len(missing) == len(files):
        return None
    if cert is None or key is None or ca is None:
        wanted = " and ".join(f"{name} (--tls-{name}, {TLS_VARIABLES[name]})" for name in missing)
        raise InvalidArgument(f"TLS takes a certificate, its key and the authorities: {wanted} missing")
    return TLS(cert=cert, key=key, ca=ca)


@attrs.frozen(kw_only=True)
class Credentials:
    """The files with which this process proves who it is. A field is None if it has no such credential."""

    tls: TLS | None = None
    secret_file: str | None = attrs.field(default=None, converter=_path_or_none)
    zk_auth_file: str | None = attrs.field(default=None, converter=_path_or_none)

    @classmethod
    def completed(
        cls,
        environment: Mapping[str, str],
        *,
        tls: TLS | None = None,
        secret_file: FilePath | None = None,
        zk_auth_file: FilePath | None = None,
    ) -> Credentials:
        """Return these credentials, with each one that is None filled in from the arguments or the
        environment.

        Args:
            environment: Environment variables by name.
            tls: A TLS identity. If you give one, no TLS file comes from the environment.
            secret_file: The file of the cluster's shared secret.
            zk_auth_file: The file of the credentials for ZooKeeper.

        Raises:
            InvalidArgument: ``tls`` is not a TLS, or another value is not a path. Or the environment names
                only some of the three TLS files.
        """

        def found(variable: str) -> str | None:
            return environment.get(variable) or None

        if tls is not None:
            check_kind(tls, TLS, "tls", "a ledgerlog.TLS or None")
        else:
            tls = tls_given(**{name: found(variable) for name, variable in TLS_VARIABLES.items()})
        return cls(
            tls=tls,
            secret_file=found(SECRET_FILE_VARIABLE) if secret_file is None else secret_file,
            zk_auth_file=found(ZK_AUTH_FILE_VARIABLE) if zk_auth_file is None else zk_auth_file,
        )

    def variables(self) -> dict[str, str]:
        """Return environment variables that name the same files, for a child process."""
        tls = (
            {}
            if self.tls is None
            else {TLS_VARIABLES[name]: file for name, file in attrs.asdict(self.tls).items()}
        )
        others = {SECRET_FILE_VARIABLE: self.secret_file, ZK_AUTH_FILE_VARIABLE: self.zk_auth_file}
        return tls | {name: file for name, file in others.items() if file is not None}

    def environment_of_child(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which a child process finds exactly these credentials.

        Args:
            environment: The environment to change. Credentials in it that are not among these are left out.
        """
        kept = {name: value for name, value in environment.items() if name not in CREDENTIAL_VARIABLES}
        return kept | self.variables()


NO_CREDENTIALS = Credentials()
"""No credentials: the process does not prove who it is."""
