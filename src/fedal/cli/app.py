"""The `fedal` command: all commands in the order of `fedal --help`, and the handling of errors.

A command parses, calls the library and prints. Heavy imports wait until a command needs them. Exit codes: 2 for a
mistake found before the start (nothing is written), 1 for a failure during a run (the last checkpoint stays valid), 130
for Ctrl-C (the current round is finished and saved; a second Ctrl-C stops at once).
"""

from __future__ import annotations

import errno
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from fedal.cli import (
    afterwards,
    catalogue,
    certs,
    compare,
    contract,
    data,
    deploy,
    doctor,
    init,
    inspect,
    paper,
    settings,
    train,
    tune,
)  # fmt: skip
from fedal.errors import CheckpointError, ConfigError, FedalError, Stopped
from fedal.machine import refuse_windows

COMMANDS = (
    init.init, train.run, train.resume, compare.compare, tune.tune, paper.paper,
    inspect.partition, inspect.plan, inspect.analyse, inspect.report,
    afterwards.predict, afterwards.export, afterwards.card,
    catalogue.methods, catalogue.datasets, catalogue.models, data.schema, settings.settings, doctor.doctor,
    deploy.serve, deploy.join, contract.contract, deploy.status, deploy.readmit, deploy.export_sites,
)  # fmt: skip

ADVICE = {
    errno.ENOSPC: "Free some space and resume: the last checkpoint is intact.",
    errno.ENOENT: "Check the path, or create the folder first.",
    errno.EACCES: "Choose a place where you may write, or change the permissions.",
    errno.EPERM: "Choose a place where you may write, or change the permissions.",
    errno.EROFS: "Choose a place where you may write.",
    errno.EISDIR: "Expected a file: add a file name to this folder.",
    errno.ENOTDIR: "Part of this path is a file, not a folder. Choose another path.",
    errno.EEXIST: "A folder is needed here, and a file has this name. Choose another path.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
"""The system's error -> what to try."""

app = typer.Typer(
    name="fedal",
    help="Federated knowledge distillation between black-box models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedal {version('fedal')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Takes the options of `fedal` itself."""


for command in COMMANDS:
    app.command()(command)
app.add_typer(data.data_app, name="data")
app.add_typer(certs.certs_app, name="certs")


def main() -> None:
    """Runs the command that the user typed: a mistake ends in one message, never in a traceback."""
    try:
        refuse_windows()
        app()
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except FedalError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError | CheckpointError) else 1)
    except BrokenPipeError:
        os._exit(0)
    except OSError as error:
        print(f"error: {in_words(error)}", file=sys.stderr)
        sys.exit(1)


def in_words(error: OSError) -> str:
    """What the system refused, where, and what to try."""
    reason = error.strerror or str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{reason}. {ADVICE.get(error.errno or 0, '')}".rstrip()
