"""The folder of a comparison, `OUT/METHOD/seed-S`: the names in it, what else it may hold, and earlier runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from fedal.config import read_toml
from fedal.durable import TEMPORARY
from fedal.errors import ConfigError, FedalError
from fedal.records.folder import LOCK, RunFolder
from fedal.records.run import Run
from fedal.user_code import named_code

UNSAFE = re.compile(r'[\\/:*?"<>|\s]+')  # what some file systems or copying tools do not accept in a name
RUNS = "*/seed-*"


def method_folder(path: Path, method: str) -> Path:
    """The folder of a method's runs: `package.module:METHOD` is in `package.module.METHOD`."""
    as_written = path / method
    if ":" in method and as_written.is_dir():  # made before names were changed; it continues where it is
        return as_written
    return path / UNSAFE.sub(".", method)


def refuse_clashes(path: Path, methods: Iterable[str]) -> None:
    """Raises ConfigError when two methods would share a folder, also where upper and lower case are the same."""
    owners: dict[str, str] = {}
    for method in methods:
        name = method_folder(path, method).name
        other = owners.setdefault(name.casefold(), method)
        if other != method:
            raise ConfigError(f'methods "{other}" and "{method}" would share the folder {name}. Compare them apart.')


def refuse_other_content(path: Path) -> None:
    """Raises ConfigError unless the folder is new, empty or a comparison."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"{path} is a file; expected a folder for the comparison. Choose another --out.")
    run = RunFolder(path)
    if run.config.exists() or run.metrics.exists() or run.is_server:
        raise ConfigError(f"{path} holds a single run; expected a comparison or nothing. Choose another --out.")
    names = sorted(entry.name for entry in path.iterdir() if entry.name != LOCK)
    others = [name for name in names if not name.startswith((TEMPORARY, "."))]
    if others and not (path / "table.csv").exists() and not any(path.glob(RUNS)):
        raise ConfigError(f"{path} is not a comparison (it holds {others[0]}). Choose another --out.")


def earlier_runs(path: Path, planned: Collection[Path], code: Collection[str]) -> list[Run]:
    """The finished runs in the folder that are not planned, by method and seed.

    Raises ConfigError for a run of code that is not in `code`: the folder may come from someone else.
    """
    found = []
    for folder in sorted(path.glob(RUNS)):
        run = RunFolder(folder)
        if folder in planned or not run.config.exists() or not run.summary.exists():
            continue
        unknown = sorted(set(named_code(read_toml(run.config))) - set(code))
        if unknown:
            raise ConfigError(
                f'{folder} holds a run of other code, "{unknown[0]}", which this call does not name. '
                "Add it to --methods, or choose another --out."
            )
        try:
            found.append(Run(folder, trust=True))
        except FedalError as error:
            raise ConfigError(f"{folder} holds an earlier run: {error} Or choose another --out.") from None
    return sorted(found, key=lambda run: (run.config.method, run.config.seed))
