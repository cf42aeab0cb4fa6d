"""Evaluates a run on its way and writes the rows of metrics.jsonl and clients.jsonl.

Which rounds are recorded follows from the config alone; rows are in roster order whatever threads did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedal.config import Config
from fedal.durable import RecordFile
from fedal.engine.loop import Workers
from fedal.errors import FedalError
from fedal.messages import Outputs
from fedal.methods.server import Uploads, stack_outputs
from fedal.metrics import accuracy, disagreement, stratified_subset
from fedal.records.folder import RunFolder
from fedal.simulate.assemble import Assembly
from fedal.simulate.world import World
from fedal.theory.instruments import Panel, mean_over_clients
from fedal.theory.view import Columns, Site


@dataclass
class _Observations:
    """What the record says about the exchanges of one round; filled when the round is recorded or the last."""

    recorded: bool = False
    wanted: bool = False
    disagreements: list[torch.Tensor] = field(default_factory=list)
    after_local: dict[str, float] = field(default_factory=dict)

    def disagreement(self) -> float | None:
        return float(torch.stack(self.disagreements).mean()) if self.disagreements else None


class Recorder:
    """Listens to one federation. `attach` comes before the first round, `open` before the first row."""

    def __init__(self, config: Config, world: World, workers: Workers, tell: Callable[[dict[str, Any]], None]) -> None:
        self._config, self._world, self._workers, self._tell = config, world, workers, tell
        self._seen = _Observations()
        self._disagreement_before: float | None = None  # of the round that the checkpoint was made after
        test_y = world.dataset.test_y
        self._all_tests = torch.arange(len(test_y), device=config.device)
        some = stratified_subset(test_y, config.eval_samples, config.seed)
        self._some_tests = torch.as_tensor(some, device=config.device)

    def attach(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._panel = Panel(self._config.instruments, Site(self._config, self._world, assembly, self._workers))

    def open(self, folder: RunFolder, lengths: Mapping[str, int]) -> None:
        """The record files, cut back to what the checkpoint counts."""
        self._metrics = RecordFile(folder.metrics, lengths["metrics"])
        self._clients = RecordFile(folder.clients, lengths["clients"])

    def sync(self) -> dict[str, int]:
        """The lengths of the record files that are safely on disk."""
        return {"metrics": self._metrics.sync(), "clients": self._clients.sync()}

    def close(self) -> None:
        self._metrics.close()
        self._clients.close()

    # during a round

    def begin(self, t: int, *, last: bool) -> None:
        recorded = self._is_recorded(t)
        self._seen = _Observations(recorded, wanted=recorded or last)
        if recorded:
            self._panel.begins()

    def phase_done(self, client: str, phase: str) -> None:
        """Called by the thread that works for the client, between local training and transfer."""
        if not self._seen.recorded or phase != "after_local":
            return
        if self._config.eval_after_local:
            self._seen.after_local[client] = self._accuracy(client, self._some_tests)
        self._panel.trained(client)

    def observe(self, uploads: Uploads) -> None:
        if self._seen.wanted and all(isinstance(message, Outputs) for message in uploads.values()):
            _, outputs = stack_outputs(list(uploads), uploads)
            self._seen.disagreements.append(disagreement(outputs))

    def end(self, rounds: int, present: list[str], seconds: float) -> None:
        """Writes the rows of a round that is recorded."""
        if not self._seen.recorded:
            return
        extra = self._extra(self._some_tests)
        if self._seen.after_local:
            before = self._seen.after_local
            in_order = {name: before[name] for name in self._assembly.learners if name in before}
            self._write(rounds, "after_local", in_order, extra, present, seconds)
        measured = self._panel.ends()
        extra |= mean_over_clients(measured)
        accuracies = self._accuracies(self._some_tests)
        self._write(rounds, "after_global", accuracies, extra, present, seconds, measured=measured)

    def final(self, rounds: int, seconds: float) -> dict[str, Any]:
        """Writes the rows that tables use: all clients on the whole test set. Gives that of the run."""
        accuracies, extra = self._accuracies(self._all_tests), self._extra(self._all_tests)
        return self._write(rounds, "after_global", accuracies, extra, list(accuracies), seconds, final=True)

    # state

    def state_dict(self) -> dict[str, Any]:
        observed = self._assembly.federation.server.observed
        return {
            "disagreement": self._seen.disagreement(),
            "observed": {name: float(value) for name, value in observed.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._disagreement_before = state["disagreement"]
        observed = {name: torch.tensor(value) for name, value in state["observed"].items()}
        self._assembly.federation.server.observed = observed

    # inside

    def _is_recorded(self, t: int) -> bool:
        """Whether an evaluation falls due in round t: a multiple of eval_every, rounded up to the round's end."""
        tau, every = self._config.tau, self._config.eval_every
        return (t + 1) * tau // every > t * tau // every

    def _accuracy(self, client: str, indices: torch.Tensor) -> float:
        assembly = self._assembly
        try:
            return accuracy(assembly.learners[client], assembly.test_samples, assembly.test_labels, indices)
        except FedalError as error:
            raise type(error)(f'client "{client}": {error}') from None

    def _accuracies(self, indices: torch.Tensor) -> dict[str, float]:
        names = list(self._assembly.learners)
        return dict(zip(names, self._workers.map(lambda name: self._accuracy(name, indices), names), strict=True))

    def _extra(self, indices: torch.Tensor) -> dict[str, float]:
        """What is said of the server and of the exchanges."""
        server = self._assembly.federation.server
        extra = {name: float(value) for name, value in server.observed.items()}
        zeta = self._seen.disagreement() if self._seen.disagreements else self._disagreement_before
        if zeta is not None:
            extra["disagreement"] = zeta
        if server.learner is not None:
            tests = self._assembly.test_samples, self._assembly.test_labels
            extra["server_test_accuracy"] = accuracy(server.learner, *tests, indices)
        return extra

    def _write(
        self,
        rounds: int,
        phase: str,
        accuracies: Mapping[str, float],
        extra: Mapping[str, float],
        present: list[str],
        seconds: float,
        *,
        final: bool = False,
        measured: Columns | None = None,
    ) -> dict[str, Any]:
        wire = self._assembly.federation.wire
        values = np.array(list(accuracies.values()))
        where = {"round": rounds, "iteration": rounds * self._config.tau, "phase": phase}
        tested = {"test_samples": len(self._all_tests if final else self._some_tests), "final": final}
        row = {
            **where,
            "test_accuracy": float(values.mean()),
            "test_accuracy_std": float(values.std()),
            "test_accuracy_min": float(values.min()),
            **tested,
            "up_bytes": wire.up_bytes.total(),
            "down_bytes": wire.down_bytes.total(),
            "participants": len(present),
            **extra,
            "seconds": round(seconds, 3),
        }
        self._metrics.append(row)
        for client, value in accuracies.items():
            self._clients.append(
                {
                    **where,
                    "client": client,
                    "model": self._assembly.model_names[client],
                    "private_samples": len(self._world.clients[client]),
                    "test_accuracy": value,
                    **tested,
                    "participated": client in present,
                    "up_bytes": wire.up_bytes[client],
                    "down_bytes": wire.down_bytes[client],
                    **(measured or {}).get(client, {}),
                }
            )
        self._tell(row)
        return row
