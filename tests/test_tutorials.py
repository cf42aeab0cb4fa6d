"""The tutorials: their commands work, and their tables, figures and sentences are those of the result files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from studies.tutorials import FOLDER, Results, Tutorial, read
from studies.tutorials import TUTORIALS as COMPARISONS
from studies.tutorials_page import gain_of, generated, markers

from optional import needs
from pages import ROOT, TUTORIALS, execute
from pages import read as read_page
from shown import difference

every_tutorial = pytest.mark.parametrize("page", TUTORIALS)
NUMBER = re.compile(r"[+−]?\d\.\d{4}")
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}  # the bank is then made of made-up loans


def shortened(command: str) -> str:
    return re.sub(r"\bfedal run\b", "fedal run --iterations 5 --seeds 2", command)


def beginnings(lines: list[str] | tuple[str, ...]) -> list[str]:
    """The first word of every line, all that a short run with other data shares with the page."""
    words = [line if line == "..." else re.sub(r"^\W*([\w-]*).*", r"\1", line) for line in lines]
    return ["Lost" if word == "No" else word for word in words]  # whether a site lost is a result


@pytest.mark.processes
@pytest.mark.timeout(900)
@every_tutorial
def test_every_command_of_a_tutorial_works_and_prints_lines_like_those_of_the_page(page: str) -> None:
    """Offline and shortened; under a minute for all three on two free cores."""
    needs("matplotlib", "report")
    needs("xgboost", "xgboost")
    needs("lightgbm", "lightgbm")
    for block, step, printed in execute(page, edit=shortened, environment=OFFLINE):
        problem = difference(beginnings(step.shown), beginnings(printed))
        assert not problem, f"{block.place}: {step.text}\n{problem}\nIt prints:\n" + "\n".join(printed)


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(1800)
@every_tutorial
def test_every_command_of_a_tutorial_prints_what_the_page_shows(page: str) -> None:
    problems = []
    for block, step, printed in execute(page):
        if any("a stand-in" in line for line in printed):
            pytest.skip("the data of this tutorial are in a package, and no registry was reached")
        if problem := difference(step.shown, printed):
            problems.append(f"{block.place}: {step.text}\n{problem}\nIt prints:\n" + "\n".join(printed))
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("tutorial", COMPARISONS, ids=lambda tutorial: tutorial.name)
def test_a_page_shows_what_its_result_files_say(tutorial: Tutorial) -> None:
    page, (begin, end) = read_page(f"docs/tutorials/{tutorial.page}.md"), markers(tutorial)
    results = read(tutorial)
    assert page.split(begin)[1].split(end)[0].strip() == generated(tutorial, results)
    assert results.seeds == [0, 1, 2]
    for picture in re.findall(r"\]\((figures/[^)]+)\)", page):
        assert (FOLDER / picture).exists()
    printed = page.split(f"--out runs/{tutorial.runs}\n")[1].split("```")[0]
    for site in results.sites:
        for data in ("test", "own_test"):
            assert gain_of(results, site, data, tutorial.metrics[0]).text in printed


@every_tutorial
def test_every_number_of_the_discussion_is_a_result_on_the_page(page: str) -> None:
    text = read_page(page)
    discussion = text.split("## What it means")[1].split("\n## ")[0]
    results = set(NUMBER.findall(text.replace(discussion, "")))
    said = NUMBER.findall(discussion)
    assert len(said) >= 4 and not [number for number in said if number not in results]


def test_every_tutorial_is_linked_from_the_readme_and_the_index() -> None:
    index = (ROOT / "docs/site/index.md").read_text(encoding="utf-8")
    assert all(
        f"({page})" in read_page("README.md") and f"/{Path(page).with_suffix('')}" in index for page in TUTORIALS
    )


def test_gains_are_paired_by_seed_and_positive_where_lower_is_better() -> None:
    def run(method: str, seed: int, value: float) -> dict[str, object]:
        site = {"model": "m", "test": {"brier": value}, "reliability": [[0.11, 0.0, 3], [0.95, 1.0, 2]]}
        return {"method": method, "seed": seed, "sites": {"north": site}}

    runs = [run("local", 0, 0.5), run("local", 1, 0.3), run("fedal", 0, 0.4), run("fedal", 1, 0.2)]
    runs[3]["sites"]["north"]["reliability"] = [[0.19, 1.0, 1]]  # type: ignore[index]
    results = Results({"runs": runs, "environment": {}, "config": {"iterations": 5}})
    gain = gain_of(results, "north", "test", "brier")
    assert (gain.before, gain.after) == (0.4, pytest.approx(0.3)) and gain.difference.mean == pytest.approx(0.1)
    (low, high) = results.reliability("fedal", "north")
    assert low == (pytest.approx((3 * 0.11 + 0.19) / 4), 0.25, 4) and high == (0.95, 1.0, 2)
