"""A server that fine-tunes the average on generated samples, as FedFTG and DFRD do. There is no public data.

Clients are those of FedAvg and upload how many samples of each class they have. The server rebuilds all models; its
generator learns through them, and the average learns from them on what the generator makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from pydantic import Field

from fedal.errors import NonFiniteError
from fedal.finite import is_finite
from fedal.generator import Generator
from fedal.lazy import Tensor, torch
from fedal.messages import LabelCounts, Weights
from fedal.methods.client import ClientRound
from fedal.methods.parameters.fedavg import FedAvgOptions
from fedal.methods.parameters.groups import GroupClient, GroupServer
from fedal.methods.parameters.rebuilt import RebuildingServer
from fedal.methods.server import Replies, ServerRound, ServerSetup, Uploads


class GeneratorOptions(FedAvgOptions):
    server_iterations: int = Field(
        5, ge=0, description="I: turns of generator and model in each round (authors: 10); 0: FedAvg"
    )
    model_steps: int = Field(5, ge=1, description="I_d: steps of the model in each turn")
    generator_lr: float = Field(0.01, gt=0, description="step size of the generator's Adam")
    generator_noise: int = Field(100, ge=1, description="numbers of noise that a sample is made from")
    generated: int = Field(32, ge=2, description="samples that the generator makes at once")
    diversity: float = Field(1.0, ge=0, description="weight of the term that keeps generated samples apart")


class DataFreeServer(RebuildingServer, GroupServer):
    """Averages, then calls `distil`, which each method defines."""

    kept: tuple[str, ...] = ("generator",)
    product: ClassVar[bool] = False  # whether noise and label are multiplied; see `Generator`

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.generator = self.new_generator(setup)

    def new_generator(self, setup: ServerSetup) -> Generator:
        return Generator(
            setup.input_shape,
            setup.n_classes,
            noise=self.hp.generator_noise,
            product=self.product,
            lr=self.hp.generator_lr,
            seed=setup.seed,
            dtype=setup.dtype,
            device=setup.device,
        )

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        counts = yield reply
        up = yield dict(counts)  # every client gets its own counts back: nothing else has to be told
        averages = self.average_of_each(clients, up)
        if self.hp.server_iterations:
            averages = self._tuned(t, clients, up, counts, averages)
        return self.published(averages)

    def _tuned(
        self, t: int, clients: Sequence[str], up: Uploads, counts: Mapping[str, LabelCounts], averages: Replies
    ) -> Replies:
        group = max(self.groups(clients, up), key=len)  # weights of another shape get their own average back
        start, labels = cast("Weights", averages[group[0]]), torch.stack([counts[n].counts for n in group]).double()
        student = self.rebuilt(group[0], start.values, "student")
        shares = (labels / labels.sum(0).clamp(min=1)).to(self.dtype)
        self.distil(t, student, [self.rebuilt(n, up[n].values) for n in group], shares, labels.sum(0))
        refuse_non_finite(self.generator)
        return {**averages} | {n: Weights(student.weights(), start.samples, start.members) for n in group}

    def distil(self, t: int, student: Any, teachers: Sequence[Any], shares: Tensor, counts: Tensor) -> None:
        """Trains generator and student in round t.

        `shares` (N, K) are the clients' shares of the samples of each class, `counts` (K,) all samples of each class.
        """
        raise NotImplementedError


def refuse_non_finite(*generators: Generator) -> None:
    """Raises NonFiniteError before a generator with non-finite values is kept."""
    if not all(is_finite(v) for each in generators for v in each.weights().values() if v.is_floating_point()):
        raise NonFiniteError("the generator has non-finite values. A smaller generator_lr usually helps.")


class CountingClient(GroupClient):
    """FedAvg's client, which also uploads its label counts."""

    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        self.local_training(t, stages=self.hp.local_stages)
        yield LabelCounts(self.private.label_counts.to(torch.int32))
        yield from self.group_step()
