"""The Python API: autodoc directives for the public names of a module."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

from pydantic import BaseModel

import fedal
from docstrings import escaped


def public(module: ModuleType) -> list[str]:
    """`__all__`; else what is defined in the module itself without a leading underscore, in its order."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, value in vars(module).items() if not name.startswith("_") and _of(module, value)]


def _of(module: ModuleType, value: object) -> bool:
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__


def about(name: str) -> str:
    """What a module says about itself: conventions, shapes."""
    return f"{inspect.getdoc(importlib.import_module(name))}\n"


def markdown(name: str, *only: str) -> str:
    """All public classes and functions of a module, or only those named."""
    module = importlib.import_module(name)
    return "```{eval-rst}\n" + "\n".join(_entry(module, each) for each in only or public(module)) + "```\n"


def _entry(module: ModuleType, name: str) -> str:
    value, place = getattr(module, name), f"{module.__name__}.{name}"
    if module is not fedal and getattr(fedal, name, None) is value:  # described once, where it is used from
        return f"``{place}`` is :py:obj:`fedal.{name}`.\n"
    if inspect.ismodule(value):
        return f".. py:module:: {place}\n\n{escaped(inspect.getdoc(value) or '')}\n"
    if inspect.isclass(value):
        return f".. autoclass:: {place}\n{_options(value)}"
    if inspect.isfunction(value):
        return f".. autofunction:: {place}\n"
    return f".. py:data:: {place}\n   :type: {type(value).__name__}\n"


def _options(kind: type) -> str:
    """All members, but not the fields of settings: they have pages of their own."""
    settings = ["members:", "exclude-members: model_config"]
    options = settings if issubclass(kind, BaseModel) else ["members:", "undoc-members:"]
    inherits = any(base.__module__.startswith("fedal.") for base in kind.__bases__)
    return "".join(f"   :{option}\n" for option in [*options, *(["show-inheritance:"] if inherits else [])])
