"""Methods x seeds under one protocol: a table with mean and spread, as CSV, and one plot.

Every run has its own folder `OUT/METHOD/seed-S`, so a comparison that was interrupted continues where it was, and one
that grows (more seeds, more methods) plays only what is new.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import queue
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedal import methods as known_methods
from fedal.config import Config, read_toml, unknown_setting
from fedal.durable import write_atomically
from fedal.errors import ConfigError, NotApplicableError
from fedal.machine import available_cores
from fedal.messages import in_words
from fedal.records.folder import Run, RunFolder, named_code

CSV_COLUMNS = [
    "method",
    "seeds",
    "test_accuracy_mean",
    "test_accuracy_spread",
    "worst_client_mean",
    "iterations",
    "up_bytes",
    "down_bytes",
    "seconds_mean",
    "black_box",
    "reveals",
    "not_applicable",
]
# Settings that change no bit of a result by themselves.
IGNORED_DIFFERENCES = {
    "workers",
    "engine",
    "ray_address",
    "checkpoint_every",
    "preset",
    "require",
    "data_folder",
    "instruments",
}


@dataclass
class Row:
    """One method in the table: its finished runs, or why there are none."""

    method: str
    runs: list[Run] = field(default_factory=list)
    not_applicable: str | None = None

    def column(self, key: str) -> list[float]:
        return [float(run.final[key]) for run in self.runs]

    def by_seed(self, key: str) -> dict[int, float]:
        return {run.config.seed: float(run.final[key]) for run in self.runs}

    def mean(self, key: str) -> float:
        return statistics.fmean(self.column(key))

    def spread(self, key: str) -> float:
        """Standard deviation over seeds (n - 1); 0 for a single seed."""
        values = self.column(key)
        return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass
class Comparison:
    """The rows in the order they were asked for."""

    path: Path
    seeds: tuple[int, ...]
    rows: list[Row]
    notes: list[str]  # what makes the rows unequal

    def write_csv(self) -> Path:
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        writer.writerow(CSV_COLUMNS)
        for row in self.rows:
            method = known_methods.get(row.method)
            numbers: list[Any] = [0, "", "", "", "", "", "", ""]
            if row.runs:
                final = row.runs[0].final
                numbers = [len(row.runs), row.mean("test_accuracy"), row.spread("test_accuracy")]
                numbers += [row.mean("test_accuracy_min"), final["iteration"], final["up_bytes"], final["down_bytes"]]
                numbers += [round(row.mean("seconds"), 3)]
            writer.writerow(
                [row.method, *numbers, method.black_box, in_words(method.reveals), row.not_applicable or ""]
            )
        path = self.path / "table.csv"
        write_atomically(path, buffer.getvalue().encode())
        return path


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    method: str
    seed: int
    config: Config
    folder: Path


Watcher = Callable[[Job, str, Any], None]
"""Told about a job: ("started" | "advanced" | "recorded" | "warned" | "finished" | "not applicable", details)."""


def compare(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    out: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    jobs: int = 0,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Plays or completes all runs, `jobs` at a time (0: one per core), and writes table.csv and curves.png.

    `settings` are those of `Config`; an option that only some of the methods have goes to those.
    """
    path = Path(out)
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    names = list(known_methods.names()) if list(methods) == ["all"] else list(dict.fromkeys(methods))
    rows = {name: Row(name) for name in names}
    planned = _plan(rows, chosen, path, dict(settings or {}), everything=list(methods) == ["all"])
    public_sizes: dict[tuple[str | None, ...], int] = {}
    for job in planned:
        refuse_other_run(job, public_sizes)
    RunFolder(path).create()
    cores = available_cores()
    waiting = []
    for job in planned:
        if RunFolder(job.folder).summary.exists():
            _settle(job, None, rows, watch)
        else:
            waiting.append(job)
    jobs = min(jobs or cores, len(waiting))
    if jobs > 1:
        _play_side_by_side(waiting, jobs, max(1, cores // jobs), rows, watch, should_stop)
    else:
        for job in waiting:
            _settle(job, play_job(job, partial(watch, job), should_stop), rows, watch)
    for row in rows.values():
        row.runs.sort(key=lambda run: run.config.seed)
    comparison = Comparison(path, chosen, list(rows.values()), unequal({job.method: job.config for job in planned}))
    comparison.write_csv()
    return comparison


def _plan(
    rows: Mapping[str, Row], seeds: Sequence[int], path: Path, settings: dict[str, Any], *, everything: bool
) -> list[Job]:
    """One config per run, all checked before the first starts."""
    objects = {name: known_methods.get(name) for name in rows}
    shared = {key: value for key, value in settings.items() if key in Config.model_fields}
    options = {key: value for key, value in settings.items() if key not in Config.model_fields}
    known = [key for method in objects.values() for key in method.options.model_fields]
    problems = [unknown_setting(key, [*Config.model_fields, *known], list(rows)) for key in options if key not in known]
    if problems:
        raise ConfigError("\n".join(problems))
    jobs = []
    for name, method in objects.items():
        mine = {key: value for key, value in options.items() if key in method.options.model_fields}
        try:
            for seed in seeds:
                config = Config(**{**shared, **mine, "method": name, "seed": seed})
                jobs.append(Job(name, seed, config, path / name / f"seed-{seed}"))
        except ConfigError as error:
            if not everything or not isinstance(error, NotApplicableError):
                raise
            rows[name].not_applicable = str(error)
    return jobs


def unequal(configs: Mapping[str, Config]) -> list[str]:
    """What a reader must know before comparing the rows: unlike schedules, unlike work, unlike models."""
    tau = {name: config.tau for name, config in configs.items()}
    work = {
        name: config.method_object().local_steps(config.options) * config.total_rounds
        for name, config in configs.items()
    }
    models = {name: config.method_object().evaluates for name, config in configs.items()}
    notes = []
    if len(set(tau.values())) > 1:
        notes.append(f"the methods have different tau: {_listed(tau)}.")
    if len(set(work.values())) > 1:
        notes.append(f"the methods get different amounts of local work (private batches per client): {_listed(work)}.")
    if "server" in models.values() and len(set(models.values())) > 1:
        notes.append(f"the accuracy column mixes models of clients with models of the server: {_listed(models)}.")
    return notes


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def refuse_other_run(job: Job, public_sizes: dict[tuple[str | None, ...], int]) -> None:
    """A folder of the same comparison may be continued; any other is not touched."""
    folder = RunFolder(job.folder)
    if not folder.config.exists():
        folder.refuse_if_taken()
        return
    wanted = job.config.model_dump(exclude_none=True)
    strange = set(named_code(read_toml(folder.config))) - set(named_code(wanted))
    if strange:  # not even imported: the folder may be somebody else's
        raise ConfigError(f'{job.folder} holds a run with other code, "{strange.pop()}". Choose another --out.')
    saved = folder.read_config(trust=True).model_dump(exclude_none=True)
    wanted = {**_what_defaults_mean(job.config, saved, public_sizes), **wanted}
    if job.config.stacked == "auto":  # a run that began with or without stacks goes on as it began
        wanted["stacked"] = saved["stacked"]
    keys = [
        key for key in Config.model_fields if key in saved.keys() | wanted.keys() and key not in IGNORED_DIFFERENCES
    ]
    different = [key for key in keys if saved.get(key) != wanted.get(key)]
    if different:
        key = different[0]
        raise ConfigError(
            f"{job.folder} holds a run with other settings ({_first_difference(key, saved, wanted)}). "
            "Choose another --out."
        )


def _what_defaults_mean(
    config: Config, saved: Mapping[str, Any], public_sizes: dict[tuple[str | None, ...], int]
) -> dict[str, Any]:
    """The settings that a run resolves when it starts: length, partition and size of the public set.

    The last one depends on the data, which are read once for all runs of the comparison.
    """
    from fedal.simulate.world import default_partition, load_dataset, public_size

    means: dict[str, Any] = {"partition": default_partition(config)}
    if config.iterations is None and config.rounds is None:
        means["iterations"] = config.total_rounds * config.tau
    if config.public is None and config.public_size is None and "public_size" in saved:
        source = (config.dataset, config.data, config.data_folder)
        if source not in public_sizes:
            public_sizes[source] = public_size(config, load_dataset(config))
        means["public_size"] = public_sizes[source]
    return means


def _first_difference(key: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    there, here = saved.get(key), wanted.get(key)
    if isinstance(there, dict) and isinstance(here, dict):
        inner = next(name for name in {**there, **here} if there.get(name) != here.get(name))
        return _first_difference(inner, there, here)
    return f"{key}: {there!r} there, {here!r} here"


def play_job(
    job: Job, tell: Callable[[str, Any], None], should_stop: Callable[[], bool], workers: int = 0
) -> str | None:
    """Plays or completes one run; gives the reason if the method does not apply here."""
    from fedal.simulate.run import Listener, resume, run

    listener = Listener(
        started=lambda config, world, models, done, total: tell("started", (done * config.tau, total * config.tau)),
        advanced=lambda done, total: tell("advanced", (done, total)),
        recorded=lambda row: tell("recorded", row),
        warned=lambda text: tell("warned", text),
        should_stop=should_stop,
    )
    try:
        if RunFolder(job.folder).config.exists():
            resume(job.folder, trust=True, listener=listener)
        else:
            run(job.config.with_(workers=workers) if workers else job.config, job.folder, listener=listener)
    except NotApplicableError as error:
        return str(error)
    return None


def _settle(job: Job, not_applicable: str | None, rows: Mapping[str, Row], watch: Watcher) -> None:
    row = rows[job.method]
    if not_applicable is None:
        row.runs.append(Run(job.folder, trust=True))
        watch(job, "finished", row.runs[-1].final)
    else:
        row.not_applicable = not_applicable
        watch(job, "not applicable", not_applicable)


_in_worker: dict[str, Any] = {}  # of a worker process: the queue of news, and the event that asks it to stop


def _start_worker(news: Any, stop: Any) -> None:
    """Ctrl-C reaches the whole process group; only the parent answers it, and workers end with their parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    news.cancel_join_thread()  # a worker may end although nobody listens any more
    _in_worker.update(news=news, stop=stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # the last checkpoint stands


def _play_in_worker(index: int, job: Job, workers: int) -> str | None:
    news, stop = _in_worker["news"], _in_worker["stop"]
    return play_job(job, lambda event, details: news.put((index, event, details)), stop.is_set, workers)


def _play_side_by_side(
    planned: Sequence[Job],
    jobs: int,
    workers: int,
    rows: Mapping[str, Row],
    watch: Watcher,
    should_stop: Callable[[], bool],
) -> None:
    """Runs in processes of their own: small nets are bound by Python, which threads of one process share."""
    context = multiprocessing.get_context("spawn")
    news, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(news, stop)) as pool:
        futures = {pool.submit(_play_in_worker, index, job, workers): job for index, job in enumerate(planned)}
        waiting = set(futures)
        try:
            while waiting:
                _pass_on(news, planned, watch)
                if should_stop():
                    stop.set()
                done = {future for future in waiting if future.done()}
                waiting -= done
                for future in done:
                    _settle(futures[future], future.result(), rows, watch)
            _pass_on(news, planned, watch)
        except BaseException:
            stop.set()  # the others finish their round, save and stop
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _pass_on(news: Any, planned: Sequence[Job], watch: Watcher) -> None:
    """Hands on what the worker processes tell within a moment, however much it is."""
    end = time.monotonic() + 0.2
    try:
        while (left := end - time.monotonic()) > 0:
            index, event, details = news.get(timeout=left)
            watch(planned[index], event, details)
    except queue.Empty:
        return
