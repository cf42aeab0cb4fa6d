"""FedLSD (Lee et al. 2021, arXiv 2106.03097v1): FedAvg whose clients stay close to the global model's outputs.

Only the first version of that paper has it; the published one has FedNTD. It is the ancestor of FedAL's r^loc, whose
reference is the client's own model after the last transfer.
"""

from __future__ import annotations

from fedal.losses import d_kl
from fedal.methods.parameters.less_forgetting import DistilOptions, KeepClient, Pull, averaging


class FedLSDClient(KeepClient):
    def regulariser(self, t: int) -> Pull:
        T, teacher = self.hp.temperature, self.received()
        return lambda x, y, f: T**2 * d_kl(teacher(x), f, T)  # T^2 KL(p(theta^g) || p(theta))


METHOD = averaging(
    "fedlsd",
    "FedAvg with a KL divergence to the global model in local training",
    DistilOptions,
    FedLSDClient,
    "reconstruction",
)
