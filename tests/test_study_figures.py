"""The figures of docs/results show what their pages compare, and stay readable in the column of a paper."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
from studies.field_guide import read_field_guide
from studies.field_guide_figure import front_figure
from studies.field_guide_page import lines_of
from studies.results_page import StudyResults, read_study
from studies.results_plan import PAGE_FOLDER, read_plan
from studies.study_figures import PANELS, study_figure

from fedal.figures.canvas import COLOURS, look
from fedal.records.statistics import curve

PLANS = {
    name: read_plan(PAGE_FOLDER / name) for name in (".", "search", "final", "paper", "groups")
}  # folder -> its studies
FOUND = [
    pytest.param((plan, found), id=f"{name}/{study.name}")
    for name, plan in PLANS.items()
    for study in plan.studies
    if (found := read_study(study, PAGE_FOLDER / name)).has_runs
]


class Drawn(NamedTuple):
    found: StudyResults
    figure: Any


@pytest.fixture(scope="module", params=FOUND)
def drawn(request: pytest.FixtureRequest) -> Drawn:
    plan, found = request.param
    figure = study_figure(found.study, found.results, plan.arm_names)
    figure.canvas.draw()  # the layout
    return Drawn(found, figure)


def visible(line: Any, axes: Any) -> bool:
    """Whether a line has a marked point, or a piece between two points, inside the axes."""
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    inside = np.count_nonzero((x >= left) & (x <= right) & (y >= low) & (y <= high))
    return bool(inside) and (inside > 1 or line.get_marker() not in ("None", None, ""))


def test_no_panel_is_empty_and_no_text_is_cut_off(drawn: Drawn) -> None:
    figure = drawn.figure
    assert figure.axes and figure.get_figwidth() <= 6.5
    for axes in figure.axes:
        assert any(visible(line, axes) for line in axes.lines if line.get_transform() == axes.transData)
        box = axes.get_tightbbox()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1
        assert axes.xaxis.get_label().get_size() >= 12 and axes.xaxis.get_ticklabels()[0].get_size() >= 12
    (title,) = figure.texts
    assert title.get_window_extent().x1 <= figure.bbox.x1 and "mean over clients" in title.get_text()


def test_a_figure_shows_the_mean_of_every_compared_arm(drawn: Drawn) -> None:
    """Its end, and every point of its curve; a far end without any exchange may be named instead."""
    found, figure = drawn
    measure, panel = found.study.measure, figure.axes[0]
    arms = {arm.name: arm for arm in found.study.arms if found.results[arm.name]}
    if not panel.get_title("left").startswith(PANELS[measure]):  # the ends
        assert {text.get_text() for text in panel.get_yticklabels()} == set(arms)
        low, high = panel.get_xlim()
        assert all(low < np.mean(list(found.accuracies(name).values())) < high for name in arms)
        return
    low, high = panel.get_ylim()
    for name, arm in arms.items():
        means = [point.mean for point in curve((r.rows for r in found.results[name].values()), measure)]
        shown = low <= min(means) and max(means) <= high
        assert shown or (arm.settings["method"] == "local" and len(arms) > 4)
        assert low <= means[-1] <= high or f"{name} ends at {means[-1]:.3f}" in panel.get_title("left")


def test_no_two_curves_of_a_figure_share_a_colour(drawn: Drawn) -> None:
    panel = drawn.figure.axes[0]
    colours = [line.get_color() for line in panel.lines if not line.get_label().startswith("_")]
    assert len(set(colours)) == len(colours)


def test_no_two_of_the_first_40_lines_look_alike() -> None:
    assert len({tuple(look(place).values()) for place in range(4 * len(COLOURS))}) == 4 * len(COLOURS) == 40


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_no_two_labels_of_a_field_guide_overlap(name: str) -> None:
    guide = read_field_guide()
    figure = front_figure(name, lines_of(guide, guide.studies[name]))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) > 3 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))
