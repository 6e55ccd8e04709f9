"""Certificates for tests: one authority for all, made once in a process, and strangers.

``files("client/billing")`` returns the files of a principal. Each set of options is made once, because a key
takes longer than most tests. ``renewed`` makes new ones each time.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from ledgerlog.cli.trial_certificates import make_certificates, tls_files
from ledgerlog.model.credentials import TLS
from ledgerlog.model.principal import ANY_CLUSTER, Principal

__all__ = ["files", "renewed"]


@cache
def _directory(authority: str) -> Path:
    """Return the directory of an authority and its certificates."""
    path = Path(tempfile.mkdtemp(prefix=f"ledgerlog-{authority}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    make_certificates(path, [])
    return path


@cache
def files(principal: str, *, cluster: str = ANY_CLUSTER, days: float = 1, authority: str = "ours") -> TLS:
    """Return the files of a principal.

    Args:
        principal: Who, for example ``"client/billing"``.
        cluster: The cluster in the certificate.
        days: How long the certificate is valid. Below 0: it has expired.
        authority: Another name is an authority that ours does not know.
    """
    where = _directory(authority)
    if cluster != ANY_CLUSTER or days != 1:
        where = where / f"{cluster.replace('*', 'any')}-{days}"
    return renewed(principal, where, cluster=cluster, days=days, authority=authority)


def renewed(
    principal: str, where: Path, *, cluster: str = ANY_CLUSTER, days: float = 1, authority: str = "ours"
) -> TLS:
    """Make new files of a principal in the directory ``where``, from the same authority. Otherwise as
    ``files``."""
    who = Principal.parse(principal)
    where.mkdir(exist_ok=True)
    if where != _directory(authority):
        for name in ("ca.pem", "ca.key"):
            shutil.copy(_directory(authority) / name, where / name)
    make_certificates(where, [who], cluster=cluster, days=days, again=True)
    return tls_files(where, who)
