"""Commands that train one federation: `run` and `resume`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.options import GivenSettings, Quiet, Trust, takes_settings
from fedal.cli.printing import verdict
from fedal.cli.screen import Screen
from fedal.records.folder import RunFolder

if TYPE_CHECKING:
    from fedal.simulate.callback import Callback

Out = Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/DATE-METHOD-DATASET-SEED")]


@takes_settings()
def run(given: GivenSettings, out: Out = None, quiet: Quiet = False) -> None:
    """Train one federation and write a run folder."""
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
