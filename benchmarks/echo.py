"""A method without computation: the server returns each client's outputs, so an exchange shows fedal's overhead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedal import methods
from fedal.messages import Consensus, Outputs
from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method
from fedal.methods.options import PublicOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound


class EchoServer(ServerLogic):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            reply = {n: Consensus(up[n].values, len(up)) for n in clients}
        return reply


class EchoClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        public = self.public
        for i in range(self.hp.tau):
            public.drawn = public.digest(t, i)  # names the batch; its samples are only counted,
            counted: Any = public.ids(t, i)  # which is all that a `Mute` learner needs
            yield Outputs(self.learner.logits(counted))


METHOD = methods.register(
    Method(
        name="echo",
        summary="returns the uploaded outputs",
        options=PublicOptions,
        client=EchoClient,
        server=EchoServer,
        up=(Outputs,),
        down=(Consensus,),
        needs=frozenset({"public"}),
    )
)
