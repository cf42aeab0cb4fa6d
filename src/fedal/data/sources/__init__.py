"""The built-in datasets, one file each."""

from __future__ import annotations

from fedal.data.source import Source
from fedal.data.sources.celeba import CELEBA
from fedal.data.sources.cifar10 import CIFAR10
from fedal.data.sources.cinic10 import CINIC10
from fedal.data.sources.digits import DIGITS
from fedal.data.sources.idx import FASHION_MNIST, MNIST
from fedal.data.sources.svhn import SVHN
from fedal.errors import DataError, did_you_mean

SOURCES: dict[str, Source] = {
    source.name: source for source in (DIGITS, MNIST, FASHION_MNIST, SVHN, CIFAR10, CINIC10, CELEBA)
}


def find(name: str) -> Source:
    """The source with this name; raises DataError with the nearest name."""
    if name in SOURCES:
        return SOURCES[name]
    raise DataError(f"unknown dataset {name!r}. {did_you_mean(name, SOURCES)}Known: {', '.join(SOURCES)}.")
