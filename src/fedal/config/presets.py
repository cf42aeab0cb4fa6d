"""Presets: values for settings that the user leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from fedal import data, methods
from fedal.data.source import Paper


def with_preset(values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values, completed by those of preset `paper` if `values` selects it."""
    if values.get("preset") != "paper":
        return values
    asked = {key: values.get(key, defaults[key]) for key in ("dataset", "alpha", "method")}
    source = data.SOURCES.get(asked["dataset"])
    paper = source.paper if source else Paper()
    preset: dict[str, Any] = {"lr": paper.lr}
    if source is None or source.public_size is None:  # otherwise the dataset is too small for the paper's public set
        preset["public_size"] = paper.public_size
    if paper.clients is not None:
        preset["clients"] = paper.clients
    if "rounds" not in values:
        preset["iterations"] = paper.length(asked["alpha"] if isinstance(asked["alpha"], int | float) else 1.0)
    name = asked["method"]
    if isinstance(name, str) and (":" in name or name in methods.names()):
        given = {**as_dict(values.get("options", {})), **values}
        preset |= {key: value for key, value in methods.get(name).paper_options.items() if key not in given}
    return {**preset, **values}


def as_dict(options: Any) -> dict[str, Any]:
    """Method options, from an object or a table, as a dict; empty if `options` is neither."""
    if isinstance(options, BaseModel):
        return options.model_dump()
    return dict(options) if isinstance(options, Mapping) else {}
