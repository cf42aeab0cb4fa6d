"""Federated distillation, FD (Jeong et al. 2018, arXiv 1811.11479): one mean output per class. No public data.

Every client uploads its mean probabilities on the samples of each label. On its own samples, it is pulled towards the
others' mean row for that label. The authors published no code. Public re-implementations average raw logits, count
absent classes as zeros, or treat logits as probabilities; this one does not (docs/methods/fd.md).
Difference: a table covers the last `table_steps` local steps, because one round of tau = 1 covers only 32 samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.aggregate import ClassSums, class_means_of_others, class_weights, other_owners
from fedal.lazy import Tensor, torch
from fedal.losses import soft_cross_entropy
from fedal.messages import ClassOutputs
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup, weighted
from fedal.methods.method import Method
from fedal.methods.options import ClassMeanOptions
from fedal.methods.server import ServerLogic, ServerRound, stack_outputs


class FDOptions(ClassMeanOptions):
    distillation: float = Field(1.0, ge=0, description="weight gamma of the cross-entropy to the others' mean output")
    table_steps: int = Field(20, ge=1, description="local steps that a table covers, rounded up to full rounds")
    exchange_every: int = Field(1, ge=1, description="rounds from one exchange of tables to the next")

    def exchanges_in(self, t: int) -> bool:
        return (t + 1) % self.exchange_every == 0


class FDServer(ServerLogic):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        if not self.hp.exchanges_in(t):
            return None
        up = yield None
        present, rows = stack_outputs(clients, up)  # (N, K, K)
        counts = torch.stack([up[n].counts for n in present])  # (N, K)
        means = class_means_of_others(rows, class_weights(counts, self.hp.average))
        return {
            n: ClassOutputs(mean, owners) for n, mean, owners in zip(present, means, other_owners(counts), strict=True)
        }


class FDClient(ClientLogic):
    kept = ("_sums", "_counts", "_teacher", "_owners")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        K, rounds = self.private.n_classes, -(-self.hp.table_steps // self.hp.local_steps)
        self._teacher = torch.zeros(K, K, device=self.device)  # the others' mean output per label,
        self._owners = self._teacher.new_zeros(K, dtype=torch.int32)  # and the number of clients behind it
        self._sums = self._teacher.new_zeros(rounds, K, K, dtype=torch.float64)  # sums of probabilities by label
        self._counts = self._owners.new_zeros(rounds, K)  # and their sample counts, in each of the last rounds

    def round(self, t: int) -> ClientRound:
        seen = ClassSums.empty(*self._teacher.shape, device=self.device)
        for x, y in self.private_batches(t, self.hp.local_stages):
            f = self.learner.logits(x)
            seen.add(torch.softmax(f, -1), y)
            distillation = soft_cross_entropy(self._target(f, y), f)
            self.step(
                cross_entropy=self.d_supervised(f, y),
                distillation=weighted(self.hp.distillation, distillation.gradient),
            )
        self._sums = torch.cat([self._sums[1:], seen.sums[None]])
        self._counts = torch.cat([self._counts[1:], seen.counts[None]])
        if self.hp.exchanges_in(t):
            table = ClassSums(self._sums.sum(0), self._counts.sum(0, dtype=torch.int32))
            down = yield ClassOutputs(table.means(f.dtype), table.counts)
            self._teacher, self._owners = down.values, down.counts

    def _target(self, f: Tensor, y: Tensor) -> Tensor:
        """The others' row for each label; zeros, which add nothing, where none of them has the class."""
        known = (self._owners > 0)[:, None]
        return torch.where(known, self._teacher.to(f.dtype), 0)[y]


METHOD = Method(
    name="fd",
    summary="one mean output per class, distilled on private samples; no public data",
    options=FDOptions,
    client=FDClient,
    server=FDServer,
    up=(ClassOutputs,),
    down=(ClassOutputs,),
    faithfulness="reconstruction",
    per={ClassOutputs: "round"},
    local_steps=lambda options: int(options.local_steps),
)
