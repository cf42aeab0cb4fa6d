"""`fedal tune`: searches for the best settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedal.campaigns.objective import HELD_OUT, OBJECTIVES, SHARE, Objective
from fedal.campaigns.tune import (
    PAPER_ROUNDS,
    Range,
    Search,
    Tuning,
    paper_stages,
    parse_space,
)
from fedal.cli.options import GivenSettings, Jobs, Quiet, takes_settings
from fedal.cli.printing import print_table, warn
from fedal.cli.screen import Screen
from fedal.config.client_data import client_data
from fedal.errors import ConfigError

Grid = Annotated[list[str] | None, typer.Option("--grid", metavar="KEY=A,B,...", help="Values to try; repeatable.")]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="KEY=LOW:HIGH",
        help="Range to sample from, with --trials only; logarithmic unless both ends are integers.",
    ),
]
RankedBy = Annotated[
    str | None,
    typer.Option(
        help="Data that rank the trials: validation (samples of all classes that belong to no client), "
        "own_validation (held out by each client), train (as in the paper) or test (biases the test accuracy).",
        show_default="validation; own_validation where clients bring their own data",
    ),
]


@takes_settings()
def tune(
    *,
    grid: Grid = None,
    ranges: Ranges = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of trials that Optuna chooses, instead of all combinations.")
    ] = None,
    objective: RankedBy = None,
    metric: Annotated[
        str, typer.Option(help="Metric that ranks the trials, of docs/metrics.md; default: the headline of the runs.")
    ] = "",
    given: GivenSettings,
    out: Annotated[Path, typer.Option(help="Folder of the search; an interrupted search resumes.")] = Path("runs/tune"),
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Search settings and write best.toml. --preset paper without --grid runs the paper's two stages of 120 rounds."""
    values = given.settings()
    if objective is None:
        objective = "own_validation" if client_data(values.get("clients")) else "validation"
    if objective not in OBJECTIVES:
        raise ConfigError(f"--objective {objective}: expected {', '.join(OBJECTIVES)}.")
    kind: Objective = objective
    space = parse_space(grid or [], ranges or [])
    by_paper = not space and values.get("preset") == "paper"
    if not space and not by_paper:
        raise ConfigError(
            "nothing to search. Give values with --grid lr=1e-3,1e-2 (repeatable), or use --preset paper."
        )
    lists = {key: each for key, each in space.items() if not isinstance(each, Range)}
    if trials is None and len(lists) < len(space):
        raise ConfigError("--range needs --trials N: it cannot be enumerated. Or list values with --grid.")
    if by_paper and not {"iterations", "rounds"} & values.keys():
        values["rounds"] = PAPER_ROUNDS
    if objective == "test":
        warn("tuning on the test set: its accuracy is no longer a fair estimate")

    if kind in HELD_OUT and not values.get(kind) and not quiet:
        whose = "the training samples" if kind == "validation" else "each client's samples"
        print(f"{kind} = {SHARE:g}: this share of {whose} is held out to rank the trials")
    with Screen(quiet).live() as screen:
        search = Search(
            values, out, objective=kind, metric=metric, jobs=jobs, watch=screen.watch, should_stop=screen.should_stop
        )
        if trials is not None:
            if by_paper:
                raise ConfigError("--trials needs values to choose from: give --grid or --range.")
            found = search.sample(space, trials)
        else:
            found = search.grids(paper_stages(values.get("method", "fedal")) if by_paper else [lists])
    files = found.write()
    _print_trials(found)
    print(f"score: {found.in_words}\nbest: {files[0]} (fedal run --config {files[0]})\ntrials: {files[1]}")


def _print_trials(tuning: Tuning) -> None:
    keys = list(dict.fromkeys(key for trial in tuning.trials for key in trial.values))
    rows = [
        [*(str(trial.values.get(key, "")) for key in keys), trial.failure or f"{trial.score:.4f}"]
        for trial in tuning.ranked
    ]
    print_table(f"{len(rows)} trials, best first", [*keys, "score"], rows)
