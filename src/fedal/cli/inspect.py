"""Commands that look without training: `partition` and `plan` before a run, `analyse` after it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.app import (
    Alpha,
    Clients,
    ConfigFile,
    Dataset,
    Iterations,
    Models,
    OwnData,
    OwnPublic,
    Partition,
    Preset,
    Rounds,
    Settings,
    Trust,
    _config,
    _print_table,
    app,
)
from fedal.errors import ConfigError, FedalError

if TYPE_CHECKING:
    from fedal.analysis.study import Study
    from fedal.simulate.plan import Plan

Seed = Annotated[int | None, typer.Option(help="All random numbers follow from it. [default: 0]")]


@app.command()
def partition(
    preview: Annotated[bool, typer.Option("--preview", help="Show the division; nothing is trained.")] = True,
    dataset: Dataset = None,
    clients: Clients = None,
    partition: Partition = None,
    alpha: Alpha = None,
    seed: Seed = None,
    preset: Preset = None,
    data: OwnData = None,
    public: OwnPublic = None,
    config: ConfigFile = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Folder of the bubble chart, partition.png and .svg.")] = Path("."),
) -> None:
    """Show who would own what: a client x class table and a bubble chart."""
    given = dict(dataset=dataset, clients=clients, partition=partition, alpha=alpha, seed=seed, preset=preset)
    checked = _config(config, given | dict(data=data, public=public), settings)

    from fedal.figures.bubbles import draw_bubbles
    from fedal.figures.canvas import save
    from fedal.simulate.world import default_partition, prepare_world

    world = prepare_world(checked)
    counts = world.class_counts()
    names = world.dataset.class_names or tuple(str(k) for k in range(world.dataset.n_classes))
    rule = checked.partition or default_partition(checked)
    title = f"{world.dataset.name}, {len(counts)} clients, {rule}"
    title += f", alpha {checked.alpha:g}" if rule.startswith("dirichlet") else ""
    rows = [
        [client, *(f"{count:,}" if count else "·" for count in row), f"{row.sum():,}", str((row > 0).sum())]
        for client, row in zip(world.clients, counts, strict=True)
    ]
    rows.append(
        ["all", *(f"{count:,}" for count in counts.sum(0)), f"{counts.sum():,}", str((counts.sum(0) > 0).sum())]
    )
    _print_table(f"{title}, seed {checked.seed}", ["client", *names, "all", "classes"], rows, numbers=True)
    print(f"public samples: {len(world.public_x):,}; training samples that nobody gets: {world.leftovers:,}")
    files = save(draw_bubbles(counts, list(world.clients), names, title), out / "partition")
    print("chart: " + ", ".join(map(str, files)))


@app.command()
def plan(
    file: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file with settings.")] = None,
    method: Annotated[str | None, typer.Option(help="See `fedal methods`. [default: fedal]")] = None,
    dataset: Dataset = None,
    clients: Clients = None,
    models: Models = None,
    partition: Partition = None,
    alpha: Alpha = None,
    iterations: Iterations = None,
    rounds: Rounds = None,
    seed: Seed = None,
    preset: Preset = None,
    data: OwnData = None,
    public: OwnPublic = None,
    settings: Settings = None,
    trial: Annotated[float, typer.Option(min=0, help="Seconds to spend on trial rounds.")] = 10.0,
) -> None:
    """Estimate time, memory and bytes of a run by playing a few rounds of it. Writes nothing."""
    given = dict(method=method, dataset=dataset, clients=clients, models=models, partition=partition, alpha=alpha)
    given |= dict(iterations=iterations, rounds=rounds, seed=seed, preset=preset, data=data, public=public)
    checked = _config(file, given, settings)

    from fedal.simulate.plan import plan as estimate

    found = estimate(checked, trial_s=trial)
    length = f"{checked.total_rounds * checked.tau:,} iterations ({checked.total_rounds:,} rounds of {checked.tau})"
    title = f"{checked.method} on {checked.dataset}, {len(checked.client_names)} clients, {length}"
    _print_table(title, ["", "estimate", "how it was found"], _plan_rows(found))


@app.command()
def analyse(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or one of `fedal compare`.")],
    reference_steps: Annotated[
        int, typer.Option(min=0, help="Steps of the model trained on everybody's data for lambda; 0 leaves it out.")
    ] = 500,
    trust: Trust = False,
) -> None:
    """Measure what the theory speaks of: zeta, bounds, gradient variances, equilibrium, forgetting."""
    paths = [run for folder in folders for run in _runs_in(folder)]

    from fedal.analysis.study import analyse as measure
    from fedal.figures.theory import draw_all
    from fedal.records.run import Run

    studies: list[Study] = []
    for path in paths:
        study = measure(Run(path, trust=trust), reference_steps=reference_steps, warn=_warn)
        study.write()
        try:
            draw_all(study)
        except FedalError as error:  # matplotlib is an extra
            _warn(str(error))
        studies.append(study)
    _print_studies(studies)


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself, or the runs METHOD/seed-S of a comparison."""
    if (folder / "config.toml").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/seed-*/config.toml"))
    if not found:
        raise ConfigError(f"no run in {folder} (there is no config.toml). Start one with `fedal run`.")
    return found


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _print_studies(studies: list[Study]) -> None:
    from fedal.analysis.table import rows

    heads = [f"{study.run.config.method}, seed {study.run.config.seed}" for study in studies]
    _print_table("Theory, measured (means over clients; docs/theory.md)", ["", *heads], rows(studies))
    for head, study in zip(heads, studies, strict=True):
        print(f"{head}: {study.equilibrium.verdict}")
        for note in study.notes:
            print(f"  note: {note}")
        print(f"  written: {study.folder}")


def _plan_rows(plan: Plan) -> list[list[str]]:
    from fedal.records.numbers import duration, size

    fast, typical, slow = plan.round_s
    between = f"{duration(plan.seconds(fast))} to {duration(plan.seconds(slow))}"
    instruments = f", {plan.instruments_s:.2f} s of instruments per recorded round" if plan.instruments_s else ""
    known = sum(plan.memory.values())
    sends = "counted at the wire" + (", exact" if plan.bytes_are_exact else "; sizes may vary with the data")
    words = {
        "data": "inputs as read, and staged where the format differs",
        "models": "weights and buffers of all clients",
        "optimizers": "moments of all clients",
        "anchors": "former selves that less-forgetting compares with",
        "server": "what the server keeps",
    }
    return [
        ["time", duration(plan.seconds()), f"{between} at the pace of the fastest and slowest of {plan.played} rounds; "
         "on this machine, as busy as it is now"],
        ["  a round", f"{1000 * typical:.0f} ms", f"median of {max(1, plan.played - 1)} rounds after a warm-up round"],
        ["  evaluation", duration(plan.evaluations * plan.evaluation_s + plan.final_s),
         f"{plan.evaluations} of {1000 * plan.evaluation_s:.0f} ms, and the final one{instruments}"],
        ["memory", size(plan.peak_bytes), "peak of this process so far, measured"],
        *[[f"  {part}", size(n_bytes), words[part]] for part, n_bytes in plan.memory.items() if n_bytes],
        ["  the rest", size(max(0, plan.peak_bytes - known)), "Python, torch, activations"],
        ["checkpoint", size(plan.checkpoint_bytes), "two are kept on disk; saving one holds it in memory twice"],
        ["sent up", size(plan.up_bytes), f"all clients, whole run; {sends}"],
        ["sent down", size(plan.down_bytes), f"all clients, whole run; {sends}"],
    ]  # fmt: skip
