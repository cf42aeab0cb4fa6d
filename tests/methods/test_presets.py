"""Methods that are FedMD with another way to combine outputs: the authors' values, limits, one plain reference."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedal import methods
from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.errors import NotApplicableError
from fedal.methods.outputs import fedmd
from fedal.methods.outputs.presets import with_defaults
from plain_rounds import Logits, check_against_plain, soft_divergence, towards_the_others
from splits import build_federation, differing_clients, run_rounds

PRESETS = ("ds-fl", "cronus", "fedgems", "fedeven", "fedlift")


def trained(method: str, **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=2, **options), 2)


def test_a_preset_changes_defaults_and_nothing_else() -> None:
    for name in PRESETS:
        preset, base = methods.get(name), fedmd.METHOD
        assert (preset.client, preset.server, preset.up, preset.down) == (base.client, base.server, base.up, base.down)
        assert preset.options.model_fields.keys() == base.options.model_fields.keys()
        assert preset.options() != base.options()
        assert pickle.loads(pickle.dumps(preset.options())) == preset.options()  # noqa: S301 - as processes of a comparison do
    assert fedmd.FedMDOptions().aggregate == "mean"
    assert Config(method="ds-fl").options.model_dump()["sharpness"] == 10.0


def test_limits_of_a_preset_still_hold() -> None:
    options: Any = with_defaults(fedmd.FedMDOptions, "Trimmed", trim=0.1)
    assert options().trim == 0.1
    with pytest.raises(ValueError, match="less than"):
        options(trim=0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_fedmd_with_its_options_bit_for_bit(name: str) -> None:
    own = methods.get(name).options().model_dump()
    changed = {key: value for key, value in own.items() if value != getattr(fedmd.FedMDOptions(), key) and key != "tau"}
    assert differing_clients(trained(name), trained("fedmd", **changed)) == []
    assert differing_clients(trained(name), trained("fedmd"))


MEAN_OF_PROBABILITIES: list[tuple[str, dict[str, Any]]] = [  # every method in the limit of a plain mean
    ("perfed-ckt", {"clusters": 1, "space": "probs", "loss": "kl"}),
    ("fedmd", {"space": "probabilities", "aggregate": "power", "sharpness": 1.0}),
    ("fedmd", {"space": "probabilities", "aggregate": "entropy", "sharpness": 0.0}),
    ("cronus", {"trim": 0.0}),
    ("expguard", {"guard": 0.0}),
    ("scarlet", {"lifetime": 0, "sharpness": 1.0}),
    ("selective-fd", {"answer_all": True}),
    ("kt-pfl", {"coefficient_step": 0.0, "temperature": 1.0}),
]


@pytest.mark.parametrize(("method", "options"), MEAN_OF_PROBABILITIES, ids=lambda value: str(value))
def test_a_plain_mean_of_probabilities_is_the_same_in_every_method(method: str, options: dict[str, Any]) -> None:
    assert differing_clients(trained(method, **options), trained("fedmd", space="probabilities")) == []


def test_entropy_weights_without_sharpness_are_the_inclusive_mean_of_logits() -> None:
    inclusive = trained("fedmd", aggregate="trimmed", trim=0.0)
    assert differing_clients(trained("fedmd", aggregate="entropy", sharpness=0.0), inclusive) == []


def test_fedeven_is_fedmd_where_its_loss_evens_nothing_out_bit_for_bit() -> None:
    assert differing_clients(trained("fedeven", prior_strength=0.0), trained("fedmd")) == []
    assert differing_clients(trained("fedeven", local_loss="cross-entropy"), trained("fedmd")) == []
    assert methods.get("fedeven").options().tau == 1


def test_fedlift_is_fedeven_where_its_server_lifts_nothing() -> None:
    inclusive = trained("fedeven", aggregate="trimmed", trim=0.0)  # the receiving client is part of the mean
    assert differing_clients(trained("fedlift", class_strength=0.0, certainty=0.0), inclusive) == []
    assert differing_clients(trained("fedlift", aggregate="mean", certainty=0.0), trained("fedeven")) == []


def test_certainty_weighs_what_is_taught_in_every_method_that_has_the_option() -> None:
    for name in ("fedmd", "fedmd-lf", "fedal"):
        assert differing_clients(trained(name, certainty=1.0), trained(name)) != []
        assert differing_clients(trained(name, certainty=0.0), trained(name)) == []
    assert methods.get("fedlift").options().certainty == 1
    with pytest.raises(NotApplicableError, match="certainty weighs the KL divergence; distance = l1 has none"):
        build_federation("fedmd", certainty=1.0, distance="l1")
    with pytest.raises(NotApplicableError, match="certainty = 1: with transfer = server"):
        build_federation("feddf", certainty=1.0, transfer="server")


# against autograd


def sharpened(f: Tensor) -> Tensor:
    return torch.softmax(torch.softmax(f, -1).mean(0) / 0.1, -1)


def without_outliers(f: Tensor) -> Tensor:
    """Three clients, one suspect: two pass the first time and both the second; sample by sample with numpy."""
    rows = []
    for sample in torch.softmax(f, -1).transpose(0, 1).numpy():
        apart = sample - sample.mean(0)
        scores = np.abs(apart @ np.linalg.svd(apart)[2][0])
        rows.append(sample[np.argsort(scores, kind="stable")[:2]].mean(0))
    return torch.as_tensor(np.stack(rows))


def by_inverse_entropy(f: Tensor) -> Tensor:
    p = torch.softmax(f, -1)
    weights = torch.softmax(1 / -(p * p.log()).sum(-1), 0)
    return torch.softmax((weights[..., None] * f).sum(0), -1)


@pytest.mark.parametrize(
    ("name", "teacher"), [("ds-fl", sharpened), ("cronus", without_outliers), ("fedgems", by_inverse_entropy)]
)
def test_a_preset_equals_autograd_of_its_loss(name: str, teacher: Callable[[Tensor], Tensor]) -> None:
    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        taught = teacher(torch.stack([each.detach() for each in f.values()]))
        return {n: soft_divergence(taught, each) for n, each in f.items()}

    check_against_plain(name, losses)


def evened(client: Any, f: Tensor, y: Tensor) -> Tensor:
    counts = client.private.label_counts.double()
    counts = counts + client.hp.prior_smoothing * counts.sum()
    return F.cross_entropy(f + (counts / counts.sum()).log(), y)


def test_fedlift_equals_autograd_of_its_loss() -> None:
    shares: list[Tensor] = []  # the clients' mean probabilities: a running mean over batches

    def lifted(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        logits = torch.stack([each.detach() for each in f.values()])
        newest = torch.softmax(logits, -1).mean((0, 1))
        shares.append(shares[-1] + 0.02 * (newest - shares[-1]) if shares else newest)
        taught = torch.softmax(logits.mean(0), -1) / shares[-1].sqrt()
        taught = taught / taught.sum(-1, keepdim=True)
        sure = 1 + (taught * taught.log()).sum(-1, keepdim=True) / math.log(taught.shape[-1])
        return {n: (sure * (taught * (taught.log() - each.log_softmax(-1)))).sum(-1).mean() for n, each in f.items()}

    check_against_plain("fedlift", lifted, supervised=evened)


def test_fedeven_equals_autograd_of_its_loss() -> None:
    federation = check_against_plain("fedeven", towards_the_others, supervised=evened)
    assert all(logic.hp.local_loss == "balanced" for logic in federation.clients.values())
