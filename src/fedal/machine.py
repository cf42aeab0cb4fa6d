"""What the machine offers: the one place that asks which system this is, and what only some of them have."""

from __future__ import annotations

import os
import sys

from fedal.errors import ConfigError


def refuse_windows() -> None:
    """Raises where nothing has been tried: files that survive a crash and locked folders are done as Unix does them."""
    if sys.platform == "win32":
        raise ConfigError("fedal runs on Linux and macOS. On Windows use it inside WSL2, which is Linux: wsl --install")


def available_cores() -> int:
    """The cores that this process may use; those of the machine where the system does not say (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory() -> int:
    """The most bytes that this process has held so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
