"""Describes mistakes in the settings, one line each: what was found, where, and what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fedal import data
from fedal.data.partition import PARTITIONS
from fedal.facts import facts_of

ALIASES = {"learning_rate": "lr", "model": "models", "num_clients": "clients", "n_clients": "clients"}
"""Common names of a setting in other libraries -> its name here."""

REMOVED = {
    "allow_overlap": "the name of the partition says it now. Remove this setting. If the partition is dirichlet-client "
    "or dirichlet-client-k, add -balanced to its name where allow_overlap was false (the same bits as before), or "
    "-overlap where it was true."
}
"""A setting of earlier versions -> what to do instead."""

WRONG_TYPE = ("tuple_type", "int_type", "int_parsing", "string_type", "bool_type", "bool_parsing")
PATTERN = "string_pattern_mismatch"
TYPE_NAME = re.compile(r"constrained-|tuple\[|literal\[|str$|int$|bool$")  # pydantic's names of a union's branches


def unknown_setting(key: str, known: Sequence[str], methods: Iterable[str]) -> str:
    """The message for a key that is neither a setting nor an option of these methods."""
    if key in REMOVED:
        return f"{key}: this setting no longer exists; {REMOVED[key]}"
    near = [ALIASES[key]] if key in ALIASES else difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
    return f"{key}: not a setting, and not an option of {', '.join(methods)}. {hint}"


def unknown_names(values: Mapping[str, Any]) -> dict[str, str]:
    """setting -> message, for a dataset or partition that does not exist."""
    problems: dict[str, str] = {}
    known = {"dataset": ("dataset", data.names()), "partition": ("partition", list(PARTITIONS))}
    for key, (what, names) in known.items():
        name = values.get(key, names[0])
        if name in names or (key == "dataset" and ("data" in values or values.get("data_in_python"))):
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
            near = difflib.get_close_matches(where.split(".")[-1], known, n=1)
            lines.setdefault(where, f"{where}: no such setting." + (f" Did you mean {near[0]}?" if near else ""))
        else:
            lines.setdefault(where, f"{where} = {problem['input']!r}: {expected}.")
    # A wrong entry of a list is reported once, not again as "this list is not a number".
    return [line for where, line in lines.items() if not any(other.startswith(f"{where}.") for other in lines)]
