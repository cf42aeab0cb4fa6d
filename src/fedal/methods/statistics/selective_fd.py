"""Selective-FD (Shao, Wu, Zhang, Nature Comm. 2024; arXiv 2304.01731): clients answer for what resembles their data.

A client answers for the public samples whose density under its own data exceeds a quantile of held-out own samples; the
server averages the answers that it got and drops samples that are ambiguous or chosen by no client.
From the authors' code, with a plain kernel density in a space of public principal components: their density ratio
reduces to one (docs/methods/selective-fd.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.density import PublicSpace, log_density
from fedal.lazy import Tensor, torch
from fedal.losses import kl_to_probs
from fedal.messages import SelectedOutputs, SelectedTeacher
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup, weighted
from fedal.methods.method import Method
from fedal.methods.options import TransferOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, stack_outputs
from fedal.weighting import mixture, shares_of


class DensityOptions(TransferOptions):
    """Options of methods that compare public samples with private ones."""

    distillation: float = Field(1.0, ge=0, description="weight of the divergence from what the server teaches")
    components: int = Field(
        32, ge=1, le=1000, description="principal components of the public set in which samples are compared"
    )
    bandwidth: float = Field(
        0.3, ge=1e-3, description="width of the Gaussian kernel; public samples have norm 1 on average"
    )


class SelectiveFDOptions(DensityOptions):
    quantile: float = Field(
        0.25, ge=0, le=1, description="share of held-out own samples below the density from which a client answers"
    )
    ambiguity: float = Field(
        2.0, ge=0, le=2, description="kappa: the server drops samples with 2 (1 - max t) >= kappa; 2: none"
    )
    answer_all: bool = Field(False, description="answer for every sample: a plain mean of probabilities")


class SelectiveFDServer(ServerLogic):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        answered = []
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            chosen = torch.stack([up[n].chosen for n in present])  # (N, B)
            answered.append(chosen.to(f.dtype).mean())
            taught = self.teacher(f, chosen)
            reply = dict.fromkeys(present, taught)
        self.observed = {"answered": torch.stack(answered).mean()}
        return reply

    def teacher(self, f: Tensor, chosen: Tensor) -> SelectedTeacher:
        """The mean probabilities of those that chose each sample.  (N, B, K), (N, B)"""
        shares = chosen.to(f.dtype)
        y = torch.softmax(f / self.hp.temperature, -1) * shares[..., None]  # what was not chosen has no effect
        t = mixture(y, shares_of(shares)).clamp(min=0)
        is_clear = 2 * (1 - t.amax(-1)) < self.hp.ambiguity  # |t - onehot(argmax t)|_1
        counts = chosen.sum(0, dtype=torch.int32) * is_clear
        return SelectedTeacher(t * (counts > 0)[:, None], counts)


class SelectiveFDClient(ClientLogic):
    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        public = self.public.everything()
        self._chosen = torch.ones(len(public), dtype=torch.bool, device=self.device)
        if not self.hp.answer_all:
            space = PublicSpace.of(public, self.hp.components)
            own = space(torch.cat([x for x, _ in self.private.everything()]))
            known, held_out = own[::2], own[1::2] if len(own) > 1 else own
            limit = log_density(held_out, known, self.hp.bandwidth).quantile(self.hp.quantile)  # c_n
            self._chosen = log_density(space(public), known, self.hp.bandwidth) > limit

    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for i, (_x, f) in enumerate(self.public_passes(t)):
            chosen = self._chosen[torch.from_numpy(self.public.ids(t, i)).to(self.device)]
            down = yield SelectedOutputs(f * chosen[:, None], chosen.to(torch.uint8))
            kept = (down.counts > 0).to(f.dtype)
            if not kept.any():
                self.learner.forget()
                continue
            of_batch = kl_to_probs(down.values, f, self.hp.temperature).gradient  # the mean over kept rows, not all B
            self.step(
                distillation=weighted(self.hp.distillation, of_batch * (kept * (len(kept) / kept.sum()))[:, None])
            )


METHOD = Method(
    name="selective-fd",
    summary="distil the mean of those clients whose own data resemble the public sample",
    options=SelectiveFDOptions,
    client=SelectiveFDClient,
    server=SelectiveFDServer,
    up=(SelectedOutputs,),
    down=(SelectedTeacher,),
    needs=frozenset({"public", "fixed-samples"}),
    faithfulness="code",
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)
