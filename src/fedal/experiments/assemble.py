"""Builds the clients, the server and the wire of a run from its config and its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from fedal.methods.base import ClientSetup, ServerSetup, Uploads
from fedal.models import build, candidates, check_output_width
from fedal.seeding import BatchStream, digest, philox_key, raw_bits, torch_seeded
from fedal.wire import Wire

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}

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
    stream = BatchStream(len(public), config.batch_size, config.seed, "public")

    learners: dict[str, Learner] = {}
    model_names: dict[str, str] = {}
    clients = {}
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
        _refuse_missing_verbs(learner, name, method.needs)
        learners[name] = learner
        private = PrivateData(
            train,
            labels,
            world.clients[name],
            data.n_classes,
            BatchStream(len(world.clients[name]), config.batch_size, config.seed, "private", name),
            config.tau,
        )
        own_stream = BatchStream(len(public), config.batch_size, config.seed, "public")
        clients[name] = method.client(
            ClientSetup(
                client_id=name,
                learner=learner,
                private=private,
                public=PublicData(public, own_stream, config.tau) if "public" in method.needs else None,
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
            public_digest=(lambda t, i: digest(stream.indices(t * config.tau + i)))
            if "public" in method.needs
            else None,
        )
    )
    wire = Wire(method.up, method.down, {"B": config.batch_size, "K": data.n_classes}, dtype)
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
    return pool[int(raw_bits(philox_key(config.seed, "model", client), 0, 1)[0] % len(pool))]


def _torch_learner(config: Config, client: str, name: str, own: nn.Module | None, world: World) -> TorchLearner:
    n_classes = world.dataset.n_classes
    if own is None:
        with torch_seeded(config.seed, "weights", client):
            own = build(name, world.input_shape, n_classes)
    check_output_width(own, world.input_shape, n_classes, name=f"{name} of {client}")
    settings = TorchSettings(
        optimizer=config.optimizer,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=config.fused,
        channels_last=config.channels_last,
    )
    learner = TorchLearner(own, settings, seed=config.seed, owner=client, dtype=DTYPES[config.precision])
    learner.module.to(config.device)
    return learner


def _refuse_missing_verbs(learner: Learner, client: str, needs: frozenset[str]) -> None:
    verbs = {"features": "logits_and_features", "weights": "weights"}
    for need, verb in verbs.items():
        if need in needs and not hasattr(learner, verb):
            raise NotApplicableError(
                f'this method needs {need} of every model; the learner of client "{client}" shows none.'
            )
