"""The marker of a destination: what tells "not mounted" from "the files are gone".

A directory on which nothing is mounted, a bucket's prefix with a letter missing, a host that does not share
the disk: each of them looks like an archive whose files were all deleted. A job that believed it would
withdraw records, copy the ledgers again to where nobody else sees them, and give up bookies' copies for
these. So the first job of a cluster at a destination leaves a file there,

    _ledgerlog-archive-CLUSTER-ID

CLUSTER being the first 16 digits of the cluster's id, so that clusters may share a destination, and ID 16
hexadecimal digits drawn when the marker was made. The metadata store says which id a destination has
(``model.archive.ArchivePlace``), and that marker alone vouches for it: one that was made below a mount point,
while the disk was not mounted, does so no more once the disk has got its own. The file is JSON,

    {"cluster": "THE WHOLE ID", "format": 1, "id": "ID"}

written under another name and moved, so it is whole or not there. No name is ever used twice, so nobody
replaces the marker of another. Its name begins with ``_``, which readers of directories of Parquet pass over,
and nothing that *reads* an archive asks for it.

What is done about one that is missing is told in ``archive.jobs.claiming``. Everything here blocks.
"""

from __future__ import annotations

import json

from ledgerlog.archive.destinations import Destination, files_as_errors, recorded
from ledgerlog.errors import ArchiveUnavailable

__all__ = ["destination_of_file", "has_marker", "make_marker", "marker_name"]

_FORMAT = 1
_BYTES_MAX = 4096


def marker_name(cluster: str, marker: bytes) -> str:
    """The name of a marker below its destination, by the cluster's id and its own."""
    return f"_ledgerlog-archive-{cluster[:16]}-{marker.hex()}"


def destination_of_file(url: str) -> Destination:
    """The destination that an archived file lies in: two levels above it. ArchiveUnavailable."""
    base, mark, query = url.partition("?")
    with recorded(url):
        return Destination(base.rsplit("/", 2)[0] + mark + query)


def _content(cluster: str, marker: bytes) -> dict[str, object]:
    return {"cluster": cluster, "format": _FORMAT, "id": marker.hex()}


def has_marker(destination: Destination, cluster: str, marker: bytes) -> bool:
    """Whether that marker is there. ArchiveUnavailable where the file system does not say, or where it is
    another file than the marker."""
    url = destination.url_of(marker_name(cluster, marker))
    try:
        with destination.open(marker_name(cluster, marker)) as stream, files_as_errors(url):
            data = stream.read(_BYTES_MAX)
    except ArchiveUnavailable as failure:
        if isinstance(failure.__cause__, FileNotFoundError):
            return False
        raise
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = None
    if said != _content(cluster, marker):
        raise ArchiveUnavailable(
            url,
            f"it is not the marker (format {_FORMAT}) of cluster {cluster}, whose name it has: it was "
            "changed, or is of another version or another cluster",
        )
    return True


def make_marker(destination: Destination, cluster: str, marker: bytes) -> None:
    """Leave a marker at a destination, which is made where there is none. ArchiveUnavailable."""
    name = marker_name(cluster, marker)
    temporary = f".{name}.tmp"
    with files_as_errors(destination.url_of(name)), destination.create(temporary) as stream:
        stream.write(json.dumps(_content(cluster, marker), sort_keys=True).encode() + b"\n")
    destination.publish(temporary, name)
