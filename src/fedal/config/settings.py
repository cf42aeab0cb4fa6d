"""Everything that determines a run, as typed, frozen settings; each carries its facts (`fedal.facts`)."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError

from fedal import methods
from fedal.config.attackers import Attacker, attackers_of
from fedal.config.client_data import client_data
from fedal.config.contradictions import contradictions
from fedal.config.local_settings import (
    LOCAL,
    ClassWeights,
    LocalOverrides,
    LocalSettings,
    Optimizer,
    Schedule,
)
from fedal.config.method_options import take_options
from fedal.config.mistakes import explain, unknown_names
from fedal.config.participation import cohort_size, evaluated_clients
from fedal.config.presets import with_preset
from fedal.data.augment import Change
from fedal.data.owners import NAME as OWN
from fedal.data.partition import PARTITIONS
from fedal.errors import ConfigError
from fedal.facts import sent_to_sites, setting, without_effect
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions

InstrumentName = Literal["forgetting", "zeta", "gradients", "bottlenecks"]
AUTO_EVALUATIONS = 20  # of a run with eval_every = auto
MAX_CLIENTS = 1_000_000  # a larger number is a slip of the hand, and naming so many clients would fill the memory
ClientId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


def _split_names(value: Any) -> Any:
    """Splits `forgetting,zeta` from the command line into a tuple."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _split_changes(value: Any) -> Any:
    """Names of changes; `none` alone stands for an empty tuple."""
    names = _split_names(value)
    return () if names in (("none",), ["none"]) else names


def _split_metrics(value: Any) -> Any:
    return value if value in ("auto", "all") else _split_names(value)


class ClientConfig(LocalOverrides):
    """One `[[clients]]` table: a named client, or `count` unnamed clients."""

    name: ClientId | None = Field(None, description="lower-case letters, digits and dashes")
    model: str | None = Field(None, description="a name of `fedal models` or package.module:factory")
    data: str | None = Field(None, description="its own data: CSV, Parquet or .npz file, or folder of images")
    count: int = Field(1, ge=1, le=MAX_CLIENTS, description="number of clients that this table describes")


