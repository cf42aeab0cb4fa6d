"""FCCL (Huang, Ye, Du, CVPR 2022): correlate logits on public data, distil earlier models on private data.

On public batches, the logits of each class should correlate with the mean logits of that class and anti-correlate with
those of the others. In local training, two frozen teachers preserve earlier knowledge: `inter`, the client's model at
the end of its previous local phase, and `intra`, its model after local pre-training.
From the authors' code (its second version, where the target is the mean over all); docs/methods/fccl.md lists the
differences: a std that fits its correlation, teachers in evaluation mode, local training before the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedal.lazy import Tensor
from fedal.losses import d_kl
from fedal.messages import Consensus, Outputs
from fedal.methods.client import ClientRound, weighted
from fedal.methods.consensus import AggregateOptions
from fedal.methods.correlation import CorrelationClient, CorrelationOptions
from fedal.methods.method import Method
from fedal.methods.outputs.fedmd import FedMDServer
from fedal.methods.server import ServerRound


class FCCLOptions(CorrelationOptions, AggregateOptions):
    space: Literal["logits"] = Field("logits", description="what is combined; correlations are those of logits")
    intra: float = Field(1.0, ge=0, description="weight of the teacher from the end of pre-training")
    pretrain_iterations: int = Field(
        50, ge=0, description="local iterations before the first exchange, in full rounds; 0: no intra teacher"
    )

    @property
    def pretrain_rounds(self) -> int:
        return -(-self.pretrain_iterations // self.tau)


class FCCLServer(FedMDServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        if t < self.hp.pretrain_rounds:
            return None
        return (yield from super().round(t, clients))


class FCCLClient(CorrelationClient):
    def round(self, t: int) -> ClientRound:
        if t < self.hp.pretrain_rounds:
            self.local_training(t)
            return
        if self.hp.pretrain_iterations and "intra" not in self.teachers:
            self.teachers = {"inter": self.snapshot(), "intra": self.snapshot()}
        for x, y in self.private_batches(t):
            f = self.learner.logits(x)
            self.step(
                cross_entropy=self.d_supervised(f, y),
                inter=self._pull("inter", x, f),
                intra=self._pull("intra", x, f),
            )
        self.teachers["inter"] = self.snapshot()
        for x, f in self.public_passes(t):
            down = yield Outputs(f)
            self.renew_optimizer()
            self.step(correlation=self.d_correlation(x, f, down))
        self.renew_optimizer()

    def _pull(self, name: str, x: Tensor, f: Tensor) -> Tensor | None:
        """Gradient of weight * KL(p(teacher) || p); None while there is no such teacher."""
        weight, teacher = getattr(self.hp, name), self.teachers.get(name)
        return weighted(weight, d_kl(teacher(x), f, self.hp.temperature)) if teacher and weight else None


def _refuse(options: FCCLOptions, n_classes: int) -> str | None:
    if options.aggregate != "mean" and options.self_target != "current":
        return (
            f"self_target = {options.self_target} takes a mean apart, and aggregate = {options.aggregate} is none. "
            "Use self_target = current."
        )
    return None


METHOD = Method(
    name="fccl",
    summary="correlate logits class by class on public data; distil earlier models on private data",
    options=FCCLOptions,
    client=FCCLClient,
    server=FCCLServer,
    up=(Outputs,),
    down=(Consensus, Outputs),
    instead_of={Outputs: Consensus},
    needs=frozenset({"public", "every-client"}),  # the teacher `intra` is the model after the rounds of pre-training
    faithfulness="code",
    paper_options={"tau": 5, "pretrain_iterations": 1000},
    transfer_steps=lambda options, t: options.tau if t >= options.pretrain_rounds and options.correlation else 0,
    refuse=_refuse,
)
