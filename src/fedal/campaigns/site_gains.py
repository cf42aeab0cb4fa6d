"""What a comparison means for each site: its metric with local-only training and with the others, on two kinds of data.

The pooled test data of all sites say how well a model does on everyone's cases; a site's own test data say how well it
does on cases like its owner's. Differences are paired by seed. With the sites' own files, seeds vary initial weights
and batches; the data stay the same. The mean over sites on pooled data is the one question asked in advance, so its p
value stands alone; those of the sites are corrected for their number (Holm).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedal.campaigns.comparison import Comparison, MethodRuns
from fedal.errors import ConfigError
from fedal.metrics.table import Column
from fedal.records.differences import Difference, correct, paired_difference
from fedal.records.numbers import share, signed
from fedal.records.statistics import mean

OWN_DATA = ("own_test", "own_validation")
EVERYONE = "mean over sites"

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Gain:
    """One site's metric before (local-only) and after, means over seeds, and the gain, which is positive if better."""

    before: float
    after: float
    difference: Difference

    @property
    def text(self) -> str:
        """`+0.0362 (+0.0240 to +0.0480)`"""
        found = self.difference
        interval = (
            f" ({signed(found.low)} to {signed(found.high)})"
            if found.low is not None and found.high is not None
            else ""
        )
        return f"{signed(found.mean)}{interval}"

    @property
    def certainty(self) -> str:
        if self.difference.corrected is None:
            return "not tested: it takes two seeds that differ"
        return "beyond chance" if self.difference.is_significant else "could be chance"


@dataclass(frozen=True)
class SiteGains:
    """site -> gain, on pooled and on its own data, with p values corrected over all of them; EVERYONE is the mean."""

    before: str
    after: str
    column: Column
    seeds: int
    pooled: Mapping[str, Gain]
    own: Mapping[str, Gain]  # empty: the sites have no test data of their own

    def rows(self) -> list[list[str]]:
        """Table cells, one row per site: before, after and gain for each kind of data."""
        return [
            [site, *(cell for kind in self._kinds.values() for cell in _cells(kind.get(site)))] for site in self.pooled
        ]

    @property
    def title(self) -> str:
        falls = "" if self.column.metric.higher_is_better else "; lower is better, and a gain is a fall"
        return f"{self.column.metric.words} of each site, means over {self.seeds} seeds{falls}"

    @property
    def heads(self) -> list[str]:
        parts = ([f"{kind}: {self.before}", self.after, "gain (95% interval)"] for kind in self._kinds)
        return ["site", *(head for part in parts for head in part)]

    @property
    def _kinds(self) -> dict[str, Mapping[str, Gain]]:
        return {"pooled": self.pooled, **({"own": self.own} if self.own else {})}

    def sentences(self) -> list[str]:
        """What it means, for a person; the last one names the sites that lost on their own data."""
        overall = self.pooled[EVERYONE]
        verb = "gained" if overall.difference.mean > 0 else "did not gain:"
        lines = [
            f"On the pooled test data the sites {verb} {overall.text} {self.column.metric.words} on average against "
            f"{self.before}: {overall.certainty} ({self.seeds} seeds, which vary initial weights and batches)."
        ]
        for site in (site for site in self.pooled if site != EVERYONE):
            parts = {"the pooled data": self.pooled[site]}
            if site in self.own:
                parts["its own data"] = self.own[site]
            words = (f"{signed(gain.difference.mean)} on {data} ({gain.certainty})" for data, gain in parts.items())
            unmeasured = f", no {self.column.metric.words} on its own data" * (bool(self.own) and site not in self.own)
            lines.append(f"{site}: {', '.join(words)}{unmeasured}.")
        lost = [site for site, gain in self.own.items() if site != EVERYONE and gain.difference.mean < 0]
        if lost:
            listed = (f"{site} {self.own[site].text}, {self.own[site].certainty}" for site in lost)
            lines.append(f"Lost on their own test data: {'; '.join(listed)}.")
        elif self.own:
            measured = "No site" if set(self.own) == set(self.pooled) else "No site with a value"
            lines.append(f"{measured} lost on its own test data.")
        return lines


def site_gains(comparison: Comparison, before: str, after: str) -> SiteGains:
    """The gains of all sites from the runs of `before` to those of `after`; raises ConfigError if a method has none."""
    runs = {row.method: row for row in comparison.rows}
    for name in (before, after):
        if not runs[name].runs:
            raise ConfigError(f"{name}: not applicable: {runs[name].not_applicable}")
    shown = comparison.shown
    recorded = {key for row in runs[after].runs[0].client_metrics for key in row}
    own = next((Column(shown.metric, data) for data in OWN_DATA if f"{data}_{shown.metric.name}" in recorded), None)
    pooled_values = _both(runs, before, after, shown)
    own_values = {} if own is None else _both(runs, before, after, own)
    found = {("pooled", site): _difference(pair, shown) for site, pair in pooled_values.items()}
    found |= {("own", site): _difference(pair, shown) for site, pair in own_values.items()}
    known = {key: each for key, each in found.items() if each is not None}
    tested = known | correct({key: each for key, each in known.items() if key[1] != EVERYONE})
    return SiteGains(
        before,
        after,
        shown,
        len(runs[after].runs),
        {site: _gain(pair, tested["pooled", site]) for site, pair in pooled_values.items()},
        {site: _gain(pair, tested["own", site]) for site, pair in own_values.items() if ("own", site) in tested},
    )


def _both(runs: Mapping[str, MethodRuns], before: str, after: str, of: Column) -> dict[str, tuple[BySeed, BySeed]]:
    """site -> the values of both methods by seed; EVERYONE has their means over the sites that have one."""
    first, second = (_by_site(runs[name], of) for name in (before, after))
    both = {site: (first[site], second[site]) for site in first if site in second}
    return both | {EVERYONE: (_means(first[site] for site in both), _means(second[site] for site in both))}


def _by_site(row: MethodRuns, of: Column) -> dict[str, BySeed]:
    """site -> seed -> its final value; sites without a value, such as PR-AUC without a positive, are left out."""
    found: dict[str, dict[int, float]] = {}
    for run in row.runs:
        for line in run.client_metrics:
            if line["final"] and line.get(of.key) is not None:
                found.setdefault(line["client"], {})[run.config.seed] = float(line[of.key])
    return {site: values for site, values in found.items() if all(value == value for value in values.values())}


def _means(values: Iterable[BySeed]) -> BySeed:
    every = list(values)
    seeds = set.intersection(*(set(each) for each in every)) if every else set()
    return {seed: mean(each[seed] for each in every) for seed in sorted(seeds)}


def _difference(pair: tuple[BySeed, BySeed], of: Column) -> Difference | None:
    """The gain, which is positive where the second is better."""
    first, second = ({seed: of.rank(value) for seed, value in values.items()} for values in pair)
    return paired_difference(second, first)


def _gain(pair: tuple[BySeed, BySeed], difference: Difference) -> Gain:
    return Gain(mean(pair[0].values()), mean(pair[1].values()), difference)


def _cells(gain: Gain | None) -> list[str]:
    return ["-"] * 3 if gain is None else [share(gain.before), share(gain.after), gain.text]
