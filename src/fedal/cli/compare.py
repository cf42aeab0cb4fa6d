"""`fedal compare`: methods x seeds."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedal import methods
from fedal.campaigns.compare import compare as run_comparison
from fedal.campaigns.comparison import Comparison
from fedal.campaigns.comparison_text import latex_table, markdown_table
from fedal.cli.completion import complete_methods
from fedal.cli.options import GivenSettings, Jobs, Quiet, takes_settings
from fedal.cli.printing import print_table
from fedal.cli.screen import Screen
from fedal.errors import ConfigError, Stopped
from fedal.figures.curves import plot_curves
from fedal.records.numbers import DIFFERENCE_HEADS, shown_difference, shown_shortfall

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
    metric: Annotated[
        str, typer.Option(help="What is compared, a name of docs/metrics.md; default: the headline of the runs.")
    ] = "",
    latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX table for a paper (booktabs).")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run methods x seeds and print a table of means and standard deviations."""
    for key, instead in ONE_RUN.items():
        if key in given.values:
            raise ConfigError(f"--set {key}: a comparison has several runs; use {instead}.")
    values = {key: value for key, value in given.settings().items() if key not in ("method", "seed")}
    options = values.pop("options", {})
    values = (options if isinstance(options, dict) else {"options": options}) | values
    lines = sys.stderr if latex or markdown else sys.stdout  # a table for a paper is all that goes to stdout
    with Screen(quiet, lines).live() as screen:
        try:
            result = run_comparison(
                [name.strip() for name in methods.split(",")], seeds, out, values, metric=metric, jobs=jobs,
                watch=screen.watch, should_stop=screen.should_stop,
            )  # fmt: skip
        except Stopped:
            again = shlex.join(sys.argv[1:])
            raise Stopped(f"stopped; all runs are saved. Continue with the same command: fedal {again}") from None
    if latex or markdown:
        texts = [latex_table(result)] * latex + [markdown_table(result)] * markdown
        print("\n\n".join(texts))
        plot_curves(result)
        return
    _print_comparison(result)
    _print_differences(result)
    for note in result.notes:
        print(f"note: {note}")
    print(
        f"table: {result.path / 'table.csv'} (also runs.csv, differences.csv)\n"
        f"plot:  {plot_curves(result)}\npage:  fedal report {result.path}"
    )


def _print_comparison(comparison: Comparison) -> None:
    table, counts = comparison.table(), sorted(comparison.seed_counts)
    columns = list(dict.fromkeys(column for cells in sorted(table, key=len, reverse=True) for column in cells))
    seeds = f"{counts[0]} seed{'s' * (counts[0] > 1)}" if len(counts) == 1 else "the seeds of each method"
    rows = [[cells.get(column, "") for column in columns] for cells in table]
    title = f"Final models on the whole test set, mean ± std over {seeds}"
    print_table("; ".join(filter(None, [title, comparison.partition])), columns, rows)
    if any(not row.asked for row in comparison.rows):
        print("* runs of an earlier call with this folder")


def _print_differences(comparison: Comparison) -> None:
    """Prints each method's difference from the first, as far as the seeds support one; needs two methods."""
    found = comparison.differences() if comparison.baseline else {}
    if not found:
        return
    if any(each.seeds > 1 for each in found.values()):
        rows = [[methods.shown(method), *shown_difference(each)] for method, each in found.items()]
        columns = ["method", comparison.shown.words, *DIFFERENCE_HEADS, f"vs {comparison.baseline}"]
        title = f"Difference from {comparison.baseline}, paired by seed; p (Holm): corrected over this table"
        print_table(title, columns, rows)
    if lack := shown_shortfall(found):
        print(lack)
