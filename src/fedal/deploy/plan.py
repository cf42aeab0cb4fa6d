"""The server's plan before any site joins: settings, task and public set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal import data as data_sources
from fedal.config import Config
from fedal.data.split import Task
from fedal.deploy.settings import Deployment
from fedal.errors import ConfigError
from fedal.simulate.prepare import prepare_split
from fedal.user_code import named_code


@dataclass(frozen=True)
class ServerPlan:
    """Everything a server needs before it starts."""

    config: Config
    deployment: Deployment
    task: Task
    public_x: NDArray[np.float32]

    @cached_property
    def public_sha256(self) -> str:
        return manifest(self.public_x)


def plan_federation(config: Config, deployment: Deployment) -> ServerPlan:
    """Loads the public set and the task. Without n_classes they come from the config's dataset, as in `fedal run`."""
    code = named_code(config.model_dump(mode="json"))
    if code and config.method in code:
        raise ConfigError(f'method "{code[0]}" is custom code; sites import nothing that a server names.')
    for name in ("validation", "own_validation"):
        if share := getattr(config, name):
            raise ConfigError(f"{name} = {share:g}: only a simulation holds out validation data. Remove this setting.")
    if config.attackers:
        raise ConfigError("attackers: `fedal serve` refuses this setting, which is for simulations. Remove it.")
    if deployment.n_classes is not None and config.public is not None:
        public_x = data_sources.load_public_npz(config.public)
        return ServerPlan(config, deployment, Task("own", public_x.shape[1:], deployment.n_classes), public_x)
    split = prepare_split(config)
    return ServerPlan(config, deployment, split.task, split.public_x)


def manifest(public_x: NDArray[Any]) -> str:
    """The fingerprint of a public set: sha256 over dtype, shape and bytes."""
    head = f"{public_x.dtype.str}|{','.join(map(str, public_x.shape))}|".encode()
    return hashlib.sha256(head + np.ascontiguousarray(public_x).tobytes()).hexdigest()
