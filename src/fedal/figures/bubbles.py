"""The data split: one bubble per client and class, its area proportional to the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal.figures.canvas import COLOURS, INK, SOFT, blank


def draw_bubbles(counts: NDArray[np.int64], clients: Sequence[str], classes: Sequence[str], title: str) -> Any:
    """A figure of the client x class table, (N, K), with each client's total on the right."""
    n_clients, n_classes = counts.shape
    cell = 0.42  # inches
    label = 0.085 * max(len(name) for name in classes)
    upright = label > cell
    height = 1.2 + cell * n_clients + (label if upright else 0.0)
    figure, (axes,) = blank(max(4.5, 1.6 + cell * n_classes), height)
    place_bubbles(axes, counts, clients, classes, cell, counts.max(), upright=upright)
    totals = axes.secondary_yaxis("right")
    totals.set_yticks(range(n_clients), [f"{total:,}" for total in counts.sum(1)])
    totals.tick_params(length=0, labelcolor=SOFT, labelsize=9)
    totals.spines["right"].set_visible(False)
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    note = f"bubble area = samples, largest {counts.max():,}; right: total per client"
    figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color=SOFT)
    return figure


def place_bubbles(
    axes: Any,
    counts: NDArray[np.int64],
    clients: Sequence[str],
    classes: Sequence[str],
    cell: float,
    most: int,
    *,
    upright: bool = False,
) -> None:
    """Draws bubbles in cells of `cell` inches; a bubble of `most` samples just fits its cell."""
    n_clients, n_classes = counts.shape
    row, column = np.nonzero(counts)
    largest = (0.92 * cell * 72) ** 2  # points^2
    axes.scatter(
        column, row, s=largest * counts[row, column] / most, color=COLOURS[0], alpha=0.75, linewidth=0, zorder=3
    )
    axes.set_xticks(range(n_classes), classes, rotation=90 if upright else 0)
    axes.set_yticks(range(n_clients), clients)
    axes.set_xlim(-0.6, n_classes - 0.4)
    axes.set_ylim(n_clients - 0.4, -0.6)
    axes.set_xlabel("class")
    axes.set_aspect("equal")
