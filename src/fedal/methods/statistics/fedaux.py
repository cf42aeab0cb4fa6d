"""FedAUX (Sattler, Korjakow, Rischke, Samek, TNNLS 2021; arXiv 2102.02514), for models that stay where they are.

Each client weighs its own outputs, sample by sample, with a score of how much the sample resembles its data: a logistic
regression of its own samples against public ones. The server teaches the weighted mean of logits.
From the authors' code, which sends weights of models and scores with a feature extractor trained on auxiliary data;
here scores use public principal components. `uwa` is the same with a kernel density, after Kovalchuk et al.
(arXiv 2509.15147): a reconstruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from fedal.density import PublicSpace, in_the_ball, log_density, logistic_regression
from fedal.lazy import Tensor, torch
from fedal.messages import Outputs, WeightedOutputs
from fedal.methods.client import ClientSetup
from fedal.methods.consensus import DistillingClient
from fedal.methods.method import Method
from fedal.methods.server import Replies, ServerLogic, ServerRound, stack_outputs
from fedal.methods.statistics.selective_fd import DensityOptions
from fedal.weighting import mixture, shares_of

LEAST = 1e-8  # added to a score, as the authors do
STEEPEST = 13.0  # log-weights are cut off here: exp(13) is within the range of the wire


class FedAUXOptions(DensityOptions):
    score: Literal["logistic", "density", "equal"] = Field(
        "logistic", description="logistic: P(own | x); density: exp((log density - its median) / T); equal: 1"
    )
    regularisation: float = Field(0.01, gt=0, description="lambda of the logistic regression")
    negatives: int = Field(5, ge=1, description="every so many public samples is a negative of the regression")
    density_temperature: float = Field(1.0, gt=0, description="T of score=density; large: equal weights")


class UWAOptions(FedAUXOptions):
    score: Literal["logistic", "density", "equal"] = Field(
        "density", description=FedAUXOptions.model_fields["score"].description
    )


class FedAUXServer(ServerLogic):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            weights = torch.stack([up[n].weights for n in present])  # s_n(x), (N, B)
            reply = dict.fromkeys(present, Outputs(mixture(f, shares_of(weights))))
        return reply


class FedAUXClient(DistillingClient):
    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._scores = self._scored(self.public.everything())

    def upload(self, t: int, i: int, f: Tensor) -> WeightedOutputs:
        return WeightedOutputs(f, self._scores[torch.from_numpy(self.public.ids(t, i)).to(self.device)])

    def _scored(self, public: Tensor) -> Tensor:
        """s_n of every public sample.  (P, ...) -> (P,)"""
        if self.hp.score == "equal":
            return torch.ones(len(public), dtype=public.dtype, device=public.device)
        space = PublicSpace.of(public, self.hp.components)
        own, points = space(torch.cat([x for x, _ in self.private.everything()])), space(public)
        if self.hp.score == "density":
            logs = log_density(points, own, self.hp.bandwidth)
            steep: Tensor = (logs - logs.median()) / self.hp.density_temperature
            return steep.clamp(-STEEPEST, STEEPEST).exp().to(public.dtype)
        points = in_the_ball(points)
        w = logistic_regression(in_the_ball(own), points[:: self.hp.negatives], self.hp.regularisation)
        return (torch.sigmoid(points @ w) + LEAST).to(public.dtype)


METHOD = Method(
    name="fedaux",
    summary="distil a mean of logits in which each client weighs what resembles its own data",
    options=FedAUXOptions,
    client=FedAUXClient,
    server=FedAUXServer,
    up=(WeightedOutputs,),
    down=(Outputs,),
    needs=frozenset({"public", "fixed-samples"}),
    faithfulness="code",
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)

UWA = replace(
    METHOD,
    name="uwa",
    summary="distil a mean of logits, weighted by the density of each client's own data (FedAUX with another score)",
    options=UWAOptions,
    faithfulness="reconstruction",
)
