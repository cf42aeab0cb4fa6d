"""Commands that inspect runs without training: `partition` and `plan` before a run, `analyse` and `report` after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.options import GivenSettings, SettingsArgument, Trust, takes_settings
from fedal.cli.printing import print_table, warn
from fedal.errors import ConfigError, FedalError
from fedal.figures.bubbles import draw_bubbles
from fedal.figures.canvas import save
from fedal.records.numbers import duration, partition_text, size
from fedal.records.run import Run
from fedal.report.page import write_report
from fedal.report.tensorboard import mirror
from fedal.simulate.prepare import default_partition, prepare_split

if TYPE_CHECKING:
    from fedal.analysis.analyse import Analysis
    from fedal.simulate.estimate import Estimate

NOT_DATA_SETTINGS = ("method", "models", "iterations", "rounds", "engine", "ray_address", "require")


@takes_settings(without=NOT_DATA_SETTINGS)
def partition(
    *,
    preview: Annotated[bool, typer.Option("--preview", help="Implied: show the split without training.")] = True,
    given: GivenSettings,
    out: Annotated[Path, typer.Option(help="Folder for the bubble chart, partition.png and .svg.")] = Path("."),
) -> None:
    """Preview the data split: a client x class table and a bubble chart."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; expected a folder for partition.png and .svg. Choose another --out.")
    config = given.config()
    split = prepare_split(config)
    counts = split.class_counts()
    names = split.dataset.class_names or tuple(str(k) for k in range(split.dataset.n_classes))
    rule = config.partition or default_partition(config)
    words = partition_text(rule, config.alpha, [split.effective_classes])
    title = f"{split.dataset.name}, {len(counts)} clients, {words}"
    rows = [
        [client, *(f"{count:,}" if count else "·" for count in row), f"{row.sum():,}", str((row > 0).sum())]
        for client, row in zip(split.clients, counts, strict=True)
    ]
    rows.append(
        ["all", *(f"{count:,}" for count in counts.sum(0)), f"{counts.sum():,}", str((counts.sum(0) > 0).sum())]
    )
    print_table(f"{title}, seed {config.seed}", ["client", *names, "all", "classes"], rows, numbers=True)
    held_out = [part for part in (split.validation, *split.held_out.values()) if part is not None]
    kept = f"validation samples: {sum(map(len, held_out)):,}; " if held_out else ""
    print(f"public samples: {len(split.public_x):,}; {kept}unassigned training samples: {split.leftovers:,}")
    rarest = split.rarest_class
    few = f"class {names[rarest.label]} has {rarest.samples:,} of the {rarest.owned:,} samples that clients own"
    print(f"rarest: {few}, at {rarest.owners:,} of {len(counts):,} clients")
    if rarest.is_rare:
        warn(f"{few}, less than 1%: no method can learn it well. Compare methods on several seeds.")
    files = save(draw_bubbles(counts, list(split.clients), names, title), out / "partition")
    print("chart: " + ", ".join(map(str, files)))


@takes_settings(file=SettingsArgument)
def plan(
    given: GivenSettings, trial: Annotated[float, typer.Option(min=0, help="Seconds to spend on trial rounds.")] = 10.0
) -> None:
    """Estimate a run's time, memory and traffic from a few trial rounds. Writes nothing."""
    config = given.config()

    from fedal.simulate.estimate import estimate

    found = estimate(config, trial_s=trial)
    length = f"{config.total_rounds * config.tau:,} iterations ({config.total_rounds:,} rounds of {config.tau})"
    title = f"{config.method} on {config.dataset}, {len(config.client_names)} clients, {length}"
    print_table(title, ["", "estimate", "basis"], _plan_rows(found))


def analyse(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or the folder of a comparison.")
    ],
    reference_steps: Annotated[
        int, typer.Option(min=0, help="Training steps on the pooled data for lambda; 0 leaves lambda out.")
    ] = 500,
    trust: Trust = False,
) -> None:
    """Measure the theory's quantities: zeta, bounds, gradient variances, equilibrium, forgetting."""
    paths = [run for folder in folders for run in _runs_in(folder)]

    from fedal.analysis.analyse import analyse as measure
    from fedal.figures.theory import draw_all

    studies: list[Analysis] = []
    for path in paths:
        study = measure(Run(path, trust=trust), reference_steps=reference_steps, warn=warn)
        study.write()
        try:
            draw_all(study)
        except FedalError as error:  # matplotlib is an extra
            warn(error)
        studies.append(study)
    _print_studies(studies)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or of comparisons.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="report.html in the first DIR")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="LOGDIR", help="Also write TensorBoard logs here.")
    ] = None,
) -> None:
    """Write one HTML page about runs: tables, curves, clients' data and messages. The page works offline."""
    path, problems = write_report(folders, out)
    for problem in problems:
        warn(problem)
    if tensorboard is not None:
        print(f"tensorboard: {mirror(folders, tensorboard)} runs in {tensorboard}")
    print(f"report: {path}")


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself, or the runs METHOD/seed-S of a comparison."""
    if (folder / "config.toml").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/seed-*/config.toml"))
    if not found:
        raise ConfigError(f"{folder} holds no run (no config.toml). Start one with `fedal run`.")
    return found


def _print_studies(studies: list[Analysis]) -> None:
    from fedal.analysis.table import rows

    heads = [f"{study.run.config.method}, seed {study.run.config.seed}" for study in studies]
    print_table("Theory, measured (means over clients; docs/theory.md)", ["", *heads], rows(studies))
    for head, study in zip(heads, studies, strict=True):
        print(f"{head}: {study.equilibrium.verdict}")
        for note in study.notes:
            print(f"  note: {note}")
        print(f"  written: {study.folder}")


def _plan_rows(plan: Estimate) -> list[list[str]]:
    fast, typical, slow = plan.round_s
    between = f"{duration(plan.seconds(fast))} to {duration(plan.seconds(slow))}"
    instruments = f", {plan.instruments_s:.2f} s of instruments per recorded round" if plan.instruments_s else ""
    known = sum(plan.memory.values())
    sends = "counted at the wire" + (", exact" if plan.bytes_are_exact else "; sizes may vary with the data")
    words = {
        "data": "inputs as loaded, plus a converted copy where the format differs",
        "models": "weights and buffers of all clients",
        "optimizers": "moments of all clients",
        "anchors": "earlier models that less-forgetting compares with",
        "server": "the server's state",
    }
    return [
        ["time", duration(plan.seconds()), f"{between} at the pace of the fastest and slowest of {plan.trials} rounds; "
         "on this machine, at its current load"],
        ["  a round", f"{1000 * typical:.0f} ms", f"median of {max(1, plan.trials - 1)} rounds after a warm-up round"],
        ["  evaluation", duration(plan.evaluations * plan.evaluation_s + plan.final_s),
         f"{plan.evaluations} of {1000 * plan.evaluation_s:.0f} ms, and the final one{instruments}"],
        ["memory", size(plan.peak_bytes), "peak of this process so far, measured"],
        *[[f"  {part}", size(n_bytes), words[part]] for part, n_bytes in plan.memory.items() if n_bytes],
        ["  the rest", size(max(0, plan.peak_bytes - known)), "Python, torch, activations"],
        ["checkpoint", size(plan.checkpoint_bytes), "two are kept on disk; saving needs twice this much memory"],
        ["sent up", size(plan.up_bytes), f"all clients, whole run; {sends}"],
        ["sent down", size(plan.down_bytes), f"all clients, whole run; {sends}"],
    ]  # fmt: skip
