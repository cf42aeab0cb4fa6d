"""What besides config and seed decides bits: software, machine, instruction set."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any


def describe_environment() -> dict[str, Any]:
    """All that besides config and seed decides bits."""
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
    """What may make a resumed run differ in bits from an uninterrupted one."""
    return [
        f"{key} was {saved.get(key)}, is now {present[key]}"
        for key in ("fedal", "torch", "machine", "cpu_capability", "kernels")
        if saved.get(key) != present[key]
    ]
