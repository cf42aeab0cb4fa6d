"""The figure of an entry: what the paper draws, and for its tables ours beside the paper's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedal.campaigns.compare import MethodRuns
from fedal.campaigns.paper.entries import Kind
from fedal.campaigns.paper.outcome import Outcome
from fedal.figures.bubbles import place_bubbles
from fedal.figures.canvas import COLOURS, INK, SOFT, blank, legend_below, save
from fedal.figures.curves import STYLES

SIGMA_WORDS = {
    "l": "own labels", "k": "others' mean", "u": "adversarial", "rl": "keep, local", "rg": "keep, transfer",
    "n": "discriminator",
}  # fmt: skip
AXES: dict[Kind, tuple[str, str, float]] = {  # of curves: key of the record, label, unit
    "iterations": ("iteration", "iterations", 1.0),
    "seconds": ("seconds", "seconds on this machine", 1.0),
    "bytes": ("up_bytes", "uploaded, MB, all clients", 1e6),
}


def draw(outcome: Outcome) -> list[Path]:
    """Writes NAME.png and NAME.svg beside the table; nothing where no number is."""
    if outcome.is_empty:
        return []
    figure = DRAWERS.get(outcome.entry.kind, _draw_curves)(outcome)
    figure.suptitle(_wrapped(outcome.title), fontsize=8, color=SOFT, x=0.01, ha="left")
    return save(figure, outcome.folder / outcome.entry.name)


def _wrapped(text: str) -> str:
    return "\n".join(part.strip() for part in text.split(";"))


def _draw_curves(outcome: Outcome) -> Any:
    key, label, unit = AXES[outcome.entry.kind]
    columns = {name: rows for name, rows in outcome.rows.items() if any(row.runs for row in rows)}
    figure, panels = blank(1.5 + 3.4 * len(columns), 4.2, len(columns))
    for axes in panels[1:]:
        axes.sharey(panels[0])  # before anything is drawn: afterwards it would cut to what the first shows
    for axes, (name, rows) in zip(panels, columns.items(), strict=True):
        for place, row in enumerate(rows):
            if row.runs:
                x, y = _curve(row, key)
                if key == "up_bytes":  # on a logarithmic axis there is no place before the first upload
                    x, y = x[x > 0], y[:, x > 0]
                look = dict(color=COLOURS[place % len(COLOURS)], linestyle=STYLES[place // len(COLOURS)])
                axes.plot(x / unit, y.mean(0), label=row.method, marker="o", markersize=2.5, **look)
                axes.fill_between(x / unit, y.min(0), y.max(0), color=look["color"], alpha=0.15, linewidth=0)
        axes.set_title(name, fontsize=10, loc="left", color=INK)
        axes.set_xlabel(label, fontsize=9)
        if key == "up_bytes":
            axes.set_xscale("log")
        else:
            axes.set_xlim(left=0)
    panels[0].set_ylabel("test accuracy, mean over clients", fontsize=9)
    legend_below(figure, panels[0])
    return figure


def _curve(row: MethodRuns, key: str) -> tuple[Any, Any]:
    """Where the record is (mean over seeds) and the accuracy of each seed there, at the round ends that all share."""
    points: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in row.runs:
        at_ends = {entry["iteration"]: entry for entry in run.metrics if entry["phase"] == "after_global"}
        for iteration, entry in at_ends.items():
            points[iteration].append((float(entry[key]), float(entry["test_accuracy"])))
    shared = [points[iteration] for iteration in sorted(points) if len(points[iteration]) == len(row.runs)]
    x = np.array([fmean(place for place, _ in each) for each in shared])
    return x, np.array([[accuracy for _, accuracy in each] for each in shared]).T


def _draw_scores(outcome: Outcome) -> Any:
    """Dots with bars for ours, hollow diamonds for the paper's, in the order of the table."""
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
        axes.plot([], [], color=COLOURS[place % len(COLOURS)], marker="o", linestyle="", label=what)
    axes.plot([], [], color=SOFT, marker="D", markerfacecolor="white", linestyle="", label="the paper's number")
    axes.set_xticks(range(len(settings)), settings)
    axes.set_xlim(-0.6, len(settings) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("final test accuracy, mean over clients", fontsize=9)
    legend_below(figure, axes)
    return figure


def _draw_variances(outcome: Outcome) -> Any:
    """Each variance along the run of the first seed, with the paper's two limits."""
    rows = next(iter(outcome.rows.values()))
    figure, (axes,) = blank(6.5, 4.4)
    for place, (name, words) in enumerate(SIGMA_WORDS.items()):
        entries = [entry for entry in rows[0].runs[0].metrics if f"variance_{name}" in entry]
        axes.plot(
            [entry["iteration"] for entry in entries], [entry[f"variance_{name}"] for entry in entries],
            color=COLOURS[place], marker="o", markersize=3, label=rf"$\sigma^2_\mathrm{{{name}}}$ {words}",
        )  # fmt: skip
    for limit in (60, 3):
        axes.axhline(limit, color=INK, linestyle="--", linewidth=0.8)
        axes.annotate(f"the paper: below {limit}", (0, limit), (3, 2), textcoords="offset points", size=8, color=INK)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("iterations", fontsize=9)
    axes.set_ylabel("gradient variance, mean over clients", fontsize=9)
    legend_below(figure, axes)
    return figure


def _draw_outputs(outcome: Outcome) -> Any:
    """clients x classes for each method and setting; the mean over clients is the last row.

    One scale for all, up to the largest probability: after a miniature's few iterations none is near 1.
    """
    most = max(matrix.max() for matrix in outcome.matrices.values())
    figure, panels = blank(1.2 + 2.1 * len(outcome.matrices), 3.6, len(outcome.matrices))
    shown = None
    for axes, ((column, method), matrix) in zip(panels, outcome.matrices.items(), strict=True):
        axes.grid(visible=False)
        shown = axes.imshow(np.vstack([matrix, matrix.mean(0)]), cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axes.axhline(len(matrix) - 0.5, color=INK, linewidth=1)
        axes.set_title(f"{method}, {column}", fontsize=9, loc="left", color=INK)
        axes.set_xticks(range(matrix.shape[1]))
        axes.set_yticks([0, len(matrix) - 1, len(matrix)], ["first", "last", "mean"] if axes is panels[0] else [""] * 3)
        axes.set_xlabel("class", fontsize=9)
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
        axes.set_title(name, fontsize=10, loc="left", color=INK)
    figure.supxlabel(f"area = samples, the largest bubble {most:,}", x=0.01, ha="left", fontsize=8, color=SOFT)
    return figure


DRAWERS: dict[Kind, Callable[[Outcome], Any]] = {
    "scores": _draw_scores,
    "variances": _draw_variances,
    "outputs": _draw_outputs,
    "data": _draw_data,
}
