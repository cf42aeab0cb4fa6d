"""`fedal run --against METHOD`: the same federation with another method, over seeds, and what each site gained."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedal.campaigns.compare import compare
from fedal.campaigns.site_gains import site_gains
from fedal.cli.options import GivenSettings
from fedal.cli.printing import print_table
from fedal.cli.screen import Screen
from fedal.config import read_toml
from fedal.errors import ConfigError

NONE = "none"  # --against none: one run, whatever the file says
DEFAULT_SEEDS = 3


class Against(BaseModel):
    """The `[comparison]` table of a federation's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    against: str = Field("local", description="the method to compare with")
    seeds: int = Field(DEFAULT_SEEDS, ge=1, description="seeds 0, 1, ...: this many runs of each method")


def asked(file: Path | None, against: str | None, seeds: int | None) -> Against | None:
    """The comparison that the file or the command line asks for; None: a single run."""
    table: Any = read_toml(file).get("comparison") if file is not None else None
    if against == NONE or (table is None and against is None):
        if seeds is not None:
            raise ConfigError(f"--seeds {seeds}: needs --against METHOD, such as --against local.")
        return None
    try:
        found = Against(**({} if table is None else table))
    except (ValidationError, TypeError):
        raise ConfigError(
            f"{file}, comparison: expected a table with against (a method) and seeds (a number)."
        ) from None
    changes = {name: value for name, value in (("against", against), ("seeds", seeds)) if value is not None}
    return found.model_copy(update=changes)


def run_against(given: GivenSettings, wanted: Against, out: Path | None, quiet: bool) -> None:
    """Runs both methods over the seeds, and prints what each site gained."""
    if "seed" in given.values:
        raise ConfigError(f"--seed: the comparison runs {wanted.seeds} seeds. Use --seeds N, or --against {NONE}.")
    config = given.config()
    if wanted.against == config.method:
        raise ConfigError(f"--against {wanted.against}: it is the method of the run itself. Choose another one.")
    values = {key: value for key, value in given.settings().items() if key not in ("method", "seed")}
    options = values.pop("options", {})
    values = (options if isinstance(options, dict) else {"options": options}) | values
    folder = out or _new_folder(f"{config.method}-against-{wanted.against}")
    with Screen(quiet).live() as screen:
        result = compare(
            [wanted.against, config.method], wanted.seeds, folder, values, watch=screen.watch,
            should_stop=screen.should_stop,
        )  # fmt: skip
    gains = site_gains(result, wanted.against, config.method)
    print_table(gains.title, gains.heads, gains.rows())
    for note in result.notes:
        print(f"note: {note}")
    print(f"runs: {result.path}\npage: fedal report {result.path}")
    for line in gains.sentences():
        print(line)


def _new_folder(name: str) -> Path:
    path = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name.rpartition(':')[2]}"
    others = (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))
    return next(candidate for candidate in itertools.chain([path], others) if not candidate.exists())
