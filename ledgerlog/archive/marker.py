"""The marker of a destination: what tells "not mounted" from "the files are gone".

A directory on which nothing is mounted, a bucket's prefix with a letter missing, a host that does not share
the disk: each of them looks like an archive whose files were all deleted. A job that believed it would
withdraw records, copy the ledgers again to where nobody else sees them, and give up bookies' copies for
these. So the first job of a cluster at a destination leaves a file there,

    _ledgerlog-archive-CLUSTER

CLUSTER being the first 16 digits of the cluster's id. Clusters that share a destination have one each: the
marker of a neighbour, who began while nothing was mounted, must not vouch for it. The file is JSON,

    {"cluster": "THE WHOLE ID", "format": 1}

written under another name and moved, so it is whole or not there; every job writes the same, so two that
begin together do not meet. Its name begins with ``_``, which readers of directories of Parquet pass over. It
is never deleted, and nothing that *reads* an archive asks for it.

What is done about one that is missing is told in ``archiving.claiming``. Everything here blocks.
"""

from __future__ import annotations

import json

from ledgerlog.archive.places import Destination, files_as_errors, open_input
from ledgerlog.errors import ArchiveUnavailable

__all__ = ["has_marker", "make_marker", "marker_name", "marker_of_file"]

_FORMAT = 1
_BYTES_MAX = 4096


def marker_name(cluster: str) -> str:
    """Its name below the destination. ``cluster`` is the cluster's id."""
    return f"_ledgerlog-archive-{cluster[:16]}"


def marker_of_file(url: str, cluster: str) -> str:
    """The URL of the marker of the destination that an archived file lies in: two levels above it."""
    base, mark, query = url.partition("?")
    root = base.rsplit("/", 2)[0]
    return f"{root}/{marker_name(cluster)}{mark}{query}"


def _content(cluster: str) -> dict[str, object]:
    return {"cluster": cluster, "format": _FORMAT}


def has_marker(url: str, cluster: str) -> bool:
    """Whether the marker of that URL is there. ArchiveUnavailable where its file system does not say, or
    where it is another file than the marker of this cluster."""
    try:
        with open_input(url) as stream, files_as_errors(url):
            data = stream.read(_BYTES_MAX)
    except ArchiveUnavailable as failure:
        if isinstance(failure.__cause__, FileNotFoundError):
            return False
        raise
    try:
        said = json.loads(data)
    except ValueError:
        said = None
    if said != _content(cluster):
        raise ArchiveUnavailable(
            url,
            f"it is not the marker (format {_FORMAT}) of cluster {cluster}, whose name it has: it was "
            "changed, or is of another version or another cluster",
        )
    return True


def make_marker(destination: Destination, cluster: str, nonce: str) -> None:
    """Leave the marker at a destination, which is made where there is none. ``nonce`` is a word of the
    caller's own. ArchiveUnavailable."""
    name = marker_name(cluster)
    temporary = f".{name}.{nonce}.tmp"
    with files_as_errors(destination.url_of(name)), destination.create(temporary) as stream:
        stream.write(json.dumps(_content(cluster), sort_keys=True).encode() + b"\n")
    destination.publish(temporary, name)
