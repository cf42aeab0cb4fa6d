"""Estimates a run's cost before it starts, from a few trial rounds. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.engine.resting import RestingLearner
from fedal.engine.threads import thread_workers
from fedal.learners.torch_learner import TorchLearner
from fedal.machine import peak_memory
from fedal.precision import dtype_of
from fedal.simulate.assemble import Assembly, assemble
from fedal.simulate.participation import absence
from fedal.simulate.prepare import prepare_split
from fedal.theory.instruments import Panel

MAX_ROUNDS = 20
MIN_ROUNDS = 3  # including the first, a warm-up round that is not counted
TRIAL_S = 10.0


@dataclass(frozen=True)
class Estimate:
    """Estimates for the whole run, from `trials` trial rounds. Times are in seconds, sizes in bytes."""

    config: Config
    trials: int
    start_s: float  # data, models, checks
    round_s: tuple[float, float, float]  # fastest, median and slowest of the counted rounds
    evaluation_s: float  # one evaluation of all clients on the samples used during training
    final_s: float  # the evaluation of all clients on the whole test set
    evaluations: int
    instruments_s: float  # per recorded round
    recorded_rounds: int
    memory: dict[str, int]  # the known parts of the peak
    peak_bytes: int
    checkpoint_bytes: int
    up_bytes: int
    down_bytes: int
    bytes_are_exact: bool

    def seconds(self, rounds: float | None = None) -> float:
        """The duration of the whole run at `rounds` seconds per round (default: the median)."""
        return (
            self.start_s
            + self.config.total_rounds * (self.round_s[1] if rounds is None else rounds)
            + self.evaluations * self.evaluation_s
            + self.recorded_rounds * self.instruments_s
            + self.final_s
        )


def estimate(config: Config, *, trial_s: float = TRIAL_S) -> Estimate:
    """Estimates the whole run from trial rounds that take about `trial_s` seconds."""
    began = time.perf_counter()
    split = prepare_split(config)
    recorded = config.total_rounds * config.tau // config.eval_interval
    with thread_workers(config.workers) as workers:
        assembly = assemble(config, split, workers)
        view, federation = assembly.view, assembly.federation
        panel = Panel(config.instruments, view)

        def run_round(t: int) -> None:
            federation.run_round(t, absence(config, t))

        start_s = time.perf_counter() - began
        times: list[float] = []
        up, down = [0], [0]
        while _needs_another_round(times, config, trial_s):
            times.append(_timed(lambda: run_round(len(up) - 1)))
            up.append(federation.wire.up_bytes.total())
            down.append(federation.wire.down_bytes.total())
        view.evaluate_all()  # warm-up
        evaluation_s = _timed(view.evaluate_all)
        final_s = evaluation_s * len(view.tests.labels) / len(view.tests.some)
        counted = sorted(times[1:] or times)
        round_s = (counted[0], median(counted), counted[-1])
        instruments_s = 0.0
        if config.instruments:
            federation.watch.phase_done = lambda client, phase: panel.trained(client)
            with_them = _timed(panel.begins) + _timed(lambda: run_round(len(times))) + _timed(panel.ends)
            instruments_s = max(0.0, with_them - round_s[1])
        memory = _memory(config, split, assembly)
    kinds = config.method_object().up + config.method_object().down
    return Estimate(
        config=config,
        trials=len(times),
        start_s=start_s,
        round_s=round_s,
        evaluation_s=evaluation_s,
        final_s=final_s,
        evaluations=1 + recorded * (2 if config.eval_after_local else 1),  # the first: the untrained models
        instruments_s=instruments_s,
        recorded_rounds=recorded,
        memory=memory,
        peak_bytes=peak_memory(),
        checkpoint_bytes=memory["models"] + memory["optimizers"] + memory["server"],
        up_bytes=_extrapolated(up, config.total_rounds),
        down_bytes=_extrapolated(down, config.total_rounds),
        bytes_are_exact=not any(kind.size for kind in kinds),
    )


def _needs_another_round(times: list[float], config: Config, trial_s: float) -> bool:
    if len(times) >= min(MAX_ROUNDS, config.total_rounds):
        return False
    return len(times) < MIN_ROUNDS or sum(times) + times[-1] < trial_s


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _extrapolated(totals: list[int], rounds: int) -> int:
    """Total bytes after `rounds` rounds. Only the first round may differ: it can carry one-off messages."""
    if rounds < len(totals):
        return totals[rounds]
    return totals[-1] + (rounds - len(totals) + 1) * (totals[-1] - totals[-2])


def _memory(config: Config, split: DataSplit, assembly: Assembly) -> dict[str, int]:
    """Bytes by part, counted after the first rounds, when optimizers and anchors exist."""
    data, dtype = split.dataset, dtype_of(config.precision)
    arrays = [data.train_x, data.test_x, split.public_x]
    staged = sum(x.size * dtype.itemsize for x in arrays if dtype != torch.float32 or (x.ndim == 4 and x.shape[1] > 1))
    learners = [learner for learner in assembly.learners.values() if isinstance(learner, TorchLearner)]
    sizes = _sizes(assembly)
    return {
        "data": sum(x.nbytes for x in arrays) + staged,
        "models": sum(models for models, _ in sizes),
        "optimizers": sum(optimizers for _, optimizers in sizes),
        "anchors": sum(_tensor_bytes(spare.state_dict()) for learner in learners for spare in learner._spares),
        "server": _tensor_bytes(assembly.federation.server.state_dict()),
    }


def _sizes(assembly: Assembly) -> list[tuple[int, int]]:
    """The bytes of each torch client's model and optimizer.

    One that rests and has not taken part yet has no state; it will have as much as others with its model.
    """
    found: dict[str, tuple[int, int]] = {}
    for client, state in assembly.federation.state_dict()["clients"].items():
        own = state().get("learner", {})
        if "optimizer" in own:
            found[client] = _tensor_bytes(own["model"]), _tensor_bytes(own["optimizer"])
    of_model = {assembly.model_names[client]: size for client, size in found.items()}
    resting = {c: m for c, m in assembly.model_names.items() if isinstance(assembly.learners[c], RestingLearner)}
    return [*{**{c: of_model[m] for c, m in resting.items() if m in of_model}, **found}.values()]


def _tensor_bytes(value: object) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(_tensor_bytes(part) for part in value.values()) if isinstance(value, dict) else 0
