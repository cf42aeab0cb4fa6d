"""FedCurv (Shoham et al. 2019, arXiv 1910.07796): stay close to the other clients' weights where these matter to them.

R = sum_{j != n} (theta - theta_j)^T diag(F_j) (theta - theta_j), F_j the diagonal of the Fisher information at theta_j.
The FedAL paper calls it black-box. It is not: u_j = diag F_j and u_j * theta_j give theta_j away. From two ports, whose
slips are named in docs/methods/fedcurv.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.learners.base import GradientLearner
from fedal.losses import d_cross_entropy
from fedal.messages import FisherTerms, Message
from fedal.methods.client import ClientRound, ClientSetup
from fedal.methods.parameters.groups import GroupClient, GroupServer
from fedal.methods.parameters.less_forgetting import KeepOptions, averaging
from fedal.methods.server import Replies, ServerRound, Uploads

FISHER, WEIGHTED = "u.", "v."  # prefixes of the names of the two tensors of each parameter


class FedCurvOptions(KeepOptions):
    keep_local: float = Field(1.0, ge=0, description="weight lambda of R (authors of ports: 1e-5 to 1)")
    fisher_samples: int = Field(32, ge=1, description="private samples behind F_n in each round (a port: 500)")


class FedCurvServer(GroupServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        up = yield reply
        up = yield self._sums_over_others(clients, up)
        return self.average_of_each(clients, up)

    def _sums_over_others(self, clients: Sequence[str], up: Uploads) -> Replies:
        """P_n = sum_{j != n} u_j and Q_n = sum_{j != n} v_j, in double precision: the own part cancels."""
        replies: dict[str, Message] = {}
        for group in self.groups(clients, up):
            parts = [{name: value.double() for name, value in up[n].values.items()} for n in group]
            total = {name: sum(part[name] for part in parts[1:]) + value for name, value in parts[0].items()}
            for n, own in zip(group, parts, strict=True):
                others = {name: (value - own[name]).to(self.dtype) for name, value in total.items()}
                replies[n] = FisherTerms(others)
        return replies


class FedCurvClient(GroupClient):
    kept = ("_others",)

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._others: dict[str, Tensor] = {}  # P and Q of the last round

    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        learner = cast("GradientLearner", self.learner)
        for x, y in self.private_batches(t, self.hp.local_stages):
            f = self.learner.logits(x)
            self.step(cross_entropy=self.d_supervised(f, y), weights=self._pull(learner))
        down = yield FisherTerms(self._terms(t, learner))
        self._others = down.values if self.hp.keep_local else {}
        yield from self.group_step()

    def _pull(self, learner: GradientLearner) -> dict[str, Tensor] | None:
        """The gradient of lambda (<P, theta^2> - 2 <Q, theta>) w.r.t. theta; none before the first exchange."""
        if not self._others:
            return None
        return {
            name: 2 * self.hp.keep_local * (self._others[FISHER + name] * theta - self._others[WEIGHTED + name])
            for name, theta in learner.trainable().items()
        }

    def _terms(self, t: int, learner: GradientLearner) -> dict[str, Tensor]:
        """u_n, the mean of squared gradients of single samples (empirical Fisher: true labels), and u_n * theta_n."""
        batches = [self.private.batch(t, i) for i in range(self.hp.tau)]
        x, y = (torch.cat(parts)[: self.hp.fisher_samples] for parts in zip(*batches, strict=True))
        f = learner.predict(x)
        u, theta = learner.squared_gradients(x, len(f) * d_cross_entropy(f, y)), learner.weights()
        return {FISHER + name: value for name, value in u.items()} | {
            WEIGHTED + name: value * theta[name] for name, value in u.items()
        }


METHOD = averaging(
    "fedcurv",
    "FedAvg with a quadratic penalty by the other clients' Fisher information",
    FedCurvOptions,
    FedCurvClient,
    "code",
    server=FedCurvServer,
    up=(FisherTerms,),
    down=(FisherTerms,),
    needs=frozenset({"weight-gradients", "every-client"}),  # P and Q are sums over all others in the last round
)
