"""The instrument of the convergence analysis: the six gradient variances and the squared gradient norms.

It measures round t at three moments: theta^{t,0} at its start, theta^{t+1/2,0} after local training, theta^{t+1,0} at
its end. A variance is measured at the end of its stage, because at the stage's anchor the less-forgetting terms vanish.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from fedal.aggregate import leave_one_out
from fedal.learners.torch_learner import TorchLearner
from fedal.losses import d_cross_entropy, d_kl
from fedal.methods.outputs.fedal import FedALClient
from fedal.methods.outputs.fedmd import FedMDClient
from fedal.methods.outputs.fedmd_lf import FedMDLFClient
from fedal.methods.outputs.local import LocalClient
from fedal.seeding import BatchStream
from fedal.theory.gradients import Gradient, Terms, gradients
from fedal.theory.outputs import client_outputs
from fedal.theory.view import SERVER, Columns, FederationView

DISTILS = (FedMDClient, FedMDLFClient, FedALClient)
"""Clients whose transfer has the paper's terms, including subclasses; other methods have their own losses."""

WHOLE_OBJECTIVE = (LocalClient, *DISTILS)
"""Clients whose loss has only these six terms: the gradient of V_n can be computed for them alone."""


class Gradients:
    """Columns per client: `variance_l, _rl, _k, _u, _rg, _n` (sigma^2 of Assumption bounded_variance_o, for the terms
    that the method has) and `client_gradient`, ||grad V_n(theta^{t,0})||^2. Column of the server:
    `discriminator_gradient`, ||grad U(w^{t,0})||^2. Clients without a torch module are left out."""

    def __init__(self, view: FederationView) -> None:
        self._view, self._options = view, view.config.options
        self._kind = view.config.method_object().client
        self._temperature = getattr(self._options, "temperature", 1.0)
        self._start: dict[str, nn.Module] = {}
        self._half: dict[str, nn.Module] = {}

    # the three moments

    def begins(self) -> None:
        self._start, self._half = copy.deepcopy(self._modules()), {}
        self._outputs = client_outputs(self._view.learners.values(), self._view.public)
        self._utility = self._utility_gradients(self._outputs)
        self._server = {}
        if self._view.discriminator is not None:
            whole = self._discriminator_gradient(self._view.clients, self._outputs)
            self._server = {"discriminator_gradient": whole.norm_sq}

    def trained(self, client: str) -> None:
        if client in self._start:
            self._half[client] = copy.deepcopy(self._modules()[client])

    def ends(self) -> Columns:
        outputs = client_outputs(self._view.learners.values(), self._view.public)
        measure = partial(self._client_row, outputs=outputs, utility=self._utility_gradients(outputs))
        trained = [client for client in self._view.clients if client in self._half]
        rows = dict(zip(trained, self._view.workers.map(measure, trained), strict=True))
        if self._view.discriminator is not None:
            for client, row in rows.items():
                row["variance_n"] = self._discriminator_gradient([client], outputs, stray=True).variance
        self._start, self._half = {}, {}
        return {**rows, SERVER: self._server} if self._server else rows

    def final(self) -> Columns:
        return {}  # gradients belong to a round

    # one client

    def _client_row(self, client: str, outputs: Tensor, utility: Tensor | None) -> dict[str, float]:
        x, _ = self._view.private[client]
        private = self._stream(len(x), "private", client)
        local = gradients(self._half[client], x, self._local_terms(client, self._start[client]), private)
        public = self._stream(len(self._view.public), "public", client)
        shared = self._global_terms(client, outputs, utility, self._half[client])
        module = self._modules()[client]
        glob = gradients(module, self._view.public, shared, public) if self._has_global_terms() else {}
        row = {f"variance_{name}": gradient.variance for name, gradient in (local | glob).items()}
        if self._kind in WHOLE_OBJECTIVE and not self._has_other_teacher():
            row["client_gradient"] = self._objective(client)
        return row

    def _objective(self, client: str) -> float:
        """||grad V_n||^2 at theta^{t,0}, with the run's loss weights. r^loc has no gradient there, at its anchor."""
        start = self._start[client]
        local = gradients(start, self._view.private[client][0], self._local_terms(client, anchor=None))
        shared = self._global_terms(client, self._outputs, self._utility, self._half[client])
        glob = gradients(start, self._view.public, shared) if self._has_global_terms() else {}
        weights = {"k": "distillation", "u": "adversarial", "rg": "keep_global"}
        total = sum(
            (self._weight(weights[name]) * gradient.whole for name, gradient in glob.items()),
            start=local["l"].whole,
        )
        return Gradient(total).norm_sq

    def _local_terms(self, client: str, anchor: nn.Module | None) -> Terms:
        x, y = self._view.private[client]
        logic = self._view.logic(client)
        past = _evaluated(anchor, x) if anchor is not None and self._weight("keep_local") else None

        def terms(f: Tensor, part: Tensor) -> Mapping[str, Tensor]:
            found = {"l": logic.d_supervised(f, y[part])}
            if past is not None:
                found["rl"] = d_kl(past[part], f, self._temperature)
            return found

        return terms

    def _global_terms(self, client: str, outputs: Tensor, utility: Tensor | None, anchor: nn.Module) -> Terms:
        index, count = self._view.clients.index(client), len(self._view.clients)
        others = leave_one_out(outputs.mean(0), outputs[index], count) if self._distils() else None
        past = _evaluated(anchor, self._view.public) if self._weight("keep_global") else None

        def terms(f: Tensor, part: Tensor) -> Mapping[str, Tensor]:
            found = {}
            if others is not None:
                found["k"] = d_kl(others[part], f, self._temperature)
            if utility is not None:
                found["u"] = utility[index, part] / len(part)
            if past is not None:
                found["rg"] = d_kl(past[part], f, self._temperature)
            return found

        return terms

    # the terms of the method

    def _weight(self, name: str) -> float:
        return float(getattr(self._options, name, 0.0))

    def _distils(self) -> bool:
        at_clients = issubclass(self._kind, DISTILS) and getattr(self._options, "transfer", "clients") == "clients"
        return at_clients and self._weight("distillation") > 0 and not self._has_other_teacher()

    def _has_other_teacher(self) -> bool:
        """Whether clients learn otherwise than by the KL divergence to the mean logits of the others."""
        usual = {"distance": "kl", "aggregate": "mean", "space": "logits"}
        return any(getattr(self._options, name, value) != value for name, value in usual.items())

    def _has_global_terms(self) -> bool:
        return self._distils() or self._weight("adversarial") + self._weight("keep_global") > 0

    # the discriminator

    def _utility_gradients(self, outputs: Tensor) -> Tensor | None:
        discriminator = self._view.discriminator
        if discriminator is None or not self._weight("adversarial"):
            return None
        return discriminator.utility_grads(outputs, self._view.clients)

    def _discriminator_gradient(self, clients: list[str], outputs: Tensor, stray: bool = False) -> Gradient:
        """The gradient of U w.r.t. w over the outputs of `clients` (up to its sign, which does not change its size)."""
        discriminator, roster = self._view.discriminator, self._view.clients
        assert discriminator is not None
        chosen = [roster.index(client) for client in clients]
        seen = discriminator.inputs(outputs)[chosen].flatten(0, 1)
        owners = discriminator.owners(clients).repeat_interleave(outputs.shape[1])

        def terms(h: Tensor, part: Tensor) -> Mapping[str, Tensor]:
            return {"n": d_cross_entropy(h, owners[part])}

        stream = self._stream(len(seen), "public", clients[0]) if stray else None
        return gradients(discriminator.module, seen, terms, stream)["n"]

    def _stream(self, n: int, purpose: str, client: str) -> BatchStream:
        return BatchStream(n, self._view.config.batch_size, self._view.config.seed, f"instruments {purpose}", client)

    def _modules(self) -> dict[str, nn.Module]:
        learners = self._view.learners
        return {client: learner.module for client, learner in learners.items() if isinstance(learner, TorchLearner)}


def _evaluated(module: nn.Module, x: Tensor) -> Tensor:
    """The logits of a copied module in evaluation mode. The copy is never trained, so it stays in that mode."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(x, 128)])
