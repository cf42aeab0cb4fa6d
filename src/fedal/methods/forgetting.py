"""How a client's earlier model holds its current one: the regularisers of less-forgetting methods, without weights.

All compare outputs of two models of one client on one batch, so nothing more is sent. All are zero, with gradient zero,
where the two models agree.
"""

from __future__ import annotations

from typing import Literal

from fedal.lazy import Tensor, torch
from fedal.losses import d_kl, mse, non_target, sigmoid_cross_entropy

Forgetting = Literal["kl", "ntd", "mse", "absent"]


def d_forgetting(
    kind: Forgetting, past: Tensor, f: Tensor, labels: Tensor | None, owned: Tensor, temperature: float
) -> Tensor:
    """Gradient w.r.t. f of the distance between the earlier logits and f.  (B, K), (B, K), (B,), (K,) -> (B, K)

    kl: r^loc and r^glo of the FedAL paper (FedLSD). ntd: KL over the classes other than the label (FedNTD); public
    samples have no label, so there it is kl. mse: of logits. absent: binary cross-entropy of the classes that the
    client does not own, as kim-2024 holds the global model.
    """
    if kind == "mse":
        return mse(past, f).gradient
    if kind == "absent":
        return sigmoid_cross_entropy(torch.sigmoid(past), f, ~owned).gradient
    if kind == "ntd" and labels is not None:
        return non_target(past, f, labels, temperature, renormalise=True).gradient
    return d_kl(past, f, temperature)
