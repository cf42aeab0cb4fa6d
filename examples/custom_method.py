"""Your own method in one file: FedMD with the mean of probabilities as the teacher, not the mean of logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field

import fedal
from fedal.aggregate import leave_one_out
from fedal.losses import d_kl
from fedal.messages import Leak, Message, Outputs
from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method
from fedal.methods.options import TransferOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, stack_outputs


class VoteOptions(TransferOptions):
    sharpen: float = Field(1.0, gt=0, description="exponent on the mean; above 1 it sharpens the teacher")


@dataclass(frozen=True)
class Vote(Message):  # the server's reply: a tensor of B samples x K classes, and the number of clients in its mean
    probs: torch.Tensor
    count: int
    leak = Leak.PUBLIC_OUTPUTS
    layout = {"probs": ("B", "K")}  # noqa: RUF012


class VoteServer(ServerLogic):
    def round(self, t: int, clients: Sequence[str], reply: Replies | None = None) -> ServerRound:
        for _ in range(self.hp.tau):
            present, f = stack_outputs(clients, (yield reply))  # f: N clients x B samples x K classes
            vote = Vote(torch.softmax(f / self.hp.temperature, -1).mean(0), len(present))
            reply = dict.fromkeys(present, vote)
            self.observed["vote_confidence"] = vote.probs.max(-1).values.mean()  # a column of metrics.jsonl and a curve
        return reply


class VoteClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for _x, f in self.public_passes(t):
            down = yield Outputs(f)
            others = leave_one_out(down.probs, torch.softmax(f / self.hp.temperature, -1), down.count)
            self.observed["vote_agreement"] = (others.argmax(-1) == f.argmax(-1)).float().mean()  # one per client
            teacher = self.hp.sharpen * self.hp.temperature * others.clamp_min(1e-9).log()
            self.step(distillation=d_kl(teacher, f, self.hp.temperature))


METHOD = Method("vote", "distil the mean probabilities of the others", VoteOptions, VoteClient, VoteServer,
                up=(Outputs,), down=(Vote,), needs=frozenset({"public"}))  # fmt: skip

if __name__ == "__main__":
    fedal.methods.register(METHOD)
    for settings in ({"method": "fedmd"}, {"method": "vote"}, {"method": "vote", "sharpen": 2.0}):
        run = fedal.run(fedal.Config(dataset="digits", iterations=60, **settings))
        print(f"{settings}: {run.final['test_accuracy']:.3f}, black-box: {run.config.method_object().black_box}")
