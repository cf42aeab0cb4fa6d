"""Accuracy against iterations: one line per method, with a band over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedal.campaigns.comparison import Comparison
from fedal.figures.canvas import blank, label, legend_below, look, save
from fedal.records.statistics import Point


def plot_curves(comparison: Comparison) -> Path:
    """Writes curves.png and curves.svg next to the table; returns the PNG's path."""
    shown = [row for row in comparison.rows if row.runs]
    figure, (axes,) = blank(7, 4.5 + 0.09 * len(shown))
    key = comparison.shown.key
    for place, row in enumerate(shown):
        place_curve(axes, row.curve(key), f"{row.shown_name}  ({row.mean(key):.3f})", place)
    config, counts = shown[0].runs[0].config if shown else None, sorted(comparison.seed_counts)
    title = config and (
        f"{config.dataset}, {len(config.client_names)} clients, {comparison.partition},\n"
        f"{' or '.join(map(str, counts))} seed{'s' * (counts[-1] > 1)} (band: min to max); final mean in brackets"
    )
    label(axes, title or "", "iterations (rounds x tau)", f"{comparison.shown.words}, mean over clients")
    axes.set_xlim(left=0)
    legend_below(figure, axes)
    return save(figure, comparison.path / "curves")[0]


def place_curve(
    axes: Any,
    points: Sequence[Point],
    name: str,
    place: int,
    *,
    against: Literal["iteration", "seconds", "up_bytes"] = "iteration",
    unit: float = 1.0,
    **how: Any,
) -> None:
    """Draws the mean over seeds and a band from lowest to highest, at the evaluations that all seeds share."""
    seeds = max((point.seeds for point in points), default=0)
    shared = [point for point in points if point.seeds == seeds]
    x = [getattr(point, against) / unit for point in shared]
    axes.plot(x, [point.mean for point in shared], label=name, **look(place), **how)
    if seeds > 1:
        low, high = [point.low for point in shared], [point.high for point in shared]
        axes.fill_between(x, low, high, color=look(place)["color"], alpha=0.15, linewidth=0)
