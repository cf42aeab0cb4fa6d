"""How many outputs become one: pure functions of stacked tensors, client axis first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def mean_over_clients(outputs: Tensor) -> Tensor:
    """f-bar: the mean over all who spoke, in roster order so that arrival order cannot matter.  (N, B, K) -> (B, K)"""
    return outputs.mean(0)


def leave_one_out(mean: Tensor, own: Tensor, count: int) -> Tensor:
    """f-bar_{-n}: the mean over the other clients, recovered from the mean over all `count` and the own part.

    Algorithm 1 broadcasts the inclusive mean while Eq. (kl) uses the exclusive one: (N f-bar - f_n) / (N - 1).
    """
    if count < 2:
        raise ValueError(f"the mean over the others needs at least two clients, {count} spoke")
    return (count * mean - own) / (count - 1)
