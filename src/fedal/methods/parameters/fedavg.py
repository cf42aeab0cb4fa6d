"""FedAvg (McMahan et al. 2017): the weights of all clients are averaged at the end of every round.

Not black-box: parameters and architecture leave the client. It is here to show what sharing them gains. The FedAL paper
uses it in its communication figure without stating its local steps: here tau, as in the other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedal.messages import Weights
from fedal.methods.client import ClientRound
from fedal.methods.method import Method
from fedal.methods.options import LocalStagesOptions
from fedal.methods.parameters.groups import GroupClient, GroupOptions, GroupServer
from fedal.methods.server import ServerRound


class FedAvgOptions(GroupOptions, LocalStagesOptions):
    pass


class FedAvgServer(GroupServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        up = yield reply
        return self.published(self.average_of_each(clients, up))


class FedAvgClient(GroupClient):
    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        self.local_training(t, stages=self.hp.local_stages)
        yield from self.group_step()


METHOD = Method(
    name="fedavg",
    summary="average the weights of all clients (one architecture)",
    options=FedAvgOptions,
    client=FedAvgClient,
    server=FedAvgServer,
    up=(Weights,),
    down=(Weights,),
    needs=frozenset({"weights", "same-architecture"}),
    evaluates="groups",
    faithfulness="paper+code",
    per={Weights: "round"},
    local_steps=lambda options: int(options.local_steps),
)
