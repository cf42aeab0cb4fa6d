"""What a setting tells about itself besides its type: whether sites hear of it, what it changes, who takes it.

Lists that would be forgotten if they were kept by hand are made from these facts: what a server tells its sites, what
a comparison ignores, which options the commands take, what is said about a value of the wrong type.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

Changes = Literal["weights", "record", "nothing"]
"""What another value may change: the trained weights; only which rows are recorded; no weight and no number."""


@dataclass(frozen=True)
class Facts:
    """Of one setting. The first two have no default: whoever adds a setting decides them."""

    sites: bool  # told to the sites of a deployment: it decides their numbers, and names neither code nor files
    changes: Changes  # by itself, for the same values of all others
    option: bool = False  # commands take it as --name, with its description as the help text
    expected: str = ""  # what to say of a value of the wrong type, where pydantic's own words do not help


def setting(
    default: Any,
    description: str,
    *,
    sites: bool,
    changes: Changes,
    option: bool = False,
    expected: str = "",
    **rest: Any,
) -> Any:
    """A field of a pydantic model with its facts; `rest` is for pydantic's Field, such as the limits ge and lt."""
    facts: Any = asdict(Facts(sites, changes, option, expected))
    return Field(default, description=description, json_schema_extra={"facts": facts}, **rest)


def facts_of(model: type[BaseModel]) -> dict[str, Facts]:
    """Setting -> its facts: its own, or the `facts` of the class, which stand for all fields that have none."""
    found: dict[str, Facts] = {}
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        own: Any = extra.get("facts")
        facts = Facts(**own) if own else getattr(model, "facts", None)
        if facts is None:
            raise TypeError(f"{model.__name__}.{name} has no facts: make it with `setting`.")
        found[name] = facts
    return found


def told_to_sites(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(name for name, facts in facts_of(model).items() if facts.sites)


def without_effect(model: type[BaseModel]) -> tuple[str, ...]:
    """The settings in which two runs with the same result may differ."""
    return tuple(name for name, facts in facts_of(model).items() if facts.changes == "nothing")