class Config(BaseModel):
    """Everything that determines a run. The resolved config is written to the run folder before the first step."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # fmt: off
    method: str = setting(
        "fedal", "a name of `fedal methods`, or package.module:METHOD", sites=True, changes="weights", option=True)
    dataset: str = setting(
        "digits", "a name of `fedal datasets`, unless `data` is given", sites=False, changes="weights", option=True)
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | tuple[ClientConfig, ...] = setting(
        10, "number of clients; in a file also tables", sites=False, changes="weights", option=True,
        expected="a number of clients or a list of tables with name and model")
    models: str | tuple[str, ...] = setting(
        "auto", "comma-separated names of `fedal models`, auto (drawn from the dataset's candidates), same (the first)",
        sites=False, changes="weights", option=True,
        expected="auto, same, a name of `fedal models`, or a list of names")
    partition: str | None = setting(
        None, "how the data are partitioned: " + ", ".join(PARTITIONS), sites=False, changes="weights", option=True)
    alpha: float = setting(
        1.0, "Dirichlet concentration: smaller = more skewed", gt=0, sites=False, changes="weights", option=True)
    iterations: int | None = setting(
        None, "length as rounds x tau, rounded up to a whole round; 400 if rounds is not given either", ge=1,
        sites=False, changes="weights", option=True)
    rounds: int | None = setting(
        None, "length in rounds, instead of iterations", ge=1, sites=False, changes="weights", option=True)
    seed: int = setting(0, "determines every random number", ge=0, sites=True, changes="weights", option=True)
    participation: int | float = setting(
        1.0, "share of the clients that take part in each round, or their number; drawn by the seed", sites=False,
        changes="weights", option=True, expected="a share up to 1.0, or a number of clients")
    rest: Literal["memory", "disk"] = setting(
        "memory", "where clients wait that sit out a round: memory, or disk (files in the run folder; the same bits)",
        sites=False, changes="nothing")
    preset: Literal["paper"] | None = setting(
        None, "values for settings left open: paper (the FedAL paper's)", sites=False, changes="nothing", option=True)
    engine: Literal["threads", "ray"] = setting(
        "threads", "how clients run: threads, ray (bit-identical)", sites=False, changes="nothing", option=True)
    ray_address: str | None = setting(
        None, "address of a Ray cluster; default: start a local one on loopback", sites=False, changes="nothing",
        option=True)
    require: Literal["black-box", "outputs-only"] | None = setting(
        None, "reject methods that reveal more: black-box, outputs-only", sites=False, changes="nothing", option=True)
    data: str | None = setting(
        None, "your own data: a CSV, Parquet or .npz file, or a folder of images per class", sites=False,
        changes="weights", option=True)
    public: str | None = setting(
        None, "your own public inputs, in the same kinds of files", sites=False, changes="weights", option=True)
    schema_file: str | None = setting(
        None, "how your data become numbers, drafted by `fedal schema`", sites=False, changes="weights", option=True)
    data_in_python: bool = setting(
        False, "the data were passed to fedal.run in Python; `dataset` is the name they have there", sites=False,
        changes="weights")
    data_folder: str | None = setting(
        None, "folder of the datasets (default: FEDAL_DATA or the user cache)", sites=False, changes="nothing")
    accept_unverified: bool = setting(
        False, "accept data files whose checksum differs from the publisher's", sites=False, changes="weights")
    min_samples: int = setting(
        8, "minimum number of private samples per client; fewer is an error", ge=1, sites=False, changes="weights")
    public_size: int | None = setting(
        None, "number of public samples (default: the dataset's, else 1000 or a quarter of the training set)", ge=1,
        sites=False, changes="weights")
    validation: float = setting(
        0.0, "share of the training samples, after the public set, that belongs to no client and is only measured on",
        ge=0, lt=1, sites=False, changes="weights", option=True)
    own_validation: float = setting(
        0.0, "share of each client's own samples that it does not train on and is measured on", ge=0, lt=1,
        sites=False, changes="weights")
    batch_size: int = setting(32, "samples per private and per public batch", ge=2, sites=True, changes="weights")
    optimizer: Optimizer = setting(
        "adam", "optimizer of each client, kept over the whole run: adam, adamw (decoupled weight decay), sgd",
        sites=True, changes="weights")
    lr: float = setting(1e-3, "step size eta_l of the clients", gt=0, sites=True, changes="weights")
    schedule: Schedule = setting(
        "constant", "how the clients' step size falls: constant, linear, cosine, exponential", sites=True,
        changes="weights")
    schedule_iterations: int | None = setting(
        None, "iterations until the step size is lr x schedule_end; it stays there", ge=1, sites=True,
        changes="weights")
    schedule_end: float = setting(
        0.01, "share of lr at the end of a schedule", gt=0, le=1, sites=True, changes="weights")
    clip: float = setting(
        0.0, "largest norm of a client's whole gradient w.r.t. its weights; 0: no clipping", ge=0, sites=True,
        changes="weights")
    class_weights: ClassWeights = setting(
        "none", "weights of the classes in the loss on private data: none, balanced (n / (classes x n_k) of the "
        "client's own labels), or one number per class", sites=True, changes="weights",
        expected="none, balanced, or one number per class")
    label_smoothing: float = setting(
        0.0, "share of each private label that is spread over all classes; local_loss=restricted: over the own ones",
        ge=0, lt=1, sites=True, changes="weights")
    momentum: float = setting(0.0, "momentum of sgd", ge=0, lt=1, sites=True, changes="weights")
    weight_decay: float = setting(0.0, "weight decay of the clients' optimizers", ge=0, sites=True, changes="weights")
    public_augment: Annotated[tuple[Change, ...], BeforeValidator(_split_changes)] = setting(
        (), "changes to public batches, the same at every party: none, or shift, flip (images), mixup, noise",
        sites=True, changes="weights", expected="none, or shift, flip, mixup or noise, separated by commas")
    public_clean: float = setting(
        0.5, "public_augment: share of each public batch that stays as it is", ge=0, lt=1, sites=True,
        changes="weights")
    public_augment_start: int = setting(
        0, "public_augment: first iteration with changed batches", ge=0, sites=True, changes="weights")
    private_augment: Annotated[tuple[Change, ...], BeforeValidator(_split_changes)] = setting(
        (), "changes to private batches: none, or shift, flip (images), noise", sites=True, changes="weights",
        expected="none, or shift, flip or noise, separated by commas")
    keep_best: bool = setting(
        False, "also keep each client's best model on its own_validation data; tables still show the final one",
        sites=False, changes="record")
    eval_every: Annotated[int, Field(ge=1)] | Literal["auto"] = setting(
        "auto", "iterations between evaluations, rounded up to the end of a round; auto: about 20 in the run",
        sites=False, changes="record", expected="a number of iterations, or auto")
    eval_samples: int = setting(
        500, "test samples per evaluation during training (final rows use all)", ge=1, sites=False, changes="record")
    eval_clients: Annotated[int, Field(ge=2)] | Literal["auto"] = setting(
        "auto", "clients that are evaluated, drawn by the seed; auto: all, or with participation as many as take part "
        "in a round, at least 20. Rows about a sample state the error of its mean", sites=False, changes="record",
        expected="a number of clients from 2, or auto")
    metrics: Annotated[
        Literal["auto", "all"] | Annotated[tuple[str, ...], Field(min_length=1)], BeforeValidator(_split_metrics)
    ] = setting(
        "auto", "what is recorded of the models, the headline first: names of docs/metrics.md, all, or auto (accuracy; "
        "where classes are very unequal PR-AUC, balanced accuracy and all others)", sites=False, changes="record",
        expected="auto, all, or names of docs/metrics.md separated by commas")
    eval_after_local: bool = setting(
        True, "also evaluate between local training and transfer", sites=False, changes="record")
    instruments: Annotated[tuple[InstrumentName, ...], BeforeValidator(_split_names)] = setting(
        (), "measured in every recorded round, see docs/theory.md: forgetting, zeta, gradients, bottlenecks",
        sites=False, changes="nothing")
    checkpoint_every: int | Literal["auto"] = setting(
        "auto", "rounds between checkpoints; auto: saving takes under 2% of the time", sites=False, changes="nothing",
        expected="a number of rounds, or auto")
    workers: int = setting(
        0, "worker threads or actors (0: one per core); no effect on results", ge=0, sites=False, changes="nothing")
    channels_last: bool = setting(
        True, "use the channels-last memory format in convolutional networks", sites=True, changes="weights")
    fused: bool = setting(True, "use the fused optimizer kernel", sites=True, changes="weights")
    stacked: bool | Literal["auto"] = setting(
        "auto", "train networks of one architecture as one (auto: MLPs and LeNet5); true may change the last bits",
        sites=False, changes="weights", expected="true, false or auto")
    precision: Literal["fp32", "fp64", "bf16"] = setting(
        "fp32", "number format of models, data and messages; bf16 applies to torch layers only, the rest is fp32",
        sites=True, changes="weights")
    device: str = setting("cpu", "torch device (only cpu is tested)", sites=False, changes="weights")
    allow_nondeterministic: bool = setting(
        False, "let models draw from global random generators", sites=False, changes="weights")
    attackers: Annotated[tuple[str, ...], BeforeValidator(_split_names)] = setting(
        (), "clients whose uploads lie, in simulation: who:attack:strength@round, who a client or a share of them",
        sites=False, changes="weights", expected="entries such as client-03:negate:10@20, separated by commas")
    options: SerializeAsAny[MethodOptions] = setting(
        MethodOptions(), "options of the method", sites=True, changes="weights")
    # fmt: on

    def __init__(self, **values: Any) -> None:
        values = {key: value for key, value in values.items() if value is not None}
        unknown = unknown_names(values)
        problems = list(unknown.values())
        for key in unknown:  # removed, so that the other mistakes are reported too
            values.pop(key)
        if client_data(values.get("clients")):
            values.setdefault("dataset", OWN)
        known = type(self).model_fields
        defaults = {key: field.default for key, field in known.items()}
        values = with_preset(values, defaults)
        method = values.get("method", defaults["method"])
        values["options"] = take_options(values, method, list(known), problems)
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems += explain(error, type(self), ClientConfig)
        else:
            problems += contradictions(self)
        if problems:
            raise ConfigError("\n".join(problems))

    @property
    def tau(self) -> int:
        return self.options.tau

    @property
    def total_rounds(self) -> int:
        return self.rounds or -(-(self.iterations or 400) // self.tau)

    @property
    def eval_interval(self) -> int:
        """Iterations between evaluations; auto: the multiple of tau that yields about 20 evaluations."""
        if self.eval_every == "auto":
            return self.tau * max(1, round(self.total_rounds / AUTO_EVALUATIONS))
        return self.eval_every

    @cached_property
    def client_tables(self) -> tuple[ClientConfig, ...]:
        """One named entry per client; unnamed clients are called client-00, client-01, ..."""
        tables = (ClientConfig(count=self.clients),) if isinstance(self.clients, int) else self.clients
        each = [table for table in tables for _ in range(table.count)]
        width = max(2, len(str(len(each) - 1)))
        return tuple(
            table.model_copy(update={"name": table.name or f"client-{index:0{width}}", "count": 1})
            for index, table in enumerate(each)
        )

    def local(self, client: str) -> LocalSettings:
        """How a client trains: the settings of its table, else those of the run; a server has those of the run."""
        return LocalSettings(**{**{name: getattr(self, name) for name in LOCAL}, **self.overridden.get(client, {})})

    @cached_property
    def overridden(self) -> dict[str, dict[str, Any]]:
        if isinstance(self.clients, int):
            return {}
        return {str(table.name): found for table in self.client_tables if (found := table.overrides)}

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        return tuple(str(table.name) for table in self.client_tables)

    @property
    def cohort_size(self) -> int:
        """The number of clients that take part in each round."""
        return cohort_size(self.participation, len(self.client_names))

    @property
    def is_partial(self) -> bool:
        """Whether some clients sit out each round."""
        return self.cohort_size < len(self.client_names)

    @property
    def evaluated_clients(self) -> int:
        """The number of clients that are evaluated."""
        return evaluated_clients(self.eval_clients, self.cohort_size, len(self.client_names))

    @property
    def attacker_table(self) -> dict[str, Attacker]:
        """client -> its attack, for the clients that attack."""
        return attackers_of(self.attackers, self.client_names)

    @property
    def title(self) -> str:
        """`fedal on digits, seed 0`: what a run of this config is called."""
        return f"{self.method} on {self.data or self.dataset}, seed {self.seed}"

    def method_object(self) -> Method:
        return methods.get(self.method)

    def with_(self, **changes: Any) -> Self:
        """A copy with these changes, validated again."""
        return type(self)(**{**self.model_dump(exclude_none=True), **changes})

    def for_sites(self) -> dict[str, Any]:
        """The settings sent to the sites of a deployment, as JSON. A method is named, never the code that holds it."""
        told: dict[str, Any] = dict.fromkeys(sent_to_sites(type(self)), True)
        told = self.model_dump(mode="json", include={**told, "options": set(sent_to_sites(type(self.options)))})
        return told | {"method": self.method_object().name}

    def deciding(self) -> dict[str, Any]:
        """The settings without those that do not affect the result of a run."""
        ignored: dict[str, Any] = dict.fromkeys(without_effect(type(self)), True)
        ignored["options"] = set(without_effect(type(self.options)))
        return self.model_dump(exclude_none=True, exclude=ignored)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True, mode="json"))
