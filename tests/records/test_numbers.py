"""Formats of numbers and tables, the same in every command and on every page."""

import math

import pytest

from fedal.records.differences import Difference
from fedal.records.numbers import NAN, duration, p_value, shown_difference, signed, size, with_spread
from fedal.records.tables import as_csv, as_markdown


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (9_840, "9,840 B"), (64_000, "64 kB"), (256_000, "0.26 MB"), (17_920_000, "17.92 MB"),
     (2_500_000_000, "2.50 GB"), (math.nan, NAN)],
)  # fmt: skip
def test_sizes_are_in_decimal_units(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(11.04, "11.0 s"), (119.0, "119.0 s"), (150, "2.5 min"), (9_000, "2.5 h"), (math.inf, NAN)]
)
def test_durations_grow_with_their_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_std_is_shown_only_for_several_values() -> None:
    assert with_spread([0.9, 0.92]) == "0.9100 ± 0.0141"
    assert with_spread([0.9]) == "0.9000"
    assert with_spread([0.9, math.nan]) == with_spread([]) == NAN


def test_a_difference_is_shown_with_its_verdict() -> None:
    assert signed(-0.0045) == "\N{MINUS SIGN}0.0045"
    assert (p_value(0.0004), p_value(0.042, equals="= "), p_value(None)) == ("< 0.001", "= 0.042", "–")
    assert shown_difference(Difference(3, 0.1, 0.05, 0.15, 0.01, 0.02)) == [
        "+0.1000",
        "+0.0500 to +0.1500",
        "0.010",
        "0.020",
        "higher",
    ]
    assert shown_difference(Difference(1, 0.1)) == ["+0.1000", "–", "–", "–", "no statement: one seed"]


def test_a_table_in_a_file_keeps_its_cells() -> None:
    assert as_markdown(["a", "b"], [["1", "x|y"]]) == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"
    assert as_csv(["a", "b"], [[0.1, "x,y"], [None, ""]]) == 'a,b\r\n0.1,"x,y"\r\n,\r\n'
