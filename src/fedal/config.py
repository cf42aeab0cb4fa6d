"""The typed, frozen configuration of a run. Reading, checking and printing it needs no torch.

Order of authority: what the user says, then the preset, then the defaults. Options of the method live in the table
`[options]`; on the command line and in Python they may be given flat (`--set tau=3`, `Config(tau=3)`).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError

from fedal import data, methods
from fedal.data.partition import PARTITIONS
from fedal.errors import ConfigError
from fedal.messages import NOT_BLACK_BOX, Leak, in_words
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions

InstrumentName = Literal["forgetting", "zeta", "gradients"]
ClientId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]

PAPER_CLIENTS = {"mnist": 10, "svhn": 20, "cifar10": 15, "cinic10": 10, "celeba": 20}
PAPER_ITERATIONS = {5.0: 3000, 2.0: 5000, 1.0: 7000}

REQUIREMENTS: dict[str, Leak] = {
    "black-box": NOT_BLACK_BOX,
    "outputs-only": ~(Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS),
}
"""What `require` forbids to cross the wire."""

OTHER_WORDS = {"learning_rate": "lr", "model": "models", "num_clients": "clients", "n_clients": "clients"}
"""What people call a setting elsewhere -> what it is called here."""


def _split_names(value: Any) -> Any:
    """`forgetting,zeta` on the command line is a list."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


class ClientConfig(BaseModel):
    """One `[[clients]]` table: a client with a name, or `count` of the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClientId | None = Field(None, description="lower-case letters, digits and dashes")
    model: str | None = Field(None, description="a name of `fedal models` or package.module:factory")
    count: int = Field(1, ge=1, description="how many clients this table stands for")


class Config(BaseModel):
    """Everything that decides a run. The resolved one is written to the run folder before the first step."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: str = Field("fedal", description="a name of `fedal methods`, or package.module:METHOD")
    dataset: str = Field("digits", description="a name of `fedal datasets`; ignored when `data` is given")
    data: str | None = Field(None, description="own data: an .npz file with arrays x and y")
    public: str | None = Field(None, description="own public inputs: an .npz file with an array x")
    data_folder: str | None = Field(None, description="where data sets lie (default: FEDAL_DATA or the user cache)")
    accept_unverified: bool = Field(False, description="accept data files whose checksum is not the publisher's")
    clients: Annotated[int, Field(ge=1)] | tuple[ClientConfig, ...] = Field(10, description="how many, or tables")
    models: str | tuple[str, ...] = Field(
        "auto", description="auto (the data set's candidates, drawn at random), same (the first), or a list of models"
    )
    partition: str | None = Field(None, description="how data are divided: " + ", ".join(PARTITIONS))
    alpha: float = Field(1.0, gt=0, description="Dirichlet concentration: smaller = more skewed")
    allow_overlap: bool = Field(False, description="client-wise partitions: clients may share samples")
    min_samples: int = Field(8, ge=1, description="fewer private samples than this at a client is an error")
    public_size: int | None = Field(None, ge=1, description="public samples (default: 300 on digits, else 1000)")
    iterations: int | None = Field(None, ge=1, description="local steps = rounds x tau, rounded up to a whole round")
    rounds: int | None = Field(None, ge=1, description="rounds; give this or iterations, not both")
    batch_size: int = Field(32, ge=2, description="samples per private and per public batch")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="one per client, kept over the whole run")
    lr: float = Field(1e-3, gt=0, description="step size eta_l of the clients")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(0.0, ge=0)
    seed: int = Field(0, ge=0, description="every random number of the run follows from it")
    eval_every: int = Field(50, ge=1, description="iterations between evaluations, rounded up to a round end")
    eval_samples: int = Field(500, ge=1, description="test samples while training (final rows use all)")
    eval_after_local: bool = Field(True, description="also evaluate between local training and transfer")
    instruments: Annotated[tuple[InstrumentName, ...], BeforeValidator(_split_names)] = Field(
        (), description="measured in every recorded round, see docs/theory.md: forgetting, zeta, gradients"
    )
    checkpoint_every: int | Literal["auto"] = Field("auto", description="rounds; auto: saving costs under 2%")
    engine: Literal["threads", "ray"] = Field("threads", description="how clients run side by side; the same bits")
    ray_address: str | None = Field(None, description="of a Ray cluster (default: a Ray of its own, loopback only)")
    workers: int = Field(0, ge=0, description="worker threads or actors (0: one per core); does not change a bit")
    channels_last: bool = Field(True, description="memory format of convolutional nets")
    fused: bool = Field(True, description="the fused optimizer kernel")
    stacked: bool | Literal["auto"] = Field(
        "auto", description="small nets of one architecture learn as one (auto: LeNet5); changes the last bits"
    )
    precision: Literal["fp32", "fp64", "bf16"] = Field(
        "fp32", description="numbers of models, data and messages; bf16: torch layers compute in it, the rest is fp32"
    )
    device: str = Field("cpu", description="torch device (only cpu is tested)")
    require: Literal["black-box", "outputs-only"] | None = Field(None, description="refuse methods that reveal more")
    allow_nondeterministic: bool = Field(False, description="let models draw from global random generators")
    preset: Literal["paper"] | None = Field(None, description="the FedAL paper's settings for what is not given")
    options: SerializeAsAny[MethodOptions] = Field(default_factory=MethodOptions, description="of the method")

    def __init__(self, **values: Any) -> None:
        problems: list[str] = []
        values = {key: value for key, value in values.items() if value is not None}
        _refuse_unknown_names(values, problems)
        values = _with_preset(values)
        values["options"] = _sort_out_options(values, problems)
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems += _explain(error, list(type(self).model_fields))
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
    def client_tables(self) -> tuple[ClientConfig, ...]:
        """One entry per client, all named: what is unnamed is called client-00, client-01, ..."""
        tables = (ClientConfig(count=self.clients),) if isinstance(self.clients, int) else self.clients
        each = [table.model_copy(update={"count": 1}) for table in tables for _ in range(table.count)]
        width = max(2, len(str(len(each) - 1)))
        return tuple(
            table if table.name else table.model_copy(update={"name": f"client-{index:0{width}}"})
            for index, table in enumerate(each)
        )

    @property
    def client_names(self) -> tuple[str, ...]:
        return tuple(str(table.name) for table in self.client_tables)

    def method_object(self) -> Method:
        return methods.get(self.method)

    def with_(self, **changes: Any) -> Config:
        """A copy with other values, checked again."""
        return Config(**{**self.model_dump(exclude_none=True), **changes})

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True, mode="json"))


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> Config:
    """The config in a TOML file (if any) with overrides on top."""
    values = read_toml(path) if path is not None else {}
    if values.pop("deployment", None) is not None:  # how a server serves this run: see deployment.py
        values.setdefault("stacked", False)  # sites never stack, and the same file has the same bits in one process
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return Config(**merge_settings(values, given))
    except ConfigError as error:
        in_file = {*values, *_as_dict(values.get("options", {}))} - given.keys()
        lines = [f"{path}, {line}" if _key_of(line) in in_file else line for line in str(error).splitlines()]
        raise type(error)("\n".join(lines)) from None


