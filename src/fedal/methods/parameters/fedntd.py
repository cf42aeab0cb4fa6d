"""FedNTD (Lee et al. 2022, arXiv 2106.03097): distil the global model's outputs on all classes but the true one.

The label itself says what the true class should be; the relations among the others are what local training forgets.
From the authors' code.
"""

from __future__ import annotations

from fedal.losses import non_target
from fedal.methods.parameters.less_forgetting import DistilOptions, KeepClient, Pull, averaging


class FedNTDClient(KeepClient):
    def regulariser(self, t: int) -> Pull:
        T, teacher = self.hp.temperature, self.received()
        return lambda x, y, f: T**2 * non_target(teacher(x), f, y, T, renormalise=True).gradient


def refuse(options: DistilOptions, n_classes: int) -> str | None:
    return "with two classes, one logit is left beside the true one: R is always 0." if n_classes < 3 else None


METHOD = averaging(
    "fedntd",
    "FedAvg that distils the global model on the classes that are not the label",
    DistilOptions,
    FedNTDClient,
    "paper+code",
    refuse=refuse,
)
