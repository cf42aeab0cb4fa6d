"""A server without a network: what it says to a site, and all that the site would send in return."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from deployments import certs, pb
from fedal.config import Config
from fedal.data.split import Task
from fedal.deploy.codec import encode
from fedal.deploy.entering import SitePlan
from fedal.deploy.plan import ServerPlan
from fedal.deploy.settings import Deployment
from fedal.deploy.site import Site
from fedal.messages import Message, Range
from fedal.models import build

NAME, MODEL, SHAPE, CLASSES, BATCH, ROUNDS = "client-00", "mlp-small", (1, 8, 8), 4, 4, 3
OPTIONS: dict[str, dict[str, Any]] = {  # as small as they can be
    "fccl": {"pretrain_iterations": 1},
    "fedkt": {"teacher_iterations": 2, "student_iterations": 2},
    "fedcvae": {"autoencoder_steps": 1, "decoder_steps": 1, "classifier_steps": 1},
    "mhat": {"server_model": MODEL},
    "cfd": {"server_model": MODEL, "server_steps": 1, "warmup": 0},
}


def settings_of(method: str, **changes: Any) -> Config:
    options = {"tau": 2, **OPTIONS.get(method, {}), **changes}
    return Config(method=method, clients=3, rounds=ROUNDS, batch_size=BATCH, seed=1, options=options)


def plan_of(config: Config, samples: int = 12) -> ServerPlan:
    public_x = np.random.default_rng(0).normal(size=(samples, *SHAPE)).astype(np.float32)
    return ServerPlan(config, Deployment(), Task("own", SHAPE, CLASSES), public_x)


def private_file(path: Path) -> Path:
    rng = np.random.default_rng(1)
    np.savez(path, x=rng.normal(size=(40, *SHAPE)).astype(np.float32), y=np.arange(40) % CLASSES)
    return path


def feature_width(plan: ServerPlan) -> int:
    compares = "same-features" in plan.config.method_object().needs
    return int(build(MODEL, SHAPE, CLASSES).feature_width) if compares else 0  # type: ignore[arg-type]


def welcome_of(plan: ServerPlan) -> pb.Welcome:
    """What an honest server of this plan says."""
    return pb.Welcome(
        run="run",
        settings=json.dumps(plan.config.for_sites()),
        dataset="own",
        input_shape=SHAPE,
        n_classes=CLASSES,
        public_samples=len(plan.public_x),
        public_sha256=plan.public_sha256,
        total_rounds=plan.config.total_rounds,
        feature_width=feature_width(plan),
    )


def invitation_of(plan: ServerPlan) -> certs.Invitation:
    """An invitation without certificates: nothing here opens a connection."""
    return certs.Invitation("test", NAME, plan.public_sha256, certs.Pems(b"", b"", b""), contract=plan.contract)


class Heard:
    """A site that hears what the test says, in the place of a server, and all that it would send."""

    def __init__(self, plan: SitePlan, server: ServerPlan) -> None:
        plan.state.mkdir(parents=True, exist_ok=True)
        self.lines: list[str] = []
        self.sent: list[pb.FromSite] = []
        self._site = Site(plan, self.lines.append)
        chunks = [pb.Chunk(data=server.public_x.tobytes())]
        self._channel: Any = SimpleNamespace(unary_stream=lambda *_: lambda request, **_: iter(chunks))

    def say(self, **body: Any) -> pb.FromSite | None:
        """Delivers one message; returns the answer. Raises what ends the site."""
        answers = [*self._site._answers(pb.FromServer(**body), self._channel)]
        self.sent += answers
        return answers[-1] if answers else None

    @property
    def uploads(self) -> list[pb.Payload]:
        return [answer.upload.payload for answer in self.sent if answer.WhichOneof("body") == "upload"]


def any_message(kind: type[Message], sizes: dict[str, int], rng: np.random.Generator) -> pb.Payload:
    """A well-formed message of this kind; the rows of its tensors are distributions, which most kinds accept."""

    def number(bounds: Range) -> int:
        high = sizes[bounds.high] - 1 if isinstance(bounds.high, str) else bounds.high
        return int(rng.integers(bounds.low, min(high, bounds.low + 3) + 1))

    if not kind.layout:
        tensors: dict[str, Any] = {kind.payload_fields()[0]: {}}
    else:
        tensors = {}
        for name, axes in kind.layout.items():
            shape = [sizes.get(axis, 3) for axis in axes]
            if name in kind.integer_fields:
                values = rng.integers(0, 2, shape).astype(kind.integer_fields[name])
            else:
                values = rng.dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)
            tensors[name] = torch.from_numpy(values)
    numbers = {name: number(kind.ranges.get(name, Range(1, 3))) for name in kind.header_fields()}
    return encode(kind(**tensors, **numbers))


Change = Callable[[pb.Welcome], None]


def with_settings(**changes: Any) -> Change:
    """Overwrites settings; None removes one. `options__tau` names an option."""

    def change(welcome: pb.Welcome) -> None:
        values = json.loads(welcome.settings)
        for name, value in changes.items():
            table, _, inner = name.partition("__")
            place, key = (values[table], inner) if inner else (values, table)
            place.pop(key, None)
            if value is not None:
                place[key] = value
        welcome.settings = json.dumps(values)

    return change


def with_fields(**changes: Any) -> Change:
    def change(welcome: pb.Welcome) -> None:
        for name, value in changes.items():
            if isinstance(value, Iterable) and not isinstance(value, str):
                del getattr(welcome, name)[:]
                getattr(welcome, name).extend(value)
            else:
                setattr(welcome, name, value)

    return change
