"""The record in a metadata store that was restored from a backup.

A restored store has forgotten all changes after the backup. Bookies may hold acknowledged entries of ledgers
that the store no longer knows, and such a ledger looks just like a deleted one. So while this record exists,
bookies treat no ledger with an id below ``floor`` as garbage. New ledgers get ids from ``floor`` on. So a
ledger that is made after the restore and then deleted is collected as always.

**Numbers that went back.** The backup does not know which ids, epochs and terms were given out after it. So a
restore moves all of them forward: past every known number, and past every number that the cluster can have
used by now (``first_new_id``, ``first_new_epoch``). Epochs are also fencing tokens outside of the cluster.

**Open ledgers.** A ledger that was OPEN in the backup may have changed its ensemble after the backup. A
recovery that asked only the ensemble of the backup might miss acknowledged entries and close the ledger too
early. So a restore puts the label ``AS_IN_BACKUP_LABEL`` on such a ledger, and a recovery of the ledger first
asks every bookie of the cluster (``ledger.holders``). From then on the ledger has the label
``ENDED_AFTER_RESTORE_LABEL``.

The value of the node ``restored`` is one canonical CBOR map:

    v        1                                    backup_ms    when the backup was made, wall clock
    floor    the first ledger id given out since  restored_ms  when it was restored, wall clock
    counter  the highest ledger id that the backup knows of, -1 if none
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ledgerlog.errors import IncompatibleVersion
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.election import ElectionState
from ledgerlog.model.layout import ELECTIONS, LEDGERS, LOG_RECORDS, ledger_id_of, log_record_of
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log import LogMetadata

__all__ = [
    "AS_IN_BACKUP_LABEL",
    "ENDED_AFTER_RESTORE_LABEL",
    "EPOCH_MS",
    "Restoration",
    "first_new_epoch",
    "first_new_id",
    "restored_value",
]

AS_IN_BACKUP_LABEL = "as-in-backup"
"""On a ledger that is not CLOSED: its fragments come from a backup, and may be outdated."""

ENDED_AFTER_RESTORE_LABEL = "ended-after-restore"
"""On a ledger that was open in a backup, after its holders were found: its end is what bookies still hold. If
its log was truncated after the backup, bookies may have collected the ledger, and then it ends empty."""

_TOKEN = b"restored"
"""The token of records that a restore has written. No process mistakes such a write for its own."""

_FORMAT = 1

EPOCH_MS = 1_767_225_600_000
"""2026-01-01 in UTC."""

_IDS_A_SECOND_BITS = 24
_EPOCHS_A_SECOND_BITS = 8


@attrs.frozen(kw_only=True)
class Restoration:
    """The record of a restore whose loss no operator has accepted yet."""

    floor: int
    """The first ledger id that the store may give out since the restore."""
    counter: int
    """The highest ledger id that the backup knows of; -1 if none."""
    backup_ms: int
    """When the backup was made, in milliseconds since 1970."""
    restored_ms: int
    """When the backup was restored, in milliseconds since 1970."""

    def encode(self) -> bytes:
        """Encode the record as canonical CBOR."""
        return encode_record({"v": _FORMAT, **attrs.asdict(self)}, self.decode_untrusted)

    @classmethod
    def decode_untrusted(cls, data: bytes) -> Restoration:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt if the bytes are malformed."""
        fields = decode_record_untrusted(data, "the record of the last restore", MetadataCorrupt)
        fields.format(_FORMAT)
        return cls(
            floor=fields.integer("floor"),
            counter=fields.integer("counter", low=-1),
            backup_ms=fields.integer("backup_ms"),
            restored_ms=fields.integer("restored_ms"),
        )


def first_new_id(highest: int, now_ms: int) -> int:
    """Return the first id that a restored store may give out.

    It is above every id that the backup and the store know of. It is also above every id that the cluster can
    have given out since the backup: 2**24 (16.7 million) ids are set aside for each second since 2026.

    Args:
        highest: The highest id that is known to be given out; -1 if none.
        now_ms: Wall clock, in milliseconds since 1970.
    """
    return _past(highest, now_ms, _IDS_A_SECOND_BITS)


def first_new_epoch(highest: int, now_ms: int) -> int:
    """Return the epoch of a log, or the term of an election, right after a restore.

    The next leader gets the next number. 256 numbers are set aside for each second since 2026.

    Args:
        highest: The highest epoch or term that is known to have been in use.
        now_ms: Wall clock, in milliseconds since 1970.
    """
    return _past(highest, now_ms, _EPOCHS_A_SECOND_BITS)


def _past(highest: int, now_ms: int, bits: int) -> int:
    by_clock = max(0, now_ms - EPOCH_MS) // 1000 << bits
    return max(by_clock, ((highest >> bits) + 1) << bits)


def restored_value(path: str, value: bytes, present: bytes | None, now_ms: int) -> bytes:
    """Return the value that a restore writes at ``path``.

    Args:
        path: The path of a node of the backup.
        value: Its value in the backup.
        present: The value that the store has there now; None if there is no node.
        now_ms: Wall clock, in milliseconds since 1970.

    Returns:
        The value with a later epoch, term or label if it needs one. A damaged value stays as it is.

    Raises:
        IncompatibleVersion: A newer version wrote a value whose numbers have to move.
    """
    root, _, rest = path.partition("/")
    try:
        if root == LOG_RECORDS:
            return _later_log(log_record_of(rest), value, present, now_ms)
        if root == ELECTIONS:
            return _later_election(rest, value, present, now_ms)
        if root == LEDGERS:
            return _doubtful_ledger(ledger_id_of(*rest.split("/")), value)
    except IncompatibleVersion:
        raise
    except (ValueError, MetadataCorrupt):
        pass
    return value


def _later_log(incarnation: int, value: bytes, present: bytes | None, now_ms: int) -> bytes:
    def epoch_of(record: bytes) -> int:
        return LogMetadata.decode_untrusted(record, incarnation).epoch

    log = LogMetadata.decode_untrusted(value, incarnation)
    highest = max(log.epoch, _number_of(present, epoch_of))
    return attrs.evolve(log, epoch=first_new_epoch(highest, now_ms), token=_TOKEN).encode()


def _later_election(name: str, value: bytes, present: bytes | None, now_ms: int) -> bytes:
    def term_of(record: bytes) -> int:
        return ElectionState.decode_untrusted(record, name).term

    state = ElectionState.decode_untrusted(value, name)
    highest = max(state.term, _number_of(present, term_of))
    return attrs.evolve(state.vacated(), term=first_new_epoch(highest, now_ms)).encode()


def _number_of(present: bytes | None, decode: Callable[[bytes], int]) -> int:
    """Return the number in the record that a restore replaces; 0 if there is no record, or if it is damaged.
    If it is 0, the backup and the clock alone decide."""
    if present is None:
        return 0
    try:
        return decode(present)
    except IncompatibleVersion:
        raise
    except MetadataCorrupt:
        return 0


def _doubtful_ledger(ledger_id: int, value: bytes) -> bytes:
    ledger = LedgerMetadata.decode_untrusted(value, ledger_id)
    if ledger.is_closed:
        return value
    return attrs.evolve(ledger, custom={**ledger.custom, AS_IN_BACKUP_LABEL: b""}, token=_TOKEN).encode()
