"""Chooses the clients that train as one stack, from fixed rules and never from timings: the bits must not vary.

`stacked = auto` stacks what has the bits of single clients, by the table in fedal.learners.stacked.bits. One exception
is older than that rule: if all clients have a LeNet5, they are stacked, and the run is recorded as `stacked = true`.
`stacked = true` stacks every model that is a chain of known layers (fedal.learners.stacked.chain).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import nn

from fedal.config import Config
from fedal.config.attackers import ABSENT
from fedal.errors import ConfigError
from fedal.learners.base import Learner
from fedal.learners.stacked.bits import has_single_bits
from fedal.learners.stacked.chain import chain_of, signature
from fedal.learners.torch_learner import TorchLearner

STACK = 5  # clients in one stack: larger stacks share operator overhead, smaller ones keep more cores busy
TINY_STACK = 32  # of networks that take no longer than the calls of their operators
TINY = 16_384  # parameters
STACKABLE_METHODS = (  # their computation needs only outputs of shape (..., B, K)
    "local", "fedmd", "fedmd-lf", "fedal", "ds-fl", "cronus", "fedgems", "fedeven", "fedlift", "expguard",
    "kt-pfl",
)  # fmt: skip

Stacked = bool | Literal["auto"]


def resolve_stacked(config: Config, models: Mapping[str, str]) -> Stacked:
    """What a run with these models records; raises ConfigError if stacked = true is not possible.

    `auto` remains: whatever it stacks, now or in a later version, has the bits of single clients.
    """
    obstacle = _obstacle(config)
    if config.stacked is True and obstacle:
        raise ConfigError(f"stacked = true: {obstacle} Leave stacked at auto, or set it to false.")
    if config.stacked == "auto" and obstacle:
        return False
    if config.stacked == "auto" and all(model == "lenet5" for model in models.values()):
        return True
    return config.stacked


def stacks(
    config: Config, models: Mapping[str, str], learners: Mapping[str, Learner], sample_shape: Sequence[int]
) -> list[tuple[str, ...]]:
    """Groups of clients with one architecture, in client order; a client left alone is in no group.

    A stack leaves a round as a whole, so a client that a simulation leaves out is in no group either.
    """
    resolved = resolve_stacked(config, models)
    if resolved is False:
        return []
    left_out = {client for client, attacker in config.attacker_table.items() if attacker.attack == ABSENT}
    groups: dict[tuple[str, ...], list[str]] = {}
    sizes: dict[tuple[str, ...], int] = {}
    for name, learner in learners.items():
        chain = _chain(learner, len(sample_shape)) if name not in left_out else None
        if chain is None or (resolved == "auto" and not has_single_bits(chain, config.batch_size, sample_shape)):
            continue
        groups.setdefault(signature(chain), []).append(name)
        sizes[signature(chain)] = _size(chain)
    return [chunk for kind, names in groups.items() for chunk in _chunks(names, sizes[kind]) if len(chunk) > 1]


def _chain(learner: Learner, input_rank: int) -> list[nn.Module] | None:
    """The layers of a learner that can be stacked."""
    if type(learner) is not TorchLearner:
        return None
    try:
        return chain_of(learner.module, input_rank)
    except TypeError:
        return None


def _size(chain: Sequence[nn.Module]) -> int:
    """The most clients in one stack of such chains."""
    numbers = sum(parameter.numel() for layer in chain for parameter in layer.parameters())
    convolves = any(isinstance(layer, nn.Conv2d) for layer in chain)
    return TINY_STACK if numbers <= TINY and not convolves else STACK


def _chunks(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]


def _obstacle(config: Config) -> str | None:
    if config.method not in STACKABLE_METHODS:
        return f"{config.method} cannot be stacked; methods that can: {', '.join(STACKABLE_METHODS)}."
    if config.is_partial:
        return (
            f"participation = {config.participation} draws clients one by one, and a stack leaves a round as a whole."
        )
    if config.engine != "threads":
        return f"engine = {config.engine} runs clients in separate processes; stacks need engine = threads."
    if config.optimizer != "adam" or not config.fused or not config.channels_last:
        return "stacks need optimizer = adam, fused = true and channels_last = true."
    plain = ("schedule", "constant"), ("clip", 0.0), ("class_weights", "none"), ("label_smoothing", 0.0)
    if changed := [name for name, value in plain if getattr(config, name) != value]:
        return f"{changed[0]} is set; the members of a stack take the same plain steps."
    if any(table.overrides for table in config.client_tables):
        return "clients have optimizer or loss settings of their own; the members of a stack take the same steps."
    if config.precision == "bf16":
        return "precision = bf16 makes small networks slower, not faster; stacks need fp32 or fp64."
    if separate := [name for name in config.instruments if name != "bottlenecks"]:
        return f"instruments = {','.join(separate)} need separate learners."
    return None
