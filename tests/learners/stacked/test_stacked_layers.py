"""Any chain of known layers learns in a stack what it learns alone; what is no such chain is refused with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedal.learners.base import Mode
from fedal.learners.stacked.chain import ACTIVATIONS, KNOWN, chain_of
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner
from fedal.losses import d_cross_entropy, d_kl
from fedal.models import build
from fedal.models.pooling import HalvingMaxPool
from fedal.models.small import SmallMLP
from fedal.seeding import torch_seeded

G, B, K = 3, 6, 4
IMAGE, VECTOR = (2, 7, 7), (9,)
TAIL = [nn.Flatten(), nn.LazyLinear(K)]

CHAINS: dict[str, tuple[tuple[int, ...], list[nn.Module]]] = {
    "convolution without a pool": (IMAGE, [nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 2), *TAIL]),
    "convolution with its pool": (IMAGE, [nn.Conv2d(2, 4, 3), HalvingMaxPool(), HalvingMaxPool(), nn.ReLU(), *TAIL]),
    "no bias, groups, same padding": (
        IMAGE,
        [
            nn.Conv2d(2, 4, 3, bias=False, padding="same"),
            HalvingMaxPool(),
            nn.Conv2d(4, 4, 2, groups=2),
            nn.Flatten(),
            nn.LazyLinear(K, bias=False),
        ],
    ),
    "groups on the input": (IMAGE, [nn.Conv2d(2, 4, 3, groups=2, dilation=2), HalvingMaxPool(), *TAIL]),
    "pools of torch": (IMAGE, [nn.MaxPool2d(2), nn.Conv2d(2, 6, 2), nn.AvgPool2d(2, 1), *TAIL]),
    "adaptive pools": (IMAGE, [nn.AdaptiveMaxPool2d(5), nn.Conv2d(2, 6, 2), nn.AdaptiveAvgPool2d(1), *TAIL]),
    "only a pool and a layer": (IMAGE, [HalvingMaxPool(), *TAIL]),
    "batch norm of images": (
        IMAGE,
        [nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), *TAIL],
    ),
    "batch norm of vectors": (
        VECTOR,
        [
            nn.BatchNorm1d(9, affine=False),
            nn.Linear(9, 5, bias=False),  # a bias would have no effect, and a gradient of rounding errors
            nn.BatchNorm1d(5, track_running_stats=False),
            nn.Linear(5, K),
        ],
    ),
    "layer norm of images": (
        IMAGE,
        [nn.LayerNorm(IMAGE), nn.Conv2d(2, 3, 3), nn.LayerNorm((3, 5, 5), bias=False), nn.ReLU(True), *TAIL],
    ),
    "layer norm": (VECTOR, [nn.Linear(9, 5), nn.LayerNorm(5), nn.ELU(1, True), nn.Linear(5, K), nn.LayerNorm(K)]),
    "dropout of images": (
        IMAGE,
        [nn.Dropout(0.2), nn.Conv2d(2, 5, 3), nn.Dropout2d(0.4), nn.ReLU(), nn.Flatten(), nn.Dropout(), *TAIL[1:]],
    ),
    "dropout of vectors": (VECTOR, [nn.Linear(9, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, K), nn.Dropout(0.0)]),
    "chains of chains": (
        IMAGE,
        [nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(98, 8), nn.ReLU())), nn.ReLU(), nn.Linear(8, K)],
    ),
    "samples with two axes": ((3, 5), [nn.Flatten(), nn.Linear(15, 6), nn.Tanh(), nn.Linear(6, K)]),
    **{
        f"{kind.__name__}": (VECTOR, [kind(), nn.Linear(9, 6), kind(), nn.Linear(6, K)])
        for kind in ACTIVATIONS
    },
}  # fmt: skip


def learners(chain: str) -> list[TorchLearner]:
    shape, layers = CHAINS[chain]
    made = []
    for g in range(G):
        with torch_seeded(0, "chain", str(g)):
            model = nn.Sequential(*copy.deepcopy(layers))
            model(torch.zeros(2, *shape))
            for part in model.modules():
                if hasattr(part, "reset_running_stats"):
                    part.reset_running_stats()
            with torch.no_grad():  # the affine weights of norms differ between members too
                for parameter in model.parameters():
                    parameter.copy_(0.5 * torch.randn_like(parameter))
        made.append(TorchLearner(model, owner=f"client {g}", dtype=torch.float64))
    return made


def data(chain: str, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(G, B, *CHAINS[chain][0], dtype=torch.float64, generator=generator)
    return x, torch.randint(0, K, (G, B), generator=generator)


def close(some: object, others: object) -> bool:
    """Whether two states are equal to 1e-12; integers must be the same."""
    if isinstance(some, dict) and isinstance(others, dict):
        return some.keys() == others.keys() and all(close(some[name], others[name]) for name in some)
    if isinstance(some, Tensor) and isinstance(others, Tensor):
        return some.shape == others.shape and torch.allclose(some.double(), others.double(), rtol=0, atol=1e-12)
    return some == others


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_layers_learns_in_a_stack_what_it_learns_alone(chain: str) -> None:
    members, alone = learners(chain), learners(chain)
    stack = StackedLearner(members, len(CHAINS[chain][0]))
    modes: list[Mode] = ["train", "frozen", "eval"]
    for step, mode in enumerate(modes):
        (x, y), (others, _) = data(chain, step), data(chain, 10 + step)
        shared = others[0]
        anchor, anchors = stack.frozen(mode), [learner.frozen(mode) for learner in alone]
        first, second = stack.logits(x), stack.logits(shared, mode)  # two passes for one step
        past = anchor(shared)
        stack.learn(d_cross_entropy(first, y), d_kl(past, second))
        for g, learner in enumerate(alone):
            own, public = learner.logits(x[g]), learner.logits(shared, mode)
            old = anchors[g](shared)
            assert close(first[g], own) and close(second[g], public) and close(past[g], old), mode
            learner.learn(d_cross_entropy(own, y[g]), d_kl(old, public))
    for g, learner in enumerate(alone):
        assert close(members[g].state_dict(), learner.state_dict())
        assert close(stack.predict(data(chain, 5)[0])[g], learner.predict(data(chain, 5)[0][g]))
        assert close(members[g].predict(data(chain, 5)[0][g]), learner.predict(data(chain, 5)[0][g]))


@pytest.mark.parametrize("chain", ["batch norm of images", "dropout of vectors"])
def test_a_restored_stack_continues_bit_for_bit(chain: str) -> None:
    def step(stack: StackedLearner, number: int) -> Tensor:
        x, y = data(chain, number)
        f = stack.logits(x)
        stack.learn(d_cross_entropy(f, y))
        return f

    stack, other = (StackedLearner(learners(chain), len(CHAINS[chain][0])) for _ in range(2))
    step(stack, 0)
    saved = stack.state_dict()
    expected = [step(stack, 1), step(stack, 2)]
    step(other, 7)  # an independent history, which must leave no trace
    other.load_state_dict(saved)
    assert all(torch.equal(step(other, 1 + place), f) for place, f in enumerate(expected))


def test_every_known_layer_is_tried() -> None:
    tried = {type(part) for _, layers in CHAINS.values() for part in nn.Sequential(*layers).modules()}
    assert {*KNOWN} <= tried


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = 2 * super().forward(x)
        return y


class OwnFeatures(SmallMLP):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x) + 1


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(9, K))
    model[0].register_forward_hook(lambda module, x, y: 2 * y)
    return model


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, K))
    model[0].bias.requires_grad_(False)
    return model


def replaced() -> nn.Module:
    model = nn.Sequential(nn.Linear(9, K))
    model[0].forward = lambda x: x  # type: ignore[method-assign,assignment]
    return model


def twice() -> nn.Module:
    layer = nn.Linear(9, 9)
    return nn.Sequential(layer, layer, nn.Linear(9, K))


REFUSED: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "GRU layers": (lambda: nn.Sequential(nn.GRU(9, K)), 1),
    "OwnForward layers": (lambda: OwnForward(nn.Linear(9, K)), 1),
    "OwnFeatures layers": (lambda: OwnFeatures(VECTOR, K), 1),
    "Linear with hooks": (hooked, 1),
    "Linear with a replaced forward": (replaced, 1),
    "frozen parameters": (half_frozen, 1),
    "share parameters": (twice, 1),
    "Linear on samples with 3 axes": (lambda: nn.Sequential(nn.Linear(7, K)), 3),
    "Conv2d on samples with 1 axes": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1)), 1),
    "LayerNorm over a part": (lambda: nn.Sequential(nn.LayerNorm(7), nn.Flatten(), nn.Linear(98, K)), 3),
    "Flatten of some axes": (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(9, K)), 3),
    "circular padding": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1, padding_mode="circular")), 3),
    "return indices": (lambda: nn.Sequential(nn.MaxPool2d(2, return_indices=True)), 3),
    "without parameters": (lambda: nn.Sequential(nn.Flatten()), 3),
    "flatten them first": (lambda: nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(9, K)), 2),
    "_BasicBlock|Block|Residual": (lambda: build("wrn-10-1", (3, 8, 8), K), 3),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_chain_of_known_layers_is_refused(reason: str) -> None:
    make, rank = REFUSED[reason]
    with pytest.raises(TypeError, match=reason) as refusal:
        chain_of(make(), rank)
    assert "stacked" in str(refusal.value)
