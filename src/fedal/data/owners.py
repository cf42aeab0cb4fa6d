"""One dataset per client, joined to one: samples are in one array, and each owner knows its part of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedal.data.dataset import Dataset, Owned
from fedal.errors import DataError

NAME = "own"  # of the joined dataset, in a simulation and in a deployment


def join_owners(parts: Mapping[str, Dataset]) -> Dataset:
    """The samples of all owners in the order given, with `owners`; raises DataError if their datasets do not match."""
    if not parts:
        raise DataError("data: an empty table; expected one dataset per client.")
    _refuse_unlike(parts)
    first = next(iter(parts.values()))
    owners: dict[str, Owned] = {}
    train = test = 0
    for name, part in parts.items():
        ends = train + len(part.train_y), test + len(part.test_y)
        owners[name] = Owned(np.arange(train, ends[0]), np.arange(test, ends[1]), part.lacking)
        train, test = ends
    return Dataset(
        name=NAME,
        train_x=np.concatenate([part.train_x for part in parts.values()]),
        train_y=np.concatenate([part.train_y for part in parts.values()]),
        test_x=np.concatenate([part.test_x for part in parts.values()]),
        test_y=np.concatenate([part.test_y for part in parts.values()]),
        n_classes=first.n_classes,
        class_names=first.class_names,
        provenance="; ".join(f"{name}: {part.provenance}" for name, part in parts.items()),
        layout=first.layout,
        schema=first.schema,
        notes=tuple(note for part in parts.values() for note in part.notes),
        owners=owners,
    )


def _refuse_unlike(parts: Mapping[str, Dataset]) -> None:
    """Raises DataError if two datasets differ in what all clients must share."""
    (name, first), *others = parts.items()
    for other, part in others:
        for what, mine, its in (
            ("samples of shape", first.sample_shape, part.sample_shape),
            ("a number of classes of", first.n_classes, part.n_classes),
            ("the classes", first.class_names, part.class_names),
            ("the schema", first.schema and first.schema.sha256[:12], part.schema and part.schema.sha256[:12]),
        ):
            if mine != its:
                raise DataError(
                    f'data: client "{name}" has {what} {mine}, client "{other}" {its}. Read both with one schema: '
                    "fedal schema PUBLIC --classes no,yes"
                )
