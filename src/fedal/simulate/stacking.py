"""Chooses the clients that train as one stack, from a fixed table and never from timings: the bits must not vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedal.config import Config
from fedal.errors import ConfigError

STACK = 5  # clients in one stack: larger stacks share operator overhead, smaller ones keep more cores busy
STACKABLE_METHODS = ("local", "fedmd", "fedmd-lf", "fedal")  # their computation needs only outputs of shape (..., B, K)
STACKABLE_MODELS = ("lenet5", "cnn-small", "mlp-small")  # chains of layers without BatchNorm or dropout
WORTH_STACKING = ("lenet5",)  # what `auto` stacks; docs/performance.md has the measurement


def resolve_stacked(config: Config, models: Mapping[str, str]) -> bool:
    """Whether clients with these models are stacked; raises ConfigError if stacked = true is not possible."""
    obstacle = _obstacle(config)
    if config.stacked is True and obstacle:
        raise ConfigError(f"stacked = true: {obstacle} Leave stacked at auto, or set it to false.")
    if config.stacked == "auto":
        return not obstacle and all(model in WORTH_STACKING for model in models.values())
    return config.stacked


def stacks(config: Config, models: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Groups of up to `STACK` clients with one architecture, in client order; a client left alone is in no group."""
    if not resolve_stacked(config, models):
        return []
    same = {model: [name for name, other in models.items() if other == model] for model in STACKABLE_MODELS}
    return [chunk for names in same.values() for chunk in _chunks(names) if len(chunk) > 1]


def _chunks(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(names[start : start + STACK]) for start in range(0, len(names), STACK)]


def _obstacle(config: Config) -> str | None:
    if config.method not in STACKABLE_METHODS:
        return f"{config.method} cannot be stacked; methods that can: {', '.join(STACKABLE_METHODS)}."
    if config.engine != "threads":
        return f"engine = {config.engine} runs clients in separate processes; stacks need engine = threads."
    if config.optimizer != "adam" or not config.fused or not config.channels_last:
        return "stacks need optimizer = adam, fused = true and channels_last = true."
    if config.precision == "bf16":
        return "precision = bf16 makes small networks slower, not faster; stacks need fp32 or fp64."
    if config.instruments:
        return f"instruments = {','.join(config.instruments)} need separate learners."
    return None
