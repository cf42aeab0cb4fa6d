"""One figure per study: curves if there are few, otherwise the final accuracy of every arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedal.figures.canvas import COLOURS, INK, SOFT, blank, label, legend_below, save
from fedal.figures.curves import place_curve
from fedal.records.statistics import Point, curve
from studies.result_files import Result
from studies.results_plan import Study

Results = Mapping[str, Mapping[int, Result]]  # arm -> seed -> result

MAX_CURVES = 8
NEAR = 0.04  # arms further than this below the best final accuracy are named instead of drawn
PANELS = {
    "test_accuracy": "test accuracy, mean over clients",
    "validation_accuracy": "validation accuracy, mean over clients",
    "disagreement": "disagreement of the uploads (KL)",
    "discriminator_accuracy": "discriminator accuracy",
    "adversarial_grad_norm": "norm of the adversarial gradient",
}


def draw_study(study: Study, results: Results, names: list[str], path: Path) -> list[Path]:
    """Writes PATH.png and PATH.svg. `names` are the arms of all studies; the position of an arm decides its colour."""
    shown = {name: found for name, found in results.items() if found}
    figure = _draw_curves(study, shown, names) if len(study.arms) <= MAX_CURVES else _draw_ends(study, shown)
    figure.suptitle(study.title, fontsize=10, color=INK, x=0.01, ha="left")
    return save(figure, path)


def _draw_curves(study: Study, results: Results, names: list[str]) -> Any:
    """Accuracy along the run, and next to it the adversary's measures; bands from the lowest to the highest seed."""
    other = "validation_accuracy" if study.measured_on == "test" else "test_accuracy"
    keys = [key for key in PANELS if key != other]
    panels = [key for key in keys if any(key in r.curve for found in results.values() for r in found.values())]
    figure, axes = blank(1.0 + 3.6 * len(panels), 4.6, len(panels))
    for key, each in zip(panels, axes, strict=True):
        for arm in sorted(study.arms, key=lambda arm: names.index(arm.name)):
            if points := _points(results.get(arm.name, {}), key):
                place_curve(each, points, arm.name, names.index(arm.name))
        label(each, PANELS[key], "iterations")
        each.set_xlim(left=0)
        if key == "discriminator_accuracy":
            chance = 1 / len(study.config(study.arms[0], study.seeds[0]).client_names)
            each.axhline(chance, color=SOFT, linestyle="--", linewidth=0.8)
            each.annotate("chance", (0, chance), (3, 2), textcoords="offset points", size=8, color=SOFT)
        elif key == study.measure:
            _look_closely(each, results, key)
        else:
            each.set_yscale("log")
    legend_below(figure, axes[0])
    return figure


def _points(results: Mapping[int, Result], key: str) -> list[Point]:
    return curve((result.rows for result in results.values()), key)


def _look_closely(axes: Any, results: Results, measure: str) -> None:
    """Zooms in on the arms that end near the best one; local-only training, far below, would flatten them.

    Shows everything if the best one still rises, as in a run that was cut short, or if most arms end far below it.
    """
    curves = {name: _points(found, measure) for name, found in results.items()}
    ends = {name: points[-1].mean for name, points in curves.items()}
    best = max(ends, key=lambda name: ends[name])
    floor = ends[best] - NEAR
    below = [f"{name} ends at {end:.3f}" for name, end in ends.items() if end < floor]
    if curves[best][len(curves[best]) // 2].mean < floor or len(below) > len(ends) / 2:
        return
    top = max(point.high for points in curves.values() for point in points)
    axes.set_ylim(floor, top + NEAR / 16)
    text = "\n".join(below)  # top left, away from rising curves
    axes.annotate(text, (0.02, 0.98), xycoords="axes fraction", size=8, color=SOFT, va="top")


def _draw_ends(study: Study, results: Results) -> Any:
    """Final accuracy of every arm: the mean over clients as a dot, a line down to the worst client."""
    ends = {
        name: np.mean([[r.final[study.measure], r.final[f"{study.measure}_min"]] for r in found.values()], 0)
        for name, found in results.items()
    }
    names = sorted(ends, key=lambda name: ends[name][0])
    figure, (axes,) = blank(6.5, 1.2 + 0.24 * len(names))
    for place, name in enumerate(names):
        mean, worst = ends[name]
        axes.plot([worst, mean], [place, place], color=SOFT, linewidth=1)
        axes.plot(mean, place, color=COLOURS[0], marker="o", markersize=5)
        axes.annotate(f"{mean:.3f}", (mean, place), (6, -3), textcoords="offset points", size=8, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(
        f"final {study.measured_on} accuracy: mean over clients (dot), worst client (end of the line)", fontsize=9
    )
    axes.margins(x=0.1)
    return figure
