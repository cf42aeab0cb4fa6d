"""A client's training data: its private samples and the shared public ones, in batches that depend only on the step.

The samples of all clients are in one staged tensor, with the channels of images innermost, so that a batch is a
channels_last view without a copy. A client holds index lists, not copies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedal.data.augment import Augmentation
from fedal.data.lacking import Imputed
from fedal.lazy import Tensor, torch
from fedal.seeding import BatchStream, Indices

STAGED = 2**20  # numbers: 4 MB of fp32 for a stack that trains, a few batches of small images


class Samples:
    """Inputs on the device of the run; `take` returns a batch in the order of the indices."""

    def __init__(self, x: np.ndarray[Any, Any], dtype: torch.dtype, device: str = "cpu") -> None:
        staged = torch.as_tensor(x).to(device=device, dtype=dtype)
        self._is_image = staged.dim() == 4
        self._staged = staged.permute(0, 2, 3, 1).contiguous() if self._is_image else staged.contiguous()
        self._columns: Tensor | None = None  # that a client lacks: they have one value in all samples
        self._values = staged.new_zeros(0)

    def __len__(self) -> int:
        return len(self._staged)

    def with_imputed(self, imputed: Imputed | None) -> Samples:
        """The samples as a client sees them that lacks some columns. They share their memory."""
        if imputed is None:
            return self
        seen = copy.copy(self)
        device, dtype = self._staged.device, self._staged.dtype
        seen._columns = torch.as_tensor(imputed.columns, device=device)
        seen._values = torch.as_tensor(imputed.values).to(device=device, dtype=dtype)
        return seen

    @property
    def numbers(self) -> int:
        """How many numbers one sample has."""
        return self._staged[0].numel() if len(self) else 0

    def take(self, indices: Tensor) -> Tensor:
        batch = self._staged.index_select(0, indices.to(self._staged.device))
        if self._columns is not None:
            batch[:, self._columns] = self._values
        return batch.permute(0, 3, 1, 2) if self._is_image else batch


class PrivateData:
    """The labelled samples of one client. They never leave it."""

    def __init__(
        self,
        samples: Samples,
        labels: Tensor,
        indices: Indices,
        n_classes: int,
        stream: BatchStream,
        tau: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._samples, self._labels, self._stream, self.tau = samples, labels, stream, tau
        self._augmentation = augmentation
        self.batch_numbers = stream.batch_size * samples.numbers
        self._indices: Indices = np.asarray(indices)
        self.n_classes = n_classes
        classes = torch.arange(n_classes, device=labels.device)
        self.label_counts = (self._labels_of(torch.from_numpy(self._indices))[:, None] == classes).sum(0)

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def is_augmented(self) -> bool:
        return self._augmentation is not None

    def parts(self, count: int, name: str) -> list[PrivateData]:
        """The samples in `count` random disjoint parts, each with batches of its own; another name, other parts."""
        order = self._stream.order(name)
        return [
            PrivateData(
                self._samples,
                self._labels,
                self._indices[own],
                self.n_classes,
                self._stream.derived(f"{name}, part {index} of {count}", len(own)),
                self.tau,
                self._augmentation,
            )
            for index, own in enumerate(np.array_split(order, count))
        ]

    def batch(self, t: int, i: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of iteration i of round t: global step t * tau + i.  -> (B, ...), (B,)"""
        x, y = self.take(self.chosen(t, i))
        return self.augmented(x, t, i), y

    def augmented(self, x: Tensor, t: int, i: int) -> Tensor:
        """The inputs of that batch as the client trains on them.  (B, ...) -> (B, ...)"""
        return x if self._augmentation is None else self._augmentation(x, t * self.tau + i)

    def chosen(self, t: int, i: int) -> Tensor:
        """The indices of that batch among the samples of all clients.  -> (B,)"""
        return torch.from_numpy(self._indices[self._stream.indices(t * self.tau + i)])

    def following(self, t: int, i: int, count: int) -> Indices:
        """The same for `count` iterations from i on, all of round t.  -> (count, B)"""
        return self._indices[self._stream.following(t * self.tau + i, count)]

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return self._samples.take(chosen), self._labels_of(chosen)

    def _labels_of(self, chosen: Tensor) -> Tensor:
        return self._labels.index_select(0, chosen.to(self._labels.device))

    def ids(self, t: int, i: int) -> Tensor:
        """The indices of that batch among the client's own samples.  -> (B,)"""
        return torch.from_numpy(self._stream.indices(t * self.tau + i)).to(self._labels.device)

    def everything(self, batch_size: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
        """All of the client's samples once, in order."""
        for chosen in torch.split(torch.from_numpy(self._indices), batch_size):
            yield self.take(chosen)


class PrivateStack:
    """The labelled samples of stacked clients; every batch has a leading client axis."""

    def __init__(self, members: Sequence[PrivateData]) -> None:
        self._members = members
        self._staged: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (t, i) -> a batch that is asked for next
        self.n_classes = members[0].n_classes
        self.label_counts = torch.stack([member.label_counts for member in members])[:, None]  # (G, 1, K)

    def batch(self, t: int, i: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of all members for iteration i of round t.  -> (G, B, ...), (G, B)"""
        if (t, i) not in self._staged:
            self._stage(t, i)
        x, y = self._staged.pop((t, i))
        if self._members[0].is_augmented:
            x = torch.stack([member.augmented(own, t, i) for member, own in zip(self._members, x, strict=True)])
        return x, y

    def _stage(self, t: int, i: int) -> None:
        """Gathers the batches of several iterations at once, which costs little more than one."""
        first = self._members[0]
        some = max(1, STAGED // (len(self._members) * first.batch_numbers))
        count = min(some, first.tau - i)
        together = np.stack([member.following(t, i, count) for member in self._members], 1)
        chosen = torch.from_numpy(together)  # (count, G, B)
        x, y = first.take(chosen.flatten())
        xs = x.view(*chosen.shape, *x.shape[1:])
        self._staged = {(t, i + k): each for k, each in enumerate(zip(xs, y.view(chosen.shape), strict=True))}


class PublicData:
    """The shared unlabelled samples. Every client draws the same batch at the same step, whatever its method's tau."""

    def __init__(
        self, samples: Samples, stream: BatchStream, tau: int, augmentation: Augmentation | None = None
    ) -> None:
        self._samples, self._stream, self._tau, self._augmentation = samples, stream, tau, augmentation
        self.drawn: str | None = None  # the digest of the newest batch, sent with the outputs

    def __len__(self) -> int:
        return len(self._samples)

    def batch(self, t: int, i: int) -> Tensor:
        """Inputs of iteration i of round t: global step t * tau + i.  -> (B, ...)"""
        self.drawn = self.digest(t, i)
        return self.batch_at(t * self._tau + i)

    def batch_at(self, step: int) -> Tensor:
        """Inputs of global step `step`, for a server that distils at its own pace.  -> (B, ...)"""
        x = self._samples.take(torch.from_numpy(self._stream.indices(step)))
        return x if self._augmentation is None else self._augmentation(x, step)

    def take(self, ids: Tensor) -> Tensor:
        """These samples, as they are.  (n,) -> (n, ...)"""
        return self._samples.take(ids)

    def unchanged(self, t: int, i: int) -> int:
        """How many samples of that batch, the first ones, stay as they are."""
        size, step = self._stream.batch_size, t * self._tau + i
        return size if self._augmentation is None else self._augmentation.unchanged(size, step)

    def everything(self) -> Tensor:
        """All samples in order, as they are.  -> (P, ...)"""
        return self._samples.take(torch.arange(len(self), device="cpu"))

    def ids(self, t: int, i: int) -> Indices:
        """The indices of the public samples in that batch.  -> (B,)"""
        return self._stream.indices(t * self._tau + i)

    def digest(self, t: int, i: int) -> str:
        """The digest that identifies that batch, with all changes to it."""
        step = t * self._tau + i
        name = self._stream.name(step)
        return name if self._augmentation is None else self._augmentation.name(name, step)
