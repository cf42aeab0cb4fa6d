"""The comparison of shown with printed output refuses what it must, and forgives what differs between machines."""

import pytest

from shown import INTERVAL_TOLERANCE, TOLERANCE, difference, refreshed

SHOWN = """
fedmd seed 0       iteration   200  accuracy 0.918 ± 0.014 over clients on 360 test samples  6.5 s
  method   test accuracy     up / client   time     reveals
 ──────────────────────────────────────────────────────────
  fedmd    0.9201 ± 0.0038   0.26 MB       11.0 s   outputs
  fedmd    +0.1920         +0.1404 to +0.2437   0.004   higher

page:  fedal report runs/demo
""".splitlines()


def changed(old: str, new: str) -> list[str]:
    assert sum(old in line for line in SHOWN) == 1, old
    return [line.replace(old, new) for line in SHOWN]


def test_the_same_output_has_no_difference() -> None:
    assert difference(SHOWN, SHOWN) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reveals", "shows"),  # a word
        ("test accuracy  ", "test accuracy (mean)"),  # a column's name
        ("   time     reveals", "   reveals"),  # a column less
        ("360 test", "361 test"),  # an integer
        ("0.26 MB", "0.27 MB"),  # a size
        ("0.26 MB", "0.26 kB"),
        ("runs/demo", "runs/other"),
        ("0.9201", "0.9402"),  # an accuracy too far off
        ("0.9201", "0.8999"),
        ("0.9201", "0.920"),  # fewer decimals
        ("0.9201", "nan"),
        ("+0.1404", "+0.1955"),  # an interval too far off
        ("+0.1404", "-0.1404"),
        ("higher", "not distinguishable"),
    ],
)
def test_a_changed_word_or_a_number_too_far_off_is_a_difference(old: str, new: str) -> None:
    found = difference(SHOWN, changed(old, new))
    assert "the page shows" in found and "the command prints" in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("6.5 s", "1.2 min"),  # a time
        ("0.9201", "0.9100"),  # an accuracy of another kind of CPU
        ("+0.1404", "+0.1000"),  # an end of an interval, which few seeds magnify
        ("0.004", "< 0.001"),
        ("  reveals", " reveals    "),  # alignment
        (" ─────", " ──"),
    ],
)
def test_what_differs_between_machines_is_none(old: str, new: str) -> None:
    assert difference(SHOWN, changed(old, new)) == ""


def test_dates_and_stamps_may_be_any() -> None:
    assert (
        difference(
            ["on 2026-01-31 12:00 in runs/20260131-120000-fedal"], ["on 2027-02-01 09:30 in runs/20270201-093000-fedal"]
        )
        == ""
    )


@pytest.mark.parametrize("missing", [1, 4, 7])
def test_a_missing_or_an_additional_line_is_a_difference(missing: int) -> None:
    fewer = SHOWN[:missing] + SHOWN[missing + 1 :]
    assert difference(SHOWN, fewer)
    assert difference(fewer, SHOWN)


def test_a_command_that_shows_no_output_must_print_none() -> None:
    assert difference([], []) == ""
    assert "which the page does not show" in difference([], ["surprise"])
    assert "which the command does not print" in difference(["promised"], [])


@pytest.mark.parametrize(
    "shown", ["...", "... a b c", "a ...", "a ... c", "a ... b ... c", "... b ...", "a ... b c", "a b c ..."]
)
def test_an_elision_stands_for_any_number_of_lines(shown: str) -> None:
    assert difference(shown.split(), ["a", "b", "c"]) == ""


@pytest.mark.parametrize(
    "shown", ["... b", "b ...", "a ... d", "... d ...", "a ... b", "a b ... b c", "a ... c ... b", "... a b c d"]
)
def test_what_is_shown_around_an_elision_must_be_printed_in_order(shown: str) -> None:
    assert difference(shown.split(), ["a", "b", "c"])


def test_lines_of_processes_side_by_side_may_come_in_any_order() -> None:
    lines = ["joined as a: 3 samples", "joined as b: 4 samples"]
    assert difference(lines, lines[::-1], any_order=True) == ""
    assert difference(lines, lines[::-1])
    accuracies = [f"accuracy {number}" for number in (0.59, 0.57, 0.71)]
    assert difference(accuracies, accuracies[::-1], any_order=True) == ""
    assert difference(accuracies, [*accuracies[:2], "accuracy 0.61"], any_order=True)
    assert difference(lines, ["joined as a: 4 samples", "joined as b: 3 samples"], any_order=True)


def test_the_tolerances_are_those_that_are_written_down() -> None:
    assert difference(["0.5000"], [f"{0.5 + TOLERANCE - 0.001:.4f}"]) == ""
    assert difference(["0.5000"], [f"{0.5 + TOLERANCE + 0.001:.4f}"])
    assert difference(["0.5000 to 0.7000"], [f"{0.5 + INTERVAL_TOLERANCE - 0.001:.4f} to 0.7000"]) == ""
    assert difference(["0.5000 to 0.7000"], [f"0.5000 to {0.7 - INTERVAL_TOLERANCE - 0.001:.4f}"])


def test_pasting_replaces_all_lines_and_keeps_elisions() -> None:
    printed = ["", "run 1 0.50  ", "run 2 0.60", "Final models", "", "fedmd 0.55", "fedal 0.56", "table: t.csv", ""]
    assert refreshed(["old"], printed) == [line.rstrip() for line in printed[1:-1]]
    assert refreshed(["...", "Final model, old words", "fedmd 0.40", "table: s.csv"], printed) == [
        "...", "Final models", "", "fedmd 0.55", "fedal 0.56", "table: t.csv",
    ]  # fmt: skip
    assert refreshed(["run 1 0.40", "..."], printed) == ["run 1 0.50", "..."]
    assert refreshed(["...", "Final model", "..."], printed) == ["...", "Final models", "..."]
    assert refreshed(["..."], printed) == ["..."]
    assert refreshed([], []) == []


@pytest.mark.parametrize("shown", [[], ["..."], ["...", "table: s.csv"], ["run 1 0.1", "...", "table: s.csv"]])
def test_what_was_pasted_is_what_is_printed(shown: list[str]) -> None:
    printed = ["run 1 0.50", "run 2 0.60", "Final models", "fedal 0.56", "table: t.csv"]
    assert difference(refreshed(shown, printed), printed) == ""
