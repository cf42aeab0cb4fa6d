"""`fedal compare`: methods x seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedal import methods as known
from fedal.campaigns.compare import Comparison
from fedal.campaigns.compare import compare as run_comparison
from fedal.cli.completion import complete_methods
from fedal.cli.options import GivenSettings, Jobs, Quiet, takes_settings
from fedal.cli.printing import print_table
from fedal.cli.screen import Screen
from fedal.errors import ConfigError
from fedal.figures.curves import plot_curves
from fedal.messages import in_words
from fedal.records.numbers import duration, share, shown_difference, size, with_spread

Out = Annotated[Path, typer.Option(help="Folder of the comparison; an interrupted comparison resumes.")]
ONE_RUN = {"method": "--methods", "seed": "--seeds", "options": "--set NAME=VALUE"}  # -> the comparison's equivalent


@takes_settings(without=ONE_RUN)
def compare(
    *,
    methods: Annotated[str, typer.Option(help="Comma-separated, or all.", autocompletion=complete_methods)] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: this many runs per method.")] = 3,
    given: GivenSettings,
    out: Out = Path("runs/cmp"),
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Run methods x seeds and print a table of means and standard deviations."""
    for key, instead in ONE_RUN.items():
        if key in given.values:
            raise ConfigError(f"--set {key}: a comparison has several runs; use {instead}.")
    values = {key: value for key, value in given.settings().items() if key not in ("method", "seed")}
    options = values.pop("options", {})
    values = (options if isinstance(options, dict) else {"options": options}) | values
    with Screen(quiet).live() as screen:
        result = run_comparison(
            [name.strip() for name in methods.split(",")], seeds, out, values, jobs=jobs, watch=screen.watch,
            should_stop=screen.should_stop,
        )  # fmt: skip
    _print_comparison(result)
    _print_differences(result)
    for note in result.notes:
        print(f"note: {note}")
    print(f"table: {result.path / 'table.csv'}\nplot:  {plot_curves(result)}\npage:  fedal report {result.path}")


def _print_comparison(comparison: Comparison) -> None:
    rows = []
    for row in comparison.rows:
        if not row.runs:
            rows.append([row.method, f"not applicable: {row.not_applicable}", *[""] * 5])
            continue
        final = row.runs[0].final
        clients = len(row.runs[0].config.client_names)
        rows.append(
            [
                row.method,
                with_spread(row.finals("test_accuracy").values()),
                share(row.mean("test_accuracy_min")),
                size(final["up_bytes"] / clients),
                size(final["down_bytes"] / clients),
                duration(row.mean("seconds")),
                in_words(known.get(row.method).reveals),
            ]
        )
    columns = ["method", "test accuracy", "worst client", "up / client", "down / client", "time", "reveals"]
    title = f"Final models on the whole test set, mean ± std over {len(comparison.seeds)} seeds"
    print_table("; ".join(filter(None, [title, comparison.partition])), columns, rows)


def _print_differences(comparison: Comparison) -> None:
    """Prints each method's difference from the first, as far as the seeds support one; needs two methods and seeds."""
    with_runs = [row for row in comparison.rows if len(row.runs) > 1]
    if len(with_runs) < 2:
        return
    first = with_runs[0]
    found = {row.method: row.difference(first, "test_accuracy") for row in with_runs[1:]}
    rows = [[method, *shown_difference(each)] for method, each in found.items() if each is not None]
    columns = ["method", "test accuracy", "95% interval", "p (not corrected)", f"vs {first.method}"]
    print_table(f"Difference from {first.method}, paired by seed", columns, rows)
