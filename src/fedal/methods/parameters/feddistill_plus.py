"""FedDistill+ (a baseline of Zhu et al., ICML 2021): FedAvg, and the mean logits of each class as teachers.

From the authors' code ("FedDistill-FL"), without two of its slips: tables are of the last round, not of the whole
history, and a class that a client does not have adds nothing to the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.aggregate import ClassSums, class_means, class_weights
from fedal.lazy import Tensor, torch
from fedal.losses import soft_cross_entropy
from fedal.messages import ClassLogits
from fedal.methods.client import ClientRound, ClientSetup, weighted
from fedal.methods.parameters.fedavg import FedAvgOptions
from fedal.methods.parameters.groups import GroupClient, GroupServer
from fedal.methods.parameters.less_forgetting import averaging
from fedal.methods.server import ServerRound, stack_outputs


class FedDistillPlusOptions(FedAvgOptions):
    distillation: float = Field(1.0, ge=0, description="weight gamma of the KL divergence from the class's mean logits")


class FedDistillPlusServer(GroupServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        up = yield reply
        present, rows = stack_outputs(clients, up)
        counts = torch.stack([up[n].counts for n in present])
        means = class_means(rows, class_weights(counts, "clients"))
        owners = (counts > 0).sum(0, dtype=torch.int32)
        up = yield dict.fromkeys(present, ClassLogits(means, owners))
        return self.average_of_each(clients, up)


class FedDistillPlusClient(GroupClient):
    kept = ("_teacher", "_owners")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        K = self.private.n_classes
        self._teacher = torch.zeros(K, K, device=self.device)  # the mean logits of each class,
        self._owners = self._teacher.new_zeros(K, dtype=torch.int32)  # and the number of clients behind them

    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        seen = ClassSums.empty(*self._teacher.shape, device=self.device)
        for x, y in self.private_batches(t, self.hp.local_stages):
            f = self.learner.logits(x)
            seen.add(f, y)
            taught = soft_cross_entropy(self._target(f, y), f)  # KL up to a constant
            self.step(
                cross_entropy=self.d_supervised(f, y), distillation=weighted(self.hp.distillation, taught.gradient)
            )
        down = yield ClassLogits(seen.means(f.dtype), seen.counts)
        self._teacher, self._owners = down.values, down.counts
        yield from self.group_step()

    def _target(self, f: Tensor, y: Tensor) -> Tensor:
        """The class's probabilities; zeros, which add nothing, for a class of which no client sent a sample."""
        known = (self._owners > 0)[:, None]
        return torch.where(known, torch.softmax(self._teacher.to(f.dtype), -1), 0)[y]


METHOD = averaging(
    "feddistill+",
    "FedAvg, and the mean logits of each class as teachers",
    FedDistillPlusOptions,
    FedDistillPlusClient,
    "paper+code",
    up=(ClassLogits,),
    down=(ClassLogits,),
    server=FedDistillPlusServer,
    needs=frozenset({"every-client"}),  # teachers are the class means of the last round
)
