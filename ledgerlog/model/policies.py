"""Policies of a log: when it continues in a new ledger, and which old ledgers it may drop.

Both policies are part of the log's own record. Every leader follows them, and you can change them by
compare-and-set while a leader runs. This module only holds the values: ``log.core.chain`` rolls the log, and
``log.core.retention`` drops ledgers.

**Bytes.** In the record each policy is a CBOR map of whole numbers. Null means that there is no bound:

    roll         {bytes, records, age_ms}        retention       {bytes, age_ms}

Seconds are stored as milliseconds, at least one. A policy refuses a bound that a record cannot hold, for
example a number too large or a float instead of a whole number. If a record with such a bound were written,
it could not be read again, and the log would be lost.
"""

from __future__ import annotations

from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LOG_ROLL_BYTES
from ledgerlog.model.codec import Fields

_BOUND_MAX = 2**63 - 1
AGE_MAX_S = _BOUND_MAX / 1000
"""The longest time, in seconds. In milliseconds it is a whole number of 64 bits."""


def _is_whole(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 < value <= _BOUND_MAX):
        raise InvalidArgument(
            f"{type(instance).__name__}.{attribute.name} must be a whole number from 1 to {_BOUND_MAX}, "
            f"or None, not {value!r}"
        )


def _is_age(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    # This refuses NaN, which is not above 0, and infinity, which is over the limit.
    if value is not None and (type(value) not in (int, float) or not 0 < value <= AGE_MAX_S):
        raise InvalidArgument(
            f"{type(instance).__name__}.{attribute.name} must be a positive number of seconds up to "
            f"{AGE_MAX_S:.3g}, or None, not {value!r}"
        )


@attrs.frozen(kw_only=True)
class RollPolicy:
    """When a log continues in a new ledger: as soon as it reaches one of these bounds.

        RollPolicy(max_bytes=256 * 1024**2, max_age_s=3600)

    Small ledgers let retention drop in smaller steps, but make the log's list of ledgers longer. The
    constructor raises InvalidArgument if a bound is not positive, is above the maximum of a record, or is not
    a whole number (bytes and records).
    """

    max_bytes: int | None = attrs.field(default=LOG_ROLL_BYTES, validator=_is_whole)
    """Bytes of records in one ledger; None is no bound. The default is 1 GiB."""
    max_records: int | None = attrs.field(default=None, validator=_is_whole)
    """Records in one ledger; None is no bound."""
    max_age_s: float | None = attrs.field(default=None, validator=_is_age)
    """Seconds since the ledger took its first record; None is no bound. An empty ledger does not age."""


@attrs.frozen(kw_only=True)
class RetentionPolicy:
    """Which old ledgers of a log may be dropped. Retention drops whole ledgers, from the start of the log.

        RetentionPolicy(max_age_s=7 * 86400)  # drop a ledger once its newest record is a week old

    If you set both bounds, a ledger may be dropped as soon as one of them allows it. If both are None, the
    log keeps everything. Pinned cursors and deduplication can hold a ledger longer. The constructor raises
    InvalidArgument for the same values as ``RollPolicy``.
    """

    max_age_s: float | None = attrs.field(default=None, validator=_is_age)
    """A ledger may go once its newest record is older than this many seconds; None: it never goes because of
    age."""
    max_bytes: int | None = attrs.field(default=None, validator=_is_whole)
    """A ledger may go if at least this many bytes of records remain after it; None: it never goes because of
    size."""


def roll_fields(roll: RollPolicy) -> dict[str, int | None]:
    """Return the map of a roll policy in a record."""
    return {"bytes": roll.max_bytes, "records": roll.max_records, "age_ms": _to_ms(roll.max_age_s)}


def retention_fields(retention: RetentionPolicy) -> dict[str, int | None]:
    """Return the map of a retention policy in a record."""
    return {"bytes": retention.max_bytes, "age_ms": _to_ms(retention.max_age_s)}


def read_roll(fields: Fields) -> RollPolicy:
    """Read the field ``roll`` of a record."""
    roll = fields.get("roll", dict)
    return RollPolicy(
        max_bytes=_bound(fields, roll, "bytes"),
        max_records=_bound(fields, roll, "records"),
        max_age_s=_to_s(_bound(fields, roll, "age_ms")),
    )


def read_retention(fields: Fields) -> RetentionPolicy:
    """Read the field ``retention`` of a record."""
    retention = fields.get("retention", dict)
    return RetentionPolicy(
        max_bytes=_bound(fields, retention, "bytes"),
        max_age_s=_to_s(_bound(fields, retention, "age_ms")),
    )


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else min(max(1, round(seconds * 1000)), _BOUND_MAX)


def _to_s(age_ms: int | None) -> float | None:
    return None if age_ms is None else age_ms / 1000


def _bound(fields: Fields, policy: dict[Any, Any], name: str) -> int | None:
    value = policy.get(name)
    if value is not None and (type(value) is not int or not 0 < value <= _BOUND_MAX):
        fields.fail(f"the bound {name!r} of a policy is {value!r}")
    return value
