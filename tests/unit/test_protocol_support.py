"""What a process speaks: ranges and features, in its registration, and under the flag of the next version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import MetadataCorrupt
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.versions import NEXT_FEATURE, NEXT_VERSION_VARIABLE, SPOKEN
from ledgerlog.wire.hello import FEATURES, PROTOCOL, PROTOCOL_MAX

supports = st.builds(
    lambda low, more, features: ProtocolSupport(low, low + more, tuple(sorted(features))),
    st.integers(1, 6),
    st.integers(0, 4),
    st.sets(st.sampled_from("abc")),
)


@given(supports, supports)
def test_two_processes_use_the_highest_version_and_the_features_that_both_speak(
    one: ProtocolSupport, other: ProtocolSupport
) -> None:
    both = {*range(one.lowest, one.highest + 1)} & {*range(other.lowest, other.highest + 1)}
    common = one.common(other)
    assert common == other.common(one)
    if not both:
        assert common is None
    else:
        assert common is not None
        assert common.range == (max(both), max(both))
        assert {*common.features} == {*one.features} & {*other.features}


@given(supports)
def test_a_registration_carries_versions_and_features(support: ProtocolSupport) -> None:
    info = BookieInfo("b1", "a:1", "i", speaks=support)
    assert BookieInfo.decode_untrusted(info.encode(), "b1").speaks == support


def test_a_registration_of_version_0_1_speaks_protocol_1_without_features() -> None:
    fields = cbor2.loads(BookieInfo("b1", "a:1", "i", speaks=ProtocolSupport(2, 3, ("f",))).encode())
    for name in ("protocol", "protocol_max", "features"):
        del fields[name]
    old = BookieInfo.decode_untrusted(cbor2.dumps(fields, canonical=True), "b1")
    assert old.speaks == ProtocolSupport(1, 1, ())
    assert SPOKEN.common(old.speaks) == ProtocolSupport(1, 1, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol", 0),
        ("protocol", "1"),
        ("protocol_max", 0),
        ("protocol_max", -1),
        ("features", [1]),
        ("features", "f"),
    ],
)
def test_a_registration_with_a_wrong_version_names_the_field(name: str, value: Any) -> None:
    fields = cbor2.loads(BookieInfo("b1", "a:1", "i", speaks=ProtocolSupport(1, 3, ("f",))).encode())
    data = cbor2.dumps({**fields, name: value}, canonical=True)
    with pytest.raises(MetadataCorrupt, match=f"registration of bookie b1: the field '{name}'"):
        BookieInfo.decode_untrusted(data, "b1")


_SAY = """
import json
from ledgerlog.versions import SPOKEN, THIS
print(json.dumps([SPOKEN.range, SPOKEN.features, THIS.new_keys.hex()]))
"""


@pytest.mark.parametrize("value", ["", "1"])
def test_the_flag_makes_a_process_speak_one_version_and_one_feature_more(value: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SAY],
        env={**os.environ, NEXT_VERSION_VARIABLE: value},
        capture_output=True,
        text=True,
        check=True,
    )
    span, features, keys = json.loads(ran.stdout)
    assert span == [PROTOCOL, PROTOCOL_MAX + bool(value)]
    assert features == [*FEATURES, *([NEXT_FEATURE] if value else [])]
    assert bool(keys) is bool(value)
