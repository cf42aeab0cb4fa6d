"""The network that predicts which client an output came from. It stays at the server and is never sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from fedal.finite import sum_of_squares
from fedal.lazy import Tensor, torch
from fedal.learners.base import State
from fedal.sample_layout import BY_SAMPLE, SampleLayout
from fedal.seeding import in_drawn_order, philox_key, torch_seeded
from fedal.step_size import Balance

Part = tuple[Tensor, Tensor]
"""Inputs of some clients (n, B, inputs) and the owner of each of their rows (n * B,)."""

ApplyToEach = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Applies a function to each item, perhaps on several threads, and returns the results in order."""


def in_turn(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [function(item) for item in items]


ROWS = 1024  # outputs processed at once: 32 clients with batches of 32
WAVE = 8  # parts whose gradients are in memory together: as many are computed at once
MAX_SCALE = 100.0
"""The largest product of the spectral norms of a discriminator's layers that a client reckons with.

It is 2 at initialisation. It grew to 18 in 1,500 iterations on digits at 10 times the paper's step size, and to 36 in
400 iterations at 100 times; the largest gradients then had a tenth of the norm that this product allows.
"""


class Layer(NamedTuple):
    """Weight (out, in) and bias (out,) of a linear layer, or their gradients.

    Of the output layer, perhaps copies of some rows: those of the clients present. Their gradients are on the copies.
    """

    weight: Tensor
    bias: Tensor


class Discriminator:
    """h(softmax(f / E), w): an MLP K - hidden - N; its scores are those of the clients present.

    Paper: "two fully-connected layers with 32 and 265 neurons" and stochastic gradient ascent. Here: an output layer of
    width N follows, since h maps to R^N, and Adam is the default (SGD at the stated 1e-4 barely changes it).

    A client that is absent has no samples and no score, and its row of the output layer, the moments and the step count
    of that row stand still. So a step costs time quadratic in the clients present, and none for the others. With
    `groups`, the output layer has a row per group of clients instead, and the cost is linear. `each` may compute parts
    of a step on several threads; their gradients are added in the order of the clients, so the bits are the same.

    With `sees_mean` (our own) it also sees softmax(mean f / E), the same for all clients: it then judges how an output
    deviates on this sample, where p_n alone shows which sample it is as much as whose. With `target`, a rule changes
    its step size (see `fedal.step_size`). `layout` is that of all numbers of samples while it computes.
    """

    def __init__(
        self,
        roster: Sequence[str],
        n_classes: int,
        *,
        hidden: Sequence[int] = (32, 265),
        temperature: float = 2.0,
        leak: float = 0.0,
        optimizer: Literal["adam", "sgd"] = "adam",
        lr: float = 1e-4,
        clip: float = 0.0,
        groups: int = 0,
        sees_mean: bool = False,
        target: float | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        each: ApplyToEach = in_turn,
        layout: SampleLayout = BY_SAMPLE,
    ) -> None:
        from fedal import kernels
        from fedal.learners.torch_learner import TorchLearner, TorchSettings

        self._row = rows_of(roster, groups, seed)
        self._width = max(self._row.values()) + 1
        self.tells_clients_apart = self._width == len(roster)
        self._temperature, self._leak, self._clip = temperature, leak, clip
        self._n_classes, self._sees_mean = n_classes, sees_mean
        self._each, self._layout = each, layout
        self._seated: tuple[object, Tensor | None, Sequence[Tensor]] = None, None, ()  # of the last step: a cache
        self._relu_ = partial(torch.nn.functional.leaky_relu_, negative_slope=leak) if leak else torch.relu_
        self._d_leaky_relu = kernels.leaky_relu_backward
        widths = [(1 + sees_mean) * n_classes, *hidden, self._width]
        with torch_seeded(seed, "discriminator"):
            layers: list[torch.nn.Module] = []
            for wide, narrow in pairwise(widths):
                layers += [torch.nn.Linear(wide, narrow), torch.nn.LeakyReLU(leak) if leak else torch.nn.ReLU()]
        self._learner = TorchLearner(
            torch.nn.Sequential(*layers[:-1]),
            TorchSettings(optimizer=optimizer, lr=lr),
            dtype=dtype or torch.float32,
            device=device,
        )
        # taken out of their modules, whose attributes take a third of a µs to find; they are only ever changed in place
        self._layers = [Layer(m.weight, m.bias) for m in self.module.children() if isinstance(m, torch.nn.Linear)]
        self._steps: Tensor | None = None  # of each row of the output layer; None: as many as the others'
        self._balance = None if target is None else Balance(lr, target)
        self._lr = lr

    @property
    def module(self) -> torch.nn.Module:
        """h as a function of `inputs`: a score per row of the output layer, before the softmax."""
        return self._learner.module

    @property
    def lr(self) -> float:
        """The step size of its next step."""
        return self._lr if self._balance is None else self._balance.lr

    def inputs(self, f: Tensor) -> Tensor:
        """Its inputs for the logits of all clients present: softmax(f / E), perhaps with that of their mean.

        (N, B, K) -> (N, B, K) or (N, B, 2 K)
        """
        return self._beside_mean(f, self._mean(f))

    def _mean(self, f: Tensor) -> Tensor | None:
        """softmax(mean f / E), if it is part of the input.  (N, B, K) -> (B, K)"""
        return torch.softmax(f.mean(0) / self._temperature, -1) if self._sees_mean else None

    def _beside_mean(self, f: Tensor, mean: Tensor | None) -> Tensor:
        p = self._layout.softmax(f / self._temperature)
        return p if mean is None else torch.cat([p, mean.expand_as(p)], -1)

    def owners(self, clients: Sequence[str]) -> Tensor:
        """The row of the output layer that stands for each client.  -> (N,)"""
        return torch.tensor([self._row[client_id] for client_id in clients], device=self._layers[-1].weight.device)

    def chance(self, present: Sequence[str]) -> float:
        """The accuracy of guessing among the scores of the clients present."""
        return 1 / len({self._row[client_id] for client_id in present})

    def train_step(self, f: Tensor, present: Sequence[str]) -> Tensor:
        """Takes one ascent step on U, the mean of -CE(n, h(p_n)) over all N * B outputs; returns the prior accuracy.

        (N, B, K) -> ()
        """
        with torch.no_grad():
            accuracy = self._ascend(*self._parts(f, present), in_turn)
        self._adapt(accuracy, present)
        return accuracy

    def utility_grads(self, f: Tensor, present: Sequence[str]) -> Tensor:
        """dU_n/df_n per sample at the current w; each row sums to zero over the classes.  (N, B, K) -> (N, B, K)

        A mean that is part of the input is held fixed: one client can hardly move it, and is not asked to.
        """
        with torch.no_grad():
            return self._grads(*self._parts(f, present), in_turn)

    def train_and_guide(self, f: Tensor, present: Sequence[str]) -> tuple[Tensor, Tensor]:
        """`train_step` and then `utility_grads`, which share what they compute first; parts on the given threads."""
        with torch.no_grad():
            rows, parts = self._parts(f, present)
            each = self._each if len(parts) > 1 else in_turn
            accuracy, grads = self._ascend(rows, parts, each), self._grads(rows, parts, each)
        self._adapt(accuracy, present)
        return accuracy, grads

    def _adapt(self, accuracy: Tensor, present: Sequence[str]) -> None:
        """Lets the rule, if there is one, choose the size of the next step."""
        if self._balance is not None:
            self._balance.update(float(accuracy), self.chance(present))
            self._learner.set_lr(self._balance.lr)

    def _ascend(self, rows: Tensor | None, parts: Sequence[Part], each: ApplyToEach) -> Tensor:
        hits, layers = [], self._layers_of(rows)
        total = sum(len(p) for p, _ in parts)

        def of_part(part: Part) -> tuple[Tensor, list[Layer]]:
            p, owners = part
            with torch.no_grad():  # also in the thread that computes it
                h, seen = self._scores(self._layout.entered(p), layers)
                d = self._layout.d_cross_entropy(h, owners, len(p) / total)
                return self._layout.guessed(h) == owners, self._weight_grads(seen, d, layers)

        for first in range(0, len(parts), WAVE):
            for hit, gradients in each(of_part, parts[first : first + WAVE]):
                hits.append(hit)
                for layer, gradient in zip(layers, gradients, strict=True):
                    _add(layer.weight, gradient.weight)
                    _add(layer.bias, gradient.bias)
        self._step(rows, layers)
        return torch.cat(hits).to(parts[0][0].dtype).mean()

    def _grads(self, rows: Tensor | None, parts: Sequence[Part], each: ApplyToEach) -> Tensor:
        layers = self._layers_of(rows)
        found = each(lambda part: self._utility_grad(part[0], part[1], layers), parts)
        return torch.cat(found) if len(found) > 1 else found[0]

    def _utility_grad(self, x: Tensor, owners: Tensor, layers: Sequence[Layer]) -> Tensor:
        with torch.no_grad():  # also in the thread that computes it
            h, seen = self._scores(self._layout.entered(x), layers)
            # U_n = -CE(n, h(p_n)), Eq. (min-max-obj), of every sample
            d_h = self._layout.d_cross_entropy(h, owners, -len(owners))
            d_x = self._layout.left(self._back(seen, d_h, layers), x.shape)
            p, d_p = (value[..., : self._n_classes] for value in (x, d_x)) if self._sees_mean else (x, d_x)
            return p * (d_p - (p * d_p).sum(-1, keepdim=True)) / self._temperature

    def _layers_of(self, rows: Tensor | None) -> list[Layer]:
        if rows is None:
            return self._layers
        *hidden, last = self._layers
        return [*hidden, Layer(last.weight[rows], last.bias[rows])]

    def _scores(self, x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, list[Tensor]]:
        """h before its softmax, and the input of each layer, in its layout.  (R, K) -> (R, N), [(R, K), ...]"""
        linear, seen = self._layout.linear, [x]
        *hidden, last = layers
        for layer in hidden:
            seen.append(self._relu_(linear(seen[-1], *layer)))
        return linear(seen[-1], *last), seen

    # Both ways back are written out because clients wait: autograd takes 1.5 times as long on so small a network.

    def _back(self, seen: Sequence[Tensor], d: Tensor, layers: Sequence[Layer]) -> Tensor:
        """The gradient w.r.t. x of a loss with gradient d w.r.t. `_scores(x)`."""
        for index in reversed(range(1, len(layers))):
            d = self._through(layers[index], d, seen[index])
        return self._layout.back(d, layers[0].weight)

    def _through(self, layer: Layer, d: Tensor, seen: Tensor) -> Tensor:
        """From the gradient w.r.t. a layer's output to the one before the ReLU whose result it has seen."""
        d = self._layout.back(d, layer.weight)
        return self._d_leaky_relu(d, seen, self._leak, True, grad_input=d)

    def _weight_grads(self, seen: Sequence[Tensor], d: Tensor, layers: Sequence[Layer]) -> list[Layer]:
        """The gradients w.r.t. weight and bias of each layer."""
        found = [Layer(*self._layout.weight_grads(d, seen[-1]))]
        for index in reversed(range(1, len(layers))):
            d = self._through(layers[index], d, seen[index])
            found.append(Layer(*self._layout.weight_grads(d, seen[index - 1])))
        return found[::-1]

    def _step(self, rows: Tensor | None, layers: Sequence[Layer]) -> None:
        """Takes the optimizer step: on everything, or on the hidden layers and some rows of the output layer."""
        if self._clip:
            parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
            torch.nn.utils.clip_grad_norm_(parameters, self._clip)
        if rows is not None:
            some, of_the_last = layers[-1], self._learner.parameters[-2:]
            if self._steps is None:
                self._steps = torch.full_like(self._layers[-1].bias, self._learner.clock.step, dtype=torch.float64)
            self._steps[rows] += 1
            for parameter, own in zip(of_the_last, (some.weight, some.bias), strict=True):
                assert own.grad is not None
                self._learner.step_rows(parameter, rows, own.grad, self._steps[rows])
        self._learner.step()

    def _parts(self, f: Tensor, present: Sequence[str]) -> tuple[Tensor | None, list[Part]]:
        """The rows that are scored, None for all of them alike; and inputs with the positions of their owners' rows.

        There are a few clients in each part: the scores of all at once are N * B * N numbers.
        """
        batch = f.shape[1]
        some = max(1, ROWS // batch)
        key = (tuple(present), batch, some, self._steps is None)
        if self._seated[0] != key:
            rows, owners = self._seats(present)
            self._seated = key, rows, torch.split(owners.repeat_interleave(batch), some * batch)
        _, rows, owned = self._seated
        mean, split = self._mean(f), torch.split(f, some)
        return rows, [(self._beside_mean(part, mean), whose) for part, whose in zip(split, owned, strict=True)]

    def _seats(self, present: Sequence[str]) -> tuple[Tensor | None, Tensor]:
        """The rows that are scored, None for all of them alike; and the place of each client's own row among them."""
        scored = sorted({self._row[client_id] for client_id in present})
        if self._steps is None and len(scored) == self._width:
            return None, self.owners(present)
        device, place = self._layers[-1].weight.device, {row: index for index, row in enumerate(scored)}
        owners = torch.tensor([place[self._row[client_id]] for client_id in present], device=device)
        return torch.tensor(scored, device=device), owners

    def state_dict(self) -> State:
        state = self._learner.state_dict()
        if self._balance is not None:
            state["balance"] = self._balance.state_dict()
        return state if self._steps is None else {**state, "row_steps": self._steps.clone()}

    def load_state_dict(self, state: State) -> None:
        self._learner.load_state_dict(state)
        if self._balance is not None:
            self._balance.load_state_dict(state["balance"])
            self._learner.set_lr(self._balance.lr)
        steps = state.get("row_steps")
        self._steps = None if steps is None else steps.to(self._layers[-1].weight.device, copy=True)


def rows_of(roster: Sequence[str], groups: int, seed: int) -> dict[str, int]:
    """client -> its row of the output layer: one of its own, or that of its group.

    Groups are drawn by the seed and differ in size by one client at most. As many groups as clients are the clients.
    """
    if not 0 < groups < len(roster):
        return {client_id: index for index, client_id in enumerate(roster)}
    order = in_drawn_order(roster, philox_key(seed, "discriminator groups"))
    return {client_id: rank % groups for rank, client_id in enumerate(order)}


def bounded(grad: Tensor, temperature: float) -> Tensor:
    """dU_n/df_n with the norm of each sample clipped to what a discriminator can send; smaller ones keep their bits.

    By the chain rule dU_n/df_n = J W_1' D_1 W_2' ... W_L' (e_n - q) / E, with J = diag(p) - p p' the Jacobian of the
    softmax (norm at most 1/2), D_l the slopes of the ReLUs (at most 1) and q the guessed owners (|e_n - q| at most
    sqrt 2). So its norm is at most |W_1| ... |W_L| / (sqrt(2) E). A server that sends more does not follow the method.
    (..., K) -> (..., K)
    """
    largest = MAX_SCALE / (math.sqrt(2) * temperature)
    if sum_of_squares(grad) < largest * largest / 2:  # of all samples together: no single one reaches it
        return grad
    return torch.renorm(grad.flatten(0, -2), 2, 0, largest).view_as(grad)


def _add(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
