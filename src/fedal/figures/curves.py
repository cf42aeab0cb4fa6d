"""Accuracy against iterations, one line per method, a band over the seeds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedal.errors import FedalError

if TYPE_CHECKING:
    from fedal.campaigns.compare import Comparison, MethodRuns

# Okabe and Ito's colours: told apart by colour-blind readers and in grey.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
STYLES = ["-", "--", "-.", ":"]


def plot_curves(comparison: Comparison) -> Path:
    """Writes curves.png and curves.svg beside the table."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise FedalError("plots need matplotlib. Type: pip install 'fedal[report]'") from None

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = [row for row in comparison.rows if row.runs]
    for index, row in enumerate(shown):
        iterations, values = _curve(row)
        colour, style = COLOURS[index % len(COLOURS)], STYLES[index % len(STYLES)]
        final = f"{row.mean('test_accuracy'):.3f}"
        axes.plot(iterations, values.mean(0), label=f"{row.method}  ({final})", color=colour, linestyle=style)
        if len(values) > 1:
            low, high = values.min(0), values.max(0)
            axes.fill_between(iterations, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("iterations (rounds x tau)")
    axes.set_ylabel("test accuracy, mean over clients")
    config = shown[0].runs[0].config if shown else None
    if config:
        axes.set_title(
            f"{config.dataset}, {len(config.client_names)} clients, {config.partition}, alpha {config.alpha:g}, "
            f"{len(comparison.seeds)} seed{'s' * (len(comparison.seeds) > 1)} (band: min to max)",
            fontsize=10,
        )
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(title="method (final)", frameon=False, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path = comparison.path / "curves.png"
    figure.savefig(path, dpi=150)
    figure.savefig(path.with_suffix(".svg"))
    return path


def _curve(row: MethodRuns) -> tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Iterations and accuracies at the round ends that all seeds share; at the very end the final values."""
    points: dict[int, dict[int, float]] = defaultdict(dict)
    for run in row.runs:
        for entry in run.metrics:
            if entry["phase"] == "after_global":
                points[entry["iteration"]][run.config.seed] = entry["test_accuracy"]
    shared = sorted(iteration for iteration, values in points.items() if len(values) == len(row.runs))
    seeds = [run.config.seed for run in row.runs]
    return shared, np.array([[points[iteration][seed] for iteration in shared] for seed in seeds])
