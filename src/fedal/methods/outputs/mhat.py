"""MHAT (Hu et al., Information Sciences 2021): the server trains an auxiliary model on the mean outputs of the clients.

A reconstruction from the FedAL paper's description: no public code is known. Logits are averaged with equal weights,
as for FedMD in the FedAL paper. The auxiliary model takes `server_steps` on each public batch, then replies.
The whole algorithm is in server_distillation.py; CFD without compression and with `space = "logits"` is the same.
"""

from __future__ import annotations

from fedal.messages import Outputs
from fedal.methods.method import Method
from fedal.methods.outputs.server_distillation import DistillingServer, ServerDistillationOptions, TaughtClient

METHOD = Method(
    name="mhat",
    summary="distil the mean logits into a model at the server, and that model into the clients",
    options=ServerDistillationOptions,
    client=TaughtClient,
    server=DistillingServer,
    up=(Outputs,),
    down=(Outputs,),
    needs=frozenset({"public", "server-model"}),
    faithfulness="reconstruction",
    paper_options={"tau": 1},
    transfer_steps=lambda options, t: int(options.transfer_steps(t)),
)
