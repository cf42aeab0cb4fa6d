"""FedDF-AL, the FedAL paper's extension to shareable models: FedAL, then averaged weights inside each architecture.

A reconstruction: the paper gives it one sentence and a figure. Weights are averaged after the transfer. Averaged before
it, the members of a group would send equal outputs, and the discriminator could only drive them apart again.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedal.messages import Guidance, GuidedOutputs, GuidedTeacher, Outputs, Weights
from fedal.methods.client import ClientRound
from fedal.methods.method import Method
from fedal.methods.outputs.fedal import FedALClient, FedALOptions, FedALServer
from fedal.methods.outputs.fedmd_lf import refuse
from fedal.methods.parameters.groups import GroupClient, GroupOptions, GroupServer
from fedal.methods.server import ServerRound, after


class FedDFALOptions(GroupOptions, FedALOptions):
    pass


class FedDFALServer(GroupServer, FedALServer):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        reply = yield from after(reply, FedALServer.round(self, t, clients))
        up = yield reply
        return self.average_of_each(clients, up)


class FedDFALClient(GroupClient, FedALClient):
    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        yield from FedALClient.round(self, t)
        yield from self.group_step()


METHOD = Method(
    name="feddf-al",
    summary="FedAL between architectures, averaged weights inside each",
    options=FedDFALOptions,
    client=FedDFALClient,
    server=FedDFALServer,
    up=(Outputs, Weights),
    down=(Guidance, GuidedOutputs, GuidedTeacher, Weights),
    instead_of={GuidedOutputs: Guidance, GuidedTeacher: Guidance},
    needs=frozenset({"public", "weights", "every-client"}),  # each architecture has a common start in round 0
    evaluates="groups",
    faithfulness="reconstruction",
    paper_options={"tau": 15, "discriminator_temperature": 2.0, "discriminator_lr": 1e-4},
    per={Weights: "round"},
    transfer_steps=lambda options, t: int(options.transfer_steps),
    refuse=refuse,
)
