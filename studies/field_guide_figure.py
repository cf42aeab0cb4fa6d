"""Accuracy against bytes: one point per method, and the front of those that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedal import methods
from fedal.figures.canvas import COLOURS, INK, SOFT, beside, blank, label, legend_below, save
from studies.field_guide_page import Line, front

SENDS = {  # folder of the method -> what the legend calls it, from least to most revealing
    "outputs": "outputs on public data",
    "features": "features of public data",
    "statistics": "statistics of private data",
    "samples": "single private samples",
    "parameters": "parameters",
}
MARKERS = "osD^v"


def draw_front(title: str, lines: Sequence[Line], path: Path) -> list[Path]:
    """Writes PATH.png and PATH.svg."""
    return save(front_figure(title, lines), path)


def front_figure(title: str, lines: Sequence[Line]) -> Any:
    """Hollow markers are reconstructions; methods without messages are a line."""
    figure, (axes,) = blank(6.5, 4.9)
    sending = [line for line in lines if line.n_bytes]
    for place, (folder, words) in enumerate(SENDS.items()):
        mine = [line for line in sending if methods.MODULES[line.name].split(".")[2] == folder]
        for line in mine:
            hollow = line.method.faithfulness == "reconstruction"
            axes.plot(
                line.n_bytes,
                line.accuracy,
                linestyle="",
                marker=MARKERS[place],
                markersize=5.5,
                color=COLOURS[place],
                markerfacecolor="white" if hollow else COLOURS[place],
            )
        if mine:  # for the legend
            axes.plot([], [], linestyle="", marker=MARKERS[place], markersize=5.5, color=COLOURS[place], label=words)
    axes.plot([], [], linestyle="", marker="o", color=INK, markerfacecolor="white", label="hollow: reconstruction")
    best = front(sending)
    axes.step([line.n_bytes for line in best], [line.accuracy for line in best], where="post", color=INK, linewidth=0.8)
    lift = 4
    for place, line in enumerate(best):
        near = place and line.n_bytes < 3 * best[place - 1].n_bytes
        lift = lift + 10 if near else 4  # a label stands above that of its neighbour
        side = {"ha": "right"} if place else {"ha": "left"}
        beside(axes, methods.shown(line.name), (line.n_bytes, line.accuracy), (0, lift), size=8, **side)
    for line in lines:
        if not line.n_bytes:
            axes.axhline(line.accuracy, color=SOFT, linestyle="--", linewidth=0.8)
            at = (0.01, line.accuracy)
            axes.annotate(f"{line.name}, no exchange", at, (0, 3), xycoords=("axes fraction", "data"), size=8,
                          textcoords="offset points", color=SOFT)  # fmt: skip
    axes.set_xscale("log")
    axes.margins(0.08, 0.1)
    label(axes, title, "bytes per client, sent and received", "test accuracy")
    legend_below(figure, axes)
    return figure
