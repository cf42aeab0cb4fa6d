"""Rounds written with autograd of the losses and torch's own Adam, on the batches of a federation: the references."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal.engine.loop import Federation
from fedal.learners.torch_learner import TorchSettings
from splits import build_federation, conv_batch_norm, mlp, run_rounds

LR, TAU = 0.01, 2
TRIO = {"anna": mlp, "ben": conv_batch_norm, "cleo": mlp}
Logits = dict[str, Tensor]
Losses = Callable[[Federation, int, int, Logits], Logits]
"""Federation, round, iteration and the clients' logits on the public batch -> each client's loss."""

Supervised = Callable[[Any, Tensor, Tensor], Tensor]
"""A client, its logits on a private batch and the labels -> the loss."""


def cross_entropy(client: Any, f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y)


def soft_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || softmax(student)), teacher probabilities; the mean over the batch."""
    return (torch.xlogy(teacher, teacher) - teacher * torch.log_softmax(student, -1)).sum(-1).mean()


def towards_the_others(federation: Federation, t: int, i: int, f: Logits) -> Logits:
    """KL to the softmax of the mean of the others' logits: the transfer of FedMD."""
    others = {n: torch.stack([g.detach() for m, g in f.items() if m != n]).mean(0) for n in f}
    return {n: soft_divergence(torch.softmax(others[n], -1), each) for n, each in f.items()}


def plain_rounds(
    federation: Federation, rounds: int, losses: Losses | None, supervised: Supervised = cross_entropy
) -> dict[str, nn.Module]:
    """`supervised` on private batches, then `losses` on public ones."""
    models = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
    optimizers = {n: torch.optim.Adam(model.parameters(), lr=LR) for n, model in models.items()}
    for t in range(rounds):
        for n, model in models.items():
            for i in range(TAU):
                x, y = federation.clients[n].private.batch(t, i)
                descend(optimizers[n], supervised(federation.clients[n], model(x), y))
        for i in range(TAU if losses else 0):
            x = federation.clients["anna"].public.batch(t, i)
            f = {n: model(x) for n, model in models.items()}
            for n, loss in losses(federation, t, i, f).items():  # type: ignore[misc]
                descend(optimizers[n], loss)
    return models


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def check_against_plain(
    method: str,
    losses: Losses | None,
    rounds: int = 2,
    split: Any = None,
    supervised: Supervised = cross_entropy,
    **options: Any,
) -> Federation:
    """Fails unless the method's weights are those of the reference, in double precision."""
    federation = build_federation(
        method, nets=TRIO, dtype=torch.float64, settings=TorchSettings(lr=LR), tau=TAU, split=split, **options
    )
    start = {n: next(logic.learner.module.parameters()).clone() for n, logic in federation.clients.items()}
    models = plain_rounds(federation, rounds, losses, supervised)
    run_rounds(federation, rounds)
    for n, logic in federation.clients.items():
        for name, value in models[n].state_dict().items():
            torch.testing.assert_close(logic.learner.weights()[name], value, rtol=0, atol=1e-10)
        assert not torch.allclose(start[n], next(models[n].parameters()), atol=1e-3)
    return federation


def paper_kl(teacher: Tensor, student: Tensor, E: float) -> Tensor:
    p = torch.softmax(teacher.detach() / E, -1)
    return (p * (p.log() - torch.log_softmax(student / E, -1))).sum(-1).mean()


def naive_fedal(
    federation: Federation,
    models: dict[str, nn.Module],
    tau: int,
    rounds: int,
    E: float,
    E_d: float,
    lr: float,
    *,
    adversarial: bool = True,
) -> None:
    """Algorithm 1 written with autograd of the losses V^loc and V^glo, on the same batches.

    Without the adversary it is FedMD-LF.
    """
    names = list(models)
    optimizers = {n: torch.optim.Adam(models[n].parameters(), lr=lr) for n in names}
    if adversarial:
        h = copy.deepcopy(federation.server.discriminator._learner.module)
        ascent = torch.optim.Adam(h.parameters(), lr=1e-4)
        index = {n: torch.full((8,), i) for i, n in enumerate(names)}
    for t in range(rounds):
        for n in names:
            anchor = copy.deepcopy(models[n])
            for i in range(tau):
                x, y = federation.clients[n].private.batch(t, i)
                f = models[n](x)
                descend(optimizers[n], F.cross_entropy(f, y) + paper_kl(anchor(x), f, E))
        anchors = {n: copy.deepcopy(models[n]) for n in names}
        for i in range(tau):
            x = federation.clients[names[0]].public.batch(t, i)
            f = {n: models[n](x) for n in names}
            if adversarial:
                guesses = {n: h(torch.softmax(f[n].detach() / E_d, -1)) for n in names}
                descend(ascent, sum(F.cross_entropy(guesses[n], index[n]) for n in names) / len(names))
            losses = {}
            for n in names:
                others = torch.stack([f[m].detach() for m in names if m != n]).mean(0)
                utility = -F.cross_entropy(h(torch.softmax(f[n] / E_d, -1)), index[n]) if adversarial else 0.0
                losses[n] = paper_kl(others, f[n], E) + utility + paper_kl(anchors[n](x), f[n], E)
            for n in names:
                descend(optimizers[n], losses[n])
