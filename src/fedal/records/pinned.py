"""Settings that a checkpoint pins: a run resumed with another value would be two runs under one name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from fedal.config import Config
from fedal.errors import ConfigError
from fedal.facts import facts_of

MAY_CHANGE = {"iterations", "rounds", "data"}
"""A run may become longer, and its data file may move: partition.npz verifies the content."""


def pinned_settings(config: Config) -> dict[str, Any]:
    """setting -> value as JSON, for every setting that changes the weights or the record; options as `options.NAME`."""
    options = {f"options.{name}": value for name, value in _with_effect(config.options).items()}
    return {
        name: value for name, value in _with_effect(config).items() if name not in {*MAY_CHANGE, "options"}
    } | options


def refuse_changed_settings(config: Config, saved: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError if a pinned setting differs between `config`, found in `where`, and a checkpoint's `saved`.

    A setting that the checkpoint does not know is newer than it.
    """
    present = pinned_settings(config)
    changed = [name for name in present if name in saved and present[name] != saved[name]]
    if changed:
        each = "; ".join(
            f"{name} = {_shown(present[name])}, in the checkpoint {_shown(saved[name])}" for name in changed
        )
        raise ConfigError(
            f"{where} has other settings than the run's checkpoint: {each}. A run keeps its settings. "
            "Put the old value back, or start a new run in another folder."
        )


def _with_effect(model: BaseModel) -> dict[str, Any]:
    names = {name for name, facts in facts_of(type(model)).items() if facts.changes != "nothing"}
    return model.model_dump(mode="json", include=names)


def _shown(value: Any) -> str:
    text = "(not set)" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
