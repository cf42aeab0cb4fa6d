"""The folder of all datasets: `FEDAL_DATA` if set, else the user's cache folder. Each dataset has a subfolder."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds all datasets: `folder` if given, else `FEDAL_DATA`, else the user's cache folder."""
    chosen = folder if folder is not None else os.environ.get("FEDAL_DATA")
    return Path(chosen).expanduser().absolute() if chosen else _user_cache() / "fedal"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"  # XDG: relative paths are ignored
