"""Check the arguments of a metadata store: one rule for all implementations.

Other code never asks which store it talks to. So if one store would refuse a path or a value, all stores
refuse it, with ``InvalidArgument``, before they send anything. The alphabet of a path is
ZooKeeper's, because it is the narrowest: no control characters, no surrogates, no private-use characters, no
U+FFF0 to U+FFFF, and no component named "." or "..". The first component may not be "zookeeper", because a
ZooKeeper server keeps that name for itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ledgerlog import limits
from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.store import Check, Create, Delete, Operation, Set

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")

AFTER_SLASH = "0"
"""The character after "/": every path below P sorts in [P + "/", P + AFTER_SLASH)."""

assert ord(AFTER_SLASH) == ord("/") + 1


def check_path(path: str) -> None:
    """Raise ``InvalidArgument`` unless ``path`` can name a node (or a counter)."""
    if not isinstance(path, str):
        raise InvalidArgument(f"a metadata path must be a str, not {type(path).__name__}")
    if _FORBIDDEN.search(path) is not None:
        raise InvalidArgument(f"metadata path {path[:200]!r} contains a character that no store can hold")
    size = len(path.encode())
    if size > limits.METADATA_PATH_BYTES_MAX:
        raise InvalidArgument(
            f"a metadata path of {size} bytes is over the limit of {limits.METADATA_PATH_BYTES_MAX} bytes"
        )
    components = path.split("/")
    if "" in components:
        raise InvalidArgument(f"metadata path {path!r} has an empty component (paths are relative: 'a/b')")
    if "." in components or ".." in components:
        raise InvalidArgument(f"metadata path {path!r} has a component '.' or '..'")
    if components[0] == "zookeeper":
        raise InvalidArgument(f"metadata path {path!r}: 'zookeeper' is reserved for the ZooKeeper server")


def check_value(path: str, value: bytes) -> None:
    """Raise ``InvalidArgument`` unless ``value`` is bytes of at most ``limits.METADATA_BYTES_MAX``."""
    if not isinstance(value, bytes):
        raise InvalidArgument(f"the value of {path!r} must be bytes, not {type(value).__name__}")
    if len(value) > limits.METADATA_BYTES_MAX:
        raise InvalidArgument(
            f"a value of {len(value)} bytes for {path!r} is over the limit of "
            f"{limits.METADATA_BYTES_MAX} bytes; nothing was written"
        )


def check_operations(operations: Sequence[Operation]) -> None:
    """Check every path, value and version of a transaction, and its size, before any operation is done.

    Raises:
        InvalidArgument: An argument is not acceptable. Nothing was done.
    """
    size = 0
    for operation in operations:
        check_path(operation.path)
        # In ZooKeeper an operation becomes up to three requests, each with the path and some 100 bytes around
        # it.
        size += 3 * (len(operation.path.encode()) + 100)
        match operation:
            case Create(path=path, value=value):
                check_value(path, value)
                size += len(value)
            case Set(path=path, value=value, version=version):
                check_value(path, value)
                size += len(value)
                _check_version(path, version)
            case Check(path=path, version=version):
                _check_version(path, version)
            case Delete(path=path, version=version):
                if version is not None:
                    _check_version(path, version)
    if size > limits.METADATA_TRANSACTION_BYTES_MAX:
        raise InvalidArgument(
            f"a transaction of {len(operations)} operations and about {size} bytes is over the limit of "
            f"{limits.METADATA_TRANSACTION_BYTES_MAX} bytes; nothing was written"
        )


def _check_version(path: str, version: int) -> None:
    # None would mean "any version" further down. A compare-and-set would become an unconditional write.
    if not isinstance(version, int):
        raise InvalidArgument(f"the version of {path!r} must be an int, not {type(version).__name__}")


def ancestors(path: str) -> list[str]:
    """Return the paths above ``path``, nearest last: for "a/b/c", "a" and "a/b"."""
    found = []
    slash = path.find("/")
    while slash != -1:
        found.append(path[:slash])
        slash = path.find("/", slash + 1)
    return found
