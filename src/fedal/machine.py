"""Facts about the machine. All code that depends on the operating system is here."""

from __future__ import annotations

import os
import sys

from fedal.errors import ConfigError


def refuse_windows() -> None:
    """Raises ConfigError on Windows, which is untested: crash-safe files and folder locks rely on Unix."""
    if sys.platform == "win32":
        raise ConfigError("fedal runs on Linux and macOS. On Windows, use it inside WSL2: wsl --install")


def available_cores() -> int:
    """The number of cores this process may use; all cores where the system does not report it (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int:
    """The bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_memory() -> int:
    """The peak memory of this process so far, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
