"""Selective-FD, FedAUX and UWA: clients that answer, or weigh themselves, by what resembles their own data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedal
from fedal import methods
from fedal.engine.loop import Federation
from fedal.errors import ConfigError, WireError
from fedal.messages import Leak, SelectedOutputs, SelectedTeacher, WeightedOutputs
from fedal.wire import Wire
from plain_rounds import Logits, check_against_plain, soft_divergence
from splits import CLASSES, build_federation, differing_clients, mlp, run_rounds, split_of_classes

NAMES = ("selective-fd", "fedaux", "uwa")
SPLIT = split_of_classes({"anna": (0, 1), "ben": (1, 2), "cleo": (0, 2)})
ONE_CLASS = split_of_classes({"anna": (0,), "ben": (1,), "cleo": (2,)})


def trained(method: str, rounds: int = 2, **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=2, **options), rounds)


def of_class(split: Any) -> np.ndarray:
    """The label of each public sample, which no client knows."""
    return split.dataset.train_y[: len(split.public_x)]


@pytest.mark.parametrize("name", NAMES)
def test_what_resembles_private_data_is_refused_by_outputs_only(name: str) -> None:
    assert methods.get(name).reveals == Leak.PUBLIC_OUTPUTS | Leak.PRIVATE_DENSITY
    assert methods.get(name).black_box
    fedal.Config(method=name, require="black-box")
    with pytest.raises(ConfigError, match="nearness of public to private samples"):
        fedal.Config(method=name, require="outputs-only")


@pytest.mark.parametrize("name", NAMES)
def test_clients_prefer_samples_of_the_classes_that_they_own(name: str) -> None:
    nets = dict.fromkeys(("anna", "ben", "cleo"), mlp)
    federation = build_federation(name, nets=nets, split=ONE_CLASS, bandwidth=0.5)
    labels = torch.as_tensor(of_class(ONE_CLASS))
    for own, client in enumerate(nets):
        logic = federation.clients[client]
        score = logic._chosen.double() if name == "selective-fd" else logic._scores.double()
        assert score[labels == own].mean() > 1.5 * score[labels != own].mean()


# Selective-FD


def test_a_sample_is_taught_by_those_that_chose_it() -> None:
    server = build_federation("selective-fd").server
    f = torch.randn(3, 4, CLASSES, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 0, 1]], dtype=torch.uint8)
    taught = server.teacher(f, chosen)
    y = torch.softmax(f, -1)
    expected = torch.stack([y[:, 0].mean(0), y[0, 1], torch.zeros(3), y[1:, 3].mean(0)])
    torch.testing.assert_close(taught.values, expected)
    assert taught.counts.tolist() == [3, 1, 0, 2] and taught.misfit() is None
    assert torch.equal(
        server.teacher(f * 50 * (1 - chosen)[..., None] + f * chosen[..., None], chosen).values, taught.values
    )


def test_ambiguous_samples_are_dropped() -> None:
    server = build_federation("selective-fd", ambiguity=1.0).server
    f = torch.tensor([[[2.0, 0, 0], [0.1, 0, 0]]]).repeat(2, 1, 1)  # max t = .787 and .356
    taught = server.teacher(f, torch.ones(2, 2, dtype=torch.uint8))
    assert taught.counts.tolist() == [2, 0] and not taught.values[1].any()
    flat = build_federation("selective-fd").server.teacher(torch.zeros(2, 2, 3), torch.ones(2, 2, dtype=torch.uint8))
    assert flat.counts.tolist() == [2, 2]  # 2 (1 - 1/K) < 2: the default drops none


def test_without_any_answer_there_is_no_step() -> None:
    federation = build_federation("selective-fd", tau=2, quantile=1.0, bandwidth=0.01)
    for logic in federation.clients.values():
        logic._chosen = torch.zeros_like(logic._chosen)
    steps = run_rounds(federation, 1)
    assert differing_clients(steps, run_rounds(build_federation("local", tau=2), 1)) == ["ben", "dora"]  # BatchNorm
    assert steps.server.observed["answered"] == 0


def test_selective_fd_equals_autograd_of_its_loss() -> None:
    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        ids = federation.clients["anna"].public.ids(t, i)
        chosen = torch.stack([federation.clients[n]._chosen[ids] for n in f]).double()
        y = torch.stack([torch.softmax(each.detach(), -1) for each in f.values()])
        rows = chosen.sum(0) > 0
        taught = ((chosen[..., None] * y).sum(0) / chosen.sum(0)[:, None])[rows]
        return {n: soft_divergence(taught, each[rows]) for n, each in f.items()}

    found = check_against_plain("selective-fd", losses, split=SPLIT, quantile=0.5)
    assert 0.1 < found.server.observed["answered"] < 0.9


def test_attackers_of_a_simulation_cannot_forge_what_is_not_chosen() -> None:
    with pytest.raises(ConfigError, match="they forge outputs; selective-fd uploads SelectedOutputs"):
        fedal.Config(method="selective-fd", clients=4, attackers="client-03:random:10")
    fedal.Config(method="fedaux", clients=4, attackers="client-03:random:10")  # its weights stay honest


# FedAUX and UWA


def test_equal_scores_are_the_inclusive_mean_of_logits_bit_for_bit() -> None:
    inclusive = trained("fedmd", aggregate="trimmed", trim=0.0)
    assert differing_clients(trained("fedaux", score="equal"), inclusive) == []
    assert differing_clients(trained("fedaux"), inclusive)


def test_uwa_is_fedaux_with_a_density_and_has_its_limits() -> None:
    assert differing_clients(trained("uwa"), trained("fedaux", score="density")) == []
    server = build_federation("uwa").server
    f = torch.randn(3, 8, CLASSES, generator=torch.Generator().manual_seed(0))

    def taught(weights: Tensor) -> Tensor:
        playing = server.round(0, ["anna", "ben", "cleo"])
        next(playing)
        up = {
            n: WeightedOutputs(*each)
            for n, each in zip(("anna", "ben", "cleo"), zip(f, weights, strict=True), strict=True)
        }
        return playing.send(up)["anna"].values

    weights = torch.rand(3, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(taught(weights), taught(7 * weights))  # only ratios matter
    sure = (weights == weights.amax(0)) + 1e-12 * weights  # the density of one client exceeds all others'
    torch.testing.assert_close(taught(sure), f.gather(0, weights.argmax(0)[None, :, None].expand(1, 8, 3))[0])
    assert torch.equal(taught(torch.zeros(3, 8)), f.mean(0))


@pytest.mark.parametrize("name", ["fedaux", "uwa"])
def test_weighted_means_equal_autograd_of_their_loss(name: str) -> None:
    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        ids = federation.clients["anna"].public.ids(t, i)
        s = torch.stack([federation.clients[n]._scores[ids] for n in f])
        logits = torch.stack([each.detach() for each in f.values()])
        taught = torch.softmax((s[..., None] * logits).sum(0) / s.sum(0)[:, None], -1)
        return {n: soft_divergence(taught, each) for n, each in f.items()}

    check_against_plain(name, losses, split=SPLIT)


# messages


def test_answers_that_contradict_themselves_are_refused() -> None:
    wire = Wire((SelectedOutputs, WeightedOutputs), (SelectedTeacher,), {"B": 2, "K": 3}, torch.float32)
    values, thirds = torch.ones(2, 3), torch.full((2, 3), 1 / 3)

    def bits(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.uint8)

    wire.up("a", SelectedOutputs(values, bits(1, 1)), None, None)
    with pytest.raises(WireError, match="values in row 1, which is not chosen"):
        wire.up("a", SelectedOutputs(values, bits(1, 0)), None, None)
    with pytest.raises(WireError, match="holds 2; expected 0 to 1"):
        wire.up("a", SelectedOutputs(values, bits(1, 2)), None, None)
    with pytest.raises(WireError, match=r"weights .* holds -1"):
        wire.up("a", WeightedOutputs(values, torch.tensor([1.0, -1.0])), None, None)
    wire.down("a", SelectedTeacher(thirds * torch.tensor([[1], [0]]), bits(2, 0).int()))
    with pytest.raises(WireError, match="values in row 1, whose count is 0"):
        wire.down("a", SelectedTeacher(thirds, bits(2, 0).int()))
    with pytest.raises(WireError, match="not a distribution"):
        wire.down("a", SelectedTeacher(2 * thirds, bits(2, 1).int()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bandwidth", [1e-3, 1e3])
def test_no_width_of_the_kernel_makes_a_score_infinite(name: str, bandwidth: float) -> None:
    trained(name, 1, bandwidth=bandwidth, **({} if name == "selective-fd" else {"density_temperature": 1e-3}))
