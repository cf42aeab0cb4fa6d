"""The models by name. Reading this table does not import torch; building a model does.

Any `nn.Module` with `logits = model(x)` takes part in a run: name it `package.module:factory` (see `own.py`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from fedal.errors import ConfigError
from fedal.lazy import torch
from fedal.models.output_width import check_output_width
from fedal.models.own import call_factory, load_factory
from fedal.own_code import is_import_path

__all__ = ["MODELS", "ModelEntry", "build", "candidates", "check_output_width", "find", "is_import_path"]


@dataclass(frozen=True)
class ModelEntry:
    """One line of the table: where the model is made, what it is and which data it suits."""

    factory: str  # package.module:factory, imported when the model is built
    description: str
    datasets: tuple[str, ...] = ()  # the data sets whose clients draw this model
    sides: tuple[int, ...] = ()  # the side lengths of the square images it takes; empty: any image
    flat: bool = False  # takes inputs of any rank, vectors included

    @property
    def takes(self) -> str:
        """The inputs it takes, in words."""
        if self.flat:
            return "vectors and images of any size"
        if self.sides:
            return "images of " + " or ".join(f"{side}x{side}" for side in self.sides)
        return "images of any size"

    def fits(self, input_shape: tuple[int, ...]) -> bool:
        """Whether it takes samples of this shape; images are (channels, height, width)."""
        if self.flat:
            return len(input_shape) >= 1
        if len(input_shape) != 3:
            return False
        _, height, width = input_shape
        return not self.sides or (height == width and height in self.sides)


MODELS: dict[str, ModelEntry] = {
    "mlp-small": ModelEntry("fedal.models.small:SmallMLP", "one hidden layer of 64", datasets=("digits",), flat=True),
    "cnn-small": ModelEntry(
        "fedal.models.small:cnn_small", "two convolutions, 64 features, no BatchNorm", datasets=("digits",)
    ),
    "cnn-small-bn": ModelEntry(
        "fedal.models.small:cnn_small_bn", "two convolutions with BatchNorm, 64 features", datasets=("digits",)
    ),
    "lenet5": ModelEntry(
        "fedal.models.lenet:LeNet5",
        "LeNet5, 120 features",
        datasets=("mnist", "fashion-mnist"),
        sides=(28, 32),
    ),
    "wrn-10-1": ModelEntry(
        "fedal.models.wide_resnet:wrn_10_1", "WideResNet, depth 10, width 1, 64 features", datasets=("svhn",)
    ),
    "wrn-10-2": ModelEntry(
        "fedal.models.wide_resnet:wrn_10_2", "WideResNet, depth 10, width 2, 128 features", datasets=("svhn",)
    ),
    "wrn-16-1": ModelEntry(
        "fedal.models.wide_resnet:wrn_16_1", "WideResNet, depth 16, width 1, 64 features", datasets=("svhn",)
    ),
    "resnet18": ModelEntry(
        "fedal.models.resnet:resnet18", "ResNet-18 with a 3x3 stem, 512 features", datasets=("cifar10", "cinic10")
    ),
    "resnet34": ModelEntry(
        "fedal.models.resnet:resnet34", "ResNet-34 with a 3x3 stem, 512 features", datasets=("cifar10", "cinic10")
    ),
    "celeba-cnn": ModelEntry(
        "fedal.models.celeba_cnn:CelebaCNN", "four convolutions, 1152 features at 84x84", datasets=("celeba",)
    ),
}


def candidates(dataset: str, input_shape: tuple[int, ...] | None = None) -> tuple[str, ...]:
    """The models that clients draw from: by name for the data sets known here, by shape for any other data."""
    known = tuple(name for name, entry in MODELS.items() if dataset in entry.datasets)
    if known:
        return known
    if input_shape is None:
        raise ConfigError(f'no models are listed for data set "{dataset}". Name one; `fedal models` lists them.')
    return ("cnn-small", "cnn-small-bn") if len(input_shape) == 3 else ("mlp-small",)


def find(name: str) -> ModelEntry:
    """The entry of a model by its exact name; raises ConfigError with the nearest name."""
    if name in MODELS:
        return MODELS[name]
    nearest = difflib.get_close_matches(name.lower(), MODELS, n=1)
    hint = f"Did you mean {nearest[0]}? " if nearest else ""
    raise ConfigError(
        f'unknown model "{name}". {hint}`fedal models` lists them; one of your own is named package.module:factory.'
    )


def build(name: str, input_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    """A fresh model by its name in the table or as `package.module:factory`; raises ConfigError.

    An own factory is code that runs here: a caller with an untrusted name asks `is_import_path` first.
    """
    if is_import_path(name):
        return call_factory(name, load_factory(name), input_shape, n_classes)
    entry = find(name)
    if not entry.fits(input_shape):
        fitting = ", ".join(other for other, each in MODELS.items() if each.fits(input_shape))
        raise ConfigError(
            f'model "{name}" takes {entry.takes}; this data has samples of shape {input_shape}. '
            f"Models that take it: {fitting or 'none here'}."
        )
    return call_factory(name, load_factory(entry.factory), input_shape, n_classes)


def largest(names: tuple[str, ...], input_shape: tuple[int, ...], n_classes: int) -> str:
    """The name of the model with the most parameters; the first of equals."""
    import torch

    with torch.device("meta"):  # counts without allocating
        sizes = {name: sum(p.numel() for p in build(name, input_shape, n_classes).parameters()) for name in names}
    return max(names, key=sizes.__getitem__)
