"""Everything that determines a run, as typed, frozen settings; each carries its facts (`fedal.facts`)."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError

from fedal import methods
from fedal.config.attackers import Attacker, attackers_of
from fedal.config.method_options import take_options
from fedal.config.mistakes import explain, unknown_names
from fedal.config.presets import with_preset
from fedal.data.partition import PARTITIONS
from fedal.errors import ConfigError
from fedal.facts import sent_to_sites, setting, without_effect
from fedal.messages import NOT_BLACK_BOX, OUTPUTS_ONLY, Leak, Outputs, in_words
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions

InstrumentName = Literal["forgetting", "zeta", "gradients"]
AUTO_EVALUATIONS = 20  # of a run with eval_every = auto
MAX_CLIENTS = 1_000_000  # a larger number is a slip of the hand, and naming so many clients would fill the memory
ClientId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]

REQUIREMENTS: dict[str, Leak] = {
    "black-box": NOT_BLACK_BOX,
    "outputs-only": ~OUTPUTS_ONLY,
}
"""value of `require` -> what must not cross the wire."""


def _split_names(value: Any) -> Any:
    """Splits `forgetting,zeta` from the command line into a tuple."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


class ClientConfig(BaseModel):
    """One `[[clients]]` table: a named client, or `count` unnamed clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClientId | None = Field(None, description="lower-case letters, digits and dashes")
    model: str | None = Field(None, description="a name of `fedal models` or package.module:factory")
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
        None, "your own data: an .npz file with x and y", sites=False, changes="weights", option=True)
    public: str | None = setting(
        None, "your own public inputs: an .npz file with x", sites=False, changes="weights", option=True)
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
    optimizer: Literal["adam", "sgd"] = setting(
        "adam", "optimizer of each client, kept over the whole run", sites=True, changes="weights")
    lr: float = setting(1e-3, "step size eta_l of the clients", gt=0, sites=True, changes="weights")
    momentum: float = setting(0.0, "momentum of sgd", ge=0, lt=1, sites=True, changes="weights")
    weight_decay: float = setting(0.0, "weight decay of the clients' optimizers", ge=0, sites=True, changes="weights")
    eval_every: Annotated[int, Field(ge=1)] | Literal["auto"] = setting(
        "auto", "iterations between evaluations, rounded up to the end of a round; auto: about 20 in the run",
        sites=False, changes="record", expected="a number of iterations, or auto")
    eval_samples: int = setting(
        500, "test samples per evaluation during training (final rows use all)", ge=1, sites=False, changes="record")
    eval_after_local: bool = setting(
        True, "also evaluate between local training and transfer", sites=False, changes="record")
    instruments: Annotated[tuple[InstrumentName, ...], BeforeValidator(_split_names)] = setting(
        (), "measured in every recorded round, see docs/theory.md: forgetting, zeta, gradients",
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
        "auto", "train small networks of one architecture as one stack (auto: LeNet5); changes the last bits",
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
            problems += _contradictions(self)
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
            ClientConfig(name=table.name or f"client-{index:0{width}}", model=table.model)
            for index, table in enumerate(each)
        )

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        return tuple(str(table.name) for table in self.client_tables)

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
        """The settings sent to the sites of a deployment, as JSON."""
        told: dict[str, Any] = dict.fromkeys(sent_to_sites(type(self)), True)
        return self.model_dump(mode="json", include={**told, "options": set(sent_to_sites(type(self.options)))})

    def deciding(self) -> dict[str, Any]:
        """The settings without those that do not affect the result of a run."""
        ignored: dict[str, Any] = dict.fromkeys(without_effect(type(self)), True)
        ignored["options"] = set(without_effect(type(self.options)))
        return self.model_dump(exclude_none=True, exclude=ignored)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True, mode="json"))


def _contradictions(config: Config) -> list[str]:
    """Contradictions between settings that are valid on their own."""
    problems = []
    method = config.method_object()
    if config.iterations is not None and config.rounds is not None:
        problems.append(
            f"iterations = {config.iterations} and rounds = {config.rounds}: give one of them; "
            f"iterations = rounds x tau, here tau = {config.tau}."
        )
    names = config.client_names
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        problems.append(f'clients: the name "{name}" is used {times} times; names must differ.')
    if not names:
        problems.append("clients: the list is empty; expected at least one client.")
    elif len(names) < 2 and method.exchanges:
        problems.append(
            f"clients = {len(names)}: {method.name} exchanges outputs between clients and needs at least 2. "
            "Add clients, or use method local."
        )
    problems += _attack_problems(config)
    if config.engine == "ray" and config.instruments:
        problems.append(f"instruments = {','.join(config.instruments)}: measured by engine = threads only.")
    if config.ray_address is not None and config.engine != "ray":
        problems.append(f"ray_address = {config.ray_address!r}: needs engine = ray.")
    if isinstance(config.checkpoint_every, int) and config.checkpoint_every < 1:
        problems.append(f"checkpoint_every = {config.checkpoint_every}: expected at least 1 round, or auto.")
    if config.require and method.reveals & REQUIREMENTS[config.require]:
        revealed = in_words(method.reveals & REQUIREMENTS[config.require])
        allowed = [name for name in methods.names() if not methods.get(name).reveals & REQUIREMENTS[config.require]]
        problems.append(
            f"require = {config.require}: {method.name} sends {revealed}. Methods that do not: {', '.join(allowed)}."
        )
    return problems


def _attack_problems(config: Config) -> list[str]:
    if not config.attackers:
        return []
    other = [kind.__name__ for kind in config.method_object().up if not issubclass(kind, Outputs)]
    if other:
        return [
            f"attackers: they forge outputs; {config.method} uploads {other[0]}. Use a method that sends outputs only."
        ]
    try:
        attackers_of(config.attackers, config.client_names)
    except ValueError as error:
        return [f"attackers: {error}"]
    return []
