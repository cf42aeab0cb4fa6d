"""The network that predicts which client an output came from. It stays at the server and is never sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from fedal.lazy import Tensor, torch
from fedal.learners.base import State
from fedal.losses import d_cross_entropy
from fedal.seeding import torch_seeded

ROWS = 1024  # outputs processed at once: 32 clients with batches of 32


class Discriminator:
    """h(softmax(f / E), w): an MLP K - hidden - N over the whole roster; absent clients contribute no samples.

    Paper: "two fully-connected layers with 32 and 265 neurons" and stochastic gradient ascent. Here: an output layer of
    width N follows, since h maps to R^N, and Adam is the default (SGD at the stated 1e-4 barely changes it).
    """

    def __init__(
        self,
        roster: Sequence[str],
        n_classes: int,
        *,
        hidden: Sequence[int] = (32, 265),
        temperature: float = 2.0,
        leak: float = 0.0,
        optimizer: Literal["adam", "sgd"] = "adam",
        lr: float = 1e-4,
        clip: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
    ) -> None:
        from fedal import kernels
        from fedal.learners.torch_learner import TorchLearner, TorchSettings

        self._index = {client_id: index for index, client_id in enumerate(roster)}
        self._temperature, self._leak = temperature, leak
        self._d_leaky_relu = kernels.leaky_relu_backward
        widths = [n_classes, *hidden, len(roster)]
        with torch_seeded(seed, "discriminator"):
            layers: list[torch.nn.Module] = []
            for wide, narrow in pairwise(widths):
                layers += [torch.nn.Linear(wide, narrow), torch.nn.LeakyReLU(leak) if leak else torch.nn.ReLU()]
        self._learner = TorchLearner(
            torch.nn.Sequential(*layers[:-1]),
            TorchSettings(optimizer=optimizer, lr=lr, clip=clip),
            dtype=dtype or torch.float32,
            device=device,
        )
        self._layers = [layer for layer in self.module.children() if isinstance(layer, torch.nn.Linear)]

    @property
    def module(self) -> torch.nn.Module:
        """h as a function of `inputs`: a score per roster member, before the softmax."""
        return self._learner.module

    def inputs(self, f: Tensor) -> Tensor:
        """Its input for logits f: softmax(f / E).  (..., K) -> (..., K)"""
        return torch.softmax(f / self._temperature, -1)

    def train_step(self, f: Tensor, present: Sequence[str]) -> Tensor:
        """Takes one ascent step on U, the mean of -CE(n, h(p_n)) over all N * B outputs; returns the prior accuracy.

        (N, B, K) -> ()
        """
        hits = []
        with torch.no_grad():
            for part, owners in self._parts(f, present):
                h, seen = self._scores(self.inputs(part).flatten(0, 1))
                hits.append(h.argmax(-1) == owners)
                self._back(seen, d_cross_entropy(h, owners) * (len(part) / len(f)), learn=True)
            self._learner.step()
        return torch.cat(hits).to(f.dtype).mean()

    def utility_grads(self, f: Tensor, present: Sequence[str]) -> Tensor:
        """dU_n/df_n per sample at the current w; each row sums to zero over the classes.  (N, B, K) -> (N, B, K)"""
        with torch.no_grad():
            return torch.cat([self._utility_grad(part, owners) for part, owners in self._parts(f, present)])

    def _utility_grad(self, f: Tensor, owners: Tensor) -> Tensor:
        p = self.inputs(f)
        h, seen = self._scores(p.flatten(0, 1))
        d_h = -len(h) * d_cross_entropy(h, owners)  # U_n = -CE(n, h(p_n)), Eq. (min-max-obj), of every sample
        d_p = self._back(seen, d_h, learn=False).view_as(p)
        return p * (d_p - (p * d_p).sum(-1, keepdim=True)) / self._temperature

    def _scores(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """h before its softmax, and the input of each layer.  (R, K) -> (R, N), [(R, K), (R, hidden), ...]"""
        seen = [x]
        *hidden, last = self._layers
        for layer in hidden:
            seen.append(torch.nn.functional.leaky_relu_(layer(seen[-1]), self._leak))
        return last(seen[-1]), seen

    def _back(self, seen: Sequence[Tensor], d: Tensor, learn: bool) -> Tensor:
        """The gradient w.r.t. x of a loss with gradient d w.r.t. `_scores(x)`; `learn` also adds those w.r.t. w.

        Written out by hand because clients wait for it: autograd takes 1.5 times as long on so small a network.
        """
        for index, layer in reversed([*enumerate(self._layers)]):
            if learn:
                _add(layer.weight, d.t() @ seen[index])
                _add(layer.bias, d.sum(0))
            d = d @ layer.weight
            if index:
                d = self._d_leaky_relu(d, seen[index], self._leak, True)
        return d

    def _parts(self, f: Tensor, present: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and their owners, a few clients at a time: the scores of all at once are N * B * N numbers."""
        batch = f.shape[1]
        some = max(1, ROWS // batch)
        indices = torch.tensor([self._index[client_id] for client_id in present], device=f.device)
        owners = indices.repeat_interleave(batch)
        return zip(torch.split(f, some), torch.split(owners, some * batch), strict=True)

    def state_dict(self) -> State:
        return self._learner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._learner.load_state_dict(state)


def _add(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
