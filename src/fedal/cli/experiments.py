"""Commands that play many runs: `paper` for the tables and figures of the FedAL paper, `tune` for a search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from fedal.cli.app import (
    Alpha,
    Clients,
    ConfigFile,
    Dataset,
    Iterations,
    Models,
    Partition,
    Preset,
    Quiet,
    Rounds,
    Settings,
    _print_table,
    _StopOnce,
    app,
)
from fedal.cli.screen import Screen
from fedal.errors import ConfigError, FedalError

if TYPE_CHECKING:
    from fedal.campaigns.tune import Tuning


@app.command()
def paper(
    name: Annotated[str, typer.Argument(help="list, or a name from it.")],
    scale: Annotated[str, typer.Option(help="small: minutes on two cores; full: the paper's setting.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ... [default: see the list; full: 3]")] = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs, tables and figures.")] = Path("runs/paper"),
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time (0: one per core).")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Implied: an interrupted entry continues.")] = True,
    quiet: Quiet = False,
) -> None:
    """Play a table or figure of the FedAL paper again and show ours beside the paper's."""
    if name == "list":
        _print_entries()
        return
    from fedal.campaigns.paper.entries import find

    entry = find(name)
    if scale not in ("small", "full"):
        raise ConfigError(f"--scale {scale}: expected small or full.")

    from fedal.campaigns.paper.outcome import HEADS
    from fedal.campaigns.paper.run import play
    from fedal.figures.paper import draw

    stop = _StopOnce()
    with Screen(quiet).live() as screen:
        outcome = play(
            entry, cast(Literal["small", "full"], scale), out, seeds=seeds, jobs=jobs, watch=screen.watch,
            should_stop=stop.requested,
        )  # fmt: skip
    _print_table(outcome.title, list(HEADS), [line.cells() for line in outcome.lines])
    print(f"ours: {outcome.quantity}; spread: standard deviation over seeds")
    for note in outcome.notes:
        print(f"note: {note}")
    written = outcome.write()
    try:
        written += draw(outcome)
    except FedalError as error:  # matplotlib is an extra
        print(f"warning: {error}", file=sys.stderr)
    print("written: " + ", ".join(map(str, written)))
    if outcome.is_empty:
        raise typer.Exit(1)


def _print_entries() -> None:
    from fedal.campaigns.paper.entries import ENTRIES
    from fedal.campaigns.paper.run import choose_data, minutes

    found = {name: choose_data(name, "small") for name in {entry.dataset for entry in ENTRIES}}
    rows = []
    for entry in ENTRIES:
        dataset, words, _ = found[entry.dataset]
        time = minutes(entry, dataset)
        rows.append([entry.name, entry.label, entry.title, words, f"{time:.0f} min" if time >= 1 else "under 1 min"])
    _print_table("The FedAL paper, arXiv 2311.16584", ["name", "label", "what", "small runs on", "small takes"], rows)
    print("small takes: an estimate for two free cores. full: days to weeks; `fedal plan` estimates a run of it.")


@app.command()
def tune(
    method: Annotated[str | None, typer.Option(help="See `fedal methods`. [default: fedal]")] = None,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=A,B,...", help="Values to try; repeatable.")
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="KEY=LOW:HIGH", help="Only with --trials; not whole: logarithmic."),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Let Optuna choose this many, instead of all.")] = None,
    objective: Annotated[
        str, typer.Option(help="train, as in the paper; or test, which spoils the test set.")
    ] = "train",
    dataset: Dataset = None,
    clients: Clients = None,
    models: Models = None,
    partition: Partition = None,
    alpha: Alpha = None,
    iterations: Iterations = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="All random numbers follow from it. [default: 0]")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the search; an interrupted one continues.")] = Path("runs/tune"),
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time (0: one per core).")] = 0,
    preset: Preset = None,
    config: ConfigFile = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Search settings and write best.toml. With --preset paper and no --grid: the paper's two stages, 120 rounds."""
    from fedal.campaigns.tune import PAPER_ROUNDS, WORDS, Range, Search, paper_stages, parse_space
    from fedal.config import merge_settings, parse_assignments, read_toml

    given = dict(method=method, dataset=dataset, clients=clients, models=models, partition=partition, alpha=alpha)
    given |= dict(iterations=iterations, rounds=rounds, seed=seed, preset=preset)
    said = {key: value for key, value in given.items() if value is not None} | parse_assignments(settings or [])
    values: dict[str, Any] = merge_settings(read_toml(config) if config else {}, said)
    if objective not in ("train", "test"):
        raise ConfigError(f"--objective {objective}: expected train or test.")
    space = parse_space(grid or [], ranges or [])
    by_paper = not space and values.get("preset") == "paper"
    if not space and not by_paper:
        raise ConfigError("nothing to search: say --grid lr=1e-3,1e-2 (repeatable), or --preset paper.")
    lists = {key: each for key, each in space.items() if not isinstance(each, Range)}
    if trials is None and len(lists) < len(space):
        raise ConfigError("--range needs --trials N: a range has no end of values. Or list them with --grid.")
    if by_paper and not {"iterations", "rounds"} & values.keys():
        values["rounds"] = PAPER_ROUNDS
    if objective == "test":
        print("warning: the test set chooses the settings; its accuracy is no fair estimate any more", file=sys.stderr)

    stop = _StopOnce()
    kind = cast(Literal["train", "test"], objective)
    with Screen(quiet).live() as screen:
        search = Search(values, out, objective=kind, jobs=jobs, watch=screen.watch, should_stop=stop.requested)
        if trials is not None:
            if by_paper:
                raise ConfigError("--trials: say what to choose from with --grid or --range.")
            found = search.sample(space, trials)
        else:
            found = search.grids(paper_stages(values.get("method", "fedal")) if by_paper else [lists])
    files = found.write()
    _print_trials(found)
    print(f"score: {WORDS[kind]}\nbest: {files[0]} (fedal run --config {files[0]})\ntrials: {files[1]}")


def _print_trials(tuning: Tuning) -> None:
    keys = list(dict.fromkeys(key for trial in tuning.trials for key in trial.values))
    rows = [
        [*(str(trial.values.get(key, "")) for key in keys), trial.failure or f"{trial.score:.4f}"]
        for trial in tuning.ranked
    ]
    _print_table(f"{len(rows)} trials, best first", [*keys, "score"], rows)
