"""Commands that list methods, datasets and models."""

from __future__ import annotations

from fedal import data as sources
from fedal.cli.printing import print_table
from fedal.methods import table
from fedal.models import LEARNERS, MODELS


def methods() -> None:
    """List the methods: what they send, what it reveals and what they need."""
    print_table("Methods (bytes per client at B = 32, K = 10)", list(table.COLUMNS), table.rows())


def datasets() -> None:
    """List the built-in datasets."""
    rows = []
    for name in sources.names():
        source = sources.describe(name)
        rows.append([name, source.summary, "yes" if sources.is_installed(name) else f"no: fedal data fetch {name}"])
    print_table("Datasets", ["dataset", "description", "installed"], rows)


def models() -> None:
    """List the built-in models."""
    known = MODELS | LEARNERS
    drawn = {name: [source.name for source in sources.SOURCES.values() if name in source.models] for name in known}
    rows = [[name, entry.description, entry.takes, ", ".join(drawn[name])] for name, entry in known.items()]
    print_table("Models", ["model", "description", "input", "default for"], rows)
