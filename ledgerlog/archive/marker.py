"""The marker of a destination: it tells "not mounted" from "the files are gone".

Three mistakes look like an archive whose files were all deleted: a directory with nothing mounted on it, a
bucket prefix with a typo, a host that does not share the disk. A job that believed the files to be deleted
would withdraw their records, copy the ledgers again to a place that no other host sees, and then give up
bookies' copies. So the first job of a cluster at a destination leaves a file there, the marker:

    _ledgerlog-archive-CLUSTER-ID

CLUSTER is the first 16 digits of the cluster's id, so clusters may share a destination. ID is 16 random
hexadecimal digits, drawn when the marker is made. The metadata store says which ID a destination has
(``model.archive.ArchiveDestination``), and only the marker with that ID vouches for the destination. For
example, a job may make a marker below a mount point while the disk is not mounted. Once the store has the ID
of the disk's own marker, the marker below the mount point vouches for nothing. The file is JSON:

    {"cluster": "THE WHOLE ID", "format": 1, "id": "ID"}

A job writes the marker under another name and then moves it, so the marker is whole or not there. No name is
ever used twice, so no job replaces another job's marker. The name begins with ``_``, so readers of Parquet
directories skip the marker. Code that only *reads* an archive does not look for the marker.

``archive.jobs.claiming`` says what a job does if a marker is missing. Everything here blocks.
"""

from __future__ import annotations

import json

from ledgerlog.archive.destinations import Destination, destination_url, files_as_errors, recorded
from ledgerlog.errors import ArchiveUnavailable

__all__ = ["MARKER_START", "destination_of_file", "has_marker", "make_marker", "marker_name"]

MARKER_START = "_ledgerlog-archive-"
"""The names of all markers begin with this."""

_FORMAT = 1
_BYTES_MAX = 4096


def marker_name(cluster: str, marker: bytes) -> str:
    """Return the name of a marker below its destination, by the cluster's id and the marker's own."""
    return f"{MARKER_START}{cluster[:16]}-{marker.hex()}"


def destination_of_file(url: str) -> Destination:
    """Return the destination of an archived file, two levels above it.

    Raises:
        ArchiveUnavailable: pyarrow cannot find files at the URL.
    """
    with recorded(url):
        return Destination(destination_url(url))


def _content(cluster: str, marker: bytes) -> dict[str, object]:
    return {"cluster": cluster, "format": _FORMAT, "id": marker.hex()}


def has_marker(destination: Destination, cluster: str, marker: bytes) -> bool:
    """Whether a marker is at a destination.

    Raises:
        ArchiveUnavailable: The file system did not say, or the file with the marker's name is not that
            marker.
    """
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
            f"it is not the marker (format {_FORMAT}) of cluster {cluster}, although it has that name: it "
            "was changed, or belongs to another version or cluster. Restore it from a copy; or, if this is "
            "the right destination, accept it once: `ledgerlog spark archive` and `ledgerlog archive move` "
            "have --accept-destination, and their functions have accept_destination=True",
        )
    return True


def make_marker(destination: Destination, cluster: str, marker: bytes) -> None:
    """Leave a marker at a destination. The destination's directory is created if it is missing.

    Raises:
        ArchiveUnavailable: The file system failed. The marker may be there or not.
    """
    name = marker_name(cluster, marker)
    temporary = f".{name}.tmp"
    with files_as_errors(destination.url_of(name)), destination.create(temporary) as stream:
        stream.write(json.dumps(_content(cluster, marker), sort_keys=True).encode() + b"\n")
    destination.publish(temporary, name)
