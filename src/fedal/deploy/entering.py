"""Admission from a site's side: checks the server's welcome and builds the client's half of the run.

The site decides what code runs here: it checks the server's settings and refuses any that name code. What it agreed to
did not come from the server: `--allow`, the contract, and the hash of the public set, against which the site verifies
the samples that the server sends. Nothing private is read before it has agreed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedal import methods
from fedal.config import Config
from fedal.config.limits import MAX_TEXT, beyond_limits
from fedal.data.dataset import Dataset
from fedal.data.lacking import imputed_columns, without_lacking
from fedal.data.overlap import count_shared
from fedal.data.reading import read_data
from fedal.data.schema import Schema, load_schema
from fedal.data.split import Task
from fedal.data.streams import Samples
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.agreement import agree
from fedal.deploy.channel import CHUNK_BYTES, CONTROL_BYTES, SERVICE
from fedal.deploy.codec import Reader
from fedal.deploy.consent import refuse_unallowed
from fedal.deploy.contract import contract_of
from fedal.deploy.pki.authority import Invitation
from fedal.deploy.plan import manifest
from fedal.deploy.refusals import Code, Refused
from fedal.engine.player import LocalPlayer
from fedal.errors import ConfigError, DataError, FedalError
from fedal.facts import sent_to_sites
from fedal.learners.base import Learner
from fedal.messages import OUTPUTS_ONLY, Leak, Message
from fedal.metrics import METRICS, evaluate
from fedal.models.custom import call_any_factory, load_factory
from fedal.precision import dtype_of
from fedal.records.model_files import ModelFile, TrainedModel
from fedal.seeding import torch_seeded
from fedal.simulate.build import axis_lengths, build_client, build_learner, model_of, private_data
from fedal.simulate.checks import refuse_misfits
from fedal.simulate.prepare import held_out_share
from fedal.user_code import is_import_path, named_code

MAX_PUBLIC_BYTES = 1 << 31
SLOWEST = 10_000  # bytes per second of a link, below which the download is given up
MIN_SAMPLES = 8
UNBOUND = "no contract binds this site, only --allow: the server decides the settings, the rounds and the public set."


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
    accept: str | None = None  # hexadecimal digits of a contract that the operator agrees to
    method: str | None = None  # the only method that this site runs, perhaps its own code; None: a built-in one
    schema: Path | None = None  # of the federation's data; an .npz file may do without one
    own_validation: float = 0.0  # share of the training data to hold out, for the site's own judgement
    keep_best: str | None = None  # the metric by which the site's best model is kept too, next to the final one
    custom_model: nn.Module | Learner | None = None  # passed from Python, instead of `model`
    local: Mapping[str, Any] = field(default_factory=dict)  # how this site trains, instead of the server's settings


@dataclass(frozen=True)
class Membership:
    """A site's half of the run, ready for its first round."""

    player: LocalPlayer
    sends: tuple[type[Message], ...]  # the message types of the contract
    reader: Reader  # for messages from the server
    tests: tuple[Samples, torch.Tensor]
    judged_on: tuple[Samples, torch.Tensor]  # the site's own validation data, or else `tests`
    rounds: int  # in the whole run
    summary: str  # model and data size, for the operator
    about: Callable[..., ModelFile]  # rounds of a model, metrics, and those before -> what is written next to it
    positive: int | None = None  # of two classes, the one that metrics are about

    def judgement(self, metric: str = "accuracy") -> float | None:
        """The metric by which the site judges the run; None if it is not defined on these data."""
        samples, labels = self.judged_on
        data = "test" if self.judged_on is self.tests else "own_validation"
        found = evaluate(self.learner, samples, labels, torch.arange(len(labels)), data, (metric,), self.positive)
        return found.get(f"{data}_{metric}")

    @property
    def learner(self) -> Learner:
        return self.player.logic.learner

    def own_metrics(self, *, every: bool) -> dict[str, float]:
        """The accuracy on the site's own test data, or every metric of docs/metrics.md that is defined there."""
        samples, labels = self.tests
        names = tuple(METRICS) if every else ("accuracy",)
        return evaluate(self.learner, samples, labels, torch.arange(len(labels)), "test", names, self.positive)


