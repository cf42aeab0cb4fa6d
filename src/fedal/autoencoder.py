"""A conditional variational autoencoder of one client's private samples. Its decoder makes samples like them."""

from __future__ import annotations

import math

from fedal.lazy import Tensor, torch
from fedal.learners.base import State
from fedal.seeding import normals, philox_key, raw_bits, torch_seeded


class Autoencoder:
    """Learns |x_hat - x|^2 + divergence * KL(N(mu, sigma^2) || N(0, I)), both summed over columns."""

    def __init__(
        self,
        shape: tuple[int, ...],
        n_classes: int,
        *,
        latent: int,
        hidden: int,
        lr: float,
        divergence: float,
        seed: int,
        owner: str,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        from fedal.learners.torch_learner import TorchLearner, TorchSettings
        from fedal.models.generator import ConditionalAutoencoder

        self._width, self._latent, self._n_classes, self._divergence = math.prod(shape), latent, n_classes, divergence
        self._key = philox_key(seed, "noise", owner)
        with torch_seeded(seed, "autoencoder"):  # the same for all clients: decoders start from one point
            net = ConditionalAutoencoder(shape, latent, n_classes, hidden)
        self.learner = TorchLearner(net, TorchSettings(lr=lr, channels_last=False), dtype=dtype, device=str(device))

    def learn(self, x: Tensor, y: Tensor, step: int) -> None:
        """Takes one step on a labelled batch; the noise is drawn from the counter `step`.  (B, ...), (B,)"""
        flat, batch = x.flatten(1), len(x)
        noise = normals(raw_bits(self._key, step, 2 * batch * self._latent)).reshape(batch, -1)
        classes = torch.arange(self._n_classes, device=x.device)
        labels = (y[:, None] == classes).to(x.dtype)
        inputs = torch.cat([flat, labels, torch.as_tensor(noise, dtype=x.dtype, device=x.device)], -1)
        output = self.learner.logits(inputs)
        made, mean, log_variance = torch.split(output, [self._width, self._latent, self._latent], -1)
        d = [2 * (made - flat), self._divergence * mean, self._divergence * (log_variance.exp() - 1) / 2]
        self.learner.learn(torch.cat(d, -1) / batch)

    def decoder(self) -> dict[str, Tensor]:
        """The weights of the decoder, by the names that `Generator` has for them."""
        weights, prefix = self.learner.weights(), "decoder."
        return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}

    def state_dict(self) -> State:
        return self.learner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.learner.load_state_dict(state)
