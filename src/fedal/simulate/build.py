"""Builds one role at a time from the config: a client's learner and half of the method, or the server's half.

`fedal run` builds all roles; a deployed server builds only its own half, and so does each site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from fedal.config import Config
from fedal.config.local_settings import LocalSettings
from fedal.data.augment import Augmentation
from fedal.data.split import Task
from fedal.data.streams import PrivateData, PrivateStack, PublicData, Samples
from fedal.engine.loop import Federation, Watch, Workers
from fedal.engine.player import Player
from fedal.errors import ConfigError, FedalError
from fedal.learners.base import Learner
from fedal.learners.probe import refuse_hidden_randomness, refuse_hidden_state
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import PrivateLoss, balanced_weights
from fedal.methods.client import ClientLogic, ClientSetup
from fedal.methods.server import ServerLogic, ServerSetup
from fedal.models import (
    build,
    build_any,
    check_output_width,
    copy_of,
    initialise,
    is_import_path,
    is_lazy,
    largest,
    refuse_untrainable,
)
from fedal.precision import dtype_of
from fedal.sample_layout import BY_SAMPLE, SampleLayout
from fedal.seeding import BatchStream, Indices, philox_key, raw_bits, torch_seeded
from fedal.simulate.checks import refuse_incomplete
from fedal.user_code import one_line
from fedal.wire import Wire

SERVER = "server"
OWNS_MODELS = {"server-model", "weights"}

Setup = TypeVar("Setup")
Half = TypeVar("Half")


def build_learner(
    config: Config,
    task: Task,
    client: str,
    name: str,
    public: Samples,
    custom: nn.Module | Learner | None = None,
    *,
    is_known: bool = False,
) -> Learner:
    """The learner of one client: a model by name, a module to train, or a learner of any framework.

    One that `is_known` has been built and checked before.
    """
    is_own_code = custom is not None or is_import_path(name)
    shown = f"{name} of {client}"
    custom = build_model(config, task, client, name, custom)
    if isinstance(custom, nn.Module):
        if not is_known:
            refuse_untrainable(custom, name=shown)
            check_output_width(custom, task.input_shape, task.n_classes, name=shown)
        learner: Learner = _learner(config, custom, client)
    else:
        learner = refuse_incomplete(custom, client)
    if not config.allow_nondeterministic and not is_known:
        samples = public.take(torch.arange(2))
        refuse_hidden_randomness(learner, samples, client)
        if is_own_code and isinstance(custom, nn.Module):
            refuse_hidden_state(partial(_learner, config, custom, client), samples, shown)
    return learner


def build_model(
    config: Config, task: Task, client: str, name: str, custom: nn.Module | Learner | None = None
) -> nn.Module | Learner:
    """The model of one client with its initial weights, which depend on seed and client alone."""
    shown = f"{name} of {client}"
    with torch_seeded(config.seed, "weights", client):
        made: nn.Module | Learner = build_any(name, task.input_shape, task.n_classes) if custom is None else custom
        if isinstance(made, nn.Module):
            if custom is not None and is_lazy(made):
                made = copy_of(made, shown)  # the caller's module is not changed
            initialise(made, task.input_shape, name=shown)
    return made


def build_client(
    config: Config,
    client_id: str,
    learner: Learner,
    private: PrivateData | PrivateStack,
    public: Samples,
    phase_done: Callable[[str], None] = lambda phase: None,
) -> ClientLogic:
    """The client's half of the method, for one client or for a stack."""
    view = _public_view(config, public)
    loss = private_loss(config.local(client_id), private)
    setup = ClientSetup(
        client_id, learner, private, view, config.options, config.seed, phase_done, loss, config.is_partial
    )
    return _made(config.method_object().client, setup, f'client "{client_id}"')


def private_loss(own: LocalSettings, private: PrivateData | PrivateStack) -> PrivateLoss:
    """A client's loss on its private labels; raises ConfigError if the class weights do not fit the classes."""
    weights = own.class_weights
    if isinstance(weights, tuple) and len(weights) != private.n_classes:
        raise ConfigError(f"class_weights has {len(weights)} numbers; this data has {private.n_classes} classes.")
    if weights == "balanced":
        return PrivateLoss(balanced_weights(private.label_counts), own.label_smoothing)
    listed = None if weights == "none" else torch.tensor(weights, device=private.label_counts.device)
    return PrivateLoss(listed, own.label_smoothing)


def private_data(
    config: Config, client: str, samples: Samples, labels: torch.Tensor, indices: Indices, n_classes: int
) -> PrivateData:
    """The samples at `indices`, as the private data of a client."""
    stream = BatchStream(len(indices), config.batch_size, config.seed, "private", client)
    changes = config.private_augment
    augmentation = Augmentation(changes, config.seed, client) if changes else None
    return PrivateData(samples, labels, indices, n_classes, stream, config.tau, augmentation)


