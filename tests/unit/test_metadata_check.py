"""Which ledgers count as forgotten: the comparison of the metadata with the lists of bookies."""

from __future__ import annotations

import pytest

from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.log_key import INCARNATION_LABEL
from ledgerlog.model.quorum import Replication
from ledgerlog.model.restoration import Restoration
from ledgerlog.repair.core.metadata_check import MetadataCheck, check_metadata
from ledgerlog.wire.ledgers import LedgerOnBookie

_BOOKIES = ("b1", "b2", "b3")
_KEY = bytes(16)
_RESTORATION = Restoration(floor=100, counter=50, backup_ms=0, restored_ms=1)


def _checked(ledger_id: int, *, restoration: Restoration | None, last_entry: int = 3) -> MetadataCheck:
    """The check of a ledger that was made for a log, that no list names, and that bookies list."""
    ledger = LedgerMetadata.create(
        ledger_id=ledger_id,
        replication=Replication(3, 3, 2),
        ensemble=_BOOKIES,
        key=_KEY,
        token=b"t",
        created_ms=0,
        custom={INCARNATION_LABEL: b"0"},
    )
    return check_metadata(
        ledgers=[ledger],
        logs=[],
        names={},
        archived={},
        highest=200,
        restoration=restoration,
        cookies=_BOOKIES,
        registered=_BOOKIES,
        held={bookie: [LedgerOnBookie(ledger_id, last_entry, _KEY)] for bookie in _BOOKIES},
        in_limbo=(),
        unreadable=(),
    )


def test_a_ledger_that_no_list_names_is_forgotten_if_it_is_from_before_the_restore() -> None:
    check = _checked(7, restoration=_RESTORATION)
    assert [ledger.ledger_id for ledger in check.forgotten] == [7]
    assert not check.is_sound


@pytest.mark.parametrize("restoration", [None, _RESTORATION])
def test_a_ledger_that_was_made_since_the_restore_is_neither_forgotten_nor_deleted(
    restoration: Restoration | None,
) -> None:
    """Its leader lists it soon."""
    check = _checked(100, restoration=restoration)
    assert (check.forgotten, check.deleted) == ((), ())
    assert check.is_sound


def test_a_ledger_that_was_only_fenced_is_not_forgotten() -> None:
    """It has nothing to bring back."""
    check = _checked(7, restoration=_RESTORATION, last_entry=NO_ENTRY)
    assert (check.forgotten, check.deleted) == ((), ())
    assert check.is_sound


@pytest.mark.parametrize(
    ("names", "has_record", "why"),
    [
        ({"log": 5}, True, None),
        ({"log": 5}, False, "logs/log leads to log/0000000000000005, which is not there"),
        ({}, True, "log/0000000000000005 is there, and logs/log does not lead to it"),
        ({"log": 6}, True, "logs/log leads to log/0000000000000006, which is not there"),
    ],
)
def test_a_log_with_one_of_its_two_nodes_is_broken(
    names: dict[str, int], has_record: bool, why: str | None
) -> None:
    log = LogMetadata.create(
        name="log", incarnation=5, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )
    check = check_metadata(
        ledgers=[],
        logs=[log] if has_record else [],
        names=names,
        archived={},
        highest=0,
        restoration=None,
        cookies=(),
        registered=(),
        held={},
        in_limbo=(),
        unreadable=(),
    )
    assert (why is None) == check.is_sound
    assert why is None or why in [broken.why for broken in check.broken_logs]
