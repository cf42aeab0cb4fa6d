"""FedAL: black-box federated knowledge distillation enabled by adversarial learning (arXiv 2311.16584).

Algorithm 1. The server trains a discriminator to predict which client an output came from. Each client learns from the
mean of the others, from the gradient that makes it indistinguishable, and from its earlier model to forget less.
Where the paper is ambiguous or slips, docs/deviations.md explains what is done here and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, PositiveInt

from fedal.discriminator import Discriminator, bounded
from fedal.lazy import Tensor, torch
from fedal.messages import Consensus, Guidance, GuidedOutputs, GuidedTeacher, Message, Outputs, Teacher, Together
from fedal.methods.class_history import ClassHistory
from fedal.methods.client import Anchor, weighted
from fedal.methods.consensus import remembers, teaching
from fedal.methods.method import Method
from fedal.methods.outputs.fedmd_lf import FedMDLFClient, LessForgettingOptions, refuse
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs


class FedALOptions(LessForgettingOptions):
    adversarial: float = Field(1.0, ge=0, description="weight of U_n: become indistinguishable from the others")
    discriminator_temperature: float = Field(2.0, gt=0, description="temperature E of the discriminator's input")
    discriminator_lr: float = Field(1e-4, gt=0, description="step size eta_d of the discriminator")
    discriminator_optimizer: Literal["adam", "sgd"] = Field("adam", description="optimizer of the discriminator")
    discriminator_hidden: tuple[PositiveInt, ...] = Field((32, 265), description="widths of its hidden layers")
    discriminator_leak: float = Field(0.0, ge=0, lt=1, description="negative slope of its ReLUs (0 = plain ReLU)")
    discriminator_clip: float = Field(0.0, ge=0, description="maximum norm of its gradient; 0 = no clipping")
    discriminator_groups: int = Field(
        0, ge=0, description="tell apart this many drawn groups of clients, in linear time; 0 = every client"
    )
    discriminator_input: Literal["outputs", "outputs-and-mean"] = Field(
        "outputs", description="what it sees of a sample: a client's output, or also the mean over the clients present"
    )
    discriminator_rule: Literal["constant", "balance"] = Field(
        "constant",
        description="its step size: discriminator_lr throughout, or adapted so that it neither guesses nor "
        "is always right",
    )
    discriminator_target: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="discriminator_rule=balance: the most that it should tell apart, as a share of the way from "
        "guessing to no mistake; a fifth of it is the least",
    )

    @property
    def transfer_steps(self) -> int:
        """Steps on public data per round: none if no term is left. Replayed batches have no adversarial term."""
        return super().transfer_steps or (self.tau if self.adversarial else 0)


class FedALServer(ServerLogic):
    kept: tuple[str, ...] = ("discriminator",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        hp, self._chance, self._layout = self.hp, 1 / len(setup.roster), setup.layout
        self.discriminator = Discriminator(
            setup.roster,
            setup.n_classes,
            hidden=hp.discriminator_hidden,
            temperature=hp.discriminator_temperature,
            leak=hp.discriminator_leak,
            optimizer=hp.discriminator_optimizer,
            lr=hp.discriminator_lr,
            clip=hp.discriminator_clip,
            groups=hp.discriminator_groups,
            sees_mean=hp.discriminator_input == "outputs-and-mean",
            target=hp.discriminator_target if hp.discriminator_rule == "balance" else None,
            seed=setup.seed, dtype=setup.dtype, device=setup.device, each=setup.each, layout=setup.layout,
        )  # fmt: skip
        self.history = ClassHistory(setup.device)
        if remembers(self.hp):
            self.kept = ("discriminator", "history")

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        accuracies, norms, chances = [], [], []
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            # ascend U on all N * B outputs, Eq. (dis_obj); then the gradients at the updated w^{t,i+1}
            accuracy, grads = self.discriminator.train_and_guide(f, present)
            accuracies.append(accuracy)
            chances.append(self.discriminator.chance(present))
            norms.append(self._layout.norms(grads).mean())
            taught = teaching(f, self.hp, present, self.history)
            reply = Together(tuple(present), guided(taught, grads))
        self.observed = {
            "discriminator_accuracy": torch.stack(accuracies).mean(),
            "adversarial_grad_norm": torch.stack(norms).mean(),
        }
        if any(chance != self._chance for chance in chances):  # not 1 / N: some clients are absent, or in one group
            self.observed["discriminator_chance"] = fmean(chances)
        if self.hp.discriminator_rule == "balance":
            self.observed["discriminator_lr"] = self.discriminator.lr
        return reply


def guided(taught: Any, grads: Tensor) -> Message:
    """The replies to all clients: what all are taught, and each client's own gradient dU_n/df_n.  (N, B, K)"""
    value = taught.mean if isinstance(taught, Consensus) else taught.values
    each = torch.empty_like(grads).copy_(value)  # in the memory order of the gradients, which it meets again
    if isinstance(taught, Consensus):
        return Guidance(each, grads, taught.count)
    return GuidedTeacher(each, grads) if isinstance(taught, Teacher) else GuidedOutputs(each, grads)


class FedALClient(FedMDLFClient):
    def transfer(self, down: Any, x: Tensor, f: Tensor, anchor: Anchor) -> None:
        self.step(  # Eq. (client_loss_glo)
            distillation=weighted(self.hp.distillation, self.taught(down, f).gradient),  # Eq. (kl)
            adversarial=self._pulled(down, f),
            keep_global=anchor.pull(x, f),  # r^glo
        )

    def _pulled(self, down: Any, f: Tensor) -> Tensor | None:
        """The adversarial term; None for a replayed batch, because dU_n/df_n holds only at the outputs sent."""
        if not isinstance(down, Guidance | GuidedOutputs | GuidedTeacher):
            return None
        grad = bounded(down.grad, self.hp.discriminator_temperature)  # dU_n/df_n per sample
        return weighted(self.hp.adversarial, grad / f.shape[-2])  # of the batch mean


METHOD = Method(
    name="fedal",
    summary="FedMD-LF guided by a discriminator that learns to tell the clients' outputs apart",
    options=FedALOptions,
    client=FedALClient,
    server=FedALServer,
    up=(Outputs,),
    down=(Guidance, GuidedOutputs, GuidedTeacher),
    instead_of={GuidedOutputs: Guidance, GuidedTeacher: Guidance},
    needs=frozenset({"public"}),
    paper_options={"tau": 5, "discriminator_temperature": 2.0, "discriminator_lr": 1e-4},
    transfer_steps=lambda options, t: int(options.transfer_steps),
    refuse=refuse,
)
