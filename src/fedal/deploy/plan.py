"""The server's plan before any site joins: settings, task and public set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal import methods
from fedal.config import Config
from fedal.config.client_data import client_data
from fedal.config.limits import beyond_limits
from fedal.config.revealed import refusal
from fedal.data.owners import NAME as OWN
from fedal.data.reading import read_public
from fedal.data.split import Task
from fedal.deploy.contract import Contract, contract_of
from fedal.deploy.settings import Deployment
from fedal.errors import ConfigError
from fedal.simulate.prepare import load_config_schema, prepare_split
from fedal.user_code import is_import_path


@dataclass(frozen=True)
class ServerPlan:
    """Everything a server needs before it starts."""

    config: Config
    deployment: Deployment
    task: Task
    public_x: NDArray[np.float32]
    schema_sha256: str | None = None  # of the sites' data

    @cached_property
    def public_bytes(self) -> memoryview:
        """The public set as sites receive it: one buffer for all of them, without a copy."""
        return np.ascontiguousarray(self.public_x).data.cast("B")

    @cached_property
    def public_sha256(self) -> str:
        return manifest(self.public_x)

    @cached_property
    def contract(self) -> Contract:
        """What every site of this federation agrees to."""
        return contract_of(
            self.config,
            n_classes=self.task.n_classes,
            rounds=self.config.total_rounds,
            public_samples=len(self.public_x),
            public_sha256=self.public_sha256,
            schema=self.schema_sha256,
        )


def plan_federation(config: Config, deployment: Deployment) -> ServerPlan:
    """Loads the public set and the task. Without n_classes they come from the config's dataset, as in `fedal run`."""
    method = config.method_object()
    if is_import_path(config.method) and (method.name in methods.MODULES or is_import_path(method.name)):
        raise ConfigError(
            f'method "{config.method}" is called "{method.name}", as a built-in method or as code. Sites are told only '
            "its name: choose another."
        )
    for name in ("validation", "own_validation"):
        if share := getattr(config, name):
            raise ConfigError(f"{name} = {share:g}: only a simulation holds out validation data. Remove this setting.")
    if config.is_partial:
        raise ConfigError(
            f"participation = {config.participation}: only a simulation draws who takes part in a round; `fedal serve` "
            "needs all its sites, or with policy = continue those that answer. Remove this setting."
        )
    if config.attackers:
        raise ConfigError("attackers: `fedal serve` refuses this setting, which is for simulations. Remove it.")
    if problem := refusal(config.partition, "fedal serve"):
        raise ConfigError(problem)
    if problems := beyond_limits(config, deployment.n_classes or 2, config.total_rounds):
        raise ConfigError("\n".join(f"{problem}: a site refuses more." for problem in problems))
    schema = load_config_schema(config)
    n_classes = schema.n_classes if schema is not None else deployment.n_classes
    if n_classes is not None and config.public is not None:  # the sites' data are never read here
        public_x = read_public(config.public, schema)
        task = Task(OWN, public_x.shape[1:], n_classes)
        return ServerPlan(config, deployment, task, public_x, schema.sha256 if schema else None)
    if client_data(config.clients):
        raise ConfigError(
            "the sites have their own data: the server needs `public`, and `schema_file` or deployment.n_classes."
        )
    split = prepare_split(config)
    return ServerPlan(config, deployment, split.task, split.public_x)


def manifest(public_x: NDArray[Any]) -> str:
    """The fingerprint of a public set: sha256 over dtype, shape and bytes."""
    head = f"{public_x.dtype.str}|{','.join(map(str, public_x.shape))}|".encode()
    return hashlib.sha256(head + np.ascontiguousarray(public_x).tobytes()).hexdigest()
