"""Networks that make samples: a generator, and an autoencoder whose decoder is one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GeneratorNet(nn.Module):
    """(z, one-hot y) -> a sample: linear, BatchNorm (if `norm`), ReLU, linear, and a bound if `widest` is set."""

    def __init__(
        self,
        shape: tuple[int, ...],
        noise: int,
        n_classes: int,
        hidden: int,
        widest: float,
        *,
        product: bool = False,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self._shape, self._noise, self._widest = shape, noise, widest
        self.embedding = nn.Linear(n_classes, noise, bias=False) if product else None
        self.first = nn.Linear(noise if product else noise + n_classes, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.last = nn.Linear(hidden, math.prod(shape))

    def mixed(self, inputs: Tensor) -> Tensor:
        """The input of the first layer.  (B, noise + K) -> (B, noise), or as it is"""
        if self.embedding is None:
            return inputs
        embedded: Tensor = self.embedding(inputs[:, self._noise :])
        return inputs[:, : self._noise] * embedded

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.last(torch.relu(self.norm(self.first(self.mixed(inputs)))))
        if self._widest:
            made = self._widest * torch.tanh(made / self._widest)
        return made.view(-1, *self._shape)


class ConditionalAutoencoder(nn.Module):
    """(x, one-hot y, noise) -> (reconstruction, mean, log variance), side by side: variational, given y."""

    def __init__(self, shape: tuple[int, ...], latent: int, n_classes: int, hidden: int) -> None:
        super().__init__()
        self._width, self._latent, self._n_classes = math.prod(shape), latent, n_classes
        self.encoder = nn.Sequential(
            nn.Linear(self._width + n_classes, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent)
        )
        self.decoder = GeneratorNet((self._width,), latent, n_classes, hidden, 0.0, norm=False)

    def forward(self, inputs: Tensor) -> Tensor:
        x_and_y, noise = inputs[:, : self._width + self._n_classes], inputs[:, self._width + self._n_classes :]
        mean, log_variance = self.encoder(x_and_y).split(self._latent, -1)
        z = mean + (log_variance / 2).exp() * noise
        made = self.decoder(torch.cat([z, x_and_y[:, self._width :]], -1))
        return torch.cat([made, mean, log_variance], -1)
