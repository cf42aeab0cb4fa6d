"""FedAL as a plain PyTorch loop, as in a first implementation or in comparable packages.

It trains one model after the other, with a DataLoader per client, deep copies as references, losses through autograd
and the default optimizer. It gets the same batches and initial weights as the engine, so that results are comparable.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedal.models.lenet import LeNet5

Batches = list[list[int]]
"""The indices of the samples in each batch, in order."""


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(student, 1), F.softmax(teacher, 1), reduction="batchmean")


class PlainLeNet5(nn.Module):
    """LeNet5 as it is usually written, with its parameters in the same order as in fedal's."""

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
        logits: Tensor = self.fc3(x)
        return logits


def plain(model: nn.Module) -> nn.Module:
    """The same network in its usual form, not optimised for speed."""
    if isinstance(model, LeNet5):
        first = next(model.parameters())
        other = PlainLeNet5(first.shape[1], list(model.parameters())[-1].numel()).to(first.dtype)
        with torch.no_grad():
            for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs)
        return other
    return copy.deepcopy(model).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


class NaiveFedAL:
    def __init__(
        self,
        models: Sequence[nn.Module],
        discriminator: nn.Module,
        private: Sequence[TensorDataset],
        private_batches: Sequence[Batches],
        public: Tensor,
        public_batches: Batches,
        tau: int,
        lr: float = 1e-3,
    ) -> None:
        self.models = [plain(model) for model in models]
        self.discriminator = copy.deepcopy(discriminator)
        self.tau = tau
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=lr) for model in self.models]
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-4)
        self.private = [
            iter(DataLoader(data, batch_sampler=batches))
            for data, batches in zip(private, private_batches, strict=True)
        ]
        self.public = iter(DataLoader(TensorDataset(public), batch_sampler=public_batches))

    def round(self) -> None:
        for model, optimizer, batches in zip(self.models, self.optimizers, self.private, strict=True):
            reference = copy.deepcopy(model)
            for _ in range(self.tau):
                x, y = next(batches)
                with torch.no_grad():
                    old = reference(x)
                f = model(x)
                loss = F.cross_entropy(f, y) + kl(old, f)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        references = [copy.deepcopy(model) for model in self.models]
        for _ in range(self.tau):
            (x,) = next(self.public)
            outputs = [model(x) for model in self.models]
            mean, gradients = self.serve([f.detach() for f in outputs])
            n = len(self.models)
            for i, f in enumerate(outputs):
                others = (n * mean - f.detach()) / (n - 1)
                with torch.no_grad():
                    old = references[i](x)
                loss = kl(others, f) + (f * gradients[i]).sum() / len(x) + kl(old, f)
                self.optimizers[i].zero_grad()
                loss.backward()
                self.optimizers[i].step()

    def serve(self, outputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        owners = torch.arange(len(outputs)).repeat_interleave(len(outputs[0]))
        loss = F.cross_entropy(self.discriminator(F.softmax(torch.cat(outputs) / 2, 1)), owners)
        self.discriminator_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.discriminator_optimizer.step()
        gradients = []
        for i, f in enumerate(outputs):
            f = f.clone().requires_grad_()
            utility = -F.cross_entropy(
                self.discriminator(F.softmax(f / 2, 1)), torch.full((len(f),), i), reduction="sum"
            )
            gradients.append(torch.autograd.grad(utility, f)[0])
        return torch.stack(outputs).mean(0), gradients
