"""What the shell offers after Tab: the values of settings that have names. None of this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedal import data, methods
from fedal.config import Config
from fedal.data.partition import PARTITIONS
from fedal.models import MODELS

Complete = Callable[[str], list[str]]


def complete_method(incomplete: str) -> list[str]:
    return _starting(incomplete, methods.names())


def complete_dataset(incomplete: str) -> list[str]:
    return _starting(incomplete, data.names())


def complete_setting(incomplete: str) -> list[str]:
    return _starting(incomplete, Config.model_fields)


def complete_methods(incomplete: str) -> list[str]:
    """The last of several names with commas."""
    return _last_of_several(incomplete, [*methods.names(), "all"])


def complete_models(incomplete: str) -> list[str]:
    return _last_of_several(incomplete, [*MODELS, "auto", "same"])


def complete_partition(incomplete: str) -> list[str]:
    return _starting(incomplete, PARTITIONS)


OF_SETTINGS: dict[str, Complete] = {
    "method": complete_method,
    "dataset": complete_dataset,
    "models": complete_models,
    "partition": complete_partition,
}


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _last_of_several(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _starting(last, names)]
