"""Federated knowledge distillation between black-box models.

import fedal
run = fedal.run(fedal.Config(method="fedal", dataset="digits"))
print(run.final["test_accuracy"])
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing takes milliseconds, in which Ctrl-C would still show a traceback
if TYPE_CHECKING:
    from typing import Any

    from fedal import data as data
    from fedal import methods as methods
    from fedal.campaigns.compare import compare as compare
    from fedal.campaigns.comparison import Comparison as Comparison
    from fedal.config import Config as Config
    from fedal.data.dataset import Dataset as Dataset
    from fedal.errors import FedalError as FedalError
    from fedal.records.loaded_model import load_model as load_model
    from fedal.records.run import Run as Run
    from fedal.records.run import load_run as load_run
    from fedal.report.tensorboard import TensorBoard as TensorBoard
    from fedal.simulate.callback import Callback as Callback
    from fedal.simulate.run import resume as resume
    from fedal.simulate.run import run as run

_HOME = {  # looked up at first use: importing fedal must not import torch
    "Callback": "fedal.simulate.callback",
    "Comparison": "fedal.campaigns.comparison",
    "Config": "fedal.config",
    "Dataset": "fedal.data.dataset",
    "FedalError": "fedal.errors",
    "Run": "fedal.records.run",
    "TensorBoard": "fedal.report.tensorboard",
    "compare": "fedal.campaigns.compare",
    "load_model": "fedal.records.loaded_model",
    "load_run": "fedal.records.run",
    "resume": "fedal.simulate.run",
    "run": "fedal.simulate.run",
}

_PACKAGES = ("data", "methods")

__all__ = [
    "Callback", "Comparison", "Config", "Dataset", "FedalError", "Run", "TensorBoard", "compare", "data", "load_model",
    "load_run", "methods", "resume", "run",
]  # fmt: skip
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fedal.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedal' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion offers: the public names, also those that are not imported yet."""
    return sorted([*__all__, "__version__", "__doc__"])
