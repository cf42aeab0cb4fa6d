"""One figure per study: curves if there are few arms, otherwise the final accuracy of every arm.

Figures stay readable when a column of a paper shows them at half of their width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedal.figures.canvas import COLOURS, INK, SOFT, blank, legend_below, save
from fedal.figures.curves import place_curve
from fedal.records.statistics import Point, curve
from studies.result_files import Result
from studies.results_plan import Arm, Study

Results = Mapping[str, Mapping[int, Result]]  # arm -> seed -> result

WIDTH, LARGE, SMALL = 6.5, 13, 12  # inches, and points: half as large in a column
MAX_CURVES = 8
FEW = 4  # arms of which a panel shows everything
FEW_POINTS = 10  # of a curve, which are then marked
PANELS = {
    "test_accuracy": "test accuracy",
    "validation_accuracy": "validation accuracy",
    "disagreement": "disagreement (KL)",
    "discriminator_accuracy": "discriminator accuracy",
    "adversarial_grad_norm": "adversarial gradient",
}


def draw_study(study: Study, results: Results, names: list[str], path: Path) -> list[Path]:
    """Writes PATH.png and PATH.svg. `names` are the arms of all studies; the position of an arm decides its colour."""
    return save(study_figure(study, results, names), path)


def study_figure(study: Study, results: Results, names: list[str]) -> Any:
    """Curves, or the ends of the runs if there are too many arms or if all curves are single points."""
    shown = {name: found for name, found in results.items() if found}
    longest = max(len(_points(found, study.measure)) for found in shown.values())
    curves = len(study.arms) <= MAX_CURVES and longest > 1
    figure = _draw_curves(study, shown, names) if curves else _draw_ends(study, shown)
    title, note = textwrap.wrap(study.title, 74), _note(shown, curves=curves)
    figure.suptitle("\n".join([*title, note]), fontsize=SMALL, color=INK, x=0.01, ha="left")
    return figure


def _note(results: Results, *, curves: bool) -> str:
    """What lines, bands and dots are."""
    if max(len(found) for found in results.values()) == 1:
        return "one seed, mean over clients" if curves else "dot: mean over clients; line: to the worst client"
    if curves:
        return "mean over clients and seeds; band: lowest to highest seed"
    return "dot: mean over clients; faint: each seed; line: to the worst client"


def _draw_curves(study: Study, results: Results, names: list[str]) -> Any:
    """Accuracy along the run, and next to it the adversary's measures, two panels per row."""
    other = "validation_accuracy" if study.measured_on == "test" else "test_accuracy"
    keys = [key for key in PANELS if key != other]
    panels = [key for key in keys if any(key in r.curve for found in results.values() for r in found.values())]
    rows = -(-len(panels) // 2)
    figure, axes = blank(WIDTH, 1.8 + 2.5 * rows, min(2, len(panels)), rows=rows)
    for each in axes[len(panels) :]:
        each.remove()
    arms = sorted((arm for arm in study.arms if arm.name in results), key=lambda arm: names.index(arm.name))
    for key, each in zip(panels, axes, strict=False):
        for arm in arms:
            if points := _points(results[arm.name], key):
                marks: dict[str, Any] = {"marker": "o", "markersize": 4} if len(points) <= FEW_POINTS else {}
                place_curve(each, points, arm.name, names.index(arm.name), **marks)
        each.set_title(PANELS[key], fontsize=LARGE, loc="left", color=INK)
        each.set_xlabel("iterations", fontsize=SMALL)
        each.tick_params(which="both", labelsize=SMALL)
        each.set_xlim(left=0)
        each.locator_params(axis="x", nbins=4)
        if key == "discriminator_accuracy":
            chance = 1 / len(study.config(study.arms[0], study.seeds[0]).client_names)
            each.axhline(chance, color=SOFT, linestyle="--", linewidth=0.8)
            each.annotate("chance", (0, chance), (3, 3), textcoords="offset points", size=SMALL, color=SOFT)
        elif key == study.measure:
            _look_closely(each, arms, {arm.name: _points(results[arm.name], key) for arm in arms})
        else:
            _show_orders(each)
    legend_below(figure, axes[0], SMALL)
    return figure


def _points(results: Mapping[int, Result], key: str) -> list[Point]:
    return curve((result.rows for result in results.values()), key)


def _show_orders(axes: Any) -> None:
    """A logarithmic axis; over few decades it also has labels at 2 and 5."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 100 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _look_closely(axes: Any, arms: list[Arm], curves: Mapping[str, list[Point]]) -> None:
    """Zooms in on the bands of many arms that exchange something; the others, far away, would flatten them.

    Names the others that end outside.
    """
    exchanging = [p for arm in arms if arm.settings["method"] != "local" for p in curves[arm.name]]
    if len(arms) <= FEW or not exchanging:
        return
    low, high = min(point.low for point in exchanging), max(point.high for point in exchanging)
    margin = 0.05 * (high - low)
    ends = {name: points[-1].mean for name, points in curves.items()}
    outside = [f"{name} ends at {end:.3f}" for name, end in ends.items() if not low - margin <= end <= high + margin]
    axes.set_ylim(low - margin, high + margin)
    if outside:
        axes.set_title(f"{axes.get_title('left')}\n" + "\n".join(outside), fontsize=SMALL, loc="left", color=INK)


def _draw_ends(study: Study, results: Results) -> Any:
    """Final accuracy of every arm: the mean over clients as a dot, a line down to the worst client."""
    finals = {
        name: np.array([[r.final[study.measure], r.final[f"{study.measure}_min"]] for r in found.values()])
        for name, found in results.items()
    }
    names = sorted(finals, key=lambda name: finals[name][:, 0].mean())
    figure, (axes,) = blank(WIDTH, 1.6 + 0.28 * len(names))
    for place, name in enumerate(names):
        (mean, worst), seeds = finals[name].mean(0), finals[name][:, 0]
        axes.plot([worst, mean], [place, place], color=SOFT, linewidth=1)
        if len(seeds) > 1:
            axes.plot(seeds, [place] * len(seeds), color=COLOURS[0], marker="o", markersize=4, linestyle="", alpha=0.35)
        axes.plot(mean, place, color=COLOURS[0], marker="o", markersize=7)
        end = (seeds.max(), place)
        axes.annotate(f"{mean:.3f}", end, (7, -4), textcoords="offset points", size=SMALL, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(labelsize=SMALL)
    axes.set_xlabel(f"final {study.measured_on} accuracy", fontsize=SMALL)
    axes.locator_params(axis="x", nbins=5)
    axes.margins(x=0.15)
    return figure
