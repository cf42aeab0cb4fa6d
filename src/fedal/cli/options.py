"""Options of commands: those for settings are made from the facts of `Config`, and no other file names them."""

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

from fedal.config import Config, load_config, merge_settings, parse_assignments, read_toml
from fedal.facts import facts_of

Command = Callable[..., None]

SettingsFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
SettingsArgument = Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file with settings.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting or method option; repeatable.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code that the run folder names.")]
Jobs = Annotated[int, typer.Option(min=0, help="Runs at a time (0: one per core).")]


@dataclass(frozen=True)
class Said:
    """What a person said about settings: in a file, and on top of it in options and with --set."""

    file: Path | None
    values: dict[str, Any]

    @classmethod
    def of(cls, file: Path | None, assignments: Iterable[str] | None, **options: Any) -> Said:
        given = {name: value for name, value in options.items() if value is not None}
        return cls(file, given | parse_assignments(assignments or ()))

    def config(self) -> Config:
        """All of it, checked."""
        return load_config(self.file, self.values)

    def settings(self) -> dict[str, Any]:
        """All of it, as it was said."""
        return merge_settings(read_toml(self.file) if self.file else {}, self.values)


def takes_settings(
    *, without: Iterable[str] = (), file: Any = SettingsFile, model: type[BaseModel] = Config
) -> Callable[[Command], Command]:
    """Lets a command take the settings that are options, in the place of its parameter `said`, which gets them."""
    names = [name for name, facts in facts_of(model).items() if facts.option and name not in without]

    def decorate(command: Command) -> Command:
        generated = {name: _option(model.model_fields[name]) for name in names} | {
            "file": file,
            "assignments": Assignments,
        }
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            new = [_parameter(name, annotation, None) for name, annotation in generated.items()]
            parameters += new if own.name == "said" else [_parameter(own.name, own.annotation, own.default)]

        @wraps(command)
        def with_said(**given: Any) -> None:
            said = Said.of(**{name: given.pop(name) for name in generated})
            command(said=said, **given)

        with_said.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_said.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_said

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(field: FieldInfo) -> Any:
    """The annotation by which typer makes the option of a setting. Left out it is None: the file may have it."""
    shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    text = field.description or ""
    option = typer.Option(help=f"{text[:1].upper()}{text[1:]}.", show_default=field.default is not None and shown)
    return Annotated[_typed(field.annotation) | None, option]


def _typed(annotation: Any) -> Any:
    """What a word on the command line is read as: the one plain type among those allowed, else left as it is, text."""
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
