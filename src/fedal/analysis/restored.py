"""Restores a finished or interrupted run in memory from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedal.data.dataset import Dataset
from fedal.engine.threads import thread_workers
from fedal.errors import ConfigError
from fedal.records.checkpoint import fitting, load_newest
from fedal.records.pinned import refuse_changed_settings
from fedal.records.rest import resolved
from fedal.records.run import Run
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import restore_split
from fedal.simulate.run import refuse_forgotten_objects
from fedal.simulate.staged import CustomModels
from fedal.theory.instruments import INSTRUMENTS, Panel
from fedal.theory.view import FederationView


@dataclass(frozen=True)
class Restored:
    rounds: int  # completed so far
    view: FederationView
    panel: Panel  # all instruments, for rounds run from here


@contextmanager
def restored(
    run: Run,
    *,
    data: Dataset | None = None,
    public: NDArray[np.float32] | None = None,
    models: CustomModels | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[Restored]:
    """The run at its newest intact checkpoint. Using it never changes the folder."""
    found = load_newest(run.folder.checkpoints, warn) if run.folder.checkpoints.is_dir() else None
    if found is None:
        raise ConfigError(f"{run.path} has no checkpoint yet. Continue it first: `fedal resume {run.path}`.")
    refuse_forgotten_objects(run.folder.read_environment(), data, models, "fedal.analysis.analyse.analyse(run")
    rounds, state = found
    refuse_changed_settings(run.config, state.get("settings", {}), str(run.folder.config))
    config = run.config.with_(stacked=False)  # the instruments need separate learners
    split = restore_split(config, run.folder.partition, data, public)
    if lacking := [client for client in split.clients if split.imputed(client) is not None]:
        raise ConfigError(
            f'{run.path}: client "{lacking[0]}" lacks columns and sees other public inputs than the rest, so '
            "outputs on the public set cannot be compared."
        )
    with thread_workers(config.workers) as workers:
        assembly = assemble(config, split, workers, custom_models=models)
        with fitting(run.folder.checkpoints):
            clients = resolved(state["clients"], run.folder.rest)
            assembly.federation.load_state_dict({**state, "clients": clients})
        del found, state, clients  # they would hold the whole checkpoint in memory
        panel = Panel(tuple(INSTRUMENTS), assembly.view)
        assembly.federation.watch.phase_done = lambda client, phase: panel.trained(client)
        yield Restored(rounds, assembly.view, panel)
