"""Builds the clients, the server and the wire of a run from its config and its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedal.config import Config
from fedal.data.streams import PrivateData, PublicData, Samples
from fedal.engine.loop import Federation, Workers
from fedal.errors import NotApplicableError
from fedal.experiments.world import World
from fedal.learners.base import Learner
from fedal.learners.probe import refuse_hidden_randomness
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.methods.base import ClientSetup, Method, ServerSetup, Uploads
from fedal.models import build, candidates, check_output_width
from fedal.seeding import BatchStream, philox_key, raw_bits, torch_seeded
from fedal.wire import Wire

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}

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
    shows_public = "public" in method.needs

    def public_view() -> PublicData | None:
        """One for each role: a stream keeps its epoch at hand, and threads must not share that."""
        stream = BatchStream(len(public), config.batch_size, config.seed, "public")
        return PublicData(public, stream, config.tau) if shows_public else None

    reason = method.refuse(config.options, data.n_classes)
    if reason:
        raise NotApplicableError(f"{method.name}: {reason}")
    learners: dict[str, Learner] = {}
    model_names: dict[str, str] = {}
    for table in config.client_tables:
        name = str(table.name)
        own = (own_models or {}).get(name)
        model_names[name] = f"<{type(own).__name__}>" if own is not None else model_of(config, name, table.model, world)
        if own is None or isinstance(own, nn.Module):
            learner: Learner = _torch_learner(config, name, model_names[name], own, world)
        else:
            learner = own
        if not config.allow_nondeterministic:
            refuse_hidden_randomness(learner, public.take(torch.arange(2)), name)
        learners[name] = learner
    feature_width = _refuse_misfits(method, learners, model_names)

    clients = {}
    for name, learner in learners.items():
        private = PrivateData(
            train,
            labels,
            world.clients[name],
            data.n_classes,
            BatchStream(len(world.clients[name]), config.batch_size, config.seed, "private", name),
            config.tau,
        )
        clients[name] = method.client(
            ClientSetup(
                client_id=name,
                learner=learner,
                private=private,
                public=public_view(),
                options=config.options,
                phase_done=lambda phase, name=name: phase_done(name, phase),  # type: ignore[misc]
            )
        )
    server = method.server(
        ServerSetup(
            roster=config.client_names,
            n_classes=data.n_classes,
            options=config.options,
            seed=config.seed,
            dtype=dtype,
            public=public_view(),
            make_learner=partial(_server_learner, config, world) if method.needs & OWNS_MODELS else None,
            architectures=model_names if "weights" in method.needs else {},
            feature_width=feature_width,
        )
    )
    sizes = {"B": config.batch_size, "B-1": config.batch_size - 1, "K": data.n_classes, "d": feature_width}
    sizes |= {"x": math.prod(world.input_shape)}
    sizes |= {axis: getattr(config.options, option) for axis, option in method.axes.items()}
    wire = Wire(method.up, method.down, sizes, dtype)
    return Assembly(
        Federation(clients, server, wire, workers, observe),
        learners,
        model_names,
        Samples(data.test_x, dtype, config.device),
        torch.as_tensor(data.test_y, device=config.device),
    )


def model_of(config: Config, client: str, listed: str | None, world: World) -> str:
    """The model a client is listed with, or one drawn from the candidates: a function of seed and name alone."""
    if listed is not None:
        return listed
    if config.models in ("auto", "same"):
        pool: tuple[str, ...] = candidates(world.dataset.name, world.input_shape)
        if config.models == "same":
            return pool[0]
    else:
        pool = tuple(config.models.split(",")) if isinstance(config.models, str) else config.models
    return pool[int(raw_bits(philox_key(config.seed, "architecture", client), 0, 1)[0] % len(pool))]


def _torch_learner(config: Config, client: str, name: str, own: nn.Module | None, world: World) -> TorchLearner:
    n_classes = world.dataset.n_classes
    if own is None:
        with torch_seeded(config.seed, "weights", client):
            own = build(name, world.input_shape, n_classes)
    check_output_width(own, world.input_shape, n_classes, name=f"{name} of {client}")
    learner = TorchLearner(own, _settings(config), seed=config.seed, owner=client, dtype=DTYPES[config.precision])
    learner.module.to(config.device)
    return learner


def _settings(config: Config) -> TorchSettings:
    return TorchSettings(
        optimizer=config.optimizer,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=config.fused,
        channels_last=config.channels_last,
    )


def _server_learner(config: Config, world: World, name: str, input_shape: tuple[int, ...] | None = None) -> Learner:
    """A model that the server owns: `auto` is the largest candidate of the data set."""
    from fedal.models import largest

    if name == "auto":
        name = largest(candidates(world.dataset.name, world.input_shape), world.input_shape, world.dataset.n_classes)
    with torch_seeded(config.seed, "weights", "server"):
        model = build(name, input_shape or world.input_shape, world.dataset.n_classes)
    return TorchLearner(model, _settings(config), seed=config.seed, owner="server", dtype=DTYPES[config.precision])


def _refuse_misfits(method: Method, learners: Mapping[str, Learner], models: Mapping[str, str]) -> int:
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
