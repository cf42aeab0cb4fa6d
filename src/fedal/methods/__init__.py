"""All methods by name. Importing a method does not import torch.

A method is in the folder of the most revealing thing that it sends; a test enforces this.
"""

from __future__ import annotations

import difflib
import importlib

from fedal.errors import ConfigError
from fedal.methods.method import Method
from fedal.user_code import import_object, is_import_path

__all__ = ["MODULES", "Method", "get", "names", "register", "shown"]

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
    "fedlsd": "fedal.methods.parameters.fedlsd",
    "fedntd": "fedal.methods.parameters.fedntd",
    "fedgkd": "fedal.methods.parameters.fedgkd",
    "pfedsd": "fedal.methods.parameters.pfedsd",
    "kim-2024": "fedal.methods.parameters.kim_2024",
    "fedrad": "fedal.methods.parameters.fedrad",
    "fedssd": "fedal.methods.parameters.fedssd",
    "fedreg": "fedal.methods.parameters.fedreg",
    "flashback": "fedal.methods.parameters.flashback",
    "fedbr": "fedal.methods.parameters.fedbr",
    "fedcurv": "fedal.methods.parameters.fedcurv",
    "feddistill+": "fedal.methods.parameters.feddistill_plus",
    "fedgen": "fedal.methods.parameters.fedgen",
    "fedftg": "fedal.methods.parameters.fedftg",
    "dfrd": "fedal.methods.parameters.dfrd",
    "fedzkt": "fedal.methods.parameters.fedzkt",
    "fedcvae": "fedal.methods.parameters.fedcvae",
    "ds-fl": "fedal.methods.outputs.presets:DS_FL",
    "cronus": "fedal.methods.outputs.presets:CRONUS",
    "fedgems": "fedal.methods.outputs.presets:FEDGEMS",
    "fedeven": "fedal.methods.outputs.presets:FEDEVEN",
    "fedlift": "fedal.methods.outputs.presets:FEDLIFT",
    "expguard": "fedal.methods.outputs.expguard",
    "kt-pfl": "fedal.methods.outputs.kt_pfl",
    "scarlet": "fedal.methods.outputs.scarlet",
    "selective-fd": "fedal.methods.statistics.selective_fd",
    "fedaux": "fedal.methods.statistics.fedaux",
    "uwa": "fedal.methods.statistics.fedaux:UWA",
    "fedkt": "fedal.methods.outputs.fedkt",
}
"""name -> the module whose METHOD it is, or `module:NAME`."""

_registered: dict[str, Method] = {}


def names() -> tuple[str, ...]:
    """The names of all methods: those of fedal, then registered ones."""
    return (*MODULES, *_registered)


def register(method: Method) -> Method:
    """Registers a user's own method under its name, in this process; returns it."""
    if method.name in MODULES:
        raise ConfigError(f'method: "{method.name}" is the name of a built-in method. Choose another.')
    _registered[method.name] = method
    return method


def get(name: str) -> Method:
    """The method called `name`, or the user's own at `package.module:METHOD`; raises ConfigError."""
    if is_import_path(name):
        custom = import_object(name, "method")
        if not isinstance(custom, Method):
            raise ConfigError(f'method: "{name}" is a {type(custom).__name__}; expected a fedal.methods.method.Method.')
        return custom
    if name in _registered:
        return _registered[name]
    if name not in MODULES:
        near = difflib.get_close_matches(name.lower(), names(), n=1)
        hint = f'Did you mean "{near[0]}"? ' if near else ""
        raise ConfigError(f'method: there is no method "{name}". {hint}`fedal methods` lists them.')
    module, _, constant = MODULES[name].partition(":")
    method = getattr(importlib.import_module(module), constant or "METHOD")
    assert isinstance(method, Method)
    return method


def shown(name: str) -> str:
    """The name as tables and figures show it: a reconstruction carries that word. Unknown names stay as they are."""
    known = name in MODULES or name in _registered  # an import path may be foreign code, which is not read here
    return f"{name} (reconstruction)" if known and get(name).faithfulness == "reconstruction" else name


def __dir__() -> list[str]:
    return __all__
