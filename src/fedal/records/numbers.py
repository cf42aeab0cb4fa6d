"""Formats numbers for people."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from fedal.records.differences import MAX_SEEDS, Difference, shortfall
from fedal.records.statistics import mean, spread

NONE = "–"
NAN = "NaN"


def share(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else NAN


def with_spread(values: Collection[float]) -> str:
    """mean ± std, or only the value if there is one: `0.9201 ± 0.0038`."""
    middle = mean(values)
    return f"{middle:.4f} ± {spread(values):.4f}" if math.isfinite(middle) and len(values) > 1 else share(middle)


def signed(value: float, digits: int = 4) -> str:
    """The value with its sign, using a true minus sign: `+0.0123`, `−0.0045`."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def short(value: float) -> str:
    """The value with three significant digits."""
    return f"{value:.3g}" if math.isfinite(value) else NAN


def count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else NAN


def size(n_bytes: float) -> str:
    """Bytes in decimal units, as is usual for networks: `984 B`, `13 kB`, `0.51 MB`."""
    if not math.isfinite(n_bytes):
        return NAN
    if n_bytes < 1e4:
        return f"{n_bytes:,.0f} B"
    if n_bytes < 1e5:
        return f"{n_bytes / 1e3:.0f} kB"
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes < 1e9 else f"{n_bytes / 1e9:.2f} GB"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return NAN
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def p_value(value: float | None, equals: str = "") -> str:
    """`0.042` or `< 0.001`; `equals` is put before an exact value."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{equals}{value:.3f}"


def partition_text(name: str, alpha: float, effective: Collection[float] = ()) -> str:
    """`dirichlet, alpha 1, 4.87 effective classes per client`: how data were divided, and what came of it (a mean)."""
    words = [name, *([f"alpha {alpha:g}"] if name.startswith("dirichlet") else [])]
    return ", ".join([*words, *([f"{mean(effective):.2f} effective classes per client"] if effective else [])])


DIFFERENCE_HEADS = ("95% interval each", "p", "p (Holm)")  # after the mean, before the verdict


def shown_difference(found: Difference) -> list[str]:
    """Table cells: the mean, then those of DIFFERENCE_HEADS, and the verdict."""
    interval = NONE if found.low is None or found.high is None else f"{signed(found.low)} to {signed(found.high)}"
    return [signed(found.mean), interval, p_value(found.p_value), p_value(found.corrected), found.verdict]


def shown_shortfall(found: Mapping[str, Difference]) -> str:
    """A sentence about a table of differences in which nothing is significant; empty if something is."""
    if found and all(each.seeds == 1 for each in found.values()):
        return "One seed allows no test: the standard deviation of a difference needs at least two."
    lack = shortfall(found)
    if lack is None:
        return ""
    enough = f"{lack.enough_seeds} seeds" if lack.enough_seeds else f"more than {MAX_SEEDS} seeds"
    return (
        f"No difference has p (Holm) < 0.05 with {lack.seeds} seeds: the closest, {lack.name} ({signed(lack.mean)}), "
        f"would have to be {lack.needed:.4f} in size, or stay the same over {enough}."
    )
