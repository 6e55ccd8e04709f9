"""The certificate of this process and the authorities that it trusts, as contexts of ``ssl``.

``Certificates`` reads the three files of a ``TLS`` identity, and reads them again if they change. A new
connection uses the newest files; an open connection continues with the files that it began with. When a
connection begins, this module checks whether the files have changed, at most once in ``_LOOK_S``. So a
renewed certificate needs no signal. ``reload`` reads the files at once; commands call it on SIGHUP.

**A bad change is not taken.** If the new files do not fit together, or name another principal, the process
keeps the old ones and logs one warning for each state of the files. A program that renews certificates
replaces one file after the other, so a moment without a matching key, or without a file, is normal.

**This module finds mistakes in our own files** before any peer sees them: a certificate that has expired, is
not valid yet, names no principal of this cluster, or does not belong to its key. ``ssl`` shows only the
certificates of peers. So the process does a handshake with itself, in memory, and looks at the certificate
that it presented.

**The rules of a connection**: TLS 1.3 and nothing older; both ends present a certificate and verify the
other's; no resumption, so each connection is fully verified. Host names do not matter: the identity is the
principal in the certificate (``model.principal``). If the file of authorities also holds revocation lists,
each certificate is looked up in these lists.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import time
from typing import Any, NoReturn

import attrs

from ledgerlog.errors import InvalidArgument, Unauthenticated
from ledgerlog.model.credentials import TLS
from ledgerlog.model.principal import Principal, named_in_certificate

__all__ = ["Certificates", "certificate_uris"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which ``ssl`` does not name. It is used only to look at our own
certificate. ``_check_times`` checks the times of that certificate, with better messages."""

_PEM_LIST = b"-----BEGIN X509 CRL-----"


@attrs.frozen
class _Loaded:
    """The data that was read from one state of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    principal: Principal


class Certificates:
    """The contexts of this process, always from the newest files that fit together."""

    def __init__(self, tls: TLS, cluster: str | None) -> None:
        """Read the files.

        Args:
            tls: The files.
            cluster: The id of the cluster that certificates must be for.

        Raises:
            InvalidArgument: A file cannot be read, is not in PEM format, or the key does not belong to the
                certificate. The message names the file.
            Unauthenticated: This process's certificate has expired, is not valid yet, or names no principal
                of the cluster.
        """
        self.tls = tls
        self.cluster = cluster
        self._stamp = _stamp_of(tls)
        self._loaded = _load(tls, cluster)
        self._look_at = time.monotonic() + _LOOK_S

    @property
    def principal(self) -> Principal:
        """The principal of this process, as its peers see it."""
        return self._loaded.principal

    def server(self) -> ssl.SSLContext:
        """Return the context for a connection that was accepted."""
        self._look()
        return self._loaded.server

    def client(self) -> ssl.SSLContext:
        """Return the context for a connection that this process opens."""
        self._look()
        return self._loaded.client

    def reload(self) -> None:
        """Read the files now, and log the changes. If they are bad, keep the old ones."""
        self._look_at = time.monotonic() + _LOOK_S
        self._stamp = _stamp_of(self.tls)
        try:
            loaded = _load(self.tls, self.cluster)
            if loaded.principal != self._loaded.principal:
                raise InvalidArgument(
                    f"{self.tls.cert} names {loaded.principal}, but this process is {self._loaded.principal}"
                )
        except (InvalidArgument, Unauthenticated) as bad:
            logger.warning("the certificates stay as they were: %s", bad)
        else:
            self._loaded = loaded
            logger.info("certificates loaded again: %s", self.tls.cert)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        if _stamp_of(self.tls) != self._stamp:
            self.reload()


_Stamp = tuple[tuple[int, int, int, int] | None, ...]


def _stamp_of(tls: TLS) -> _Stamp:
    """Return something that changes when a file changes. Take it before you read the files."""
    found: list[tuple[int, int, int, int] | None] = []
    for path in (tls.cert, tls.key, tls.ca):
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def certificate_uris(peer: ssl.SSLObject) -> list[str]:
    """List the URIs among the subject alternative names of the certificate that a peer presented."""
    names: Any = (peer.getpeercert() or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI"]


# --- reading the files ------------------------------------------------------------------------------


def _load(tls: TLS, cluster: str | None) -> _Loaded:
    try:
        return _load_files(tls, cluster)
    except OSError as cause:
        # The files are opened several times. Another program may change one of them meanwhile.
        raise InvalidArgument(
            f"{tls.cert}, {tls.key} or {tls.ca} cannot be read, or changed while it was read: "
            f"{cause.strerror or cause}"
        ) from cause


def _load_files(tls: TLS, cluster: str | None) -> _Loaded:
    authorities = _read(tls.ca, "the authorities (--tls-ca)")
    _read(tls.cert, "the certificate (--tls-cert)")
    _read(tls.key, "the key (--tls-key)")
    _warn_of_readers(tls.key)
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = _context(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=None, cafile=tls.ca)
        except ssl.SSLError as cause:
            raise InvalidArgument(f"{tls.ca} holds no certificate of an authority in PEM format") from cause
        if _PEM_LIST in authorities:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        _present(context, tls)
        contexts.append(context)
    server, client = contexts
    return _Loaded(server, client, _check_own(tls, cluster))


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _present(context: ssl.SSLContext, tls: TLS) -> None:
    """Have the context present this process's certificate."""

    def refuse_encrypted() -> NoReturn:
        raise InvalidArgument(
            f"{tls.key} is encrypted with a password: give a key without a password, with mode 0600"
        )

    try:
        context.load_cert_chain(tls.cert, tls.key, password=refuse_encrypted)
    except ssl.SSLError as cause:
        if cause.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(f"{tls.key} is not the key of the certificate {tls.cert}") from cause
        raise InvalidArgument(
            f"{tls.cert} and {tls.key} are not a certificate and its key in PEM format: "
            f"{cause.reason or cause}"
        ) from cause


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as cause:
        raise InvalidArgument(f"{what} cannot be read: {path}: {cause.strerror}") from cause


