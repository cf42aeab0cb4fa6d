"""Commands that train one federation: `run` and `resume`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.against import asked, run_against
from fedal.cli.options import GivenSettings, Quiet, Trust, takes_settings
from fedal.cli.printing import verdict
from fedal.cli.screen import Screen
from fedal.records.folder import RunFolder

if TYPE_CHECKING:
    from fedal.simulate.callback import Callback

Out = Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/DATE-METHOD-DATASET-SEED")]


HERE = Path("federation.toml")
Against = Annotated[str | None, typer.Option(help="Also run this method over --seeds; says which client gained.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ... of --against.", show_default="3")]


@takes_settings()
def run(
    *, given: GivenSettings, against: Against = None, seeds: Seeds = None, out: Out = None, quiet: Quiet = False
) -> None:
    """Train one federation and write a run folder. Without --config, federation.toml of this folder is used, if any."""
    if given.file is None and HERE.is_file():
        given = replace(given, file=HERE)
        if not quiet:
            print(f"{HERE} of this folder")
    if (comparison := asked(given.file, against, seeds)) is not None:
        run_against(given, comparison, out, quiet)
        return
    config = given.config()

    from fedal.simulate.run import run as start

    with Screen(quiet).live() as screen:
        result = start(config, out, callbacks=[_shown_on(screen, config.method)])
    print(f"{verdict(result.final)}\nrun folder: {result.path}")


def resume(
    folder: Path,
    iterations: Annotated[int | None, typer.Option(help="Extend the run to this many iterations.")] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped or killed, or extend a finished one."""
    config = RunFolder(folder).read_config(trust=trust)
    if iterations is None and RunFolder(folder).summary.exists():
        print(f"{folder} is already complete. Extend it with `fedal resume {folder} --iterations N`.")
        return

    from fedal.simulate.run import resume as continue_run

    with Screen(quiet).live() as screen:
        result = continue_run(folder, iterations=iterations, trust=trust, callbacks=[_shown_on(screen, config.method)])
    print(f"{verdict(result.final)}\nrun folder: {result.path}")


def _shown_on(screen: Screen, name: str) -> Callback:
    from fedal.simulate.callback import Forward

    return Forward(partial(screen.show, name), screen.should_stop)
