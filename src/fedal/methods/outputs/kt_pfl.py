"""KT-pFL (Zhang, Guo, Ma, Wang, Xu, Wu, NeurIPS 2021; arXiv 2111.02862): every client learns from its own mixture.

The server keeps knowledge coefficients c (N, N), rows on the simplex. Client n learns the mixture sum_m c_nm y_m of all
clients' probabilities; c follows a gradient that brings the mixture of n nearer to the outputs of n. A personalisation
method. From the authors' code; docs/methods/kt-pfl.md lists the differences: a step of exact size, KL by batch mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.messages import Outputs, Teacher
from fedal.methods.consensus import DistillingClient
from fedal.methods.method import Method
from fedal.methods.options import TransferOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs

SHARPNESS = 5.0  # of the softmax that brings rows back to the simplex
LARGEST_STEP = 5.0**5  # of the authors' search for a step size


class KTpFLOptions(TransferOptions):
    temperature: float = Field(10.0, gt=0, description="temperature T of the probabilities and of the KL divergence")
    distillation: float = Field(1.0, ge=0, description="weight of the KL divergence to the client's own mixture")
    penalty: float = Field(0.7, ge=0, description="rho: pulls the coefficients towards equal ones")
    coefficient_step: float = Field(
        0.01, ge=0, description="mean absolute change of a row of coefficients in each exchange; 0: they stay equal"
    )


class KTpFLServer(ServerLogic):
    kept = ("coefficients",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        n, self._roster = len(setup.roster), setup.roster
        self.coefficients = torch.ones(n, n, dtype=setup.dtype, device=setup.device) / n

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            y = torch.softmax(f / self.hp.temperature, -1)
            c = self._learnt(present, y)
            mixtures = y.mean(0) + torch.einsum("nm,mbk->nbk", c - torch.ones_like(c) / len(c), y)  # sum_m c_nm y_m
            reply = {n: Teacher(mixture) for n, mixture in zip(present, mixtures.clamp(min=0), strict=True)}
        return reply

    def _learnt(self, present: Sequence[str], y: Tensor) -> Tensor:
        """The coefficients among the clients that responded, after one step; all others stay.  (n, B, K) -> (n, n)"""
        if len(present) == len(self._roster):
            self.coefficients = stepped(self.coefficients, y, self.hp.penalty, self.hp.coefficient_step)
            return self.coefficients
        rows = torch.tensor([self._roster.index(n) for n in present], device=y.device)
        own = self.coefficients[rows][:, rows]
        mass = own.sum(1, keepdim=True)
        c = stepped(own / mass, y, self.hp.penalty, self.hp.coefficient_step)
        self.coefficients = self.coefficients.index_put((rows[:, None], rows), c * mass)
        return c


def gradient(c: Tensor, y: Tensor, penalty: float) -> Tensor:
    """dJ_n/dc_nm of J_n = mean_bk (y_n - sum_m c_nm y_m)^2 + penalty * mean_m (c_nm - 1/N)^2.

    (N, N), (N, B, K) -> (N, N)
    """
    flat = y.flatten(1)
    return 2 * ((c @ flat - flat) @ flat.T / flat.shape[1] + penalty / len(c) * (c - 1 / len(c)))


def stepped(c: Tensor, y: Tensor, penalty: float, step: float) -> Tensor:
    """c after one step of mean absolute size `step` in each row, and a softmax of 5 c.  (N, N), (N, B, K) -> (N, N)"""
    slope = gradient(c, y, penalty)
    size = slope.abs().mean(1, keepdim=True)
    rate = step / size.clamp(min=step / LARGEST_STEP) if step else torch.zeros_like(size)
    return torch.softmax(SHARPNESS * (c - rate * slope), 1)


METHOD = Method(
    name="kt-pfl",
    summary="distil a personal mixture of all clients, with coefficients that the server learns (personalisation)",
    options=KTpFLOptions,
    client=DistillingClient,
    server=KTpFLServer,
    up=(Outputs,),
    down=(Teacher,),
    needs=frozenset({"public"}),
    faithfulness="code",
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)
