"""Fuzz targets of the metadata stores: credentials files, names and principals in ZooKeeper, backups."""

from __future__ import annotations

import os
import tempfile

import attrs

from ledgerlog.errors import (
    IncompatibleVersion,
    InvalidArgument,
    MetadataCorrupt,
    StorageCorrupt,
    WrongCluster,
)
from ledgerlog.meta.backup_file import Backup, open_backup, write_backup
from ledgerlog.meta.belonging import check_cluster
from ledgerlog.meta.zookeeper.acl import parse_principal
from ledgerlog.meta.zookeeper.login import parse_auth
from ledgerlog.meta.zookeeper.names import Names, parse_child
from ledgerlog.model.secret import Secrets
from tests.fuzz.targets import Target, expect

_AUTH = (
    b'scheme = "digest"\nuser = "ledger"\npassword = "s3cret-and-long"\n',
    b'scheme = "sasl"\nmechanism = "DIGEST-MD5"\nuser = "u"\npassword = "p"\nservice = "zk"\n',
    b'scheme = "sasl"\nmechanism = "GSSAPI"\nprincipal = "b1@EXAMPLE.ORG"\n',
)


def _run_auth(data: bytes) -> bool:
    try:
        auth = parse_auth(data.decode("utf-8", "surrogateescape"), "the-file")
    except InvalidArgument as refusal:
        expect("s3cret-and-long" not in str(refusal), f"a refusal quotes a secret: {refusal}")
        return False
    # A password may be a word that is shown anyway, such as the name of the mechanism.
    other = auth if auth.password is None else attrs.evolve(auth, password="another")
    expect(f"{auth!r} {auth}" == f"{other!r} {other}", "a repr shows a secret")
    expect(bool(auth.auth_data) != bool(auth.sasl_options), "an identity of two kinds, or of none")
    return True


def _run_secrets(data: bytes) -> bool:
    try:
        secrets = Secrets.parse(data.decode("utf-8", "surrogateescape"), "the-file")
    except InvalidArgument as refusal:
        expect("5" * 16 not in str(refusal), f"a refusal quotes a secret: {refusal}")
        return False
    expect(Secrets.parse(secrets.encode(), "f") == secrets, "secrets that are written differently")
    unnamed = attrs.evolve(secrets, holder=None)  # A principal may be named as its secret is written.
    expect(not any(value.hex() in repr(unnamed) for value in secrets.values), "a repr shows a secret")
    return True


def _run_names(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    accepted = False
    try:
        principal = parse_principal(text)
    except InvalidArgument:
        pass
    else:
        expect(str(principal) == text, "a principal is not written as it was read")
        accepted = True
    name = text.replace("/", "")
    child = parse_child(name) if name else None
    if child is not None:
        names = Names("/c")
        component, is_value = child
        if "/" not in component and component not in (".", ".."):
            znode = names.value(component) if is_value else names.directory(component)
            expect(znode == f"/c/{name}", "the name of a znode does not lead back")
        accepted = True
    try:
        check_cluster(data)
    except (MetadataCorrupt, WrongCluster):
        return accepted
    return True


def _read(content: bytes) -> Backup | None:
    descriptor = os.memfd_create("backup")
    try:
        os.write(descriptor, content)
        return open_backup(f"/proc/self/fd/{descriptor}")
    except (StorageCorrupt, IncompatibleVersion):
        return None
    finally:
        os.close(descriptor)


def _run_backup(data: bytes) -> bool:
    backup = _read(data)
    if backup is None:
        return False
    expect(backup.nodes >= 0 and backup.made_ms is not None, "a backup without a head")
    return True


def _backups() -> list[bytes]:
    found = []
    for nodes in ((), (("cluster", b"c"), ("logs/a", b""), ("ledgers/0/1", b"v" * 300))):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "backup")
            with write_backup(path) as writer:
                writer.begin("cluster", 5)
                for node, value in nodes:
                    writer.node(node, value)
                writer.end({"ledger": 7, "log": -1})
            with open(path, "rb") as file:
                found.append(file.read())
    return found


ACCESS_TARGETS = (
    Target("zk-auth", _run_auth, lambda: list(_AUTH)),
    Target(
        "secrets",
        _run_secrets,
        lambda: [b"cluster:" + b"5" * 64, b"# old\nclient/a:" + b"5" * 64 + b"\nclient/a:" + b"6" * 64],
    ),
    Target(
        "zk-names",
        _run_names,
        lambda: [
            b"digest:super:D/InIHSb7yEEbrWz8b9l71RjZJU=",
            b"sasl:reader",
            b"x509:CN=b1,O=example",
            b"=value^01f600",
            b"++quoted",
            b"0123456789abcdef:9f",
        ],
    ),
    Target("backup", _run_backup, _backups),
)