def _warn_of_readers(key: str) -> None:
    mode = os.stat(key).st_mode & 0o777
    if mode & 0o077:
        logger.warning("other users of this machine can access the key %s: its mode is %04o", key, mode)


# --- the own certificate ----------------------------------------------------------------------------


def _check_own(tls: TLS, cluster: str | None) -> Principal:
    """Return the principal of this process's certificate. Raise if its peers would refuse it."""
    presenting = _context(ssl.PROTOCOL_TLS_CLIENT)
    presenting.verify_mode = ssl.CERT_NONE  # The other end is this process itself.
    _present(presenting, tls)
    looking = _context(ssl.PROTOCOL_TLS_SERVER)
    looking.verify_mode = ssl.CERT_REQUIRED
    _present(looking, tls)
    looking.load_verify_locations(cafile=tls.cert)
    looking.verify_flags = ssl.VerifyFlags(
        looking.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    )
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = presenting.wrap_bio(back, there), looking.wrap_bio(there, back, server_side=True)
    try:
        for end in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        shown = server.getpeercert()
    except ssl.SSLError as cause:
        raise Unauthenticated(
            f"the certificate {tls.cert} cannot prove who a client is: "
            f"{getattr(cause, 'verify_message', cause)}. "
            "Its extended key usage, if it has one, must name clientAuth and serverAuth"
        ) from cause
    assert shown, "the handshake is over, and its server asked for the certificate"
    _check_times(tls.cert, shown["notBefore"], shown["notAfter"])
    try:
        return named_in_certificate(certificate_uris(server), cluster)
    except Unauthenticated as wrong:
        raise Unauthenticated(f"{tls.cert}: {wrong}") from None


def _check_times(path: str, not_before: object, not_after: object) -> None:
    now = time.time()
    begin_s, end_s = ssl.cert_time_to_seconds(str(not_before)), ssl.cert_time_to_seconds(str(not_after))
    if now < begin_s:
        raise Unauthenticated(
            f"the certificate {path} is not valid before {_moment(begin_s)}, and this machine's clock says "
            f"{_moment(now)}: is the clock wrong?"
        )
    if now > end_s:
        raise Unauthenticated(
            f"the certificate {path} expired at {_moment(end_s)}; this machine's clock says {_moment(now)}"
        )


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
