"""Admission from a site's side: checks the server's welcome and builds the client's half of the run.

The site decides what code runs here: it checks the server's settings and refuses any that name code. The public set
comes from the server. The site verifies it against the hash in its invitation, which did not come from the server.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedal.config import Config
from fedal.data.custom import load_npz
from fedal.data.split import Task
from fedal.data.streams import Samples
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import CHUNK_BYTES, SERVICE
from fedal.deploy.codec import Reader
from fedal.deploy.consent import consent_text, refuse_unallowed
from fedal.deploy.pki.authority import Invitation
from fedal.deploy.plan import manifest
from fedal.deploy.refusals import Code, Refused
from fedal.engine.player import LocalPlayer
from fedal.errors import ConfigError, DataError, FedalError
from fedal.facts import sent_to_sites
from fedal.learners.base import Learner
from fedal.messages import OUTPUTS_ONLY, Leak
from fedal.metrics import accuracy
from fedal.models.custom import call_any_factory, load_factory
from fedal.precision import dtype_of
from fedal.seeding import torch_seeded
from fedal.simulate.build import axis_lengths, build_client, build_learner, model_of, private_data
from fedal.simulate.checks import refuse_misfits
from fedal.user_code import is_import_path, named_code

MAX_PUBLIC_BYTES = 1 << 31
MIN_SAMPLES = 8


@dataclass(frozen=True)
class SitePlan:
    """Settings that the operator of a site decides."""

    server: str
    name: str
    data: Path
    state: Path
    model: str = "auto"
    invitation: Invitation | None = None  # None: plain text, on loopback only
    federation: str = "fedal"
    save: Path | None = None
    share_metrics: bool = False
    restart: bool = False
    patience_s: float = 600.0
    allow: Leak = OUTPUTS_ONLY  # what may leave the site, whatever method the server runs
    custom_model: nn.Module | Learner | None = None  # passed from Python, instead of `model`


@dataclass(frozen=True)
class Membership:
    """A site's half of the run, ready for its first round."""

    player: LocalPlayer
    reader: Reader  # for messages from the server
    tests: tuple[Samples, torch.Tensor]
    rounds: int  # in the whole run
    summary: str  # method, model and data size, for the operator

    @property
    def learner(self) -> Learner:
        return self.player.logic.learner

    def own_accuracy(self) -> float:
        samples, labels = self.tests
        return accuracy(self.learner, samples, labels, torch.arange(len(labels)))


def enter(plan: SitePlan, welcome: pb.Welcome, channel: grpc.Channel, notify: Callable[[str], None]) -> Membership:
    """Checks the server's welcome and builds the client's half of the run."""
    config = checked_settings(welcome.settings)
    method = config.method_object()
    refuse_unallowed(method, plan.allow)  # before anything private is read
    task = Task(welcome.dataset, tuple(welcome.input_shape), welcome.n_classes)
    expected = plan.invitation.public_sha256 if plan.invitation else None
    if expected is not None and welcome.public_sha256 != expected:
        raise Refused(Code.PUBLIC_SET, "the server's public set differs from the invitation's. Ask the operator.")
    name, dtype = plan.name, dtype_of(config.precision)
    public_x = _fetch_public(channel, welcome)
    public = Samples(public_x, dtype)
    data = load_npz(plan.data, n_classes=task.n_classes)
    if data.sample_shape != task.input_shape:
        raise DataError(
            f"{plan.data}: samples have shape {data.sample_shape}; this federation uses {task.input_shape}."
        )
    if len(data.train_y) < MIN_SAMPLES:
        raise DataError(f"{plan.data}: {len(data.train_y)} training samples; expected at least {MIN_SAMPLES}.")
    if shared := _count_shared(data.train_x, public_x):
        notify(f"warning: {shared} private samples are also in the public set, which every site can read.")
    model = model_of(config, name, None, task) if plan.model == "auto" else plan.model
    custom = plan.custom_model if plan.custom_model is not None else _custom_model(config, task, name, model)
    learner = build_learner(config, task, name, model, public, custom)
    width = refuse_misfits(method, {name: learner}, {name: model})
    if width != welcome.feature_width:
        raise ConfigError(f"{model} has {width} features; this federation expects {welcome.feature_width}.")
    labels, everything = torch.as_tensor(data.train_y), np.arange(len(data.train_y))
    private = private_data(config, name, Samples(data.train_x, dtype), labels, everything, task.n_classes)
    return Membership(
        player=LocalPlayer(build_client(config, name, learner, private, public)),
        reader=Reader(method.down, axis_lengths(config, task, width), dtype),
        tests=(Samples(data.test_x, dtype), torch.as_tensor(data.test_y)),
        rounds=welcome.total_rounds,
        summary=f"{config.method}, {model}, {len(data.train_y)} private samples; {consent_text(method)}",
    )


