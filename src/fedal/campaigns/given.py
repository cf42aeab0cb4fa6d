"""Objects that a campaign's runs receive in Python: data, public inputs and models, which no run folder holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.data.split import read_split
from fedal.errors import CheckpointError, ConfigError
from fedal.records.folder import RunFolder

if TYPE_CHECKING:
    from fedal.simulate.staged import CustomModels


@dataclass(frozen=True)
class Given:
    """What `fedal.run` takes as `data`, `public` and `models`; `models` may also be a function of the seed."""

    data: Dataset | None = None
    public: NDArray[np.float32] | None = None
    models: CustomModels | Callable[[int], CustomModels] | None = None

    def models_for(self, seed: int) -> CustomModels | None:
        """The models of one run. Each run gets copies, because a run trains a learner in place."""
        if self.models is None or isinstance(self.models, Mapping):
            return copy.deepcopy(self.models)
        return self.models(seed)

    def refuse_others(self, folder: RunFolder, config: Config) -> None:
        """Raises ConfigError when the run in the folder had other objects, as far as the folder can tell."""
        if not folder.environment.exists():
            return
        saved = folder.read_environment()
        if bool(saved.get("data_given_in_python")) != (self.data is not None):
            had, has = ("other data", "none") if self.data is None else ("no data", "some")
            raise ConfigError(
                f"{folder.path} holds a run with {had} passed in Python; this call has {has}. Pass the same data, or "
                "choose another --out."
            )
        objects = {client for client, model in saved["clients"].items() if model.startswith("<")}
        clients = set(self.models_for(config.seed) or {})
        if objects != clients:
            client = min(objects ^ clients)
            had = "a model passed in Python" if client in objects else "a model of the config"
            raise ConfigError(
                f'{folder.path} holds a run in which client "{client}" has {had}. Pass the same models, or choose '
                "another --out."
            )
        if self.data is not None and folder.partition.exists():
            try:
                read_split(folder.partition, self.data)
            except CheckpointError as error:
                raise ConfigError(f"{error} Or choose another --out.") from None