def enter(plan: SitePlan, welcome: pb.Welcome, channel: grpc.Channel, notify: Callable[[str], None]) -> Membership:
    """Checks the server's welcome and builds the client's half of the run."""
    config = checked_settings(welcome.settings, plan.method)
    refuse_beyond_limits(config, welcome)
    schema = None if plan.schema is None else load_schema(plan.schema)
    notify(_agreed(plan, welcome, config, schema))  # before anything private is read
    config = config.with_(**plan.local)  # after the contract, which does not bind how a site takes its steps
    method = config.method_object()
    task = Task(welcome.dataset, tuple(welcome.input_shape), welcome.n_classes)
    name, dtype = plan.name, dtype_of(config.precision)
    public_x = _fetch_public(channel, welcome, plan.patience_s)
    data = read_data(plan.data, schema, n_classes=task.n_classes)
    for note in data.notes:
        notify(note)
    if data.sample_shape != task.input_shape:
        raise DataError(
            f"{plan.data}: samples have shape {data.sample_shape}; this federation uses {task.input_shape}."
        )
    if len(data.train_y) < MIN_SAMPLES:
        raise DataError(f"{plan.data}: {len(data.train_y)} training samples; expected at least {MIN_SAMPLES}.")
    imputed = imputed_columns(schema, data.lacking) if schema and data.lacking else None
    public = Samples(public_x, dtype).with_imputed(imputed)
    if shared := count_shared(data.train_x, without_lacking(public_x, data)):
        notify(f"warning: {shared} private samples are also in the public set, which every site can read.")
    model = model_of(config, name, None, task) if plan.model == "auto" else plan.model
    custom = plan.custom_model if plan.custom_model is not None else _custom_model(config, task, name, model)
    learner = build_learner(config, task, name, model, public, custom)
    width = refuse_misfits(method, {name: learner}, {name: model})
    if width != welcome.feature_width:
        raise ConfigError(f"{model} has {width} features; this federation expects {welcome.feature_width}.")
    labels, tests = torch.as_tensor(data.train_y), (Samples(data.test_x, dtype), torch.as_tensor(data.test_y))
    trained_on, judged_on = np.arange(len(labels)), tests
    if plan.own_validation:  # as in a simulation with this setting
        held_out = held_out_share(
            config.with_(own_validation=plan.own_validation), "own_validation", data.train_y, name
        )
        trained_on = np.setdiff1d(trained_on, held_out, assume_unique=True)
        judged_on = Samples(data.train_x[held_out], dtype), labels[held_out]
    private = private_data(config, name, Samples(data.train_x, dtype), labels, trained_on, task.n_classes)
    return Membership(
        player=LocalPlayer(build_client(config, name, learner, private, public)),
        sends=method.up,
        reader=Reader(method.down, axis_lengths(config, task, width), dtype),
        tests=tests,
        judged_on=judged_on,
        rounds=welcome.total_rounds,
        summary=f"{model}, {len(trained_on)} private samples",
        about=partial(_about, config, data, name, model, len(trained_on)),
        positive=data.positive,
    )


def _about(
    config: Config,
    data: Dataset,
    site: str,
    model: str,
    samples: int,
    rounds: int,
    metrics: dict[str, float],
    before: dict[str, float],
) -> ModelFile:
    """The description of the site's trained model, for `fedal predict`; its metrics are all of its own test data."""
    own, own_before = ({f"own_{name}": value for name, value in each.items()} for each in (metrics, before))
    trained = TrainedModel(model=model, private_samples=samples, metrics=own, before=own_before)
    return ModelFile.of(config, data, {site: trained}, rounds * config.tau)


def _agreed(plan: SitePlan, welcome: pb.Welcome, config: Config, schema: Schema | None) -> str:
    """Raises Refused unless the site has agreed to all that the server offers; returns that in words."""
    refuse_unallowed(config.method_object(), plan.allow)
    if not re.fullmatch(r"[0-9a-f]{64}", welcome.public_sha256):
        raise Refused(Code.PUBLIC_SET, "the server names no public set by its sha256.")
    own = schema.sha256 if schema else ""
    if welcome.schema_sha256 != own:
        theirs, mine = (sha256[:12] or "none" for sha256 in (welcome.schema_sha256, own))
        text = (
            f"the schema of the federation is {theirs!r}, of this site {mine!r}. Ask for its schema.json: --schema-file"
        )
        raise Refused(Code.CONTRACT, text)
    offered = contract_of(
        config,
        n_classes=welcome.n_classes,
        rounds=welcome.total_rounds,
        public_samples=welcome.public_samples,
        public_sha256=welcome.public_sha256,
        schema=own,
    )
    invitation = plan.invitation
    source = agree(offered, plan.state, invitation.contract if invitation else None, plan.accept)
    if source is None and invitation and invitation.public_sha256 not in (None, welcome.public_sha256):
        raise Refused(Code.PUBLIC_SET, "the server's public set differs from the invitation's. Ask the operator.")
    binds = f"contract {offered.name} ({source})" if source else f"warning: {UNBOUND} It offers {offered.name}"
    metrics = ", metrics on its own test data" if plan.share_metrics else ""
    return f"{binds}: {offered.summary}; may leave this site: {offered.leaves}{metrics}"