def _custom_model(config: Config, task: Task, client: str, name: str) -> nn.Module | Learner | None:
    """The model from the site's own factory: a module, or a learner of any framework. None for a built-in model."""
    if not is_import_path(name):
        return None
    with torch_seeded(config.seed, "weights", client):
        made: nn.Module | Learner = call_any_factory(name, load_factory(name), task.input_shape, task.n_classes)
    return made


def checked_settings(text: str) -> Config:
    """The server's settings as a config for this site. Refuses unknown keys and values that name code."""
    try:
        values = json.loads(text)
        unknown = sorted(set(values) - set(sent_to_sites(Config)))
    except (ValueError, TypeError) as error:
        raise Refused(Code.SETTINGS, f"the server's settings cannot be read ({error}).") from None
    if unknown:
        raise Refused(Code.SETTINGS, f"the server sets {unknown[0][:40]!r}, which only the site may set.")
    code = named_code(values)
    if code:
        raise Refused(Code.NAMES_CODE, f"the server names code, {code[0][:80]!r}; a site imports only its own code.")
    try:
        config = Config(**values)
    except FedalError as error:
        raise Refused(Code.SETTINGS, f"the server's settings do not fit this release: {error}") from None
    if undue := sorted(config.options.model_fields_set - {*sent_to_sites(type(config.options))}):
        raise Refused(Code.SETTINGS, f"the server sets {undue[0]!r}, which only the site may set.")
    return config


def _fetch_public(channel: grpc.Channel, welcome: pb.Welcome) -> NDArray[np.float32]:
    """Downloads and verifies the public set. Checks its size against the limit before requesting the first byte."""
    shape = (welcome.public_samples, *welcome.input_shape)
    size = 4 * math.prod(shape)
    if not 0 < size <= MAX_PUBLIC_BYTES:
        raise Refused(Code.PUBLIC_SET, f"a public set of {size} bytes; the limit is {MAX_PUBLIC_BYTES}.")
    call = channel.unary_stream(f"/{SERVICE}/PublicSet", pb.PublicSetRequest.SerializeToString, pb.Chunk.FromString)
    raw = bytearray()
    for chunk in call(pb.PublicSetRequest()):
        if len(chunk.data) > CHUNK_BYTES or len(raw) + len(chunk.data) > size:
            raise Refused(Code.PUBLIC_SET, f"the public set exceeds the announced {size} bytes.")
        raw += chunk.data
    if len(raw) != size:
        raise Refused(Code.PUBLIC_SET, f"the public set has {len(raw)} bytes; the server announced {size}.")
    public_x = np.frombuffer(bytes(raw), np.float32).reshape(shape)
    if manifest(public_x) != welcome.public_sha256 or not np.isfinite(public_x).all():
        raise Refused(Code.PUBLIC_SET, "the public set does not match the announced hash, or holds non-finite values.")
    return public_x.copy()


def _count_shared(private: NDArray[Any], public: NDArray[np.float32]) -> int:
    """The number of private samples that are also in the public set, bit for bit."""

    def digests(x: NDArray[Any]) -> Iterator[bytes]:
        return (hashlib.blake2b(sample.astype(np.float32).tobytes()).digest() for sample in x)

    known = set(digests(public))
    return sum(digest in known for digest in digests(private))
