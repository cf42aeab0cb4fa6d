"""Reads a config from a TOML file and `--set` assignments."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedal.config.settings import Config
from fedal.durable import read_bounded
from fedal.errors import ConfigError


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> Config:
    """The config in a TOML file (if any) with overrides on top."""
    values = read_settings(path)
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return Config(**merge_settings(values, given))
    except ConfigError as error:
        options = values.get("options")
        in_file = {*values, *(options if isinstance(options, dict) else ())} - given.keys()
        lines = [f"{path}, {line}" if _key_of(line) in in_file else line for line in str(error).splitlines()]
        raise type(error)("\n".join(lines)) from None


def _key_of(problem: str) -> str:
    """The setting that a line of a ConfigError is about."""
    found = re.match(r"(?:options\.)?(\w+)", problem)
    return found[1] if found else ""


def read_settings(path: Path | None) -> dict[str, Any]:
    """The settings of a run in a TOML file (if any), unchecked, without the tables for a server and a comparison."""
    values = read_toml(path) if path is not None else {}
    values.pop("comparison", None)  # see cli/against.py
    if values.pop("deployment", None) is not None:  # see deploy/settings.py
        values.setdefault("stacked", False)  # sites never stack, and a simulation of this file must be bit-identical
    return values


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bounded(path).decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # bad TOML, bad UTF-8, a number of 5,000 digits, 1,000 brackets
        raise ConfigError(f"{path}: is not valid TOML: {error}.") from None


def merge_settings(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values with overrides on top.

    A flat method option overrides the same option in [options]. If `overrides` sets the length as either iterations or
    rounds, both of these are dropped from `values`.
    """
    if {"iterations", "rounds"} & overrides.keys():
        values = {key: value for key, value in values.items() if key not in ("iterations", "rounds")}
    merged = {**values, **overrides}
    if isinstance(values.get("options"), dict) and isinstance(overrides.get("options", {}), dict):
        merged["options"] = {key: value for key, value in dict(values["options"]).items() if key not in overrides}
        merged["options"] |= dict(overrides.get("options", {}))
    return merged


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """The `key=value` assignments of --set as a dict; values are TOML if they parse, else plain strings."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {assignment}: expected key=value, for instance --set tau=3.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = text
        values[key.strip().removeprefix("options.")] = value
    return values
