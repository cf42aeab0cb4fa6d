"""Figures of `fedal paper`: the paper's figures, and its tables with our numbers next to the paper's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedal import methods
from fedal.campaigns.paper.entries import Kind
from fedal.campaigns.paper.outcome import Outcome
from fedal.figures.bubbles import place_bubbles
from fedal.figures.canvas import COLOURS, INK, SOFT, beside, blank, label, legend_below, save
from fedal.figures.curves import place_curve
from fedal.figures.theory import place_variances

AXES: dict[Kind, tuple[Literal["iteration", "seconds", "up_bytes"], str, float]] = {  # for curves: column, label, unit
    "iterations": ("iteration", "iterations", 1.0),
    "seconds": ("seconds", "seconds on this machine", 1.0),
    "bytes": ("up_bytes", "uploaded, MB, all clients", 1e6),
}


def draw(outcome: Outcome) -> list[Path]:
    """Writes NAME.png and NAME.svg next to the table; writes nothing if there are no numbers."""
    if outcome.is_empty:
        return []
    figure = DRAWERS.get(outcome.entry.kind, _draw_curves)(outcome)
    figure.suptitle(outcome.title.replace("; ", "\n"), fontsize=8, color=SOFT, x=0.01, ha="left")
    return save(figure, outcome.folder / outcome.entry.name)


def _draw_curves(outcome: Outcome) -> Any:
    against, words, unit = AXES[outcome.entry.kind]
    columns = {name: rows for name, rows in outcome.rows.items() if any(row.runs for row in rows)}
    figure, panels = blank(1.5 + 3.4 * len(columns), 4.2, len(columns))
    for axes in panels[1:]:
        axes.sharey(panels[0])  # before drawing: later it would take over the first panel's limits
    for axes, (name, rows) in zip(panels, columns.items(), strict=True):
        for place, row in enumerate(rows):
            if row.runs:
                points = row.curve("test_accuracy")
                if against == "up_bytes":  # a logarithmic axis cannot show 0 bytes
                    points = [point for point in points if point.up_bytes > 0]
                place_curve(axes, points, row.shown_name, place, against=against, unit=unit, marker="o", markersize=2.5)
        label(axes, name, words, "test accuracy, mean over clients" * (axes is panels[0]))
        if against == "up_bytes":
            axes.set_xscale("log")
        else:
            axes.set_xlim(left=0)
    legend_below(figure, panels[0])
    return figure


def _draw_scores(outcome: Outcome) -> Any:
    """Dots with error bars for our numbers, hollow diamonds for the paper's, in the order of the table."""
    settings = list(dict.fromkeys(line.setting for line in outcome.lines))
    whats = list(dict.fromkeys(line.what for line in outcome.lines))
    figure, (axes,) = blank(max(5.0, 2.0 + 0.42 * len(settings) * len(whats)), 4.2)
    width = 0.8 / len(whats)
    for line in outcome.lines:
        place = settings.index(line.setting) + (whats.index(line.what) - (len(whats) - 1) / 2) * width
        colour = COLOURS[whats.index(line.what) % len(COLOURS)]
        if line.ours is not None:
            axes.errorbar(place, line.ours, line.spread or 0, color=colour, marker="o", markersize=6, capsize=3)
        if not isinstance(line.paper, str):
            axes.errorbar(
                place + 0.3 * width, *line.paper, color=colour, marker="D", markersize=5, markerfacecolor="white",
                elinewidth=0.8, alpha=0.8,
            )  # fmt: skip
    for place, what in enumerate(whats):
        axes.plot([], [], color=COLOURS[place % len(COLOURS)], marker="o", linestyle="", label=methods.shown(what))
    axes.plot([], [], color=SOFT, marker="D", markerfacecolor="white", linestyle="", label="the paper's number")
    axes.set_xticks(range(len(settings)), settings)
    axes.set_xlim(-0.6, len(settings) - 0.4)
    axes.grid(axis="x", visible=False)
    label(axes, y="final test accuracy, mean over clients")
    legend_below(figure, axes)
    return figure


def _draw_variances(outcome: Outcome) -> Any:
    """Each variance over the run of the first seed, with the paper's two limits."""
    rows = next(iter(outcome.rows.values()))
    figure, (axes,) = blank(6.5, 4.4)
    place_variances(axes, rows[0].runs[0].metrics)
    for limit in (60, 3):
        axes.axhline(limit, color=INK, linestyle="--", linewidth=0.8)
        beside(axes, f"paper: below {limit}", (0, limit), (3, 2), size=8)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    label(axes, "", "iterations", "gradient variance, mean over clients")
    legend_below(figure, axes)
    return figure


def _draw_outputs(outcome: Outcome) -> Any:
    """Clients x classes for each method and setting; the last row is the mean over clients.

    All panels share one scale, up to the largest probability: after the few iterations of a small-scale run none is
    near 1.
    """
    most = max(matrix.max() for matrix in outcome.matrices.values())
    figure, panels = blank(1.2 + 2.1 * len(outcome.matrices), 3.6, len(outcome.matrices))
    shown = None
    for axes, ((column, method), matrix) in zip(panels, outcome.matrices.items(), strict=True):
        axes.grid(visible=False)
        shown = axes.imshow(np.vstack([matrix, matrix.mean(0)]), cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axes.axhline(len(matrix) - 0.5, color=INK, linewidth=1)
        label(axes, f"{method}, {column}", "class")
        axes.set_xticks(range(matrix.shape[1]))
        axes.set_yticks([0, len(matrix) - 1, len(matrix)], ["first", "last", "mean"] if axes is panels[0] else [""] * 3)
    panels[0].set_ylabel("client", fontsize=9)
    scale = figure.colorbar(shown, ax=panels, shrink=0.8)
    scale.outline.set_visible(False)
    scale.set_label("mean probability", fontsize=9)
    return figure


def _draw_data(outcome: Outcome) -> Any:
    most = max(counts.max() for counts in outcome.counts.values())
    n_clients, n_classes = next(iter(outcome.counts.values())).shape
    cell = 0.32  # inches
    height = 2.4 + cell * n_clients
    figure, panels = blank((1.0 + cell * n_classes) * len(outcome.counts), height, len(outcome.counts))
    for axes, (name, counts) in zip(panels, outcome.counts.items(), strict=True):
        names = [f"client {n}" if axes is panels[0] else "" for n in range(n_clients)]
        place_bubbles(axes, counts, names, [str(k) for k in range(n_classes)], cell, most)
        label(axes, name, "class")
    figure.supxlabel(f"bubble area = samples, largest {most:,}", x=0.01, ha="left", fontsize=8, color=SOFT)
    return figure


DRAWERS: dict[Kind, Callable[[Outcome], Any]] = {
    "scores": _draw_scores,
    "variances": _draw_variances,
    "outputs": _draw_outputs,
    "data": _draw_data,
}
