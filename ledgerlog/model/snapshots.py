"""The list of ledgers that hold snapshots of a state machine: one record for each incarnation of a log.

A snapshot in the cluster is a ledger of its own. The ledger is in the list while the snapshot is written and
afterwards. So a replica that looks for snapshots finds the finished ones, and the sweep (``log.sweep``) finds
the unfinished ones. The metadata of the ledger name its log (``SNAPSHOT_LOG_LABEL``,
``SNAPSHOT_INCARNATION_LABEL``). Before the ledger is listed, and after it was taken off the list, these
labels are its only link to the log.

**Rules.** A ledger is listed as unfinished before anything is written to it. It is listed as finished only
after it is CLOSED, and only if it is still in the list. So if a ledger is CLOSED and not in the list, it is
never listed again. If a ledger was taken off the list while it was written, it can never be finished.

**Bytes.** Canonical CBOR: ``v`` 1, and three columns ``ledgers``, ``offsets`` (the first record of the log
that is not in the snapshot), ``sizes`` (bytes of its stream; -1: not finished).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = [
    "SNAPSHOT_INCARNATION_LABEL",
    "SNAPSHOT_LOG_LABEL",
    "ListedSnapshot",
    "decode_snapshot_list_untrusted",
    "encode_snapshot_list",
    "read_snapshot_list",
    "snapshot_labels",
]

SNAPSHOT_LOG_LABEL = "snapshot-log"
SNAPSHOT_INCARNATION_LABEL = "snapshot-incarnation"

_FORMAT = 1
_UNFINISHED = -1


@attrs.frozen
class ListedSnapshot:
    """One snapshot in the list."""

    ledger_id: int
    next_offset: int
    """The first record of the log that is not in the snapshot."""
    size: int = _UNFINISHED
    """Bytes of its stream; -1 if it is not finished."""

    @property
    def is_finished(self) -> bool:
        return self.size != _UNFINISHED


def snapshot_labels(name: str, incarnation: int) -> dict[str, bytes]:
    """Return the labels that the ledger of a snapshot has in its own metadata."""
    return {SNAPSHOT_LOG_LABEL: name.encode(), SNAPSHOT_INCARNATION_LABEL: str(incarnation).encode()}


def encode_snapshot_list(listed: Iterable[ListedSnapshot], *, unknown: bytes = b"") -> bytes:
    """Encode the list, with the keys that only a later version knows (``read_snapshot_list``)."""
    listed = list(listed)
    return encode_record(
        {
            "v": _FORMAT,
            "ledgers": [s.ledger_id for s in listed],
            "offsets": [s.next_offset for s in listed],
            "sizes": [s.size for s in listed],
        },
        lambda data: decode_snapshot_list_untrusted(data, 0),
        unknown=unknown,
    )


def decode_snapshot_list_untrusted(data: bytes, incarnation: int) -> list[ListedSnapshot]:
    """Decode the bytes of ``encode_snapshot_list``. Raise MetadataCorrupt with the field."""
    return read_snapshot_list(data, incarnation)[0]


def read_snapshot_list(data: bytes, incarnation: int) -> tuple[list[ListedSnapshot], bytes]:
    """Return the list, and the keys that only a later version knows.

    Raises:
        MetadataCorrupt: The bytes are damaged. The message names the log and the field.
    """
    fields = decode_record_untrusted(data, f"snapshots of log incarnation {incarnation}", MetadataCorrupt)
    fields.format(_FORMAT)
    columns = [fields.sequence(name, int) for name in ("ledgers", "offsets", "sizes")]
    if len({len(column) for column in columns}) != 1:
        fields.fail("its columns differ in length")
    return [ListedSnapshot(*row) for row in zip(*columns, strict=True)], fields.unknown()
