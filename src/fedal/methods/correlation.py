"""What FCCL and FCCL+ share: correlated logits on public data, and teachers that outlive a round."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field

from fedal.aggregate import leave_one_out
from fedal.errors import NotApplicableError
from fedal.lazy import Tensor
from fedal.learners.base import Frozen, State, WeightLearner
from fedal.losses import cross_correlation
from fedal.messages import Outputs
from fedal.methods.client import ClientLogic, ClientSetup, weighted
from fedal.methods.options import TransferOptions


class CorrelationOptions(TransferOptions):
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


class CorrelationClient(ClientLogic):
    """Frozen teachers that outlive a round, and the loss on public logits."""

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
