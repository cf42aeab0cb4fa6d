"""FedGKD (Yao et al. 2021, arXiv 2107.00051): the teacher is the mean of the last M global models.

From the authors' code, except that there the server keeps the M models and sends their mean: twice the downlink. Here
each client keeps the M averages that it received, which is the same for a client that takes part in every round.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedal.aggregate import average_weights
from fedal.lazy import Tensor
from fedal.losses import d_kl, mse
from fedal.methods.client import ClientRound, ClientSetup
from fedal.methods.parameters.less_forgetting import KeepClient, Pull, UniformDistilOptions, averaging


class FedGKDOptions(UniformDistilOptions):
    keep_local: float = Field(0.1, ge=0, description="weight gamma of the distance to the teacher")
    buffer: int = Field(5, ge=1, description="M: global models behind the teacher")
    distance: Literal["kl", "mse"] = Field("kl", description="distance to the teacher: KL, or the MSE of logits")


class FedGKDClient(KeepClient):
    kept = ("_received",)

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._received: dict[str, dict[str, Tensor]] = {}  # round -> the average at its end, of the last M

    def round(self, t: int) -> ClientRound:
        yield from super().round(t)
        self._received[str(t)] = self.learner.weights()
        self._received = dict([*self._received.items()][-self.hp.buffer :])

    def regulariser(self, t: int) -> Pull | None:
        if not self._received:
            return None  # there is no global model before the first average
        models, T = [*self._received.values()], self.hp.temperature
        teacher = self.received(average_weights(models, [1] * len(models)))
        if self.hp.distance == "mse":
            return lambda x, y, f: mse(teacher(x), f).gradient
        return lambda x, y, f: T**2 * d_kl(teacher(x), f, T)


METHOD = averaging(
    "fedgkd",
    "FedAvg with a distance to the mean of the last global models",
    FedGKDOptions,
    FedGKDClient,
    "paper+code",
    needs=frozenset({"every-client"}),  # the teacher is the mean of all of the last M averages
)
