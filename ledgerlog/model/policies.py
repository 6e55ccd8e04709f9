"""When a log goes on in a new ledger, and what of it may be dropped.

Both are part of the log's own record: whoever leads keeps to them, and they are changed under a leader by
compare-and-set. Nothing here decides; ``log.core.chain`` rolls and ``log.core.retention`` drops.

**Bytes.** In the record each policy is a CBOR map of whole numbers, null for a bound that there is not:

    roll         {bytes, records, age_ms}        retention       {bytes, age_ms}

Seconds are kept as milliseconds, at least one. A policy takes no bound that a record cannot hold: nobody
could read the record any more, so one number too large, or a float in place of a whole one, would cost
the log.
"""

from __future__ import annotations

from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LOG_ROLL_BYTES
from ledgerlog.model.codec import Fields

_BOUND_MAX = 2**63 - 1
_AGE_MAX_S = _BOUND_MAX / 1000


def _is_whole(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 < value <= _BOUND_MAX):
        raise InvalidArgument(
            f"{type(instance).__name__}.{attribute.name} must be a whole number from 1 to {_BOUND_MAX}, "
            f"or None, not {value!r}"
        )


def _is_age(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    # NaN is not above 0, and infinity is over the limit.
    if value is not None and (type(value) not in (int, float) or not 0 < value <= _AGE_MAX_S):
        raise InvalidArgument(
            f"{type(instance).__name__}.{attribute.name} must be a positive number of seconds up to "
            f"{_AGE_MAX_S:.3g}, or None, not {value!r}"
        )


@attrs.frozen(kw_only=True)
class RollPolicy:
    """When a log goes on in a new ledger: as soon as one of the bounds is reached; None is no bound.

    Small segments make retention finer and the list longer. Raises InvalidArgument for a bound that is
    not positive, not a whole number where it counts something, or more than a record can hold."""

    max_bytes: int | None = attrs.field(default=LOG_ROLL_BYTES, validator=_is_whole)
    """Bytes of records in one ledger."""
    max_records: int | None = attrs.field(default=None, validator=_is_whole)
    max_age_s: float | None = attrs.field(default=None, validator=_is_age)
    """Seconds since the ledger took its first record; an empty ledger does not age."""


@attrs.frozen(kw_only=True)
class RetentionPolicy:
    """What of a log may be dropped, by whole ledgers from its start; None keeps everything.

    Raises InvalidArgument for the same bounds as ``RollPolicy``."""

    max_age_s: float | None = attrs.field(default=None, validator=_is_age)
    """Seconds since the last record of a ledger."""
    max_bytes: int | None = attrs.field(default=None, validator=_is_whole)
    """Bytes of records that are kept at least, counted from the tail."""


def roll_fields(roll: RollPolicy) -> dict[str, int | None]:
    """The map in a record."""
    return {"bytes": roll.max_bytes, "records": roll.max_records, "age_ms": _to_ms(roll.max_age_s)}


def retention_fields(retention: RetentionPolicy) -> dict[str, int | None]:
    """The map in a record."""
    return {"bytes": retention.max_bytes, "age_ms": _to_ms(retention.max_age_s)}


def read_roll(fields: Fields) -> RollPolicy:
    """The field ``roll`` of a record."""
    roll = fields.get("roll", dict)
    return RollPolicy(
        max_bytes=_bound(fields, roll, "bytes"),
        max_records=_bound(fields, roll, "records"),
        max_age_s=_to_s(_bound(fields, roll, "age_ms")),
    )


def read_retention(fields: Fields) -> RetentionPolicy:
    """The field ``retention`` of a record."""
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
