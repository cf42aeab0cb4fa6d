"""Tiny federations for tests: synthetic images and networks of a few hundred weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedal import methods
from fedal.config import ClientConfig, Config
from fedal.data.dataset import Dataset
from fedal.data.split import DataSplit
from fedal.engine.loop import Federation, Workers
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.methods.method import Method
from fedal.models.classifier import Classifier
from fedal.seeding import torch_seeded
from fedal.simulate.assemble import assemble

BATCH, CLASSES, SHAPE = 8, 3, (1, 4, 4)
QUICK: dict[str, dict[str, Any]] = {  # fewer steps of servers that train models of their own, an early vote
    "flashback": {"server_steps": 1},
    "fedgen": {"generator_steps": 1},
    "fedftg": {"server_iterations": 1, "model_steps": 1},
    "dfrd": {"server_iterations": 1, "generator_steps": 1, "model_steps": 1},
    "fedzkt": {"server_iterations": 1, "transfer": 1},
    "fedkt": {"teacher_iterations": 2},
    "fedcvae": {"autoencoder_steps": 4, "decoder_steps": 2, "classifier_steps": 1, "hidden": 8},
}


class InOrder:
    """Workers without threads."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], cost: object = None) -> list[Any]:
        return [function(item) for item in items]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def with_features(width: int = 5) -> Classifier:
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, width), nn.Tanh())
    return Classifier(body, nn.Linear(width, CLASSES), feature_width=width)


def conv_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def with_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES)
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "anna": mlp,
    "ben": conv_batch_norm,
    "cleo": with_dropout,
    "dora": conv_batch_norm,
}


def one_of_each_set_of_messages() -> list[str]:
    """The first method with each set of kinds of messages."""
    found: dict[frozenset[Any], str] = {}
    for name in methods.MODULES:
        found.setdefault(frozenset(methods.get(name).up + methods.get(name).down), name)
    return [*found.values()]


def of_each_set_of_messages() -> list[Any]:
    """All methods as parameters of a test. All but the first with the same kinds of messages are for `make soak`."""
    first = one_of_each_set_of_messages()
    return [pytest.param(name, marks=[] if name in first else [pytest.mark.soak]) for name in methods.MODULES]


def build_net(client: str, make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch_seeded(seed, "weights", client):
        return make()


def synthetic_images(n: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise around one pattern per class: something to learn in a few steps."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    patterns = generator.normal(size=(CLASSES, *SHAPE))
    labels = generator.integers(0, CLASSES, n)
    return (patterns[labels] + 0.7 * generator.normal(size=(n, *SHAPE))).astype(np.float32), labels.astype(np.int64)


def build_federation(
    method: str | Method = "fedal",
    *,
    nets: Mapping[str, Callable[[], nn.Module]] = NETS,
    workers: Workers | None = None,
    settings: TorchSettings | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    wrap: Callable[[TorchLearner], Any] = lambda learner: learner,
    observe: Callable[[Any], None] = lambda uploads: None,
    split: DataSplit | None = None,
    **options: Any,
) -> Federation:
    """A federation as a run assembles it; `wrap` may wrap each learner."""
    settings = settings or TorchSettings(lr=0.01)
    with known(method) as name:
        config = Config(
            method=name,
            clients=tuple(ClientConfig(name=client) for client in nets),
            batch_size=BATCH,
            seed=seed,
            precision="fp64" if dtype is torch.float64 else "fp32",
            options=options,
        )
        learners = {
            client: TorchLearner(build_net(client, make, seed), settings, seed=seed, owner=client, dtype=dtype)
            for client, make in nets.items()
        }
        own = {client: wrap(learner) for client, learner in learners.items()}
        split = split or tiny_split(tuple(nets))
        federation = assemble(config, split, workers or InOrder(), custom_models=own).federation
        federation.watch.exchanged = observe
        return with_logics(federation)


def build_of_table_models(
    method: str, model: str = "mlp-small", clients: int = 3, split: DataSplit | None = None, **settings: Any
) -> Federation:
    """A federation whose clients share one model of the table, for methods that need features or weights."""
    config = Config(method=method, clients=clients, models=model, batch_size=BATCH, lr=0.01, **settings)
    return with_logics(assemble(config, split or tiny_split(config.client_names), InOrder()).federation)


def with_logics(federation: Federation) -> Federation:
    """The clients' halves by name, for tests that inspect them."""
    federation.clients = {name: player.logic for player in federation.players for name in player.names}  # type: ignore[attr-defined]
    return federation


@contextmanager
def known(method: str | Method) -> Iterator[str]:
    """Registers the method inside the block; yields the name by which a config finds it."""
    if isinstance(method, str):
        yield method
        return
    methods.register(method)
    try:
        yield method.name
    finally:
        del methods._registered[method.name]


def tiny_split(clients: tuple[str, ...]) -> DataSplit:
    x, y = synthetic_images()
    test_x, test_y = synthetic_images(seed=1)
    data = Dataset("tiny", x, y, test_x, test_y, CLASSES)
    private = {client: np.arange(40 + index, len(y), len(NETS)) for index, client in enumerate(clients)}
    return DataSplit(data, private, np.arange(40), x[:40], 0)


def split_of_classes(classes: Mapping[str, tuple[int, ...]]) -> DataSplit:
    """Like `tiny_split`, but each client has only samples of the classes listed for it."""
    split = tiny_split(tuple(classes))
    private = np.arange(40, len(split.dataset.train_y))
    labels = split.dataset.train_y[private]
    return dataclasses.replace(
        split, clients={client: private[np.isin(labels, chosen)] for client, chosen in classes.items()}
    )


def run_rounds(federation: Federation, rounds: int | range) -> Federation:
    for t in rounds if isinstance(rounds, range) else range(rounds):
        federation.run_round(t)
    return federation


def state_of(federation: Federation) -> dict[str, Any]:
    """Everything that a run saves of a federation."""
    state = federation.state_dict()
    return {**state, "clients": {client: ask() for client, ask in state["clients"].items()}}


def restore(federation: Federation, state: Mapping[str, Any]) -> Federation:
    federation.load_state_dict(state)
    return federation


def fingerprint(value: Any) -> Any:
    """A value that is equal for two nested states if and only if they are bit-identical."""
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes())
    if isinstance(value, Mapping):
        return {str(key): fingerprint(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(part) for part in value]
    return value


def same_bits(a: Any, b: Any) -> bool:
    return bool(fingerprint(a) == fingerprint(b))


def differing_clients(a: Federation, b: Federation) -> list[str]:
    """The clients whose weights, buffers or optimizers differ in any bit; empty if the runs are bit-identical."""
    assert a.clients.keys() == b.clients.keys()
    return [
        client
        for client in a.clients
        if not same_bits(a.clients[client].learner.state_dict(), b.clients[client].learner.state_dict())
    ]
