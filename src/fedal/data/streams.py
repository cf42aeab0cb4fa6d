"""A client's training data: its private samples and the shared public ones, in batches that depend only on the step.

The samples of all clients are in one staged tensor, with the channels of images innermost, so that a batch is a
channels_last view without a copy. A client holds index lists, not copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedal.lazy import Tensor, torch
from fedal.seeding import BatchStream, Indices


class Samples:
    """Inputs on the device of the run; `take` returns a batch in the order of the indices."""

    def __init__(self, x: np.ndarray[Any, Any], dtype: torch.dtype, device: str = "cpu") -> None:
        staged = torch.as_tensor(x).to(device=device, dtype=dtype)
        self._is_image = staged.dim() == 4
        self._staged = staged.permute(0, 2, 3, 1).contiguous() if self._is_image else staged.contiguous()

    def __len__(self) -> int:
        return len(self._staged)

    def take(self, indices: Tensor) -> Tensor:
        batch = self._staged.index_select(0, indices.to(self._staged.device))
        return batch.permute(0, 3, 1, 2) if self._is_image else batch


class PrivateData:
    """The labelled samples of one client. They never leave it."""

    def __init__(
        self, samples: Samples, labels: Tensor, indices: Indices, n_classes: int, stream: BatchStream, tau: int
    ) -> None:
        self._samples, self._labels, self._stream, self._tau = samples, labels, stream, tau
        self._indices = torch.as_tensor(indices, device=labels.device)
        self.n_classes = n_classes
        classes = torch.arange(n_classes, device=labels.device)
        self.label_counts = (labels[self._indices, None] == classes).sum(0)

    def __len__(self) -> int:
        return len(self._indices)

    def batch(self, t: int, i: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of iteration i of round t: global step t * tau + i.  -> (B, ...), (B,)"""
        return self.take(self.chosen(t, i))

    def chosen(self, t: int, i: int) -> Tensor:
        """The indices of that batch among the samples of all clients.  -> (B,)"""
        return self._indices[self.ids(t, i)]

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return self._samples.take(chosen), self._labels[chosen]

    def ids(self, t: int, i: int) -> Tensor:
        """The indices of that batch among the client's own samples.  -> (B,)"""
        return torch.from_numpy(self._stream.indices(t * self._tau + i)).to(self._indices.device)

    def everything(self, batch_size: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
        """All of the client's samples once, in order."""
        for chosen in torch.split(self._indices, batch_size):
            yield self.take(chosen)


class PrivateStack:
    """The labelled samples of stacked clients; every batch has a leading client axis."""

    def __init__(self, members: Sequence[PrivateData]) -> None:
        self._members = members
        self.n_classes = members[0].n_classes
        self.label_counts = torch.stack([member.label_counts for member in members])[:, None]  # (G, 1, K)

    def batch(self, t: int, i: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of all members for iteration i of round t.  -> (G, B, ...), (G, B)"""
        chosen = torch.cat([member.chosen(t, i) for member in self._members])
        x, y = self._members[0].take(chosen)
        size = len(self._members)
        return x.view(size, -1, *x.shape[1:]), y.view(size, -1)


class PublicData:
    """The shared unlabelled samples. Every client draws the same batch at the same step, whatever its method's tau."""

    def __init__(self, samples: Samples, stream: BatchStream, tau: int) -> None:
        self._samples, self._stream, self._tau = samples, stream, tau
        self.drawn: str | None = None  # the digest of the newest batch, sent with the outputs

    def __len__(self) -> int:
        return len(self._samples)

    def batch(self, t: int, i: int) -> Tensor:
        """Inputs of iteration i of round t: global step t * tau + i.  -> (B, ...)"""
        self.drawn = self.digest(t, i)
        return self.batch_at(t * self._tau + i)

    def batch_at(self, step: int) -> Tensor:
        """Inputs of global step `step`, for a server that distils at its own pace.  -> (B, ...)"""
        return self._samples.take(torch.from_numpy(self._stream.indices(step)))

    def ids(self, t: int, i: int) -> Indices:
        """The indices of the public samples in that batch.  -> (B,)"""
        return self._stream.indices(t * self._tau + i)

    def digest(self, t: int, i: int) -> str:
        """The digest that identifies that batch."""
        return self._stream.name(t * self._tau + i)
