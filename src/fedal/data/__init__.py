"""Datasets: built-in ones, read from the publishers' files after a checksum test, or the user's own.

`fedal.data.fetch` downloads files, `fedal.data.check` verifies them. Importing this package is quick: readers import
what they need when they run.
"""

from __future__ import annotations

from fedal.data.check import is_installed
from fedal.data.custom import from_dataset, from_tensors, load_npz, load_public_npz
from fedal.data.dataset import Dataset
from fedal.data.drafting import draft_schema
from fedal.data.folder import data_folder
from fedal.data.loading import load
from fedal.data.reading import read_data, read_public
from fedal.data.schema import Schema, load_schema
from fedal.data.source import Source
from fedal.data.sources import SOURCES
from fedal.data.sources import find as describe

__all__ = [
    "SOURCES",
    "Dataset",
    "Schema",
    "Source",
    "data_folder",
    "describe",
    "draft_schema",
    "from_dataset",
    "from_tensors",
    "is_installed",
    "load",
    "load_npz",
    "load_public_npz",
    "load_schema",
    "names",
    "read_data",
    "read_public",
]


def names() -> list[str]:
    """The names of the built-in datasets."""
    return list(SOURCES)


def __dir__() -> list[str]:
    return __all__
