"""Facts about a setting beyond its type: whether sites receive it, what it changes, which commands accept it.

Several lists are derived from these facts, because lists kept by hand go stale: what a server sends to its sites, what
a comparison ignores, which options the commands accept, and the error text for a value of the wrong type.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

Changes = Literal["weights", "record", "nothing"]
"""What a different value may change: the trained weights; only which rows are recorded; or nothing at all."""


@dataclass(frozen=True)
class Facts:
    """The facts of one setting. The first two have no default, so that every new setting states them."""

    sites: bool  # sent to the sites of a deployment: it affects their results and names no code or files
    changes: Changes  # on its own, with all other settings equal
    option: bool = False  # commands accept it as --name, with its description as the help text
    expected: str = ""  # error text for a value of the wrong type, where pydantic's own is unhelpful


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
    """A field of a pydantic model with its facts; `rest` goes to pydantic's Field, such as the limits ge and lt."""
    facts: Any = asdict(Facts(sites, changes, option, expected))
    return Field(default, description=description, json_schema_extra={"facts": facts}, **rest)


def facts_of(model: type[BaseModel]) -> dict[str, Facts]:
    """Maps each setting to its own facts, or to the `facts` of the class if it has none of its own."""
    found: dict[str, Facts] = {}
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        own: Any = extra.get("facts")
        facts = Facts(**own) if own else getattr(model, "facts", None)
        if facts is None:
            raise TypeError(f"{model.__name__}.{name} has no facts: define it with `setting`.")
        found[name] = facts
    return found


def sent_to_sites(model: type[BaseModel]) -> tuple[str, ...]:
    """The settings that a server sends to its sites."""
    return tuple(name for name, facts in facts_of(model).items() if facts.sites)


def without_effect(model: type[BaseModel]) -> tuple[str, ...]:
    """The settings that may differ between two runs with the same result."""
    return tuple(name for name, facts in facts_of(model).items() if facts.changes == "nothing")
