"""The configuration file of a bookie: a wrong line is named with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.server.options import read_config
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import FRAME_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("segment_byte = 5", "there is no option 'segment_byte'; the options are segment_bytes"),
        ("segment_bytes = '5'", "segment_bytes must be int, not str"),
        ("segment_bytes = 5", "segment_bytes is 5"),
        (f"frame_bytes_max = {FRAME_BYTES_MAX}", f"at least {FRAME_BYTES_MAX + 4}"),
        ("segment_bytes = ", "not TOML"),
    ],
)
def test_a_wrong_line_is_refused_with_the_name_of_the_file(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        read_config(str(path))
    assert str(refused.value).startswith(f"config {path}: ")
    assert why in str(refused.value)


def test_whole_numbers_are_taken_for_seconds(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("collect_interval_s = 5")
    assert read_config(str(path)).collect_interval_s == 5.0
