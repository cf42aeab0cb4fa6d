"""Command-line options. Options for settings are generated from the facts of `Config`; no other file names them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedal.cli.completion import OF_SETTINGS
from fedal.config import Config, load_config, merge_settings, parse_assignments, read_settings
from fedal.facts import facts_of

Command = Callable[..., None]

SettingsFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
SettingsArgument = Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file with settings.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting or method option; repeatable.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results, warnings and errors.")]
Trust = Annotated[bool, typer.Option("--trust", help="Allow importing the code that the run folder names.")]
Jobs = Annotated[int, typer.Option(min=0, help="Runs in parallel (0: one per core).")]


@dataclass(frozen=True)
class GivenSettings:
    """The settings a user gave: in a file, overridden by options and --set."""

    file: Path | None
    values: dict[str, Any]

    @classmethod
    def of(cls, file: Path | None, assignments: Iterable[str] | None, **options: Any) -> GivenSettings:
        given = {name: value for name, value in options.items() if value is not None}
        return cls(file, given | parse_assignments(assignments or ()))

    def config(self) -> Config:
        """The settings as a checked config."""
        return load_config(self.file, self.values)

    def settings(self) -> dict[str, Any]:
        """The merged settings, unchecked."""
        return merge_settings(read_settings(self.file), self.values)


def takes_settings(
    *, without: Iterable[str] = (), file: Any = SettingsFile, model: type[BaseModel] = Config
) -> Callable[[Command], Command]:
    """Replaces a command's parameter `given` by one option per setting, and passes it what the user gave."""
    names = [name for name, facts in facts_of(model).items() if facts.option and name not in without]

    def decorate(command: Command) -> Command:
        generated = {name: _option(name, model.model_fields[name]) for name in names} | {
            "file": file,
            "assignments": Assignments,
        }
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "given":
                parameters += [_parameter(name, annotation, None) for name, annotation in generated.items()]
            else:
                parameters.append(_parameter(parameter.name, parameter.annotation, parameter.default))

        @wraps(command)
        def with_settings(**arguments: Any) -> None:
            given = GivenSettings.of(**{name: arguments.pop(name) for name in generated})
            command(given=given, **arguments)

        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_settings

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(name: str, field: FieldInfo) -> Any:
    """The annotation from which typer makes a setting's option. None means omitted, so the file's value counts."""
    shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    text = field.description or ""
    option = typer.Option(
        help=f"{text[:1].upper()}{text[1:]}.",
        show_default=field.default is not None and shown,
        autocompletion=OF_SETTINGS.get(name),
    )
    return Annotated[_typed(field.annotation) | None, option]


def _typed(annotation: Any) -> Any:
    """The type that typer parses an option as: the only plain type among those allowed, else str."""
    found = _plain_types(annotation)
    return found.pop() if len(found) == 1 else str


def _plain_types(annotation: Any) -> set[type]:
    origin = get_origin(annotation)
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    if origin is Annotated:
        return _plain_types(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return set().union(*map(_plain_types, get_args(annotation)))
    return {annotation} & {bool, int, float, str}