def _key_of(problem: str) -> str:
    """The setting that a line of a ConfigError is about."""
    found = re.match(r"(?:options\.)?(\w+)", problem)
    return found[1] if found else ""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}.") from None


def merge_settings(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides win; a flat method option wins over the same one in [options], and either length over both."""
    if {"iterations", "rounds"} & overrides.keys():
        values = {key: value for key, value in values.items() if key not in ("iterations", "rounds")}
    merged = {**values, **overrides}
    if isinstance(values.get("options"), dict) and isinstance(overrides.get("options", {}), dict):
        merged["options"] = {key: value for key, value in dict(values["options"]).items() if key not in overrides}
        merged["options"] |= dict(overrides.get("options", {}))
    return merged


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`key=value` words of --set as a dict; values are TOML where they parse, else plain strings."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {assignment}: expected key=value, for instance --set tau=3.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        key = key.strip()
        if key.startswith("options."):
            key = key.removeprefix("options.")
        values[key] = value
    return values


def _with_preset(values: dict[str, Any]) -> dict[str, Any]:
    if values.get("preset") != "paper":
        return values
    dataset = values.get("dataset", "digits")
    preset: dict[str, Any] = {"lr": 1e-4 if dataset == "celeba" else 1e-3, "public_size": 1000}
    if dataset in PAPER_CLIENTS:
        preset["clients"] = PAPER_CLIENTS[dataset]
    if dataset == "celeba":
        preset["partition"] = "by-user"
    if dataset == "digits":  # not in the paper: too small for 1000 public samples
        preset.pop("public_size")
    if "rounds" not in values:
        alpha = values.get("alpha", 1.0)
        long = dataset in ("celeba", "cinic10")
        preset["iterations"] = 10_000 if long else PAPER_ITERATIONS.get(alpha if _is_number(alpha) else 1.0, 7000)
    name = values.get("method", "fedal")
    if isinstance(name, str) and (":" in name or name in methods.names()):
        options = dict(methods.get(name).paper_options)
        given = {**_as_dict(values.get("options", {})), **values}
        values = {**values, **{key: value for key, value in options.items() if key not in given}}
    return {**preset, **values}


def _as_dict(options: Any) -> dict[str, Any]:
    if isinstance(options, BaseModel):
        return options.model_dump()
    return dict(options) if isinstance(options, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _refuse_unknown_names(values: dict[str, Any], problems: list[str]) -> None:
    """Reports data sets and partitions that do not exist, and takes them out: other mistakes are still looked for."""
    known = {"dataset": ("data set", data.names()), "partition": ("partition", list(PARTITIONS))}
    for key, (what, names) in known.items():
        name = values.get(key, names[0])
        if name in names or (key == "dataset" and "data" in values):
            continue
        near = difflib.get_close_matches(str(name).lower().replace("_", "-"), names, n=1)
        hint = f'Did you mean "{near[0]}"?' if near else f"There are: {', '.join(names)}."
        problems.append(f'{key}: there is no {what} "{name}". {hint}')
        values.pop(key)


def _sort_out_options(values: dict[str, Any], problems: list[str]) -> MethodOptions:
    """Moves flat method options out of `values`, and reports keys that nobody knows."""
    try:
        name = values.get("method", "fedal")
        if not isinstance(name, str):
            raise ConfigError(f"method = {name!r}: expected a name. `fedal methods` lists them.")
        method = methods.get(name)
    except ConfigError as error:
        problems.append(str(error))
        values.pop("method")
        method = None
    options = values.pop("options", {})
    if not isinstance(options, Mapping | BaseModel):
        problems.append(f"options = {options!r}: expected a table of method options, such as tau = 3.")
    given = _as_dict(options)
    known = list(method.options.model_fields) if method else []
    for key in [key for key in values if key not in Config.model_fields]:
        if key in known:
            given[key] = values.pop(key)
        else:
            values.pop(key)
            if method:  # without one, the key may be an option of the method that was meant
                problems.append(unknown_setting(key, [*Config.model_fields, *known], [method.name]))
    if method is None:
        return MethodOptions()
    for key in [key for key in given if key not in known]:
        given.pop(key)
        problems.append(unknown_setting(f"options.{key}", [f"options.{name}" for name in known], [method.name]))
    try:
        return method.options(**given)
    except ValidationError as error:
        problems += _explain(error, known)
        return method.options()


def unknown_setting(key: str, known: Sequence[str], methods: Iterable[str]) -> str:
    """What to say about a key that is neither a setting nor an option of these methods."""
    near = [OTHER_WORDS[key]] if key in OTHER_WORDS else difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
    return f"{key}: no such setting, and no option of {', '.join(methods)}. {hint}"


SEVERAL_TYPES = {
    "clients": "expected a number of clients or a list of tables with name and model",
    "models": "expected auto, same, a name of `fedal models`, or a list of names",
    "checkpoint_every": "expected a number of rounds, or auto",
    "stacked": "expected true, false or auto",
}
PATTERNS = {"server_model": "expected auto or a name of `fedal models`"}
WRONG_TYPE = ("tuple_type", "int_type", "int_parsing", "string_type", "bool_type", "bool_parsing")
TYPE_NAME = re.compile(r"constrained-|tuple\[|literal\[|str$|int$|bool$")  # how pydantic names the branch of a union


def _explain(error: ValidationError, known: list[str]) -> list[str]:
    lines: dict[str, str] = {}  # place -> what is wrong there
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"] if not TYPE_NAME.match(str(part)))
        expected = problem["msg"][0].lower() + problem["msg"][1:]
        if problem["type"] == "string_pattern_mismatch":
            expected = PATTERNS.get(where, "expected up to 63 lower-case letters, digits and dashes")
        if problem["type"] in WRONG_TYPE:
            expected = SEVERAL_TYPES.get(where, expected)
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(where.split(".")[-1], [*known, *ClientConfig.model_fields], n=1)
            lines.setdefault(where, f"{where}: no such setting." + (f" Did you mean {near[0]}?" if near else ""))
        else:
            lines.setdefault(where, f"{where} = {problem['input']!r}: {expected}.")
    # A wrong entry of a list is told once, not again as "this list is no number".
    return [line for where, line in lines.items() if not any(other.startswith(f"{where}.") for other in lines)]


def _contradictions(config: Config) -> list[str]:
    """What no single field shows."""
    problems = []
    method = config.method_object()
    if config.iterations is not None and config.rounds is not None:
        problems.append(
            f"iterations = {config.iterations} and rounds = {config.rounds}: give one of them; "
            f"iterations = rounds x tau, here tau = {config.tau}."
        )
    names = config.client_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(f'clients: the name "{twice[0]}" is used {names.count(twice[0])} times; names must differ.')
    if not names:
        problems.append("clients: the list is empty; expected at least one client.")
    elif len(names) < 2 and method.exchanges:
        problems.append(
            f"clients = {len(names)}: {method.name} exchanges outputs between clients and needs at least 2. "
            "Add clients, or use method local."
        )
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
