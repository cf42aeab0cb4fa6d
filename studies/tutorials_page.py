"""The generated parts of docs/tutorials: a table and figures for each comparison."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedal.campaigns.site_gains import EVERYONE, Gain
from fedal.figures.canvas import COLOURS, INK, SOFT, beside, blank, label, legend_below, save
from fedal.metrics.table import METRICS, Column
from fedal.records.differences import paired_difference
from fedal.records.numbers import share
from fedal.records.statistics import mean
from fedal.records.tables import as_markdown
from studies.results_page import write_between
from studies.tutorials import AFTER, BEFORE, CALIBRATION, DATA, FOLDER, TUTORIALS, BySeed, Results, Tutorial, read

WORDS = {"test": "pooled test data", "own_test": "its own test data"}
NAMES = {BEFORE: "local-only training", AFTER: "together (FedAL)"}
COLOUR = {BEFORE: COLOURS[1], AFTER: COLOURS[0]}
MARKER = {BEFORE: "s", AFTER: "o"}


def write_tutorial_pages() -> None:
    """Writes all figures, and the tables between the markers of the pages."""
    for tutorial in TUTORIALS:
        results = read(tutorial)
        _draw_gains(tutorial, results, FOLDER / "figures" / tutorial.name)
        if CALIBRATION in tutorial.metrics:
            _draw_reliability(results, FOLDER / "figures" / f"{tutorial.name}-calibration")
        page = FOLDER / f"{tutorial.page}.md"
        write_between(page, *markers(tutorial), generated(tutorial, results))


def markers(tutorial: Tutorial) -> tuple[str, str]:
    return (f"<!-- {tutorial.name}: written by python -m studies tutorials -->", f"<!-- end of {tutorial.name} -->")


def generated(tutorial: Tutorial, results: Results) -> str:
    """The text between the markers."""
    headline = METRICS[tutorial.metrics[0]].words
    picture = f"![{headline} of each site, alone and together](figures/{tutorial.name}.png)"
    heads = ["metric", "site"]
    for data in ("pooled", "own"):
        heads += [f"{data}: alone", "together", "gain (95% interval)"]
    others = tutorial.metrics[1:]  # the page shows the headline as `fedal run` prints it
    rows = [
        [METRICS[metric].words, site, *_cells(results, site, metric)]
        for metric in others
        for site in (*results.sites, EVERYONE)
    ]
    environment = results.environment
    about = (
        f"{results.iterations} iterations; seeds {', '.join(map(str, results.seeds))}; fedal {environment['fedal']}, "
        f"torch {environment['torch']}. Every run: [data/{tutorial.name}.json](data/{tutorial.name}.json)."
    )
    return "\n\n".join([picture, as_markdown(heads, rows), about])


def gain_of(results: Results, site: str, data: str, metric: str) -> Gain:
    """A site's gain, positive if better; of EVERYONE, that of the mean over sites."""
    column = Column(METRICS[metric], data)
    before, after = (_values(results, method, site, data, metric) for method in (BEFORE, AFTER))
    ranks = [{seed: column.rank(value) for seed, value in each.items()} for each in (after, before)]
    difference = paired_difference(*ranks)
    assert difference is not None
    return Gain(mean(before.values()), mean(after.values()), difference)


def _values(results: Results, method: str, site: str, data: str, metric: str) -> BySeed:
    names = results.sites if site == EVERYONE else [site]
    every = [results.values(method, name, data, metric) for name in names]
    return {seed: mean(each[seed] for each in every) for seed in every[0]}


def _cells(results: Results, site: str, metric: str) -> Iterable[str]:
    for data in DATA:
        gain = gain_of(results, site, data, metric)
        yield from (share(gain.before), share(gain.after), gain.text)


def _draw_gains(tutorial: Tutorial, results: Results, path: Path) -> None:
    """For each site: the seeds alone and together, their means, and the interval of the gain."""
    metric = METRICS[tutorial.metrics[0]]
    figure, axes = blank(7.6, 3.6, 2)
    rows = [*results.sites, EVERYONE]
    for each, data in zip(axes, DATA, strict=True):
        for row, site in enumerate(rows):
            gain = gain_of(results, site, data, metric.name)
            _draw_interval(each, row, gain, sign=1 if metric.higher_is_better else -1)
            for method, place in ((BEFORE, -0.12), (AFTER, 0.12)):
                values = _values(results, method, site, data, metric.name)
                look = {"color": COLOUR[method], "marker": MARKER[method], "linestyle": ""}
                each.plot(list(values.values()), [row + place] * len(values), markersize=3.5, alpha=0.45, **look)
                words = NAMES[method] if row == 0 else None
                each.plot([mean(values.values())], [row + place], markersize=8, label=words, **look)
        shown = [f"{site}\n{results.sites[site]}" if site in results.sites else site for site in rows]
        each.set_yticks(range(len(rows)), [_short(text) for text in shown] if each is axes[0] else [""] * len(rows))
        each.set_ylim(len(rows) - 0.5, -0.5)
        better = "higher is better" if metric.higher_is_better else "lower is better"
        low, high = each.get_xlim()  # the bar of an interval may go further than the metric can
        each.set_xlim(max(low, 0) if not metric.higher_is_better else low, min(high, 1.01))
        label(each, f"on {WORDS[data]}", f"{metric.words} ({better})")
    legend_below(figure, axes[0])
    figure.suptitle(tutorial.title, fontsize=10, color=INK, x=0.01, ha="left")
    save(figure, path)


def _draw_interval(axes: Any, row: int, gain: Gain, sign: int) -> None:
    """The 95% interval of the gain, from the mean of local-only training: beyond that mean, it is a gain."""
    low, high = gain.difference.low, gain.difference.high
    axes.plot([gain.before] * 2, [row - 0.12, row + 0.34], color=COLOUR[BEFORE], linewidth=0.8, linestyle=":")
    if low is None or high is None:
        return
    words = "95% interval of the gain" if row == 0 else None
    ends = [gain.before + sign * low, gain.before + sign * high]
    axes.plot(ends, [row + 0.34] * 2, color=INK, linewidth=1.2, marker="|", markersize=6, label=words)


def _short(text: str) -> str:
    return text.replace("my_models:", "").replace(f"\n{EVERYONE}", "")


def _draw_reliability(results: Results, path: Path) -> None:
    """Observed share against predicted probability on the pooled test data; all seeds together."""
    figure, axes = blank(7.6, 3.2, len(results.sites))
    for each, site in zip(axes, results.sites, strict=True):
        each.plot([0, 1], [0, 1], color=SOFT, linewidth=0.8, linestyle="--")
        for method in (BEFORE, AFTER):
            points = results.reliability(method, site)
            x, y = [point[0] for point in points], [point[1] for point in points]
            each.plot(x, y, color=COLOUR[method], linewidth=1, label=NAMES[method])
            sizes = [4 + 0.6 * point[2] for point in points]
            each.scatter(x, y, s=sizes, color=COLOUR[method], marker=MARKER[method])
        each.set_xlim(-0.03, 1.03)
        each.set_ylim(-0.03, 1.03)
        each.set_aspect("equal")
        label(each, site, "predicted probability", "share of malignant tumours" if each is axes[0] else "")
    beside(axes[-1], "perfect", (0.6, 0.6), (6, -8), size=8)
    legend_below(figure, axes[0])
    save(figure, path)
