"""A model as a chain of known layers, each used once, one after the other: what a stack can compute."""

from __future__ import annotations

from torch import nn

from fedal.learners.dropout import CounterDropout
from fedal.models.classifier import Classifier
from fedal.models.pooling import HalvingMaxPool

ACTIVATIONS = (
    nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign,
    nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity,
)  # fmt: skip
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, HalvingMaxPool)
DROPOUTS = (nn.Dropout, nn.Dropout2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
ON_IMAGES = (nn.Conv2d, *POOLS, nn.BatchNorm2d, nn.Dropout2d)  # samples of shape (C, H, W)
ON_VECTORS = (nn.Linear, nn.BatchNorm1d)
KNOWN = (nn.Linear, nn.Conv2d, nn.Flatten, *ACTIVATIONS, *POOLS, *DROPOUTS, *NORMS)

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def chain_of(model: nn.Module, input_rank: int) -> list[nn.Module]:
    """The layers of the model in the order in which it uses them, for samples with `input_rank` axes.

    Raises TypeError, which names what cannot be stacked. Types are compared exactly: a subclass may compute anything.
    """
    layers = _layers(model)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    if len({id(parameter) for parameter in parameters}) != len(parameters) or len({*map(id, layers)}) != len(layers):
        raise TypeError("layers that share parameters cannot be stacked")
    if not all(parameter.requires_grad for parameter in parameters):
        raise TypeError("models with frozen parameters cannot be stacked")
    if input_rank not in (1, 3) and not isinstance(layers[0], nn.Flatten):
        raise TypeError(f"models for samples with {input_rank} axes can only be stacked if they flatten them first")
    rank = input_rank
    for layer in layers:
        if (isinstance(layer, ON_IMAGES) and rank != 3) or (isinstance(layer, ON_VECTORS) and rank != 1):
            raise TypeError(f"{type(layer).__name__} on samples with {rank} axes cannot be stacked")
        if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) != rank:
            raise TypeError("LayerNorm over a part of a sample cannot be stacked")
        rank = 1 if isinstance(layer, nn.Flatten) else rank
    if rank != 1 or not parameters:
        raise TypeError("a model without parameters or without an output per class cannot be stacked")
    return layers


def _layers(part: nn.Module) -> list[nn.Module]:
    kind = type(part)
    if any(getattr(part, hooks) for hooks in HOOKS):
        raise TypeError(f"{kind.__name__} with hooks cannot be stacked")
    if "forward" in vars(part) and not isinstance(part.forward, CounterDropout):
        raise TypeError(f"{kind.__name__} with a replaced forward cannot be stacked")
    if isinstance(part, nn.Sequential) and kind is nn.Sequential:
        return [layer for child in part for layer in _layers(child)]
    if isinstance(part, Classifier) and all(
        getattr(kind, name) is getattr(Classifier, name) for name in ("forward", "features", "classify")
    ):
        return [*_layers(part.body), *_layers(part.head)]
    if kind not in KNOWN:
        raise TypeError(f"{kind.__name__} layers cannot be stacked")
    if isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) != (1, -1):
        raise TypeError("Flatten of some axes cannot be stacked")
    if isinstance(part, nn.Conv2d) and part.padding_mode != "zeros":
        raise TypeError(f"convolutions with {part.padding_mode} padding cannot be stacked")
    if isinstance(part, nn.MaxPool2d | nn.AdaptiveMaxPool2d) and part.return_indices:
        raise TypeError("pools that return indices cannot be stacked")
    return [part]


def signature(layers: list[nn.Module]) -> tuple[str, ...]:
    """Equal for two chains that can be in one stack: the same layers with the same sizes and settings."""
    return tuple(repr(layer) for layer in layers)