def _custom_model(config: Config, task: Task, client: str, name: str) -> nn.Module | Learner | None:
    """The model from the site's own factory: a module, or a learner of any framework. None for a built-in model."""
    if not is_import_path(name):
        return None
    with torch_seeded(config.seed, "weights", client):
        made: nn.Module | Learner = call_any_factory(name, load_factory(name), task.input_shape, task.n_classes)
    return made


def checked_settings(text: str, own_method: str | None = None) -> Config:
    """The server's settings as a config for this site, whose operator may name the only method that it runs.

    Refuses unknown keys and values that name code.
    """
    if len(text) > CONTROL_BYTES:
        raise Refused(
            Code.SETTINGS, f"the server's settings have {len(text)} characters; the limit is {CONTROL_BYTES}."
        )
    try:
        values = dict(json.loads(text).items())
        unknown = sorted(set(values) - set(sent_to_sites(Config)))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(Code.SETTINGS, f"the server's settings cannot be read ({error}).") from None
    if unknown:
        raise Refused(Code.SETTINGS, f"the server sets {unknown[0][:40]!r}, which only the site may set.")
    code = named_code(values)
    if code:
        raise Refused(Code.NAMES_CODE, f"the server names code, {code[0][:80]!r}; a site imports only its own code.")
    _refuse_other_method(values.get("method"), own_method)
    try:
        config = Config(**{**values, "method": own_method or values.get("method")})
    except FedalError as error:
        problems = " ".join(str(error).splitlines())
        raise Refused(Code.SETTINGS, f"the server's settings do not fit this release: {problems}") from None
    if undue := sorted(config.options.model_fields_set - {*sent_to_sites(type(config.options))}):
        raise Refused(Code.SETTINGS, f"the server sets {undue[0]!r}, which only the site may set.")
    return config


def refuse_beyond_limits(config: Config, welcome: pb.Welcome) -> None:
    """Refuses a run that would fill this site's memory or never end, before anything is allocated."""
    problems = beyond_limits(config, welcome.n_classes, welcome.total_rounds)
    texts = {"run": welcome.run, "dataset": welcome.dataset}
    problems += [f"{name} has {len(text)} characters" for name, text in texts.items() if len(text) > MAX_TEXT]
    if problems:
        text = "; ".join(problems)
        raise Refused(Code.SETTINGS, f"the server's settings exceed what a site accepts: {text}. Ask the operator.")


def _refuse_other_method(named: object, own: str | None) -> None:
    if own is not None and (expected := methods.get(own).name) != named:
        found = repr(named)[:40]
        raise Refused(Code.CONTRACT, f"the server runs {found}; this site runs only {expected} (--method {own}).")
    if own is None and named not in methods.names():
        raise Refused(
            Code.SETTINGS,
            f"the server runs {repr(named)[:40]}, which this release does not have. Install the server's release, or "
            "name your own code for it: --method package.module:METHOD.",
        )


def _fetch_public(channel: grpc.Channel, welcome: pb.Welcome, patience_s: float) -> NDArray[np.float32]:
    """Downloads and verifies the public set. Checks its size against the limit before requesting the first byte."""
    shape = (welcome.public_samples, *welcome.input_shape)
    size = 4 * math.prod(shape)
    if not 0 < size <= MAX_PUBLIC_BYTES:
        raise Refused(Code.PUBLIC_SET, f"a public set of {size} bytes; the limit is {MAX_PUBLIC_BYTES}.")
    call = channel.unary_stream(f"/{SERVICE}/PublicSet", pb.PublicSetRequest.SerializeToString, pb.Chunk.FromString)
    raw = bytearray()
    for chunk in _until(call, patience_s + size / SLOWEST):
        if not chunk.data:
            raise Refused(Code.PUBLIC_SET, "the public set comes in empty pieces.")
        if len(chunk.data) > CHUNK_BYTES or len(raw) + len(chunk.data) > size:
            raise Refused(Code.PUBLIC_SET, f"the public set exceeds the announced {size} bytes.")
        raw += chunk.data
    if len(raw) != size:
        raise Refused(Code.PUBLIC_SET, f"the public set has {len(raw)} bytes; the server announced {size}.")
    public_x = np.frombuffer(bytes(raw), np.float32).reshape(shape)
    if manifest(public_x) != welcome.public_sha256 or not np.isfinite(public_x).all():
        raise Refused(Code.PUBLIC_SET, "the public set does not match the announced hash, or holds non-finite values.")
    return public_x.copy()


def _until(call: Any, seconds: float) -> Iterator[pb.Chunk]:
    """The pieces of the public set. Raises Refused if they come too slowly."""
    try:
        yield from call(pb.PublicSetRequest(), timeout=seconds)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise Refused(Code.PUBLIC_SET, f"the public set took more than {seconds:.0f} s.") from None
