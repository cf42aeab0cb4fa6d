"""FCCL (Huang, Ye, Du, CVPR 2022): correlate logits on public data, distil earlier models on private data.

On public batches, the logits of each class should correlate with the mean logits of that class and anti-correlate with
those of the others. In local training, two frozen teachers preserve earlier knowledge: `inter`, the client's model at
the end of its previous local phase, and `intra`, its model after local pre-training.
From the authors' code (its second version, where the target is the mean over all); docs/methods/fccl.md lists the
differences: a std that fits its correlation, teachers in evaluation mode, local training before the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic import Field

from fedal.aggregate import leave_one_out
from fedal.errors import NotApplicableError
from fedal.lazy import Tensor
from fedal.learners.base import Frozen, State, WeightLearner
from fedal.losses import cross_correlation, d_kl
from fedal.messages import Consensus, Outputs
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup, weighted
from fedal.methods.consensus import AggregateOptions
from fedal.methods.method import Method
from fedal.methods.options import TransferOptions
from fedal.methods.outputs.fedmd import FedMDServer
from fedal.methods.server import ServerRound


class CorrelationOptions(TransferOptions):
    """Options of FCCL and FCCL+."""

    correlation: float = Field(1.0, ge=0, description="weight of the cross-correlation loss on public data")
    off_diagonal: float = Field(0.0051, ge=0, description="weight lambda of different classes inside that loss")
    self_target: Literal["current", "previous", "exclude"] = Field(
        "current",
        description="the client's own part of the mean to correlate with: current logits, the inter teacher's, or none",
    )
    unbiased_std: bool = Field(
        False, description="as in the authors' code: std over B - 1 but correlation over B, which never reaches 1"
    )
    fresh_public_optimizer: bool = Field(
        True,
        description="as in the authors' code: new optimizers for each public step and the next local phase",
    )
    teacher_mode: Literal["eval", "train"] = Field("eval", description="what BatchNorm does in frozen teachers")
    inter: float = Field(1.0, ge=0, description="weight of the teacher from the end of the previous local phase")


class FCCLOptions(CorrelationOptions, AggregateOptions):
    space: Literal["logits"] = Field("logits", description="what is combined; correlations are those of logits")
    intra: float = Field(1.0, ge=0, description="weight of the teacher from the end of pre-training")
    pretrain_iterations: int = Field(
        50, ge=0, description="local iterations before the first exchange, in full rounds; 0: no intra teacher"
    )

    @property
    def pretrain_rounds(self) -> int:
        return -(-self.pretrain_iterations // self.tau)


class CorrelationClient(ClientLogic):
    """What FCCL and FCCL+ share: frozen teachers that outlive a round, and the loss on public logits."""

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self.teachers: dict[str, Frozen] = {}
        if self.hp.fresh_public_optimizer and not hasattr(self.learner, "reset_optimizer"):
            raise NotApplicableError(
                f'fresh_public_optimizer = true: the learner of client "{self.client_id}" has no reset_optimizer(). '
                "Set it to false."
            )

    def snapshot(self) -> Frozen:
        return self.learner.frozen(self.hp.teacher_mode)

    def d_correlation(self, x: Tensor, f: Tensor, down: Any) -> Tensor | None:
        """Gradient w.r.t. f of the cross-correlation with the mean; `self_target` sets this client's part of it.

        (B, ...), (B, K) -> (B, K)
        """
        if isinstance(down, Outputs):  # no mean: it cannot be taken apart
            target = down.values
        elif self.hp.self_target == "current":
            target = down.mean
        elif self.hp.self_target == "exclude":
            target = leave_one_out(down.mean, f, down.count)
        else:
            target = down.mean + (self.teachers["inter"](x) - f) / down.count
        loss = cross_correlation(target, f, self.hp.off_diagonal, self.hp.unbiased_std)
        return weighted(self.hp.correlation, loss.gradient)

    def renew_optimizer(self) -> None:
        if self.hp.fresh_public_optimizer:
            cast("WeightLearner", self.learner).reset_optimizer()

    def state_dict(self) -> State:
        return {name: teacher.state_dict() for name, teacher in self.teachers.items()}

    def load_state_dict(self, state: State) -> None:
        self.teachers = {name: self.snapshot() for name in state}
        for name, saved in state.items():
            self.teachers[name].load_state_dict(saved)


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
    needs=frozenset({"public"}),
    faithfulness="code",
    paper_options={"tau": 5, "pretrain_iterations": 1000},
    transfer_steps=lambda options, t: options.tau if t >= options.pretrain_rounds and options.correlation else 0,
    refuse=_refuse,
)
