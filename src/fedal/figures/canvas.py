"""The house style of figures: colours, labels, and saving as SVG (for papers) and PNG."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

from fedal.durable import write_atomically
from fedal.errors import FedalError

# Okabe and Ito's palette, then Tol's wine, olive and indigo: distinguishable for colour-blind readers.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999933", "#332288"]
STYLES = ["-", "--", "-.", ":"]
INK, SOFT = "#222222", "#8a8a8a"


def blank(width: float, height: float, columns: int = 1, *, rows: int = 1, **ratios: Any) -> tuple[Any, list[Any]]:
    """A figure and its axes, row by row, drawn without a screen and without touching pyplot's state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise FedalError("plots need matplotlib. Run: pip install 'fedal[report]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios or None).flat)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(SOFT)
        each.tick_params(color=SOFT, labelcolor=INK, labelsize=9)
        each.grid(alpha=0.25)
        each.set_axisbelow(True)
    return figure, axes


def look(place: int) -> dict[str, str]:
    """Colour and dash of the line at a position in the legend; no two of the first 40 look alike."""
    lap, colour = divmod(place, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": STYLES[(place + lap) % len(STYLES)]}


def label(axes: Any, title: str = "", x: str = "", y: str = "") -> None:
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


def beside(axes: Any, text: str, at: tuple[float, float], shift: tuple[float, float], **how: Any) -> None:
    """Writes a text, `shift` points away from a point on the axes."""
    axes.annotate(text, at, shift, textcoords="offset points", color=INK, **how)


def legend_below(figure: Any, axes: Any, size: float = 8) -> None:
    """Puts the legend of `axes` below the figure, in rows of about equal length."""
    handles, labels = axes.get_legend_handles_labels()
    letters = max(len(re.sub(r"\\\w+|[${}^_]", "", label)) for label in labels)  # as displayed, without TeX markup
    inches = 0.55 + 0.065 * letters * size / 8
    rows = math.ceil(len(labels) / max(1, int(figure.get_figwidth() / inches)))
    columns = math.ceil(len(labels) / rows)
    figure.legend(handles, labels, frameon=False, fontsize=size, ncols=columns, loc="outside lower center")


def save(figure: Any, path: Path) -> list[Path]:
    """Writes PATH.png and PATH.svg; the same figure always produces the same bytes."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, dict[str, Any]] = {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}
    files = []
    with matplotlib.rc_context({"svg.hashsalt": "fedal"}):
        for kind, how in kinds.items():
            drawn = io.BytesIO()
            figure.savefig(drawn, format=kind, **how)
            files.append(path.with_name(f"{path.name}.{kind}"))
            write_atomically(files[-1], drawn.getvalue())
    return files
