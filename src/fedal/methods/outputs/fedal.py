"""FedAL: black-box federated knowledge distillation enabled by adversarial learning (arXiv 2311.16584).

Algorithm 1. The server trains a discriminator to predict which client an output came from. Each client learns from the
mean of the others, from the gradient that makes it indistinguishable, and from its earlier model to forget less.
Where the paper is ambiguous or slips, docs/deviations.md explains what is done here and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt

from fedal.discriminator import Discriminator
from fedal.lazy import Tensor, torch
from fedal.messages import Consensus, Guidance, GuidedOutputs, GuidedTeacher, Message, Outputs, Teacher
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.consensus import divergence, teaching
from fedal.methods.method import Method
from fedal.methods.outputs.fedmd_lf import LessForgettingOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs


class FedALOptions(LessForgettingOptions):
    adversarial: float = Field(1.0, ge=0, description="weight of U_n: become indistinguishable from the others")
    discriminator_temperature: float = Field(2.0, gt=0, description="temperature E of the discriminator's input")
    discriminator_lr: float = Field(1e-4, gt=0, description="step size eta_d of the discriminator")
    discriminator_optimizer: Literal["adam", "sgd"] = Field("adam", description="optimizer of the discriminator")
    discriminator_hidden: tuple[PositiveInt, ...] = Field((32, 265), description="widths of its hidden layers")
    discriminator_leak: float = Field(0.0, ge=0, lt=1, description="negative slope of its ReLUs (0 = plain ReLU)")
    discriminator_clip: float = Field(0.0, ge=0, description="maximum norm of its gradient; 0 = no clipping")

    @property
    def transfer_steps(self) -> int:
        """Steps on public data per round: none if no term is left."""
        return self.tau if self.distillation or self.adversarial or self.keep_global else 0


class FedALServer(ServerLogic):
    kept = ("discriminator",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        hp = self.hp
        self.discriminator = Discriminator(
            setup.roster,
            setup.n_classes,
            hidden=hp.discriminator_hidden,
            temperature=hp.discriminator_temperature,
            leak=hp.discriminator_leak,
            optimizer=hp.discriminator_optimizer,
            lr=hp.discriminator_lr,
            clip=hp.discriminator_clip,
            seed=setup.seed,
            dtype=setup.dtype,
            device=setup.device,
        )

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        accuracies, norms = [], []
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            accuracies.append(self.discriminator.train_step(f, present))  # ascend U on all N * B outputs, Eq. (dis_obj)
            grads = self.discriminator.utility_grads(f, present)  # at the updated w^{t,i+1}
            norms.append(grads.norm(dim=-1).mean())
            taught = teaching(f, self.hp)
            reply = {n: guided(taught, grad) for n, grad in zip(present, grads, strict=True)}
        self.observed = {
            "discriminator_accuracy": torch.stack(accuracies).mean(),
            "adversarial_grad_norm": torch.stack(norms).mean(),
        }
        return reply


def guided(taught: Message, grad: Tensor) -> Message:
    """The reply to one client: what all are taught, and the client's own gradient dU_n/df_n.  (B, K)"""
    if isinstance(taught, Consensus):
        return Guidance(taught.mean, grad, taught.count)
    if isinstance(taught, Teacher):
        return GuidedTeacher(taught.values, grad)
    assert isinstance(taught, Outputs)
    return GuidedOutputs(taught.values, grad)


class FedALClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t, keep=self.hp.keep_local)  # Eq. (client_loss_loc)
        anchor = self.anchor(self.hp.keep_global, self.hp.public_mode)  # theta^{t+1/2,0}
        for x, f in self.public_passes(t):
            down = yield Outputs(f)
            taught = divergence(down, f, self.hp.temperature)  # Eq. (kl)
            self.step(  # Eq. (client_loss_glo)
                distillation=weighted(self.hp.distillation, taught.gradient),
                adversarial=weighted(
                    self.hp.adversarial, down.grad / f.shape[-2]
                ),  # dU_n/df_n per sample -> batch mean
                keep_global=anchor.pull(x, f),  # r^glo
            )


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
)
