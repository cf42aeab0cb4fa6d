"""Private torch kernels, each with a public equivalent to fall back on.

They save time or memory in every step, but another torch version may change or drop them. So each is tested on a few
numbers at import, and used only if it matches its public equivalent, which takes the same arguments. The two agree up
to rounding, not bit for bit: `in_use()` names those in use, for the record.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def _add_to_each(tensors: Sequence[Tensor], number: float) -> list[Tensor]:
    return [tensor.add_(number) for tensor in tensors]


def _copy_to_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor]:
    return [target.copy_(source) for target, source in zip(targets, sources, strict=True)]


def _adam(
    *lists: Sequence[Tensor], lr: float, beta1: float, beta2: float, weight_decay: float, eps: float, **variants: bool
) -> None:
    """One step of plain Adam for all parameters, in place; `steps` already include it."""
    parameters, gradients, means, squares, _, steps = lists
    for p, g, m, v, step in zip(parameters, gradients, means, squares, steps, strict=True):
        g = g + weight_decay * p
        m.lerp_(g, 1 - beta1)
        v.lerp_(g * g, 1 - beta2)
        m_hat, v_hat = (x / (1 - beta ** step.double()) for x, beta in ((m, beta1), (v, beta2)))
        p.sub_(lr * m_hat / (v_hat.sqrt() + eps))


def _leaky_relu_backward(
    gradient: Tensor, result: Tensor, slope: float, is_result: bool, *, grad_input: Tensor
) -> Tensor:
    """Writes the gradient w.r.t. the input into `grad_input`, which may be `gradient`."""
    return grad_input.copy_(torch.where(result > 0, gradient, slope * gradient))


def _relu_backward(gradient: Tensor, result: Tensor, threshold: float) -> Tensor:
    return torch.where(result > threshold, gradient, 0)


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int], *shape: Any
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The gradients w.r.t. x (if needed), the weight and the bias."""
    stride, padding, dilation, _transposed, _output_padding, groups, needed = shape
    how = (stride, padding, dilation, groups)
    d_x = conv2d_input(x.shape, weight, gradient, *how) if needed[0] else None  # type: ignore[no-untyped-call]
    d_weight = conv2d_weight(x, weight.shape, gradient, *how)  # type: ignore[no-untyped-call]
    return d_x, d_weight, gradient.sum((0, 2, 3))


def _max_pool(x: Tensor, *windows: Any) -> tuple[Tensor, Tensor]:
    """The maxima, and the index of each within its image."""
    return F.max_pool2d(x, *windows, return_indices=True)


def _max_pool_backward(gradient: Tensor, x: Tensor, *windows_and_places: Any, grad_input: Tensor) -> Tensor:
    """Writes the gradient w.r.t. x into `grad_input`; windows must not overlap."""
    places, empty = windows_and_places[-1], gradient.new_zeros(grad_input.shape).flatten(2)
    return grad_input.copy_(empty.scatter_(2, places.flatten(2), gradient.flatten(2)).view(grad_input.shape))


_ALL = (
    _add_to_each,
    _copy_to_each,
    _adam,
    _leaky_relu_backward,
    _relu_backward,
    _convolution_backward,
    _max_pool,
    _max_pool_backward,
)
PUBLIC: dict[str, Callable[..., Any]] = {kernel.__name__.removeprefix("_"): kernel for kernel in _ALL}
PLAIN_ADAM: dict[str, Any] = dict(beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, maximize=False)


def in_use() -> str:
    """`private`, or `private but for adam, max_pool`: the exceptions use their public equivalents."""
    public = [name for name, kernel in PUBLIC.items() if globals()[name] is kernel]
    return "private" + (f" but for {', '.join(public)}" if public else "")


def chosen(path: str, public: Kernel, *arguments: Any, **settings: Any) -> Kernel:
    """The torch kernel at `path` if it matches the public one on these arguments, else the public one."""
    with suppress(Exception), torch.no_grad():  # it is missing, or takes other arguments
        private = attrgetter(path)(torch)
        outcomes = (_outcome(kernel, arguments, settings) for kernel in (private, public))
        if all(_close(a, b) for a, b in zip(*outcomes, strict=True)):
            return cast("Kernel", private)
    return public


def _outcome(kernel: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]) -> list[Tensor]:
    """All tensors that a call returns, and its arguments after the call."""
    arguments, settings = copy.deepcopy((arguments, settings))
    return [*_tensors([kernel(*arguments, **settings), arguments, settings])]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def _numbers(*shape: int) -> Tensor:
    """A few nonzero values of both signs; images are channels-last."""
    values = (torch.arange(math.prod(shape), dtype=torch.float32, device="cpu") * 7 % 11 - 4.5) / 8
    values = values.view(shape)
    return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps operators from starting torch's threads, so that a process that only imports this can still fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


with _one_thread():
    _x, _weight, _halves = _numbers(2, 4, 5, 6), _numbers(6, 2, 3, 3), ([2, 2], [2, 2], [0, 0], [1, 1], True)
    _each = [_numbers(3), _numbers(2, 2)]
    add_to_each = chosen("_foreach_add_", _add_to_each, _each, 1)
    copy_to_each = chosen("_foreach_copy_", _copy_to_each, _each, [part + 1 for part in _each])
    adam = chosen(
        "_fused_adam_",
        _adam,
        *(_each, [part.flip(0) for part in _each], [part / 2 for part in _each], [part.square() for part in _each]),
        *([], [_numbers(1).new_full((), 3) for _ in _each]),
        **dict(lr=0.01, weight_decay=0.1, **PLAIN_ADAM),
    )
    leaky_relu_backward = chosen(
        "ops.aten.leaky_relu_backward.grad_input",
        _leaky_relu_backward,
        *(_x.flip(0), _x, 0.1, True),
        grad_input=torch.empty_like(_x),
    )
    relu_backward = chosen("ops.aten.threshold_backward", _relu_backward, _x.flip(0), _x, 0)
    convolution_backward = chosen(
        "ops.aten.convolution_backward",
        _convolution_backward,
        *(_numbers(2, 6, 5, 6), _x, _weight, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True, True, True]),
    )
    max_pool = chosen("ops.aten.max_pool2d_with_indices", _max_pool, _x, *_halves)
    max_pool_backward = chosen(
        "ops.aten.max_pool2d_with_indices_backward.grad_input",
        _max_pool_backward,
        *(_numbers(2, 4, 3, 3), _x, *_halves, _max_pool(_x, *_halves)[1]),
        grad_input=torch.empty_like(_x),
    )
