"""Chooses the clients that train as one stack, from fixed rules and never from timings: the bits must not vary.

`stacked = auto` stacks what has the bits of single clients, by the table in fedal.learners.stacked.bits. One exception
is older than that rule: if all clients have a LeNet5, they are stacked, and the run is recorded as `stacked = true`.
`stacked = true` stacks every model that is a chain of known layers (fedal.learners.stacked.chain).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

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


class Kind(NamedTuple):
    """What clients in one stack have in common."""

    signature: tuple[str, ...]
    most: int  # clients in one stack


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
    left_out = {client for client, attacker in config.attacker_table.items() if attacker.attack == ABSENT}
    modules = {name: module_of(learner) for name, learner in learners.items() if name not in left_out}
    return grouped(kinds(config, models, modules, sample_shape), modules)


def module_of(learner: Learner) -> nn.Module | None:
    """The module of a learner that can be in a stack."""
    return learner.module if type(learner) is TorchLearner else None


def kinds(
    config: Config, models: Mapping[str, str], modules: Mapping[str, nn.Module | None], sample_shape: Sequence[int]
) -> dict[str, Kind]:
    """The kinds of the clients that can be stacked, by what their modules compute."""
    resolved = resolve_stacked(config, models)
    found: dict[str, Kind] = {}
    known: dict[int, Kind | None] = {}  # clients of one kind may share a module
    for name, module in modules.items() if resolved is not False else ():
        if id(module) not in known:
            known[id(module)] = _kind(config, resolved, module, sample_shape)
        if (kind := known[id(module)]) is not None:
            found[name] = kind
    return found


def grouped(kinds: Mapping[str, Kind], names: Iterable[str]) -> list[tuple[str, ...]]:
    """The clients that train as stacks, in the order of the names; one that is left alone is in no stack."""
    groups: dict[Kind, list[str]] = {}
    for name in names:
        if name in kinds:
            groups.setdefault(kinds[name], []).append(name)
    return [chunk for kind, alike in groups.items() for chunk in _chunks(alike, kind.most) if len(chunk) > 1]


def _kind(config: Config, resolved: Stacked, module: nn.Module | None, sample_shape: Sequence[int]) -> Kind | None:
    if module is None:
        return None
    try:
        chain = chain_of(module, len(sample_shape))
    except TypeError:
        return None
    if resolved == "auto" and not has_single_bits(chain, config.batch_size, sample_shape):
        return None
    if config.is_partial and any(_counts_batches(layer) for layer in chain):
        return None
    return Kind(signature(chain), _size(chain))


def _counts_batches(layer: nn.Module) -> bool:
    """Whether what a layer computes depends on the number of its batches, which members of a cohort do not share."""
    return isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.momentum is None


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
    if config.is_partial and getattr(config.options, "repetitions", False):
        return "replay keeps what each client was taught, and the clients of a cohort were taught in different rounds."
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
