"""pFedSD (Jin et al. 2023, IEEE TPDS): personal models that distil their own previous version after each average.

From the authors' code. A round begins with the average and ends with the personal model v_n, which is evaluated; so the
model at the start of a round is v_n, and nothing else has to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedal.losses import d_kl
from fedal.methods.client import ClientRound
from fedal.methods.parameters.groups import GroupServer
from fedal.methods.parameters.less_forgetting import KeepClient, Pull, UniformDistilOptions, averaging
from fedal.methods.server import ServerRound


class PFedSDServer(GroupServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        if t == 0:
            return (yield from self.common_start(t, clients))
        up = yield None
        return self.average_of_each(clients, up)


class PFedSDClient(KeepClient):
    def round(self, t: int) -> ClientRound:
        pull = self.regulariser(t) if self.hp.keep_local and t else None  # first participation: cross-entropy only
        yield from self.group_step()  # theta_n <- theta^g, in round 0 a common start
        self.train(t, pull)

    def regulariser(self, t: int) -> Pull:
        T, personal = self.hp.temperature, self.received()  # v_n
        return lambda x, y, f: T**2 * d_kl(personal(x), f, T)


METHOD = averaging(
    "pfedsd",
    "FedAvg for personal models, which distil their previous version",
    UniformDistilOptions,
    PFedSDClient,
    "paper+code",
    server=PFedSDServer,
    needs=frozenset({"every-client"}),  # an average is that of the personal models after the last round
    evaluates="clients",
)
