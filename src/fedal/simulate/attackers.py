"""Clients that lie: what an attacker of a simulation uploads in place of its outputs.

Attackers train as the others do; only their uploads are replaced, before the wire, so every engine sees the same lies.
An attack is a pure function of the attacker's own logits f (B, K) and of what it knows (`Scene`). Attacks that know the
honest uploads (lma, hips) exist in simulation only. Nothing exceeds the range that a deployed server accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedal.config import Config
from fedal.config.attackers import ABSENT, Attacker
from fedal.messages import LARGEST, Outputs
from fedal.seeding import normals, philox_key, raw_bits


@dataclass(frozen=True)
class Scene:
    """What an attacker knows in one exchange."""

    strength: float
    honest: Tensor  # (H, B, K): the honest clients' logits, in roster order
    share: float  # of attackers among the clients that respond
    draws: Callable[[int], NDArray[np.uint64]]  # raw bits of the attacker's stream in this exchange
    own_class: int  # of this attacker, in all exchanges

    @property
    def mean(self) -> Tensor:
        """The mean probability of the honest clients.  -> (B, K)"""
        return torch.softmax(self.honest, -1).mean(0)


def negate(f: Tensor, scene: Scene) -> Tensor:
    return -scene.strength * f


def scale(f: Tensor, scene: Scene) -> Tensor:
    return scene.strength * f


def constant(f: Tensor, scene: Scene) -> Tensor:
    """One class for every sample; which one depends on the attacker's name."""
    return _at(f, torch.full(f.shape[:1], scene.own_class, device=f.device), scene.strength)


def collusion(f: Tensor, scene: Scene) -> Tensor:
    """Class 0 for every sample, from all attackers alike."""
    return _at(f, torch.zeros(f.shape[:1], dtype=torch.int64, device=f.device), scene.strength)


def random(f: Tensor, scene: Scene) -> Tensor:
    """Normal numbers with the strength as their standard deviation."""
    normal = normals(scene.draws(2 * f.numel()))
    return scene.strength * torch.as_tensor(normal.reshape(f.shape), dtype=f.dtype, device=f.device)


def label_flip(f: Tensor, scene: Scene) -> Tensor:
    """The logits of class k at class K - 1 - k, as of a model trained on flipped labels; the training stays honest."""
    return scene.strength * f.flip(-1)


def pcfdla(f: Tensor, scene: Scene) -> Tensor:
    """The peak at the runner-up (arXiv 2407.18039, carried over to outputs on public samples)."""
    return 2 * _at(f, f.topk(2, -1).indices[:, 1], scene.strength) - scene.strength


def lma(f: Tensor, scene: Scene) -> Tensor:
    """Loss maximisation (arXiv 2402.12265): the class that the honest clients find least likely."""
    return _at(f, scene.mean.argmin(-1), scene.strength)


def hips(f: Tensor, scene: Scene) -> Tensor:
    """Loss maximisation inside the honest hull: each sample's row of the honest client that harms the mean most."""
    mean = scene.mean
    mixed = (1 - scene.share) * mean + scene.share * torch.softmax(scene.honest, -1)
    harm = -torch.xlogy(mean, mixed).sum(-1)  # (H, B)
    return scene.honest[harm.argmax(0), torch.arange(len(f), device=f.device)]


def _at(f: Tensor, classes: Tensor, value: float) -> Tensor:
    """`value` at each sample's class, 0 elsewhere.  (B, K), (B,) -> (B, K)"""
    return torch.zeros_like(f).scatter_(-1, classes[:, None], value)


FUNCTIONS: dict[str, Callable[[Tensor, Scene], Tensor]] = {
    "negate": negate,
    "scale": scale,
    "constant": constant,
    "random": random,
    "label-flip": label_flip,
    "collusion": collusion,
    "pcfdla": pcfdla,
    "lma": lma,
    "hips": hips,
}


class Forger:
    """Replaces the attackers' uploads in every exchange."""

    def __init__(self, attackers: Mapping[str, Attacker], seed: int, tau: int) -> None:
        self._attackers = {client: attacker for client, attacker in attackers.items() if attacker.attack != ABSENT}
        self._tau = tau
        self._keys = {client: philox_key(seed, "attack", client) for client in attackers}
        self._classes = {
            client: int(raw_bits(philox_key(seed, "attacked class", client), 0, 1)[0]) for client in attackers
        }

    def __call__(self, t: int, exchange: int, uploads: Mapping[str, object]) -> dict[str, object]:
        """What the server receives in an exchange of round t, from what the clients wanted to send."""
        outputs = {n: upload for n, upload in uploads.items() if isinstance(upload, Outputs)}
        active = {n: a for n, a in self._attackers.items() if n in outputs and t >= a.since}
        honest = [upload.values for n, upload in outputs.items() if n not in active]
        if not active or not honest:  # without an honest client there is none to harm
            return dict(uploads)
        forged: dict[str, object] = {}
        for client, attacker in active.items():
            f, step = outputs[client].values, t * self._tau + exchange
            scene = Scene(
                attacker.strength,
                torch.stack(honest),
                len(active) / len(outputs),
                lambda n, key=self._keys[client], step=step: raw_bits(key, step, n),  # type: ignore[misc]
                self._classes[client] % f.shape[-1],
            )
            values = FUNCTIONS[attacker.attack](f, scene).clamp(-LARGEST, LARGEST)
            forged[client] = replace(outputs[client], values=values)
        return {**uploads, **forged}


def forger(config: Config) -> Forger | None:
    """What replaces the attackers' uploads in a run; None without attackers."""
    return Forger(config.attacker_table, config.seed, config.tau) if config.attackers else None
