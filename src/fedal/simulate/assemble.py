"""Builds the clients, the server and the wire of a run from its config and its data."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn

from fedal.config import Config
from fedal.data.streams import PrivateData, PrivateStack, PublicData, Samples
from fedal.engine.loop import Federation, Workers
from fedal.errors import ConfigError, NotApplicableError
from fedal.learners.base import VERBS, Learner
from fedal.learners.probe import refuse_hidden_randomness
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.methods.base import ClientLogic, ClientSetup, Method, ServerLogic, ServerSetup, Uploads
from fedal.models import build, check_output_width
from fedal.seeding import BatchStream, philox_key, raw_bits, torch_seeded
from fedal.simulate.stacking import stacks
from fedal.simulate.world import Task, World
from fedal.wire import Wire

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.float32}
"""Of weights, data and messages; `bf16` is what torch layers compute in, nothing is kept or sent in it."""

OWNS_MODELS = {"server-model", "weights"}

OwnModels = Mapping[str, nn.Module | Learner]
"""client -> a module to train, or a learner of any framework."""


@dataclass(frozen=True)
class Assembly:
    """A federation ready to play, and what the record says about it."""

    federation: Federation
    learners: dict[str, Learner]
    model_names: dict[str, str]
    test_samples: Samples
    test_labels: torch.Tensor


def assemble(
    config: Config,
    world: World,
    workers: Workers,
    *,
    own_models: OwnModels | None = None,
    phase_done: Callable[[str, str], None] = lambda client_id, phase: None,
    observe: Callable[[Uploads], None] = lambda uploads: None,
) -> Assembly:
    """Everything is checked here that can be checked before training: widths, randomness, what learners can do."""
    method, dtype, data = config.method_object(), DTYPES[config.precision], world.dataset
    train = Samples(data.train_x, dtype, config.device)
    labels = torch.as_tensor(data.train_y, device=config.device)
    public = Samples(world.public_x, dtype, config.device)
    refuse_unfit_task(config, world.task)
    learners: dict[str, Learner] = {}
    model_names: dict[str, str] = {}
    for table in config.client_tables:
        name = str(table.name)
        own = (own_models or {}).get(name)
        model_names[name] = (
            f"<{type(own).__name__}>" if own is not None else model_of(config, name, table.model, world.task)
        )
        learners[name] = build_learner(config, world.task, name, model_names[name], public, own)
    feature_width = refuse_misfits(method, learners, model_names)
    private = {name: _private_data(config, world, name, train, labels) for name in learners}
    clients = {
        name: build_client(config, name, learner, private[name], public, phase_done)
        for name, learner in learners.items()
    }
    for names in stacks(config, model_names):
        clients |= dict.fromkeys(
            names, _stacked_client(config, world.task, names, learners, private, public, phase_done)
        )
    server = build_server(config, world.task, public, model_names, feature_width)
    method = config.method_object()
    sizes = axis_lengths(config, world.task, feature_width)
    wire = Wire(method.up, method.down, sizes, DTYPES[config.precision])
    return Assembly(
        Federation(clients, server, wire, workers, observe),
        learners,
        model_names,
        Samples(data.test_x, dtype, config.device),
        torch.as_tensor(data.test_y, device=config.device),
    )


def build_clients(
    config_toml: str,
    world: World,
    model_names: Mapping[str, str],
    names: tuple[str, ...],
    phase_done: Callable[[str, str], None],
) -> dict[str, ClientLogic]:
    """Some of the clients, for a process that works for no others."""
    config = Config(**tomllib.loads(config_toml))
    dtype = DTYPES[config.precision]
    train, public = (Samples(x, dtype, config.device) for x in (world.dataset.train_x, world.public_x))
    labels = torch.as_tensor(world.dataset.train_y, device=config.device)
    return {
        name: build_client(
            config,
            name,
            build_learner(config, world.task, name, model_names[name], public),
            _private_data(config, world, name, train, labels),
            public,
            phase_done,
        )
        for name in names
    }


def _private_data(config: Config, world: World, client: str, train: Samples, labels: torch.Tensor) -> PrivateData:
    indices = world.clients[client]
    stream = BatchStream(len(indices), config.batch_size, config.seed, "private", client)
    return PrivateData(train, labels, indices, world.dataset.n_classes, stream, config.tau)


def refuse_unfit_task(config: Config, task: Task) -> None:
    """Raises when the method says that it does not fit."""
    method = config.method_object()
    reason = method.refuse(config.options, task.n_classes)
    if reason:
        raise NotApplicableError(f"{method.name}: {reason}")


def build_learner(
    config: Config, task: Task, client: str, name: str, public: Samples, own: nn.Module | Learner | None = None
) -> Learner:
    """The learner of one client: a model by name, a module to train, or a learner of any framework."""
    if own is None or isinstance(own, nn.Module):
        learner: Learner = _torch_learner(config, client, name, own, task)
    else:
        learner = _refuse_incomplete(own, client)
    if not config.allow_nondeterministic:
        refuse_hidden_randomness(learner, public.take(torch.arange(2)), client)
    return learner


def build_client(
    config: Config,
    client: str,
    learner: Learner,
    private: PrivateData,
    public: Samples,
    phase_done: Callable[[str, str], None] = lambda client_id, phase: None,
) -> ClientLogic:
    """One client's half of the method."""
    return config.method_object().client(
        ClientSetup(
            client_id=client,
            learner=learner,
            private=private,
            public=_public_view(config, public),
            options=config.options,
            phase_done=partial(phase_done, client),
        )
    )


