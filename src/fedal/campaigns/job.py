"""One run of a campaign: what it is called, its config and its folder, which continues that run and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedal.config import Config, read_toml
from fedal.errors import ConfigError, FolderInUseError, NotApplicableError
from fedal.records.folder import RunFolder
from fedal.simulate.prepare import load_dataset, public_size, resolved
from fedal.user_code import named_code


@dataclass(frozen=True)
class Job:
    """A run to be played: its place in a campaign by name and seed, what decides it, and where it lies."""

    name: str
    seed: int
    config: Config
    folder: Path

    @property
    def is_finished(self) -> bool:
        return RunFolder(self.folder).summary.exists()

    @property
    def is_played_elsewhere(self) -> bool:
        """Another process has the run, perhaps one that outlived the campaign that started it."""
        folder = RunFolder(self.folder)
        if not folder.config.exists():
            return False
        try:
            with folder.locked():
                return False
        except ConfigError as error:
            return isinstance(error, FolderInUseError)


Watcher = Callable[[Job, str, Any], None]
"""Told about a job: ("started" | "advanced" | "recorded" | "warned" | "finished" | "not applicable", details)."""

Answer = str | Exception | None
"""Of a job that was played: None when its run is finished, the reason if the method does not apply, or what failed."""


def refuse_other_runs(jobs: Iterable[Job]) -> None:
    """Raises ConfigError when the folder of a job holds anything but the beginning or the whole of its run."""
    public_sizes: dict[tuple[str | None, ...], int] = {}  # data set -> what the default means there
    for job in jobs:
        folder, wanted = RunFolder(job.folder), job.config.deciding()
        if not folder.config.exists():
            folder.refuse_if_taken()
            continue
        strange = set(named_code(read_toml(folder.config))) - set(named_code(wanted))
        if strange:  # not even imported: the folder may be somebody else's
            raise ConfigError(f'{job.folder} holds a run with other code, "{strange.pop()}". Choose another --out.')
        saved = folder.read_config(trust=True).deciding()
        wanted = {**_what_defaults_mean(job.config, saved, public_sizes), **wanted}
        if job.config.stacked == "auto":  # a run that began with or without stacks goes on as it began
            wanted["stacked"] = saved["stacked"]
        if difference := _first_difference(Config.model_fields, saved, wanted):
            raise ConfigError(f"{job.folder} holds a run with other settings ({difference}). Choose another --out.")


def _what_defaults_mean(
    config: Config, saved: Mapping[str, Any], public_sizes: dict[tuple[str | None, ...], int]
) -> dict[str, Any]:
    """The settings that a run resolves when it starts: length, partition and size of the public set.

    The last one depends on the data, which are read once for all jobs.
    """
    means = resolved(config)
    if config.public is None and config.public_size is None and "public_size" in saved:
        source = (config.dataset, config.data, config.data_folder)
        if source not in public_sizes:
            public_sizes[source] = public_size(config, load_dataset(config))
        means["public_size"] = public_sizes[source]
    return means


def _first_difference(keys: Iterable[str], saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Of these keys, in words; empty when there is none."""
    for key in keys:
        there, here = saved.get(key), wanted.get(key)
        if isinstance(there, dict) and isinstance(here, dict) and there != here:
            return _first_difference({**there, **here}, there, here)
        if there != here:
            return f"{key}: {there!r} there, {here!r} here"
    return ""


def run_job(
    job: Job, tell: Callable[[str, Any], None], should_stop: Callable[[], bool], most_workers: int = 0
) -> Answer:
    """Plays or completes one run; gives what came of it and raises nothing.

    A new run gets `most_workers` worker threads, or fewer if its config says so (0: what the config says).
    """
    from fedal.simulate.run import resume, run
    from fedal.simulate.session import Listener

    listener, config = Listener.telling(tell, should_stop), job.config
    try:
        if RunFolder(job.folder).config.exists():
            resume(job.folder, trust=True, listener=listener)
        else:
            if most_workers:
                config = config.with_(workers=min(config.workers or most_workers, most_workers))
            run(config, job.folder, listener=listener)
    except NotApplicableError as error:
        return str(error)
    except Exception as error:
        return error
    return None
