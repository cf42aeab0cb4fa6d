"""FedMD-LF, the ablation of the FedAL paper: FedMD with less-forgetting regularisers in both stages, no discriminator.

The gradient of KL(p(theta0) || p(theta)) is zero at theta0, so with tau = 1 the method equals FedMD exactly; the
regularisers act from tau = 2 on. The paper states no tau for it: the preset uses FedAL's 5.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedal.lazy import Tensor
from fedal.messages import Consensus, Outputs, Teacher
from fedal.methods.client import Anchor, ClientRound, weighted
from fedal.methods.forgetting import Forgetting
from fedal.methods.method import Method
from fedal.methods.outputs.fedmd import FedMDServer
from fedal.methods.replay import ReplayingClient, ReplayOptions


class LessForgettingOptions(ReplayOptions):
    keep_local: float = Field(1.0, ge=0, description="weight of r^loc: keep the others' knowledge in local training")
    keep_global: float = Field(1.0, ge=0, description="weight of r^glo: keep what private data taught in the transfer")
    forgetting: Forgetting = Field(
        "kl",
        description="what r^loc and r^glo compare: kl (the paper), ntd (FedNTD: r^loc without the label's class), mse "
        "of logits, absent (classes that the client does not own)",
    )

    @property
    def transfer_steps(self) -> int:
        """Steps on public data per round: none if no term is left."""
        return self.stage_steps if self.distillation or self.keep_global else 0


class FedMDLFClient(ReplayingClient):
    def round(self, t: int) -> ClientRound:
        self.local_training(t, keep=self.hp.keep_local)  # Eq. (client_loss_loc)
        anchor = self.anchor(self.hp.keep_global, self.hp.public_mode, self.hp.stage_steps)  # theta^{t+1/2,0}
        for i, (x, f) in enumerate(self.public_passes(t)):
            down = yield Outputs(f)
            for lesson in self.lessons(t, i, down, x, f):
                self.transfer(*lesson, anchor)

    def transfer(self, down: Any, x: Tensor, f: Tensor, anchor: Anchor) -> None:
        """One step on what was taught about the inputs x with pending logits f."""
        self.step(
            distillation=weighted(self.hp.distillation, self.taught(down, f).gradient),  # Eq. (kl)
            keep_global=anchor.pull(x, f),  # r^glo
        )


def refuse(options: LessForgettingOptions, n_classes: int) -> str | None:
    if options.forgetting == "ntd" and n_classes == 2:
        return "forgetting = ntd compares the classes other than the label; with 2 classes there is nothing to compare."
    return None


METHOD = Method(
    name="fedmd-lf",
    summary="FedMD with less-forgetting regularisers (ablation of FedAL)",
    options=LessForgettingOptions,
    client=FedMDLFClient,
    server=FedMDServer,
    up=(Outputs,),
    down=(Consensus, Outputs, Teacher),
    instead_of={Outputs: Consensus, Teacher: Consensus},
    needs=frozenset({"public"}),
    paper_options={"tau": 5},
    transfer_steps=lambda options, t: int(options.transfer_steps),
    refuse=refuse,
)
