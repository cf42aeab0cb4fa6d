"""Augmentation of a batch as a function of the global step: every party that knows the seed makes the same change.

Public batches are changed alike at all parties, so that uploads are still about the same samples and no byte more is
sent. The numbers come from counters, like the batches themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedal.lazy import Tensor, torch
from fedal.seeding import philox_key, raw_bits

Change = Literal["shift", "flip", "mixup", "noise"]
OF_IMAGES: tuple[Change, ...] = ("shift", "flip")
OF_INPUTS_ONLY: tuple[Change, ...] = ("mixup",)  # they blend samples, so a sample's own label no longer fits
FARTHEST = 3  # pixels of a shift, in each direction
NOISE = 0.1  # standard deviation of the noise, relative to that of each feature over the batch


@dataclass(frozen=True)
class Augmentation:
    """The changes to one stream of batches. `clean` of each batch stays as it is; nothing changes before `start`."""

    changes: tuple[Change, ...]
    seed: int
    owner: str = ""
    clean: float = 0.0
    start: int = 0

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """The batch of global step `step`, changed.  (B, ...) -> (B, ...)"""
        kept = self.unchanged(len(x), step)
        if kept == len(x):
            return x
        changed = x
        for change in self.changes:
            key = philox_key(self.seed, f"augment {change}", self.owner)
            changed = CHANGES[change](changed, lambda n, key=key: raw_bits(key, step, n))  # type: ignore[misc]
        return torch.cat([x[:kept], changed[kept:]]) if kept else changed

    def unchanged(self, batch_size: int, step: int) -> int:
        """How many samples of that batch, the first ones, stay as they are."""
        return round(self.clean * batch_size) if self.is_active(step) else batch_size

    def is_active(self, step: int) -> bool:
        return bool(self.changes) and step >= self.start

    def name(self, batch: str, step: int) -> str:
        """The digest of the changed batch, from that of the batch as it was drawn."""
        if not self.is_active(step):
            return batch
        text = f"{batch} {','.join(self.changes)} {self.clean!r} {self.seed} {self.owner} {step}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


Draws = Callable[[int], NDArray[np.uint64]]
"""n -> n raw draws of the stream at this step, from the first on."""


def shift(x: Tensor, draws: Draws) -> Tensor:
    """Each image moved by up to three pixels in each direction; what enters is 0.  (B, C, H, W) -> (B, C, H, W)"""
    by = (draws(2 * len(x)) % np.uint64(2 * FARTHEST + 1)).astype(np.int64).reshape(2, -1, 1)
    padded = torch.nn.functional.pad(x, (FARTHEST,) * 4)
    rows, columns = (torch.as_tensor(by[axis] + np.arange(x.shape[2 + axis]), device=x.device) for axis in (0, 1))
    samples = torch.arange(len(x), device=x.device)[:, None, None]
    moved: Tensor = padded.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def flip(x: Tensor, draws: Draws) -> Tensor:
    """Each image mirrored left to right, or not, with equal chances.  (B, C, H, W) -> (B, C, H, W)"""
    mirrored = torch.as_tensor((draws(len(x)) >> np.uint64(63)).astype(bool), device=x.device)
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


def mixup(x: Tensor, draws: Draws) -> Tensor:
    """lam x + (1 - lam) x', with x' another sample of the batch and lam uniform in [0, 1).  (B, ...) -> (B, ...)"""
    bits = draws(2 * len(x))
    others = torch.as_tensor(np.argsort(bits[: len(x)], kind="stable"), device=x.device)
    share = torch.as_tensor((bits[len(x) :] >> np.uint64(11)) * 2.0**-53, dtype=x.dtype, device=x.device)
    share = share.view(-1, *[1] * (x.dim() - 1))
    return share * x + (1 - share) * x[others]


def noise(x: Tensor, draws: Draws) -> Tensor:
    """x plus normal numbers, in each feature a tenth of its standard deviation over the batch.  (B, ...) -> (B, ...)"""
    first, second = ((draws(2 * x.numel()) >> np.uint64(11)) + 0.5).reshape(2, -1) * 2.0**-53
    normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)  # Box and Muller
    drawn = torch.as_tensor(normal.reshape(x.shape), dtype=x.dtype, device=x.device)
    return x + NOISE * x.std(0, keepdim=True) * drawn


CHANGES: dict[Change, Callable[[Tensor, Draws], Tensor]] = {
    "shift": shift,
    "flip": flip,
    "mixup": mixup,
    "noise": noise,
}


def misfit(changes: Sequence[Change], sample_shape: Sequence[int]) -> str | None:
    """Why samples of this shape cannot be changed so, if they cannot."""
    images = [change for change in changes if change in OF_IMAGES]
    if images and len(sample_shape) != 3:
        return f"{images[0]} changes images; the samples have the shape {tuple(sample_shape)}"
    return None
