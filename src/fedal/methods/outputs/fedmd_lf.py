"""FedMD-LF, the ablation of the FedAL paper: FedMD with less-forgetting regularisers in both stages, no discriminator.

The gradient of KL(p(theta0) || p(theta)) is zero at theta0, so with tau = 1 the method equals FedMD exactly; the
regularisers act from tau = 2 on. The paper states no tau for it: the preset uses FedAL's 5.
"""

from __future__ import annotations

from pydantic import Field

from fedal.messages import Consensus, Outputs, Teacher
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.consensus import AggregateOptions, divergence
from fedal.methods.method import Method
from fedal.methods.outputs.fedmd import FedMDServer


class LessForgettingOptions(AggregateOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the KL divergence to the mean of the others")
    keep_local: float = Field(1.0, ge=0, description="weight of r^loc: keep the others' knowledge in local training")
    keep_global: float = Field(1.0, ge=0, description="weight of r^glo: keep what private data taught in the transfer")


class FedMDLFClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t, keep=self.hp.keep_local)
        anchor = self.anchor(self.hp.keep_global, self.hp.public_mode)  # theta^{t+1/2,0}
        for x, f in self.public_passes(t):
            down = yield Outputs(f)
            taught = divergence(down, f, self.hp.temperature)  # Eq. (kl)
            self.step(
                distillation=weighted(self.hp.distillation, taught.gradient),
                keep_global=anchor.pull(x, f),  # r^glo
            )


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
    transfer_steps=lambda options, t: options.tau if options.distillation or options.keep_global else 0,
)
