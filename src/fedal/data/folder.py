"""Where data sets live: `FEDAL_DATA` if set, else the user's cache folder; inside, one folder per data set."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds all data sets: the one given, or `FEDAL_DATA`, or the user's cache folder."""
    chosen = folder if folder is not None else os.environ.get("FEDAL_DATA")
    return Path(chosen).expanduser().absolute() if chosen else _user_cache() / "fedal"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"  # relative values are to be ignored
