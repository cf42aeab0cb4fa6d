"""The environment of a run: software, machine and instruction set, which affect its bits like config and seed."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any


def describe_environment() -> dict[str, Any]:
    """Everything besides config and seed that determines the bits of a run."""
    import torch

    from fedal import kernels

    return {
        "fedal": version("fedal"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "kernels": kernels.in_use(),
    }


def environment_differences(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """The differences that may keep a resumed run from being bit-identical to an uninterrupted one."""
    return [
        f"{key} was {saved.get(key)}, is now {present[key]}"
        for key in ("fedal", "torch", "machine", "cpu_capability", "kernels")
        if saved.get(key) != present[key]
    ]