def build_server(
    config: Config,
    task: Task,
    public: Samples,
    model_names: Mapping[str, str],
    feature_width: int,
    workers: Workers | None = None,
    layout: SampleLayout = BY_SAMPLE,
) -> ServerLogic:
    """The server's half of the method, which may compute on the workers while no client does."""
    method = config.method_object()
    setup = ServerSetup(
        roster=config.client_names,
        n_classes=task.n_classes,
        options=config.options,
        seed=config.seed,
        dtype=dtype_of(config.precision),
        device=config.device,
        public=_public_view(config, public),
        make_learner=partial(_server_learner, config, task) if method.needs & OWNS_MODELS else None,
        architectures=model_names if "weights" in method.needs else {},
        feature_width=feature_width,
        input_shape=task.input_shape,
        partial=config.is_partial,
        layout=layout,
        **({} if workers is None else {"each": workers.map}),
    )
    return _made(method.server, setup, "the server")


def build_federation(
    config: Config,
    players: Iterable[Player],
    server: ServerLogic,
    wire: Wire,
    workers: Workers,
    watch: Watch | None = None,
) -> Federation:
    """The federation that the config describes, wherever its players run."""
    return Federation(config.client_names, players, server, wire, workers, watch)


def _made(half: Callable[[Setup], Half], setup: Setup, role: str) -> Half:
    """A half of a method, which may be the user's; raises ConfigError if its constructor fails."""
    try:
        return half(setup)
    except FedalError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{role}: creating its half of the method failed with {one_line(error)}.") from error


def axis_lengths(config: Config, task: Task, feature_width: int) -> dict[str, int]:
    """axis -> length, for all axes that the messages of this run may use."""
    method = config.method_object()
    sizes = {"B": config.batch_size, "B-1": config.batch_size - 1, "K": task.n_classes, "d": feature_width}
    from_options = {axis: getattr(config.options, option) for axis, option in method.axes.items()}
    return {**sizes, "x": math.prod(task.input_shape), **from_options}


def _public_view(config: Config, public: Samples) -> PublicData | None:
    """A separate view for each role, because a stream caches its epoch and threads must not share that cache."""
    if "public" not in config.method_object().needs:
        return None
    changes, clean, start = config.public_augment, config.public_clean, config.public_augment_start
    augmentation = Augmentation(changes, config.seed, "", clean, start) if changes else None
    stream = BatchStream(len(public), config.batch_size, config.seed, "public")
    return PublicData(public, stream, config.tau, augmentation)


def model_of(config: Config, client: str, listed: str | None, task: Task) -> str:
    """The model listed for a client, or one drawn from the candidates, which depends only on seed and client name."""
    if listed is not None:
        return listed
    if config.models in ("auto", "same"):
        pool: tuple[str, ...] = task.candidates
        if config.models == "same":
            return pool[0]
    else:
        pool = tuple(config.models.split(",")) if isinstance(config.models, str) else config.models
    return pool[int(raw_bits(philox_key(config.seed, "architecture", client), 0, 1)[0] % len(pool))]


def steps_per_iteration(config: Config) -> float:
    """Optimizer steps that a client takes per iteration, after any warm-up: 2 with local training and a transfer.

    If some clients sit out each round, a client's expected number of steps.
    """
    steps, options, many = config.method_object().steps, config.options, 1000
    share = config.cohort_size / len(config.client_names)
    return share * (steps(options, 1 + many) - steps(options, 1)) / (many * config.tau)


def _learner(config: Config, model: nn.Module, owner: str) -> TorchLearner:
    own, dtype = config.local(owner), dtype_of(config.precision)
    is_client = owner != SERVER  # a server takes steps at its own pace: the schedule and the clipping are the clients'
    schedule = own.schedule if is_client else "constant"
    settings = TorchSettings(
        own.optimizer, own.lr, own.momentum, own.weight_decay, config.fused, config.channels_last,
        clip=own.clip if is_client else 0.0,
        schedule=schedule,
        schedule_steps=0.0 if schedule == "constant" else (own.schedule_iterations or 0) * steps_per_iteration(config),
        schedule_end=own.schedule_end,
        bf16=config.precision == "bf16",
    )  # fmt: skip
    return TorchLearner(model, settings, seed=config.seed, owner=owner, dtype=dtype, device=config.device)


def _server_learner(config: Config, task: Task, name: str, input_shape: tuple[int, ...] | None = None) -> Learner:
    """The learner of a model at the server; `auto` is the largest candidate of the dataset."""
    if name == "auto":
        name = largest(task.candidates, task.input_shape, task.n_classes)
    with torch_seeded(config.seed, "weights", "server"):
        shape, shown = input_shape or task.input_shape, f"{name} of the server"
        model = build(name, shape, task.n_classes)
        initialise(model, shape, name=shown)
    refuse_untrainable(model, name=shown)
    return _learner(config, model, SERVER)
