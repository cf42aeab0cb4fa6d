"""The option `forgetting`: what an earlier model holds, in hand cases, against autograd and in limits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedal import methods
from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.learners.torch_learner import TorchSettings
from fedal.methods.forgetting import Forgetting, d_forgetting
from fedal.simulate.assemble import assemble
from plain_rounds import LR, descend
from splits import InOrder, build_federation, differing_clients, mlp, run_rounds, split_of_classes

OTHERS: tuple[Any, ...] = ("ntd", "mse", "absent")
SPLIT = split_of_classes({"anna": (0, 1), "ben": (1, 2), "cleo": (0, 2), "dora": (0, 1, 2)})


def trained(method: str, **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=3, split=SPLIT, **options), 2)


@pytest.mark.parametrize("kind", get_args(Forgetting))
def test_where_two_models_agree_nothing_is_held(kind: Forgetting) -> None:
    f, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    assert not d_forgetting(kind, f, f.clone(), y, torch.tensor([True, False, True]), 2.0).any()


@pytest.mark.parametrize("kind", OTHERS)
def test_every_kind_differs_from_the_papers_and_needs_its_weight(kind: str) -> None:
    assert differing_clients(trained("fedmd-lf", forgetting=kind), trained("fedmd-lf"))
    bare = trained("fedmd-lf", forgetting=kind, keep_local=0.0, keep_global=0.0)
    assert differing_clients(bare, trained("fedmd")) == []


@pytest.mark.parametrize("kind", OTHERS)
def test_fedal_without_the_adversary_is_fedmd_lf_with_every_kind(kind: str) -> None:
    assert (
        differing_clients(trained("fedal", forgetting=kind, adversarial=0.0), trained("fedmd-lf", forgetting=kind))
        == []
    )


def test_a_client_that_owns_all_classes_forgets_none_of_them_with_absent() -> None:
    found = trained("fedmd-lf", forgetting="absent")
    free = trained("fedmd-lf", forgetting="absent", keep_local=0.0)
    assert "dora" not in differing_clients(run_local(found), run_local(free))


def run_local(federation: Federation) -> Federation:
    """The same options, local training only: nothing is learnt from the others."""
    options = federation.server.hp.model_dump() | {"distillation": 0.0, "keep_global": 0.0}
    return run_rounds(build_federation("fedmd-lf", split=SPLIT, **options), 2)


def test_without_the_labels_class_there_is_nothing_to_compare_between_two_classes() -> None:
    for name in ("fedmd-lf", "fedal", "feddf-al"):
        method = methods.get(name)
        assert method.refuse(method.options(forgetting="ntd"), 3) is None
        assert "forgetting = ntd compares" in str(method.refuse(method.options(forgetting="ntd"), 2))


@pytest.mark.parametrize("kind", OTHERS)
def test_stacked_clients_are_held_as_single_ones(kind: str) -> None:
    names = ("client-00", "client-01", "client-02")
    split = split_of_classes(dict(zip(names, ((0, 1), (1, 2), (0, 2)), strict=True)))
    weights = []
    for stacked in (True, False):
        config = Config(method="fedmd-lf", clients=3, models="mlp-small", batch_size=8, tau=3, stacked=stacked)
        assembly = assemble(config.with_(forgetting=kind), split, InOrder())
        run_rounds(assembly.federation, 2)
        weights.append({name: learner.predict(torch.ones(1, 1, 4, 4)) for name, learner in assembly.learners.items()})
    for name in names:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=1e-4)


# against autograd


def ntd(past: Tensor, f: Tensor, y: Tensor) -> Tensor:
    others = torch.stack([torch.tensor([k for k in range(3) if k != label]) for label in y.tolist()])
    log_p, log_q = (torch.log_softmax(z.gather(1, others) / 2.0, -1) for z in (past, f))
    return F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def absent(past: Tensor, f: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(f[:, 2], torch.sigmoid(past[:, 2]))  # anna owns 0 and 1


def squares(past: Tensor, f: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(f, past)


@pytest.mark.parametrize(("kind", "term"), [("ntd", ntd), ("absent", absent), ("mse", squares)])
def test_local_training_equals_autograd_of_its_loss(kind: str, term: Callable[..., Tensor]) -> None:
    federation = build_federation(
        "fedmd-lf",
        nets={"anna": mlp, "ben": mlp},
        split=split_of_classes({"anna": (0, 1), "ben": (1, 2)}),
        dtype=torch.float64,
        settings=TorchSettings(lr=LR),
        tau=3,
        temperature=2.0,
        distillation=0.0,
        keep_global=0.0,
        keep_local=0.7,
        forgetting=kind,
    )
    logic = federation.clients["anna"]
    model = copy.deepcopy(logic.learner.module)
    optimizer, start = torch.optim.Adam(model.parameters(), lr=LR), copy.deepcopy(model)
    for i in range(3):
        x, y = logic.private.batch(0, i)
        f = model(x)
        descend(optimizer, F.cross_entropy(f, y) + 0.7 * term(start(x).detach(), f, y))
    run_rounds(federation, 1)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(logic.learner.weights()[name], value, rtol=0, atol=1e-10)
