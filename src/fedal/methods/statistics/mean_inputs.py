"""The mean input of each class, which HFD's clients exchange once: blurred samples that all of them can answer."""

from __future__ import annotations

from collections.abc import Mapping

from fedal.aggregate import ClassSums, class_means_of_others, class_weights, other_owners
from fedal.data.streams import PrivateData
from fedal.lazy import torch
from fedal.learners.base import State
from fedal.messages import ClassInputs


def own_mean_inputs(private: PrivateData) -> ClassInputs:
    """The mean over all samples of each class, and how many there are."""
    x, _ = private.batch(0, 0)
    own = ClassSums.empty(private.n_classes, x[0].numel(), device=x.device)
    for inputs, labels in private.everything():
        own.add(inputs.flatten(1), labels)
    return ClassInputs(own.means(x.dtype), own.counts)


def mean_inputs_of_others(sent: Mapping[str, State]) -> dict[str, ClassInputs]:
    """client -> the mean over the other clients that have the class, and their number."""
    values, counts = (torch.stack([each[part] for each in sent.values()]) for part in ("values", "counts"))
    means = class_means_of_others(values, class_weights(counts, "clients"))
    return dict(zip(sent, map(ClassInputs, means, other_owners(counts)), strict=True))


def of_others_and_all(own: ClassInputs, others: ClassInputs, shape: tuple[int, ...]) -> State:
    """The mean inputs over the others and over all, in the shape of a sample, each with its number of clients."""
    has = (own.counts > 0).to(torch.int32)
    number = others.counts + has
    of_all = (others.counts[:, None] * others.values + has[:, None] * own.values) / number.clamp(min=1)[:, None]
    return {
        "of_others": others.values.view(-1, *shape),
        "others": others.counts,
        "of_all": of_all.view(-1, *shape),
        "all": number,
    }
