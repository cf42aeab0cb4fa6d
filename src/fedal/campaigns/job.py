"""One run of a campaign: its name, its config and its folder, which must hold that run and no other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedal.campaigns.given import Given
from fedal.config import Config, read_toml
from fedal.data.dataset import Dataset
from fedal.errors import ConfigError, FolderInUseError, NotApplicableError, TooFewSamplesError
from fedal.metrics.table import METRICS
from fedal.records.folder import RunFolder
from fedal.simulate.prepare import load_dataset, prepare_split, public_size, resolved
from fedal.user_code import named_code

DECIDES_DATA = {"dataset", "data", "schema_file", "data_folder", "accept_unverified", "clients", "public_size"}
DECIDES_PARTITION = DECIDES_DATA | {"partition", "alpha", "min_samples", "public", "batch_size"}


@dataclass(frozen=True)
class Job:
    """A run of a campaign, identified by name and seed, with its config and folder."""

    name: str
    seed: int
    config: Config
    folder: Path
    given: Given = field(default=Given(), compare=False)

    @property
    def is_finished(self) -> bool:
        return RunFolder(self.folder).summary.exists()

    @property
    def is_running_elsewhere(self) -> bool:
        """Whether another process holds the run, perhaps one that outlived the campaign that started it."""
        folder = RunFolder(self.folder)
        if not folder.config.exists():
            return False
        try:
            with folder.locked():
                return False
        except ConfigError as error:
            return isinstance(error, FolderInUseError)


Watcher = Callable[[Job, str, Any], None]
"""Called with (job, event, details). The events are those of `Forward`, "finished" and "not applicable"."""

JobResult = str | Exception | None
"""What `run_job` returns: None if the run is finished, the reason if the method does not apply, or the exception."""


def refuse_other_runs(jobs: Iterable[Job]) -> None:
    """Raises ConfigError when the folder of a job holds anything but its own run, finished or not."""
    public_sizes: dict[tuple[str | None, ...], int] = {}  # dataset -> its default size of the public set
    for job in jobs:
        folder, wanted = RunFolder(job.folder), job.config.deciding()
        if not folder.config.exists():
            folder.refuse_if_taken()
            continue
        unknown = set(named_code(read_toml(folder.config))) - set(named_code(wanted))
        if unknown:  # never imported: the folder may come from someone else
            raise ConfigError(f'{job.folder} holds a run with other code, "{unknown.pop()}". Choose another --out.')
        job.given.refuse_others(folder, job.config)
        saved = folder.read_config(trust=True).deciding()
        wanted = {**_resolved_defaults(job, saved, public_sizes), **wanted}
        if job.given.data is not None:  # as `fedal.run` records them
            wanted |= {"dataset": job.given.data.name, "data": None, "data_in_python": True}
        for key in ("stacked", "eval_every", "metrics"):
            if wanted[key] == "auto":  # a run continues as it started
                wanted[key] = saved[key]
        if wanted["metrics"] == "all" and set(saved["metrics"]) == set(METRICS):
            wanted["metrics"] = saved["metrics"]
        if saved.get("partition") != "by-user":  # elsewhere it only decides whether a run may start, and this one did
            wanted["min_samples"] = saved["min_samples"]
        if difference := _first_difference(Config.model_fields, saved, wanted):
            raise ConfigError(f"{job.folder} holds a run with other settings ({difference}). Choose another --out.")


def refuse_small_clients(jobs: Iterable[Job]) -> None:
    """Draws the partition of every seed that has none yet; raises when a client gets too few samples.

    The error is about the seed with the smallest client, so that what it advises is enough for all seeds.
    """
    datasets: dict[str, Dataset] = {}
    drawn: set[str] = set()
    found: dict[int, TooFewSamplesError] = {}
    for job in jobs:
        asked = str([job.seed, job.config.model_dump(include=DECIDES_PARTITION)])  # not the method: drawn once for all
        if asked in drawn or RunFolder(job.folder).partition.exists():
            continue
        drawn.add(asked)
        source = str(job.config.model_dump(include=DECIDES_DATA))
        if source not in datasets:
            datasets[source] = job.given.data or load_dataset(job.config)
        try:
            prepare_split(job.config, datasets[source], job.given.public)
        except TooFewSamplesError as error:
            found[job.seed] = error
    if not found:
        return
    seed = min(found, key=lambda seed: found[seed].fewest)
    others = ", ".join(str(other) for other in found if other != seed)
    more = f"; there are such clients at seed {others} too" if others else ""
    remedies = [remedy for remedy in found[seed].remedies if remedy != "another seed"]
    raise TooFewSamplesError(f"seed {seed}: {found[seed].found}{more}", remedies, found[seed].fewest)


def _resolved_defaults(
    job: Job, saved: Mapping[str, Any], public_sizes: dict[tuple[str | None, ...], int]
) -> dict[str, Any]:
    """The settings that a run resolves when it starts: length, partition and size of the public set.

    The last one depends on the dataset, which is read once for all jobs.
    """
    config, given = job.config, job.given
    means = resolved(config, given.data)
    if config.public is None and given.public is None and config.public_size is None and "public_size" in saved:
        source = (config.dataset, config.data, config.data_folder)
        if source not in public_sizes:
            public_sizes[source] = public_size(config, given.data or load_dataset(config))
        means["public_size"] = public_sizes[source]
    return means


def _first_difference(keys: Iterable[str], saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describes the first of these keys whose values differ; empty if none does."""
    for key in keys:
        there, here = saved.get(key), wanted.get(key)
        if isinstance(there, dict) and isinstance(here, dict) and there != here:
            return _first_difference({**there, **here}, there, here)
        if there != here:
            return f"{key}: {there!r} there, {here!r} here"
    return ""


def run_job(
    job: Job, notify: Callable[[str, Any], None], should_stop: Callable[[], bool], max_workers: int = 0
) -> JobResult:
    """Runs or resumes one run; returns the result and raises nothing.

    A new run gets at most `max_workers` worker threads (0: as many as its config says).
    """
    from fedal.simulate.callback import Forward
    from fedal.simulate.run import resume, run

    callbacks, config = [Forward(notify, should_stop)], job.config
    try:
        data, public, models = job.given.data, job.given.public, job.given.models_for(job.seed)
        if RunFolder(job.folder).config.exists():
            resume(job.folder, trust=True, data=data, public=public, models=models, callbacks=callbacks)
        else:
            if max_workers:
                config = config.with_(workers=min(config.workers or max_workers, max_workers))
            run(config, job.folder, data=data, public=public, models=models, callbacks=callbacks)
    except NotApplicableError as error:
        return str(error)
    except Exception as error:
        return error
    finally:
        gc.collect()  # a run refers to itself: its data would stay in memory while the next ones are loaded
    return None
