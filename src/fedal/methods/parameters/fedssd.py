"""FedSSD (He et al. 2022, arXiv 2504.14694): keep the global model's logits where it is credible, class by class.

Paper: the server measures the credibility on labelled samples of its own. Here: no labels are public, so the server
adds up how the clients' private batches of the round are classified by the global model. The rest follows a third
party's port.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.learners.base import Frozen
from fedal.messages import Confusion, Credibility
from fedal.methods.client import ClientRound
from fedal.methods.parameters.groups import GroupServer
from fedal.methods.parameters.less_forgetting import KeepClient, KeepOptions, Pull, averaging
from fedal.methods.server import ServerRound

OFFSET = 0.1  # less credibility than this counts as none


class FedSSDOptions(KeepOptions):
    largest: float = Field(0.5, gt=0, description="m_max: the largest weight of a logit")


class FedSSDServer(GroupServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        up = yield reply
        total = sum((up[n].counts.double() for n in clients if n in up), torch.zeros((), device=self.device))
        up = yield dict.fromkeys(up, Credibility(credibility(total).to(self.dtype)))
        return self.published(self.average_of_each(clients, up))


def credibility(confusion: Tensor) -> Tensor:
    """c_k = A_kk (1 - max_{j != k} A_jk), A the confusion matrix divided by its row sums.  (K, K) -> (K,)"""
    A = confusion / confusion.sum(-1, keepdim=True).clamp(min=1)
    others = A.masked_fill(torch.eye(len(A), dtype=torch.bool, device=A.device), 0)
    return A.diagonal() * (1 - others.amax(0))


class FedSSDClient(KeepClient):
    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        teacher = self.received()
        K = self.private.n_classes
        counts = torch.zeros(K, K, dtype=torch.int32, device=self.device)
        for i in range(self.hp.tau):
            x, y = self.private.batch(t, i)
            counts.index_put_((y, teacher(x).argmax(-1)), counts.new_ones(()), accumulate=True)
        down = yield Confusion(counts)
        self.train(t, self._pull(teacher, down.values) if self.hp.keep_local else None)
        yield from self.group_step()

    def _pull(self, teacher: Frozen, credible: Tensor) -> Pull:
        def pull(x: Tensor, y: Tensor, f: Tensor) -> Tensor:
            known = teacher(x)
            right = torch.softmax(known, -1).gather(-1, y[:, None])
            sure = 1 - (1 - right).clamp(min=0).sqrt()  # s, of each sample
            M: Tensor = self.hp.largest * torch.relu(credible * sure - OFFSET)
            return 2 * M.square() * (f - known) / len(f)  # of mean_b sum_k (M_k (z^g_k - z_k))^2

        return pull


METHOD = averaging(
    "fedssd",
    "FedAvg that keeps the global model's logits of the classes it knows well",
    FedSSDOptions,
    FedSSDClient,
    "reconstruction",
    server=FedSSDServer,
    up=(Confusion,),
    down=(Credibility,),
)
