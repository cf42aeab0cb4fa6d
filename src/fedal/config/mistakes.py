"""Describes mistakes in the settings, one line each: what was found, where, and what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fedal import data
from fedal.config.client_data import client_data
from fedal.data.partition import BY_OWNER, PARTITIONS
from fedal.facts import facts_of

ALIASES = {
    "algorithm": "method", "strategy": "method", "algo": "method",
    "architecture": "models", "arch": "models", "model": "models", "net": "models", "network": "models",
    "parties": "clients", "users": "clients", "split": "partition",
    "fraction": "participation", "fraction_fit": "participation", "join_ratio": "participation",
    "sample_fraction": "participation", "client_fraction": "participation", "clients_per_round": "participation",
    "dirichlet_alpha": "alpha", "concentration": "alpha", "beta": "alpha", "random_seed": "seed",
    "epochs": "iterations, rounds", "epoch": "iterations, rounds", "steps": "iterations, rounds",
    "iters": "iterations", "global_rounds": "rounds", "communication_rounds": "rounds", "comm_rounds": "rounds",
    "local_epochs": "tau", "local_epoch": "tau", "local_steps": "tau", "local_iterations": "tau", "local_iters": "tau",
    "learning_rate": "lr", "lr_rate": "lr", "eta": "lr", "step_size": "lr", "local_lr": "lr",
    "batch": "batch_size", "bs": "batch_size", "opt": "optimizer", "optim": "optimizer",
    "wd": "weight_decay", "decay": "weight_decay", "l2": "weight_decay",
    "temp": "temperature", "t": "temperature", "kd_temperature": "temperature",
    "eval_freq": "eval_every", "eval_frequency": "eval_every", "test_every": "eval_every", "log_every": "eval_every",
    "save_every": "checkpoint_every", "checkpoint_frequency": "checkpoint_every",
    "data_path": "data, data_folder", "data_dir": "data_folder", "root": "data_folder",
    "public_samples": "public_size", "proxy_size": "public_size", "num_public": "public_size", "dtype": "precision",
    "jobs": "workers", "threads": "workers", "gpu": "device", "cuda": "device",
}  # fmt: skip
"""Names in other libraries, in lower case and without "number of" -> the settings here; empty: nothing corresponds."""

NUMBER_OF = re.compile(r"(num|n|nr|number|number_of|total)_(?=.)")
CUTOFF, SHORT_CUTOFF = 0.75, 0.65  # of difflib: one wrong letter in four; in three. A lower cutoff suggests nonsense.

REMOVED = {
    "allow_overlap": "the name of the partition says it now. Remove this setting. If the partition is dirichlet-client "
    "or dirichlet-client-k, add -balanced to its name where allow_overlap was false (the same bits as before), or "
    "-overlap where it was true.",
    "average": "mhat and cfd call it space: write space = probabilities where average was probs.",
}
"""A setting of earlier versions -> what to do instead."""

WRONG_TYPE = (
    "tuple_type", "int_type", "int_parsing", "float_type", "float_parsing", "string_type", "bool_type", "bool_parsing",
)  # fmt: skip
PATTERN = "string_pattern_mismatch"
TYPE_NAME = re.compile(
    r"constrained-|tuple\[|literal\[|str$|int$|float$|bool$"
)  # pydantic's names of a union's branches


def unknown_setting(key: str, known: Sequence[str], methods: Iterable[str]) -> str:
    """The message for a key that is neither a setting nor an option of these methods."""
    name = key.removeprefix("options.")
    if name in REMOVED:
        return f"{key}: this setting no longer exists; {REMOVED[name]}"
    near = nearest(key, known)
    hint = f"Did you mean {near}?" if near else f"Known: {', '.join(known)}."
    return f"{key}: not a setting, and not an option of {', '.join(methods)}. {hint}"


def nearest(key: str, known: Sequence[str]) -> str:
    """The known names that `key` may stand for, joined by "or"; an empty string if none is likely."""
    table, dot, name = key.rpartition(".")
    name = name.lower().replace("-", "_")
    bare = NUMBER_OF.sub("", name)
    for alias in (name, bare):
        if alias in ALIASES:
            meant = [f"{table}{dot}{each}" for each in ALIASES[alias].split(", ")]
            return " or ".join(each for each in meant if each in known)
    for word in (name, bare):
        cutoff = CUTOFF if len(word) > 3 else SHORT_CUTOFF
        found = difflib.get_close_matches(f"{table}{dot}{word}", known, n=1, cutoff=cutoff)
        if found:
            return found[0]
    return ""


def unknown_names(values: Mapping[str, Any]) -> dict[str, str]:
    """setting -> message, for a dataset or partition that does not exist."""
    problems: dict[str, str] = {}
    known = {"dataset": ("dataset", data.names()), "partition": ("partition", list(PARTITIONS))}
    brought = "data" in values or values.get("data_in_python") or client_data(values.get("clients"))
    for key, (what, names) in known.items():
        name = values.get(key, names[0])
        if name in names or (key == "dataset" and brought) or name == BY_OWNER:
            continue
        near = difflib.get_close_matches(str(name).lower().replace("_", "-"), names, n=1)
        hint = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(names)}."
        problems[key] = f'{key}: there is no {what} "{name}". {hint}'
    return problems


def explain(error: ValidationError, model: type[BaseModel], *parts: type[BaseModel]) -> list[str]:
    """One line per mistake that pydantic found in settings of `model`; `parts` are the tables among its fields."""
    facts = facts_of(model)
    lines: dict[str, str] = {}  # place -> mistake
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"] if not TYPE_NAME.match(str(part)))
        expected = problem["msg"][0].lower() + problem["msg"][1:]
        if problem["type"] == PATTERN:
            expected = "expected up to 63 lower-case letters, digits and dashes"
        if problem["type"] in (*WRONG_TYPE, PATTERN) and where in facts and facts[where].expected:
            expected = f"expected {facts[where].expected}"
        if problem["type"] == "extra_forbidden":
            known = [name for each in (model, *parts) for name in each.model_fields]
            near = nearest(where.split(".")[-1], known)
            lines.setdefault(where, f"{where}: no such setting." + (f" Did you mean {near}?" if near else ""))
        else:
            lines.setdefault(where, f"{where} = {problem['input']!r}: {expected}.")
    # A wrong entry of a list is reported once, not again as "this list is not a number".
    return [line for where, line in lines.items() if not any(other.startswith(f"{where}.") for other in lines)]
