"""A network that makes samples, or features, from noise and labels. A server owns it; it is not a classifier.

It learns through frozen models: a loss of their outputs has a gradient w.r.t. the samples (`InputLearner.through`), and
the generator turns that gradient into a step, as a learner does with one w.r.t. its logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from fedal.lazy import Tensor, torch
from fedal.learners.base import State
from fedal.losses import Loss, by_autograd
from fedal.seeding import normals, philox_key, raw_bits, torch_seeded, uniforms

WIDEST = 3.0  # samples are standardised: values beyond three standard deviations are rare

Noise = Literal["normal", "uniform"]


class Generator:
    """x = G(z, y): noise and one-hot labels, a hidden layer with BatchNorm, and a linear layer to the sample.

    `bounded` limits the values of a sample. With `product`, z * Emb(y) is the input instead of both side by side.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        n_classes: int,
        *,
        noise: int,
        hidden: int = 256,
        bounded: bool = True,
        product: bool = False,
        norm: bool = True,
        draws: Noise = "normal",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        seed: int = 0,
        owner: str = "",
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        from fedal.learners.torch_learner import TorchLearner, TorchSettings
        from fedal.models.generator import GeneratorNet

        self._noise, self._n_classes, self._draws = noise, n_classes, draws
        self._dtype, self._device = dtype or torch.float32, device
        self._key = philox_key(seed, "noise", owner)
        with torch_seeded(seed, "generator"):
            net = GeneratorNet(shape, noise, n_classes, hidden, WIDEST if bounded else 0.0, product=product, norm=norm)
        settings = TorchSettings(lr=lr, weight_decay=weight_decay, channels_last=False)
        self._learner = TorchLearner(net, settings, dtype=self._dtype, device=str(device))

    def noise(self, step: int, count: int) -> Tensor:
        """z of a step, drawn from its counter.  -> (count, noise)"""
        bits = raw_bits(self._key, step, (2 if self._draws == "normal" else 1) * count * self._noise)
        drawn = normals(bits) if self._draws == "normal" else uniforms(bits)
        return torch.as_tensor(drawn.reshape(count, -1), dtype=self._dtype, device=self._device)

    def labels(self, step: int, among: Tensor, count: int) -> Tensor:
        """Labels of a step, drawn uniformly from those that are marked (all if none is).  (K,) -> (count,)"""
        drawn = uniforms(raw_bits(self._key, step + (1 << 62), count))
        marked = among.to(torch.float64)
        return chosen(torch.where(marked.sum() > 0, marked, 1.0), torch.as_tensor(drawn, device=among.device))

    def make(self, z: Tensor, y: Tensor) -> Tensor:
        """Samples of a pass that stays pending until `learn`.  (B, noise), (B,) -> (B, ...)"""
        return self._learner.logits(self._inputs(z, y))

    def learn(self, dsamples: Tensor) -> None:
        """Takes one step along a gradient w.r.t. the samples of the pending pass.  (B, ...)"""
        self._learner.learn(dsamples)

    def fixed(self, z: Tensor, y: Tensor) -> Tensor:
        """Samples with the statistics of their batch, as in training; changes nothing.  (B, noise), (B,) -> (B, ...)"""
        return self._learner.predict(self._inputs(z, y), "frozen")

    def mixed(self, z: Tensor, y: Tensor) -> Tensor:
        """The input of the first layer: z * Emb(y), or both side by side.  (B, noise), (B,) -> (B, width)"""
        net = self._learner.module
        with torch.no_grad():
            return net.mixed(self._inputs(z, y))  # type: ignore[no-any-return, operator]

    def weights(self) -> dict[str, Tensor]:
        return self._learner.weights()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._learner.load_weights(dict(weights))

    def state_dict(self) -> State:
        return self._learner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._learner.load_state_dict(state)

    def _inputs(self, z: Tensor, y: Tensor) -> Tensor:
        classes = torch.arange(self._n_classes, device=z.device)
        return torch.cat([z, (y[:, None] == classes).to(z.dtype)], -1)


def chosen(mass: Tensor, at: Tensor) -> Tensor:
    """The class at each point of the unit interval, which the classes share by their mass.  (K,), (B,) -> (B,)"""
    edges = (mass / mass.sum()).cumsum(0)[:-1].contiguous()
    return torch.searchsorted(edges, at.to(edges), right=True)


def quota(counts: Tensor, size: int) -> Tensor:
    """As many labels of each class as its share of the counts asks for, up to rounding.  (K,) -> (size,)"""
    mass = counts.double()
    middle = (torch.arange(size, dtype=torch.float64, device=counts.device) + 0.5) / size
    return chosen(torch.where(mass.sum() > 0, mass, 1.0), middle)


def spread(noise: Tensor, samples: Tensor, order: int = 1) -> Loss:
    """exp(-mean_ij |z_i - z_j|^2 / d * |x_i - x_j|_1 / dim): small if different noise gives different samples.

    `order=2`: exp(-mean_ij |z_i - z_j|_2 * |x_i - x_j|_2), both divided by the root of their width. The gradient is
    w.r.t. the samples.  (B, d), (B, ...)
    """

    def distances(values: Tensor, power: int) -> Tensor:
        apart = values.flatten(1)[:, None] - values.flatten(1)
        if power == 1:
            return apart.abs().mean(-1)
        squares = apart.square().mean(-1)
        return squares if order == 1 else squares.clamp(min=1e-12).sqrt()

    apart = distances(noise, 2)
    return by_autograd(lambda x: torch.exp(-(apart * distances(x, order)).mean()), samples)


def truncated(z: Tensor, width: float) -> Tensor:
    """Standard normal numbers mapped monotonically into [-width, width]: those of a truncated normal law."""
    whole, part = torch.special.ndtr(z), math.erf(width / math.sqrt(2))
    inside: Tensor = torch.special.ndtri((1 - part) / 2 + part * whole)
    return inside
