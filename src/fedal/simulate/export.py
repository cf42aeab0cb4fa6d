"""Writes the data of a simulated federation to files, to rehearse its deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedal.config import Config
from fedal.config.revealed import refusal
from fedal.durable import replacing
from fedal.errors import ConfigError
from fedal.simulate.prepare import prepare_split


def export_sites(config: Config, out: Path) -> list[Path]:
    """Writes each client's private data, split as in `fedal run`, to one .npz file per site; returns the paths."""
    if problem := refusal(config.partition, "fedal export-sites"):
        raise ConfigError(problem)
    split = prepare_split(config)
    data = split.dataset
    if data.owners is not None:
        raise ConfigError("export-sites: each client has its own data already. Pass them to `fedal join --data`.")
    out.mkdir(parents=True, exist_ok=True)
    layout: dict[str, Any] = {} if data.layout is None else {"layout": np.array(data.layout)}
    paths = []
    for name, indices in split.clients.items():
        paths.append(out / f"{name}.npz")
        with replacing(paths[-1]) as file:
            np.savez(
                file,
                x=data.train_x[indices],
                y=data.train_y[indices],
                test_x=data.test_x,
                test_y=data.test_y,
                n_classes=np.array(data.n_classes),
                **layout,
            )
    return paths
