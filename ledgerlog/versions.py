"""The protocol versions and features of this process, and the keys that it adds to its metadata records.

Only this module reads the environment variable ``LEDGERLOG_TEST_NEXT_VERSION``. If it is set and not empty,
the process behaves like a later version of ledgerlog: it speaks one protocol version more, knows one feature
more, and writes one key more into registrations and ledger metadata. Tests of rolling upgrades use it. Never
set it in a cluster that you want to keep.
"""

from __future__ import annotations

import os

import attrs

from ledgerlog.model.codec import encode_record
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.wire.hello import FEATURES, PROTOCOL, PROTOCOL_MAX

__all__ = ["NEXT", "NEXT_FEATURE", "NEXT_KEY", "NEXT_VERSION_VARIABLE", "SPOKEN", "THIS", "Version"]

NEXT_VERSION_VARIABLE = "LEDGERLOG_TEST_NEXT_VERSION"
NEXT_FEATURE = "next-version"
NEXT_KEY = "next_version"


@attrs.frozen
class Version:
    """The protocols and formats of one version of ledgerlog, as far as other versions notice them."""

    speaks: ProtocolSupport
    """The protocol versions and features that this version speaks."""
    new_keys: bytes
    """The keys that only this version knows, encoded as an ``unknown`` of ``model.codec``. b"": none."""


def _spoken(is_next: bool) -> ProtocolSupport:
    if not is_next:
        return ProtocolSupport(PROTOCOL, PROTOCOL_MAX, FEATURES)
    return ProtocolSupport(PROTOCOL, PROTOCOL_MAX + 1, tuple(sorted((*FEATURES, NEXT_FEATURE))))


def _new_keys(is_next: bool) -> bytes:
    return encode_record({NEXT_KEY: "kept"}) if is_next else b""


NEXT = Version(_spoken(True), _new_keys(True))
"""The later version that ``LEDGERLOG_TEST_NEXT_VERSION`` makes. The simulator mixes it with this version."""

_IS_NEXT = bool(os.environ.get(NEXT_VERSION_VARIABLE))

THIS = Version(_spoken(_IS_NEXT), _new_keys(_IS_NEXT))
"""The version of this process."""

SPOKEN = THIS.speaks
"""The protocol versions and features of this process."""
