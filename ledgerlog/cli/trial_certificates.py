"""An authority and certificates for a trial cluster, made with the package ``cryptography``.

    DIR/ca.pem, DIR/ca.key                             the authority
    DIR/bookie/bookie-1.pem, DIR/bookie/bookie-1.key   the certificate and the key of bookie/bookie-1
    DIR/admin/ann.pem, DIR/client/billing.pem, ...     the same for each other principal

A cluster that matters gets its certificates from its own authority, whose key is on no machine of the cluster
(docs/SECURITY.md). Here the key of the authority is in the same directory as the other keys. So a person who
can read the directory can make any certificate.

Keys have mode 0600 from the moment they exist. All keys are of the curve P-256: a handshake with them costs
less than with RSA. Certificates are valid from an hour ago, because the clocks of two machines differ.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.model.credentials import TLS
from ledgerlog.model.principal import ANY_CLUSTER, Principal
from ledgerlog.optional_packages import how_to_install, is_installed

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = [
    "CERTIFICATE_DAYS",
    "CryptographyMissing",
    "has_authority",
    "make_certificates",
    "tls_files",
]

CERTIFICATE_DAYS = 397
_AUTHORITY_DAYS = 3650
_BEFORE = datetime.timedelta(hours=1)


class CryptographyMissing(LedgerLogError):
    """Certificates cannot be made, because the package ``cryptography`` is not installed."""


def tls_files(directory: Path, principal: Principal) -> TLS:
    """Return the files of a principal in a directory of certificates."""
    stem = directory / principal.kind / principal.name
    return TLS(cert=f"{stem}.pem", key=f"{stem}.key", ca=directory / "ca.pem")


def has_authority(directory: Path) -> bool:
    """Return whether an authority has its files in a directory of certificates."""
    return (directory / "ca.pem").exists()


def make_certificates(
    directory: Path,
    principals: Iterable[Principal],
    *,
    cluster: str = ANY_CLUSTER,
    days: float = CERTIFICATE_DAYS,
    again: bool = False,
) -> list[TLS]:
    """Make a certificate for each principal that has none, and an authority if there is none.

    If a process was killed between the two files of a principal, its key does not belong to its certificate,
    which counts as none.

    Args:
        directory: The directory of the files. It is made if it does not exist.
        principals: The principals that get a certificate.
        cluster: The id of the cluster that new certificates are for; ``*``: any that trusts the authority.
        days: How long new certificates are valid.
        again: Make new certificates also for principals that have one.

    Returns:
        The files that were made.

    Raises:
        CryptographyMissing: The package ``cryptography`` is not installed.
        InvalidArgument: A file cannot be read or written, or the authority's files are damaged.
    """
    if not is_installed("cryptography"):
        raise CryptographyMissing(
            f"the package cryptography makes certificates, and is not installed: "
            f"{how_to_install('cryptography')}"
        )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority_in(directory)
        made = []
        for principal in principals:
            files = tls_files(directory, principal)
            if again or not _is_pair(files):
                _issue(authority, files, principal, cluster, days)
                made.append(files)
        return made
    except OSError as cause:
        raise InvalidArgument(f"{cause.filename}: {cause.strerror}") from cause


Authority = tuple["x509.Certificate", "EllipticCurvePrivateKey"]


def _authority_in(directory: Path) -> Authority:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    cert_path, key_path = directory / "ca.pem", directory / "ca.key"
    if cert_path.exists() != key_path.exists():
        there, gone = (cert_path, key_path) if cert_path.exists() else (key_path, cert_path)
        raise InvalidArgument(
            f"{there} exists but {gone} is missing: put it back, or remove {directory} to begin with a new "
            "authority"
        )
    if cert_path.exists():
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
            cert = x509.load_pem_x509_certificates(cert_path.read_bytes())[0]
            if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
                raise ValueError("the key does not belong to the certificate")
        except (ValueError, TypeError) as cause:
            raise InvalidArgument(f"the authority in {directory} cannot be used: {cause}") from cause
        return cert, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("ledgerlog trial authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    cert = _write(builder, key, key, cert_path, key_path)
    return cert, key


def _is_pair(files: TLS) -> bool:
    """Whether both files are there, and the key belongs to the certificate. Files that cannot be judged count
    as a pair: this module did not make them."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
        cert = x509.load_pem_x509_certificates(Path(files.cert).read_bytes())[0]
        return key.public_key() == cert.public_key()
    except FileNotFoundError:
        return False
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return True


def _issue(authority: Authority, files: TLS, principal: Principal, cluster: str, days: float) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    uri = x509.UniformResourceIdentifier(principal.certificate_uri(cluster))
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = (
        _builder(_named(str(principal)[:64]), ca.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    Path(files.cert).parent.mkdir(mode=0o700, exist_ok=True)
    _write(builder, key, ca_key, Path(files.cert), Path(files.key))


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _write(
    builder: x509.CertificateBuilder,
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    cert_path: Path,
    key_path: Path,
) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes, serialization

    cert = builder.sign(signer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    _put(
        key_path,
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        0o600,
    )
    _put(cert_path, cert.public_bytes(pem), 0o644)
    return cert


def _put(path: Path, content: bytes, mode: int) -> None:
    """Write a file so that no process ever sees half of it, or a key with another mode."""
    whole = path.with_name(f".{path.name}.new")
    whole.unlink(missing_ok=True)
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        whole.replace(path)
    except BaseException:
        whole.unlink(missing_ok=True)
        raise
