"""Name -> method, written by hand. Importing a method does not import torch.

A method lies in the folder of the most revealing thing that it sends, so its place is a promise that a test keeps.
"""

from __future__ import annotations

import difflib
import importlib

from fedal.errors import ConfigError
from fedal.methods.method import Method
from fedal.user_code import import_object, is_import_path

MODULES = {
    "local": "fedal.methods.outputs.local",
    "fedmd": "fedal.methods.outputs.fedmd",
    "fedmd-lf": "fedal.methods.outputs.fedmd_lf",
    "fedal": "fedal.methods.outputs.fedal",
    "fedproto": "fedal.methods.statistics.fedproto",
    "fedproto-public": "fedal.methods.features.fedproto_public",
    "fd": "fedal.methods.statistics.fd",
    "hfd": "fedal.methods.statistics.hfd",
    "fedavg": "fedal.methods.parameters.fedavg",
    "feddf": "fedal.methods.parameters.feddf",
    "feddf-al": "fedal.methods.parameters.feddf_al",
    "fccl": "fedal.methods.outputs.fccl",
    "fccl+": "fedal.methods.features.fccl_plus",
    "perfed-ckt": "fedal.methods.outputs.perfed_ckt",
    "cfd": "fedal.methods.outputs.cfd",
    "mhat": "fedal.methods.outputs.mhat",
    "fedgkt": "fedal.methods.samples.fedgkt",
}

_own: dict[str, Method] = {}


def names() -> tuple[str, ...]:
    return (*MODULES, *_own)


def register(method: Method) -> Method:
    """Makes a method of the user's own known by its name in this process."""
    if method.name in MODULES:
        raise ConfigError(f'method: the name "{method.name}" is taken by fedal itself. Choose another.')
    _own[method.name] = method
    return method


def get(name: str) -> Method:
    """The method called `name`, or one of the user's own as `package.module:METHOD`."""
    if is_import_path(name):
        own = import_object(name, "method")
        if not isinstance(own, Method):
            raise ConfigError(f'method: "{name}" is a {type(own).__name__}; expected a fedal.methods.method.Method.')
        return own
    if name in _own:
        return _own[name]
    if name not in MODULES:
        near = difflib.get_close_matches(name.lower(), names(), n=1)
        hint = f'Did you mean "{near[0]}"?' if near else "`fedal methods` lists them."
        raise ConfigError(f'method: there is no method "{name}". {hint}')
    method = importlib.import_module(MODULES[name]).METHOD
    assert isinstance(method, Method)
    return method
