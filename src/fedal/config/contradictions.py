"""Contradictions between settings that are valid on their own, each in one sentence with advice."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedal import methods
from fedal.config.attackers import attackers_of
from fedal.config.client_data import data_problems
from fedal.config.local_settings import local_problems
from fedal.config.participation import participation_problems
from fedal.data.augment import OF_INPUTS_ONLY
from fedal.data.partition import BY_OWNER, POOLED
from fedal.errors import did_you_mean
from fedal.messages import NOT_BLACK_BOX, OUTPUTS_ONLY, Leak, Outputs, in_words
from fedal.metrics.table import METRICS

Config = Any
"""`fedal.config.settings.Config`, whose module imports this one."""

REQUIREMENTS: dict[str, Leak] = {
    "black-box": NOT_BLACK_BOX,
    "outputs-only": ~OUTPUTS_ONLY,
}
"""value of `require` -> what must not cross the wire."""


def contradictions(config: Config) -> list[str]:
    """Contradictions between settings that are valid on their own."""
    problems = []
    method = config.method_object()
    if config.iterations is not None and config.rounds is not None:
        problems.append(
            f"iterations = {config.iterations} and rounds = {config.rounds}: give one of them; "
            f"iterations = rounds x tau, here tau = {config.tau}."
        )
    names = config.client_names
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        problems.append(f'clients: the name "{name}" is used {times} times; names must differ.')
    if not names:
        problems.append("clients: the list is empty; expected at least one client.")
    elif len(names) < method.least_clients:
        problems.append(
            f"clients = {len(names)}: {method.name} exchanges outputs between clients and needs at least 2. "
            "Add clients, or use method local."
        )
    if unknown := [name for name in config.metrics if isinstance(config.metrics, tuple) and name not in METRICS]:
        hint = did_you_mean(unknown[0], METRICS)
        problems.append(f'metrics: "{unknown[0]}" is not a metric. {hint}Expected auto, all, or {", ".join(METRICS)}.')
    problems += local_problems(config.local(""), "")
    for name in config.overridden:
        problems += local_problems(config.local(name), f" of {name}")
    if config.keep_best and not config.own_validation:
        problems.append("keep_best = true: needs data to choose by. Try own_validation = 0.2.")
    if config.keep_best and config.engine == "ray":
        problems.append("keep_best = true: done by engine = threads only.")
    problems += participation_problems(config.participation, len(names), method)
    if config.keep_best and not problems and config.evaluated_clients < len(names):
        problems.append(f"keep_best = true: judges every client. Set eval_clients = {len(names)}.")
    problems += _rest_problems(config)
    problems += _attack_problems(config)
    problems += _augment_problems(config)
    partition = None if config.partition == BY_OWNER else config.partition
    problems += data_problems(
        {str(table.name): table.data for table in config.client_tables},
        {"data": config.data, "partition": partition, "validation": config.validation},
    )
    if config.engine == "ray" and config.instruments:
        problems.append(f"instruments = {','.join(config.instruments)}: measured by engine = threads only.")
    if config.ray_address is not None and config.engine != "ray":
        problems.append(f"ray_address = {config.ray_address!r}: needs engine = ray.")
    if isinstance(config.checkpoint_every, int) and config.checkpoint_every < 1:
        problems.append(f"checkpoint_every = {config.checkpoint_every}: expected at least 1 round, or auto.")
    if config.require and config.partition == POOLED:
        problems.append(
            f"require = {config.require}: partition = {POOLED} reveals all private samples to every client. "
            "Use another partition."
        )
    if config.require and method.reveals & REQUIREMENTS[config.require]:
        revealed = in_words(method.reveals & REQUIREMENTS[config.require])
        allowed = [name for name in methods.names() if not methods.get(name).reveals & REQUIREMENTS[config.require]]
        problems.append(
            f"require = {config.require}: {method.name} sends {revealed}. Methods that do not: {', '.join(allowed)}."
        )
    return problems


def _rest_problems(config: Config) -> list[str]:
    if config.rest == "memory":
        return []
    if not config.is_partial:
        return ["rest = disk: all clients take part in every round, so none is at rest. Set participation."]
    if config.engine != "threads":
        return [f"rest = disk: engine = {config.engine} keeps its clients in actors. Use engine = threads."]
    needed = [name for name in ("instruments", "keep_best") if getattr(config, name)]
    return [f"rest = disk: {name} needs the models in memory. Use rest = memory." for name in needed]


def _augment_problems(config: Config) -> list[str]:
    given = {name: getattr(config, name) for name in ("public_augment", "private_augment") if getattr(config, name)}
    problems = [
        f"{name} = {','.join(changes)}: {config.method} keeps what it learnt about each sample, so samples must not "
        "change."
        for name, changes in given.items()
        if "fixed-samples" in config.method_object().needs
    ]
    if blended := [change for change in config.private_augment if change in OF_INPUTS_ONLY]:
        problems.append(
            f"private_augment = {blended[0]}: it blends samples with different labels. Use shift, flip or noise."
        )
    if (
        getattr(config.options, "replay", 0)
        and config.public_augment
        and not round(config.public_clean * config.batch_size)
    ):
        problems.append(
            f"replay = {config.options.replay}: clients keep what they were taught about unchanged samples, and "
            f"public_clean = {config.public_clean:g} leaves none of {config.batch_size}. Try public_clean = 0.5."
        )
    for name, changes in given.items():
        if len(set(changes)) < len(changes):
            problems.append(f"{name} = {','.join(changes)}: a change is named twice.")
    return problems


def _attack_problems(config: Config) -> list[str]:
    if not config.attackers:
        return []
    other = [kind.__name__ for kind in config.method_object().up if not issubclass(kind, Outputs)]
    if other:
        return [
            f"attackers: they forge outputs; {config.method} uploads {other[0]}. Use a method that sends outputs only."
        ]
    try:
        attackers_of(config.attackers, config.client_names)
    except ValueError as error:
        return [f"attackers: {error}"]
    return []
