"""The figures of `fedal analyse`, one per instrument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedal.analysis.analyse import SIGMAS, Analysis
from fedal.figures.canvas import COLOURS, INK, SOFT, beside, blank, label, legend_below, save
from fedal.records.statistics import Row

BLUE, ORANGE, GREEN, PINK = COLOURS[:4]
SIGMA_WORDS = {  # tick labels, one entry per line
    "l": ("private", "labels"),
    "k": ("others'", "mean"),
    "u": ("adver-", "sarial"),
    "rl": ("keep,", "local"),
    "rg": ("keep,", "transfer"),
    "n": ("discrimi-", "nator"),
}
SIGMA_COLOURS = dict(zip(SIGMAS, COLOURS, strict=False))
VARIANCE = r"$\mathbb{E}\,\Vert g_B - g\,\Vert^2$"
PARTS = {  # terms of a bound: label and colour
    "risk": ("loss on private data", "#4C78A8"),
    "disagreement": ("disagreement ζ", ORANGE),
    "distance": ("distance between data", GREEN),
    "joint_loss": ("joint loss λ", PINK),
}


def draw_all(study: Analysis) -> list[Path]:
    """Writes every figure that the run has the data for."""
    written = []
    for name, draw in FIGURES.items():
        figure = draw(study)
        if figure is not None:
            config = study.run.config
            figure.suptitle(
                f"{config.method} on {config.dataset}, {len(study.clients)} clients, {config.partition}, "
                f"alpha {config.alpha:g}, after {study.rounds * config.tau} iterations",
                fontsize=9, color=SOFT, x=0.01, ha="left",
            )  # fmt: skip
            written += save(figure, study.folder / name)
    return written


def draw_zeta(study: Analysis) -> Any:
    """Disagreement over time, and by client at the end."""
    figure, (time, end) = blank(9, 3.6, 2, width_ratios=[1.6, 1])
    uploads = _curve(study.rows(), "disagreement")
    of_clients = _client_curves(study, "zeta")
    for curve in of_clients.values():
        time.plot(*zip(*curve, strict=True), color=BLUE, alpha=0.3, linewidth=0.9)
    if of_clients:
        time.plot([], [], color=BLUE, alpha=0.4, linewidth=0.9, label="each client, whole public set")
    if uploads:
        time.plot(*zip(*uploads, strict=True), color=ORANGE, marker="o", markersize=3, label="mean of the uploads")
    if uploads or of_clients:
        time.set_xlim(left=0)
        time.set_ylim(bottom=0)
        time.legend(frameon=False, fontsize=9)
    label(time, "disagreement over time", "iterations", "ζ in nats")
    ranked = sorted(study.clients, key=lambda client: study.terms[client].zeta)
    end.barh(ranked, [study.terms[client].zeta for client in ranked], color=BLUE, height=0.7)
    end.grid(axis="y", visible=False)
    label(end, "final models, by client", "ζ in nats", "")
    return figure


def draw_bounds(study: Analysis) -> Any:
    """Both bounds, split into their terms, and the measured loss."""
    figure, (axes,) = blank(8, 2.9)
    names = [f"{name}'s bound" for name in study.bounds]
    bounds = list(study.bounds.values())
    left = np.zeros(len(names))
    for part, (words, colour) in PARTS.items():
        if getattr(bounds[0], part) is None:
            continue
        widths = np.array([getattr(bound, part) or 0.0 for bound in bounds])
        axes.barh(names, widths, left=left, color=colour, height=0.55, label=words)
        for row, width in enumerate(widths):
            if width > 0.06 * max(bound.total for bound in bounds):
                axes.text(left[row] + width / 2, row, f"{width:.2f}", ha="center", va="center", color="white", size=9)
        left += widths
    for row, total in enumerate(left):
        axes.text(total, row, f"  {total:.2f}", va="center", size=9, color=INK, weight="bold")
    axes.axvline(study.global_loss, color=INK, linestyle="--", linewidth=1.2)
    beside(axes, f"measured {study.global_loss:.2f}", (study.global_loss, -0.5), (3, 0), size=9, va="bottom")
    axes.set_ylim(len(names) - 0.5, -0.85)
    axes.set_xlim(0, 1.12 * max(left.max(), study.global_loss))
    axes.grid(axis="y", visible=False)
    missing = "" if bounds[0].joint_loss is not None else ", and without λ"
    label(axes, "", f"nats (without the sampling term, {bounds[0].sampling:.1f} in both{missing})", "")
    legend_below(figure, axes)
    return figure


def draw_variances(study: Analysis) -> Any:
    """sigma^2 of each loss: a dot per client and a bar at the mean; also over time if the run recorded it."""
    if not study.variances:
        return None
    along = any(len(_curve(study.rows(), f"variance_{name}")) > 1 for name in study.variances)
    figure, axes = blank(9.5 if along else 5.5, 3.8, 2 if along else 1)
    now = axes[-1]
    if along:
        axes[0].sharey(now)  # before drawing: later it would take over the other panel's limits
    for place, name in enumerate(study.variances):
        values = np.array(list(study.variances[name].values()))
        spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
        now.scatter(place + spread, values, s=16, color=SIGMA_COLOURS[name], alpha=0.7, linewidth=0)
        now.hlines(values.mean(), place - 0.34, place + 0.34, color=INK, linewidth=1.6)
    below = ["\n".join([_sigma(name), *SIGMA_WORDS[name]]) for name in study.variances]
    now.set_xticks(range(len(below)), below, fontsize=8)
    now.set_yscale("log")
    now.grid(axis="x", visible=False)
    label(now, "final models: a dot per client, line = mean", "", "" if along else VARIANCE)
    if along:
        place_variances(axes[0], study.rows())
        axes[0].set_xlim(left=0)
        legend_below(figure, axes[0])
        label(axes[0], "over time, mean over clients", "iterations", VARIANCE)
    return figure


def place_variances(axes: Any, rows: Sequence[Row]) -> None:
    """Draws each sigma^2 that a run recorded, over the run."""
    for name, words in SIGMA_WORDS.items():
        points = _curve(rows, f"variance_{name}")
        if points:
            text = f"{_sigma(name)} {' '.join(words).replace('- ', '')}"
            axes.plot(*zip(*points, strict=True), color=SIGMA_COLOURS[name], marker="o", markersize=3, label=text)


def draw_convergence(study: Analysis) -> Any:
    """Squared gradient norms against T on logarithmic axes, with the theorem's rate."""
    found = study.convergence
    if len(found.rounds) < 2:
        return None
    from matplotlib.ticker import NullLocator

    figure, (axes,) = blank(6.2, 4.2)
    axes.loglog(found.rounds, found.clients, color=BLUE, alpha=0.45, label="clients, this round")
    if any(found.discriminator):
        axes.loglog(found.rounds, found.discriminator, color=GREEN, alpha=0.6, label="discriminator, this round")
    axes.loglog(found.rounds, found.average, color=ORANGE, marker="o", markersize=3.5, label="average up to round T")
    axes.loglog(found.rounds, found.reference, color=INK, linestyle="--", linewidth=1, label="∝ 1 / √(T τ)")
    axes.set_xticks(found.rounds[:: max(1, len(found.rounds) // 8)])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    legend_below(figure, axes)
    label(axes, "squared gradient norms", "rounds T", "squared norm")
    return figure


def draw_equilibrium(study: Analysis) -> Any:
    """The distance between any two clients, and whether a discriminator can tell them apart."""
    found, n = study.equilibrium, len(study.clients)
    figure, (apart, guess) = blank(9.5, 4.2, 2)
    apart.grid(visible=False)
    image = apart.imshow(study.distances, cmap="Blues", vmin=0, vmax=max(0.1, found.largest_distance))
    if n <= 12:
        for row, values in enumerate(study.distances):
            for column, value in enumerate(values):
                shade = "white" if value > 0.6 * max(0.1, found.largest_distance) else INK
                if row != column:
                    apart.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", size=7, color=shade)
        apart.set_xticks(range(n), [name.removeprefix("client-") for name in study.clients], fontsize=8)
        apart.set_yticks(range(n), study.clients, fontsize=8)
    figure.colorbar(image, ax=apart, shrink=0.8).outline.set_visible(False)
    label(apart, "total variation between clients", "", "")
    curve = _curve(study.rows(), "discriminator_accuracy")
    end = study.rounds * study.run.config.tau
    guess.axhline(found.chance, color=INK, linestyle="--", linewidth=1)
    guess.fill_between(
        [0, end * 1.03], found.chance - found.margin, found.chance + found.margin, color=SOFT, alpha=0.15
    )
    beside(guess, "chance, 1/N", (0, found.chance - found.margin), (4, -11), size=8)
    if curve:
        guess.plot(*zip(*curve, strict=True), color=BLUE, marker="o", markersize=3, label="during the run")
    if found.discriminator is not None:
        guess.scatter([end], [found.discriminator], color=BLUE, s=50, zorder=3, label="its discriminator, final models")
    guess.scatter(
        [end], [found.fresh], color=ORANGE, marker="D", s=42, zorder=3, label="a fresh discriminator, unseen samples"
    )
    guess.set_xlim(0, end * 1.03)
    guess.set_ylim(0, max(0.25, 1.55 * found.fresh, 1.55 * (found.discriminator or 0), 2.5 * found.chance))
    guess.legend(frameon=False, fontsize=9)
    label(guess, "share of outputs attributed correctly", "iterations", "accuracy")
    return figure


def draw_forgetting(study: Analysis) -> Any:
    """The effect of local training on accuracy on global data, and of the transfer on accuracy on private data.

    Shown over the run if it was recorded, else before and after one further round.
    """
    if not study.forgetting:
        return None
    stages = {
        "accuracy on global data": ("local training", "global_before_local", "global_after_local"),
        "accuracy on private data": ("transfer", "own_before_transfer", "own_after_transfer"),
    }
    figure, axes = blank(9, 3.8, 2)
    for panel, (what, (stage, before, after)) in zip(axes, stages.items(), strict=True):
        changes = [(row["iteration"], 100 * (row[after] - row[before])) for row in study.rows() if before in row]
        if len(changes) > 1:
            _draw_changes(panel, changes)
            label(panel, f"{what}: change from each {stage}", "iterations", "percentage points" * (panel is axes[0]))
        else:
            _draw_slopes(panel, study, before, after)
            label(panel, f"{what}, around one {stage}", "thin: each client, thick: mean", "")
    if axes[0].get_legend_handles_labels()[1]:
        legend_below(figure, axes[0])
    return figure


def _draw_changes(panel: Any, changes: list[tuple[int, float]]) -> None:
    x, y = (np.array(values) for values in zip(*changes, strict=True))
    panel.axhline(0, color=INK, linewidth=1)
    panel.fill_between(x, y, 0, where=y < 0, interpolate=True, color=ORANGE, alpha=0.25, linewidth=0, label="forgotten")
    panel.fill_between(x, y, 0, where=y > 0, interpolate=True, color=BLUE, alpha=0.2, linewidth=0, label="gained")
    panel.plot(x, y, color=INK, linewidth=1.2, marker="o", markersize=3)
    panel.set_xlim(left=0)


def _draw_slopes(panel: Any, study: Analysis, before: str, after: str) -> None:
    for row in study.further_round.values():
        if before in row:
            panel.plot([0, 1], [row[before], row[after]], color=BLUE, alpha=0.35, linewidth=1, marker="o", ms=3)
    ends = [study.forgetting[before], study.forgetting[after]]
    panel.plot([0, 1], ends, color=ORANGE, linewidth=2.2, marker="o", ms=5)
    panel.annotate(f"{ends[0]:.3f}", (0, ends[0]), (-6, 0), textcoords="offset points", ha="right", va="center")
    panel.annotate(f"{ends[1]:.3f}", (1, ends[1]), (6, 0), textcoords="offset points", va="center")
    panel.set_xticks([0, 1], ["before", "after"])
    panel.set_xlim(-0.35, 1.35)
    panel.set_ylim(top=min(panel.get_ylim()[1], 1.003))


FIGURES: dict[str, Callable[[Analysis], Any]] = {
    "zeta": draw_zeta,
    "bounds": draw_bounds,
    "variances": draw_variances,
    "convergence": draw_convergence,
    "equilibrium": draw_equilibrium,
    "forgetting": draw_forgetting,
}


def _curve(rows: Sequence[Row], column: str) -> list[tuple[int, float]]:
    return [(row["iteration"], row[column]) for row in rows if column in row]


def _client_curves(study: Analysis, column: str) -> dict[str, list[tuple[int, float]]]:
    rows = study.run.client_metrics
    curves = {client: _curve([row for row in rows if row["client"] == client], column) for client in study.clients}
    return {client: curve for client, curve in curves.items() if curve}


def _sigma(name: str) -> str:
    return rf"$\sigma^2_\mathrm{{{name}}}$"