def _stacked_client(
    config: Config,
    task: Task,
    names: tuple[str, ...],
    learners: Mapping[str, Learner],
    private: Mapping[str, PrivateData],
    public: Samples,
    phase_done: Callable[[str, str], None],
) -> ClientLogic:
    """One half of the method for several clients: each tensor it sees or sends has a client axis in front."""

    def all_done(phase: str) -> None:
        for name in names:
            phase_done(name, phase)

    members = [cast("TorchLearner", learners[name]) for name in names]
    return config.method_object().client(
        ClientSetup(
            client_id=", ".join(names),
            learner=StackedLearner(members, len(task.input_shape)),
            private=PrivateStack([private[name] for name in names]),
            public=_public_view(config, public),
            options=config.options,
            phase_done=all_done,
        )
    )


def build_server(
    config: Config, task: Task, public: Samples, model_names: Mapping[str, str], feature_width: int
) -> ServerLogic:
    """The server's half of the method."""
    method = config.method_object()
    return method.server(
        ServerSetup(
            roster=config.client_names,
            n_classes=task.n_classes,
            options=config.options,
            seed=config.seed,
            dtype=DTYPES[config.precision],
            device=config.device,
            public=_public_view(config, public),
            make_learner=partial(_server_learner, config, task) if method.needs & OWNS_MODELS else None,
            architectures=model_names if "weights" in method.needs else {},
            feature_width=feature_width,
        )
    )


def axis_lengths(config: Config, task: Task, feature_width: int) -> dict[str, int]:
    """The lengths of all axes that messages of this run may name."""
    method = config.method_object()
    sizes = {"B": config.batch_size, "B-1": config.batch_size - 1, "K": task.n_classes, "d": feature_width}
    sizes |= {"x": math.prod(task.input_shape)}
    sizes |= {axis: getattr(config.options, option) for axis, option in method.axes.items()}
    return sizes


def _public_view(config: Config, public: Samples) -> PublicData | None:
    """One for each role: a stream keeps its epoch at hand, and threads must not share that."""
    if "public" not in config.method_object().needs:
        return None
    return PublicData(public, BatchStream(len(public), config.batch_size, config.seed, "public"), config.tau)


def model_of(config: Config, client: str, listed: str | None, task: Task) -> str:
    """The model a client is listed with, or one drawn from the candidates: a function of seed and name alone."""
    if listed is not None:
        return listed
    if config.models in ("auto", "same"):
        pool: tuple[str, ...] = task.candidates
        if config.models == "same":
            return pool[0]
    else:
        pool = tuple(config.models.split(",")) if isinstance(config.models, str) else config.models
    return pool[int(raw_bits(philox_key(config.seed, "architecture", client), 0, 1)[0] % len(pool))]


def _torch_learner(config: Config, client: str, name: str, own: nn.Module | None, task: Task) -> TorchLearner:
    if own is None:
        with torch_seeded(config.seed, "weights", client):
            own = build(name, task.input_shape, task.n_classes)
    check_output_width(own, task.input_shape, task.n_classes, name=f"{name} of {client}")
    return _learner(config, own, client)


def _learner(config: Config, model: nn.Module, owner: str) -> TorchLearner:
    return TorchLearner(
        model,
        _settings(config),
        seed=config.seed,
        owner=owner,
        dtype=DTYPES[config.precision],
        device=config.device,
    )


def _refuse_incomplete(own: Learner, client: str) -> Learner:
    missing = [verb for verb in VERBS if not callable(getattr(own, verb, None))]
    if missing:
        raise ConfigError(
            f'the model of client "{client}" is a {type(own).__name__} without {", ".join(missing)}: expected an '
            "nn.Module or a learner (docs/learners.md)."
        )
    return own


def _settings(config: Config) -> TorchSettings:
    return TorchSettings(
        optimizer=config.optimizer,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=config.fused,
        channels_last=config.channels_last,
        bf16=config.precision == "bf16",
    )


def _server_learner(config: Config, task: Task, name: str, input_shape: tuple[int, ...] | None = None) -> Learner:
    """A model that the server owns: `auto` is the largest candidate of the data set."""
    from fedal.models import largest

    if name == "auto":
        name = largest(task.candidates, task.input_shape, task.n_classes)
    with torch_seeded(config.seed, "weights", "server"):
        model = build(name, input_shape or task.input_shape, task.n_classes)
    return _learner(config, model, "server")


def refuse_misfits(method: Method, learners: Mapping[str, Learner], models: Mapping[str, str]) -> int:
    """Raises when the learners cannot do what the method needs; gives the feature width where it must be one."""
    for need, verb in {"features": "logits_and_features", "weights": "weights"}.items():
        for client, learner in learners.items():
            if need in method.needs and not hasattr(learner, verb):
                raise NotApplicableError(f'{method.name} needs {need}; the learner of client "{client}" shows none.')
    if "same-architecture" in method.needs and len(set(models.values())) > 1:
        found = ", ".join(sorted(set(models.values())))
        raise NotApplicableError(
            f"{method.name} averages parameters of one architecture; the clients have {found}. Try --models same."
        )
    if "features" not in method.needs:
        return 0
    widths = {client: int(learner.feature_width) for client, learner in learners.items()}  # type: ignore[attr-defined]
    if "same-features" in method.needs and len(set(widths.values())) > 1:
        found = ", ".join(sorted({f"{models[client]}: {width}" for client, width in widths.items()}))
        raise NotApplicableError(
            f"{method.name} compares features and needs one width; the clients have {found}. Try --models same."
        )
    return next(iter(widths.values())) if "same-features" in method.needs else 0
