"""Prints the exact versions of everything that this Python has installed: `python -m tests.lock`, for `make lock`.

Names and versions only: no index, no path, and no suffix such as +cpu, so that the file works on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import distributions

NOT_LOCKED = ("fedal", "pip")
HEAD = """\
# The versions of a development environment with which the tests pass (Python 3.11), written by `make lock`.
# Install them: pip install -r requirements-dev.lock && pip install --no-deps -e .
"""


def locked(installed: Mapping[str, str]) -> str:
    """The text of the lock file for package -> version."""
    names = {re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in installed.items()}
    return HEAD + "".join(f"{name}=={names[name]}\n" for name in sorted(names) if name not in NOT_LOCKED)


if __name__ == "__main__":
    print(locked({each.metadata["Name"]: each.version for each in distributions()}), end="")
