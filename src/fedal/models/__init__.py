"""The models by name. Reading this table does not import torch; building a model does.

Any `nn.Module` with `logits = model(x)` can take part in a run: name it `package.module:factory` (see `custom.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedal.errors import ConfigError, did_you_mean
from fedal.lazy import torch
from fedal.models.custom import call_any_factory, call_factory, load_factory
from fedal.models.output_width import check_output_width, copy_of
from fedal.models.trainable import initialise, is_lazy, refuse_untrainable
from fedal.user_code import is_import_path

__all__ = [
    "LEARNERS",
    "MODELS",
    "ModelEntry",
    "build",
    "build_any",
    "check_output_width",
    "copy_of",
    "find",
    "initialise",
    "is_import_path",
    "is_lazy",
    "largest",
    "refuse_untrainable",
    "suited_to",
]


@dataclass(frozen=True)
class ModelEntry:
    """One row of the table: the model's factory, its description and the inputs that it takes."""

    factory: str  # package.module:factory, imported when the model is built
    description: str
    sides: tuple[int, ...] = ()  # side lengths of the square images that it takes; empty: any image
    flat: bool = False  # takes inputs of any rank, vectors included

    @property
    def takes(self) -> str:
        """A description of the inputs that it takes."""
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
    "mlp-small": ModelEntry("fedal.models.small:SmallMLP", "one hidden layer of 64", flat=True),
    "cnn-small": ModelEntry("fedal.models.small:cnn_small", "two convolutions, 64 features, no BatchNorm"),
    "cnn-small-bn": ModelEntry("fedal.models.small:cnn_small_bn", "two convolutions with BatchNorm, 64 features"),
    "lenet5": ModelEntry("fedal.models.lenet:LeNet5", "LeNet5, 120 features", sides=(28, 32)),
    "wrn-10-1": ModelEntry("fedal.models.wide_resnet:wrn_10_1", "WideResNet, depth 10, width 1, 64 features"),
    "wrn-10-2": ModelEntry("fedal.models.wide_resnet:wrn_10_2", "WideResNet, depth 10, width 2, 128 features"),
    "wrn-16-1": ModelEntry("fedal.models.wide_resnet:wrn_16_1", "WideResNet, depth 16, width 1, 64 features"),
    "resnet18": ModelEntry("fedal.models.resnet:resnet18", "ResNet-18 with a 3x3 stem, 512 features"),
    "resnet34": ModelEntry("fedal.models.resnet:resnet34", "ResNet-34 with a 3x3 stem, 512 features"),
    "celeba-cnn": ModelEntry("fedal.models.celeba_cnn:CelebaCNN", "four convolutions, 1152 features at 84x84"),
}
"""The `Source` of a dataset states which of these its clients draw from."""

LEARNERS: dict[str, ModelEntry] = {
    "logistic": ModelEntry("fedal.learners.logistic_learner:make", "logistic regression", flat=True),
    "xgboost": ModelEntry(
        "fedal.learners.xgboost_learner:make",
        "boosted trees of XGBoost, one step per stage (fedal[xgboost])",
        flat=True,
    ),
    "lightgbm": ModelEntry(
        "fedal.learners.lightgbm_learner:make",
        "boosted trees of LightGBM, one step per stage (fedal[lightgbm])",
        flat=True,
    ),
}
"""Models outside PyTorch, by name: their factories return learners."""


def suited_to(input_shape: tuple[int, ...]) -> tuple[str, ...]:
    """The models that clients draw from if only the shape of the data is known."""
    return ("cnn-small", "cnn-small-bn") if len(input_shape) == 3 else ("mlp-small",)


def find(name: str) -> ModelEntry:
    """The entry of the module with this exact name; raises ConfigError, which suggests the closest name."""
    if name in MODELS:
        return MODELS[name]
    if name in LEARNERS:
        raise ConfigError(f'model "{name}" is not a torch.nn.Module; only a client can have it.')
    hint = did_you_mean(name, [*MODELS, *LEARNERS])
    raise ConfigError(
        f'unknown model "{name}". {hint}`fedal models` lists them; name your own as package.module:factory.'
    )


def build(name: str, input_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    """A fresh model by its name in the table or as `package.module:factory`; raises ConfigError.

    A user's factory is code that runs here: check an untrusted name with `is_import_path` first.
    """
    if is_import_path(name):
        return call_factory(name, load_factory(name), input_shape, n_classes)
    entry = find(name)
    if not entry.fits(input_shape):
        fitting = ", ".join(other for other, each in MODELS.items() if each.fits(input_shape))
        raise ConfigError(
            f'model "{name}" takes {entry.takes}; this data has samples of shape {input_shape}. '
            f"Models that take it: {fitting or 'none'}."
        )
    return call_factory(name, load_factory(entry.factory), input_shape, n_classes)


def build_any(name: str, input_shape: tuple[int, ...], n_classes: int) -> Any:
    """As `build`, for a client: a module, or a learner of another framework."""
    if name in LEARNERS:
        return call_any_factory(name, load_factory(LEARNERS[name].factory), input_shape, n_classes)
    if is_import_path(name):
        return call_any_factory(name, load_factory(name), input_shape, n_classes)
    return build(name, input_shape, n_classes)


def largest(names: tuple[str, ...], input_shape: tuple[int, ...], n_classes: int) -> str:
    """The name of the model with the most parameters; the first one wins ties."""
    import torch

    with torch.device("meta"):  # counts parameters without allocating them
        sizes = {name: sum(p.numel() for p in build(name, input_shape, n_classes).parameters()) for name in names}
    return max(names, key=sizes.__getitem__)


def __dir__() -> list[str]:
    return __all__
