"""Settings in words: default, meaning, what another value changes, and whether sites are told. One row for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from fedal import methods
from fedal.config.mistakes import unknown_setting
from fedal.config.settings import Config
from fedal.errors import ConfigError
from fedal.facts import facts_of


class Described(NamedTuple):
    """One setting, ready to print."""

    name: str
    default: str
    meaning: str
    changes: str
    sites: str  # are told its value, yes or no


COLUMNS = ("setting", "default", "meaning", "changes", "sites are told")


def describe_settings(model: type[BaseModel] = Config) -> list[Described]:
    """Every setting of a config, or every option of a method, in the order of its definition."""
    facts = facts_of(model)
    return [
        Described(
            name,
            _in_words(field.get_default(call_default_factory=True)),
            field.description or "",
            facts[name].changes,
            "yes" if facts[name].sites else "no",
        )
        for name, field in model.model_fields.items()
        if name != "options"  # these are settings of their own
    ]


def find_settings(names: Sequence[str], method: str | None = None) -> list[Described]:
    """The settings called `names`: those of a config, then options of `method`, or of any method where none is given.

    Without names: all settings of a config, and with a method its options instead. Raises ConfigError.
    """
    if not names:
        return describe_settings(methods.get(method).options) if method else describe_settings()
    known = _options([method] if method else methods.names()) | {row.name: [row] for row in describe_settings()}
    plain = [name.removeprefix("options.") for name in names]
    unknown = [name for name in plain if name not in known]
    if unknown:
        of = [method or "any method"]
        raise ConfigError("\n".join(unknown_setting(name, list(known), of) for name in unknown))
    return [row for name in plain for row in known[name]]


def _options(names: Iterable[str]) -> dict[str, list[Described]]:
    """option -> one row; several, each with the methods it belongs to, where methods differ in it."""
    found: dict[str, dict[Described, list[str]]] = {}
    for method in names:
        for row in describe_settings(methods.get(method).options):
            found.setdefault(row.name, {}).setdefault(row, []).append(method)
    return {
        name: [row if len(rows) == 1 else row._replace(name=f"{name} ({', '.join(of)})") for row, of in rows.items()]
        for name, rows in found.items()
    }


def _in_words(default: object) -> str:
    if default is None:
        return "-"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ", ".join(map(str, default)) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)
