"""Reproduces a paper entry: one comparison per column, all in one pool, then the lines of its table.

Runs are stored in `OUT/SCALE/SETTINGS/METHOD/seed-S`. The settings name the folder, so entries that need the same run
share it, and an interrupted entry resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedal import data as data_sources
from fedal import methods as known_methods
from fedal.campaigns.compare import plan_comparison
from fedal.campaigns.job import Job, Watcher
from fedal.campaigns.paper import entries
from fedal.campaigns.paper.entries import Column, PaperEntry
from fedal.campaigns.paper.outcome import Outcome, Scale, TableLine, config_text
from fedal.campaigns.pool import JobOutcome, run_jobs
from fedal.data.check import check


def reproduce(
    entry: PaperEntry,
    scale: Scale,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 0,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Runs or resumes all runs of an entry. A missing dataset or method becomes a reason in the lines."""
    dataset, words, problem = choose_data(entry.dataset, scale)
    outcome = Outcome(entry, scale, words, out / scale, notes=[*entry.notes])
    if scale == "small":
        outcome.notes.append(_what_small_means(entry, dataset))
    n_seeds = seeds or (entries.FULL_SEEDS if scale == "full" else entry.small_on(dataset).seeds)
    settings = {
        column.name: entries.full_settings(entry, column)
        if scale == "full"
        else entries.small_settings(entry, column, dataset)
        for column in entry.columns
    }
    if problem:
        for column in entry.columns:
            whats = column.paper if entry.kind == "variances" else entry.methods_in(column)
            outcome.lines += [_line_without(column, what, settings[column.name], problem) for what in whats]
    elif entry.kind == "data":
        from fedal.campaigns.paper.readings import partition_line

        outcome.lines += [partition_line(outcome, column, settings[column.name], n_seeds) for column in entry.columns]
    else:
        _compare(outcome, settings, n_seeds, partial(run_jobs, parallel=jobs, watch=watch, should_stop=should_stop))
    return outcome


def choose_data(name: str, scale: Scale) -> tuple[str, str, str]:
    """The dataset to use for the paper's dataset `name`, its description, and what is missing (empty: nothing)."""
    report = check(name) if data_sources.is_installed(name) else None
    if report is not None and report.ok:
        return name, name, ""
    if report is not None and scale == "small" and "accept_unverified" in entries.SMALL_SCALES[name].settings:
        return name, f"{name} (files that are not the publisher's, such as the restored SVHN-40k)", ""
    command = data_sources.describe(name).fetch_command()
    state = "is not installed" if report is None else "has files that are not the publisher's"
    if scale == "full":
        return name, name, f"{name} {state}; type: {command}"
    return entries.STAND_IN, f"{entries.STAND_IN} in place of {name}, which {state} (type: {command})", ""


def minutes(entry: PaperEntry, dataset: str, cores: int = 2) -> float:
    """A rough estimate of the minutes that the small-scale version takes on idle cores."""
    if entry.kind == "data":
        return 1.0
    small_scale = entry.small_on(dataset)
    measuring = 6 if entry.kind == "variances" else 1  # factor over a plain run, measured on svhn
    runs = small_scale.seeds * sum(len(entry.methods_in(column)) for column in entry.columns)
    return runs * small_scale.run_s * measuring / cores / 60


def folder_name(settings: Mapping[str, Any]) -> str:
    """The folder of a comparison; it names all settings that differ between the runs of one scale."""
    parts = [settings["dataset"], *(["same"] if settings.get("models") == "same" else [])]
    parts += [f"alpha-{settings.get('alpha', 1.0):g}", f"clients-{settings['clients']}"]
    parts += [f"public-{settings['public_size']}", f"iterations-{settings['iterations']}"]
    parts += [f"tau-{settings['tau']}"] if "tau" in settings else []
    return "-".join([*parts, *settings.get("instruments", ())])


def _what_small_means(entry: PaperEntry, dataset: str) -> str:
    small_scale = entry.small_on(dataset)
    if entry.kind == "data":
        return f"small means: the dataset is {dataset} as installed; nothing is trained"
    settings = {**small_scale.settings, **_small_options(entry, dataset)}
    if "models" in entry.settings:
        settings["models"] = entry.settings["models"]
    shown = [f"{key} {' and '.join(value) if isinstance(value, tuple) else value}" for key, value in settings.items()]
    shown += [f"|P| times {small_scale.public_share:g}"] if small_scale.public_share != 1 else []
    shown += [f"clients times {small_scale.client_share:g}"] if "clients" in entry.columns[0].settings else []
    shown += [small_scale.words] if small_scale.words else []
    return (
        f"small means: {', '.join(shown)}; differences from the paper's numbers are differences between two settings: "
        "compare the order of the methods, not the numbers"
    )


def _small_options(entry: PaperEntry, dataset: str) -> dict[str, Any]:
    """The options of small-scale runs that at least one method of the entry has."""
    settings = entry.small_on(dataset).settings
    known = {key for name in _installed(entry.methods) for key in known_methods.get(name).options.model_fields}
    options: dict[str, Any] = {"pretrain_iterations": round(entries.PRETRAIN_SHARE * settings["iterations"])}
    if isinstance(settings.get("models"), tuple):  # the dataset's largest candidate would take most of the time
        options["server_model"] = settings["models"][-1]
    return {key: value for key, value in options.items() if key in known}


def _installed(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in known_methods.names()]


def _line_without(column: Column, what: str, settings: Mapping[str, Any], reason: str) -> TableLine:
    return TableLine(column.name, what, config_text(settings), (), column.paper.get(what, entries.FIGURE_ONLY), reason)


def _compare(
    outcome: Outcome,
    settings: Mapping[str, dict[str, Any]],
    seeds: int,
    run_all: Callable[[Sequence[Job]], Sequence[JobOutcome]],
) -> None:
    """Runs the comparisons of all columns and adds their lines. `settings` maps each column to its settings."""
    from fedal.campaigns.paper.readings import read_lines

    entry = outcome.entry
    plans = []
    for column in entry.columns:
        name, each = column.name, settings[column.name]
        options = _small_options(entry, each["dataset"]) if outcome.scale == "small" else {}
        path, label = outcome.folder / folder_name(each), name if len(settings) > 1 else ""
        plans.append(plan_comparison(_installed(entry.methods_in(column)), seeds, path, {**each, **options}, label))
    ended = iter(run_all([job for plan in plans for job in plan.all_jobs]))
    for column, plan in zip(entry.columns, plans, strict=True):
        found = plan.conclude([next(ended) for _ in plan.all_jobs])
        outcome.rows[column.name] = found.asked
        outcome.notes += [note for note in found.notes if note not in outcome.notes]
        for row in found.asked:
            outcome.lines += read_lines(outcome, column, row, settings[column.name], plan.path)
        for name in entry.methods_in(column):
            if name not in known_methods.names():
                outcome.lines.append(_line_without(column, name, settings[column.name], "this method is not installed"))
