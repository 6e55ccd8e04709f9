"""The sizes, counts and ages that the options of ``ledgerlog log`` take."""

from __future__ import annotations

import pytest

from ledgerlog.cli.log_retention import parse_age, parse_bytes, parse_records
from ledgerlog.errors import InvalidArgument


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("2k", 2048), ("500M", 500 * 2**20), ("none", None)])
def test_units_of_bytes_are_powers_of_two(text: str, size: int | None) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("10k", 10_000), ("3G", 3 * 10**9), ("none", None)])
def test_units_of_records_are_powers_of_ten(text: str, count: int | None) -> None:
    assert parse_records(text) == count


@pytest.mark.parametrize("text", ["", "0", "k", "-1", "1.5k", "1kk", "k1", "1 k", "٣", "None", "1t"])
def test_what_is_no_number_of_records_is_refused_as_such(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a number of records"):
        parse_records(text)


@pytest.mark.parametrize("text", ["", "0s", "d", "-1h", "1y", "inf", "nan", "1e400d", "30dm", "500ms", "7dh"])
def test_what_is_no_age_is_refused_as_such(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not an age"):
        parse_age(text)


@pytest.mark.parametrize(
    ("text", "age_s"),
    [("none", None), ("90s", 90.0), ("1.5m", 90.0), ("12H", 43200.0), ("7d", 604800.0)],
)
def test_an_age_is_a_number_and_one_unit(text: str, age_s: float | None) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["7", "90", "1.5", "0"])
def test_an_age_without_a_unit_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not an age, which is a number with s, m, h or d"):
        parse_age(text)
