"""Methods compared with each other and with the paper, by every client's weights in whole federations."""

from __future__ import annotations

import copy
import importlib
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedal import methods
from fedal.engine.loop import Federation
from fedal.engine.threads import thread_workers
from fedal.errors import NonFiniteError
from fedal.learners.torch_learner import TorchFrozen, TorchLearner, TorchSettings
from fedal.losses import d_cross_entropy
from fedal.methods.client import Anchor, ClientLogic, weighted
from plain_rounds import check_against_plain, naive_fedal, towards_the_others
from splits import NETS, build_federation, conv_batch_norm, differing_clients, fingerprint, mlp, run_rounds

ROUNDS = 3


def trained(method: str, rounds: int = ROUNDS, **options: Any) -> Federation:
    return run_rounds(build_federation(method, **options), rounds)


# limits in which two methods are equal


@pytest.mark.parametrize("tau", [1, 3])
def test_fedal_without_the_adversary_is_fedmd_lf(tau: int) -> None:
    assert differing_clients(trained("fedal", tau=tau, adversarial=0.0), trained("fedmd-lf", tau=tau)) == []


@pytest.mark.parametrize("tau", [1, 3])
def test_fedal_without_adversary_and_anchors_is_fedmd_at_the_same_tau(tau: int) -> None:
    bare = trained("fedal", tau=tau, adversarial=0.0, keep_local=0.0, keep_global=0.0)
    assert differing_clients(bare, trained("fedmd", tau=tau)) == []


def test_fedmd_lf_without_anchors_is_fedmd() -> None:
    assert differing_clients(trained("fedmd-lf", tau=3, keep_local=0.0, keep_global=0.0), trained("fedmd", tau=3)) == []


@pytest.mark.parametrize("skip_first", [True, False])
@pytest.mark.parametrize("public_mode", ["train", "frozen", "eval"])
def test_at_tau_one_fedmd_lf_is_fedmd_also_when_every_anchor_is_computed(
    skip_first: bool, public_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients include models with BatchNorm and a user's model with dropout."""
    monkeypatch.setattr(Anchor, "skip_first", skip_first)
    forgetting_less = trained("fedmd-lf", tau=1, public_mode=public_mode)
    assert differing_clients(forgetting_less, trained("fedmd", tau=1, public_mode=public_mode)) == []


@pytest.mark.parametrize("method", ["fedmd-lf", "fedal"])
@pytest.mark.parametrize(
    "options", [{}, {"public_mode": "frozen"}, {"public_mode": "eval"}, {"temperature": 3.0}, {"distillation": 0.0}]
)
def test_skipping_the_first_anchor_pass_of_a_stage_changes_no_bit(
    method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipping = trained(method, tau=3, **options)
    monkeypatch.setattr(Anchor, "skip_first", False)
    assert differing_clients(skipping, trained(method, tau=3, **options)) == []


def test_these_comparisons_can_fail() -> None:
    """Each setting that is switched off above changes every client's weights when it is on."""
    fedal = trained("fedal", tau=3)
    for other in (
        trained("fedal", tau=3, adversarial=0.0),
        trained("fedal", tau=3, keep_local=0.0),
        trained("fedal", tau=3, keep_global=0.0),
        trained("fedal", tau=3, temperature=2.0),
        trained("fedal", tau=3, discriminator_temperature=1.0),
        trained("fedal", tau=3, distillation=0.5),
        trained("fedal", tau=3, local_loss="balanced"),
        trained("fedal", tau=3, seed=1),
        trained("fedmd", tau=3),
        trained("local", tau=3),
    ):
        assert differing_clients(fedal, other) == list(NETS)


def test_local_training_does_not_depend_on_the_other_clients() -> None:
    alone = trained("local", nets={"anna": mlp})
    together = trained("local")
    assert fingerprint(alone.clients["anna"].learner.state_dict()) == fingerprint(
        together.clients["anna"].learner.state_dict()
    )


def test_with_two_clients_the_teacher_of_one_is_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = {"anna": mlp, "ben": conv_batch_norm}
    sent: list[dict[str, Tensor]] = []
    taught: list[Tensor] = []
    module = importlib.import_module("fedal.methods.consensus")

    def watched(*arguments: Any) -> Tensor:
        taught.append(original(*arguments))
        return taught[-1]

    original = module.leave_one_out
    monkeypatch.setattr(module, "leave_one_out", watched)
    federation = build_federation(
        "fedmd", nets=nets, tau=2, observe=lambda up: sent.append({name: up[name].values for name in up})
    )
    run_rounds(federation, 1)
    assert len(taught) == 4
    for exchange, logits in enumerate(sent):
        of_anna, of_ben = taught[2 * exchange : 2 * exchange + 2]
        torch.testing.assert_close(of_anna, logits["ben"], rtol=0, atol=1e-6)
        torch.testing.assert_close(of_ben, logits["anna"], rtol=0, atol=1e-6)


# workers and the order of work


@pytest.mark.parametrize("method", ["local", "fedmd", "fedal"])
def test_the_number_of_workers_changes_no_bit(method: str) -> None:
    expected = trained(method)
    for workers in (1, 2, 4):
        with thread_workers(workers) as pool:
            assert differing_clients(expected, trained(method, workers=pool)) == []


class FreshThreads:
    """Resumes a client in a new thread each time, in a different order each time."""

    def __init__(self) -> None:
        self._shuffle = random.Random(0)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], cost: object = None) -> list[Any]:
        numbered = list(enumerate(items))
        self._shuffle.shuffle(numbered)
        results: dict[int, Any] = {}

        def work(index: int, item: Any) -> None:
            torch.set_num_threads(1)
            results[index] = function(item)

        for index, item in numbered:
            thread = threading.Thread(target=work, args=(index, item))
            thread.start()
            thread.join()
        return [results[index] for index in range(len(numbered))]


def test_the_thread_and_time_of_resumption_change_no_bit() -> None:
    assert differing_clients(trained("fedal"), trained("fedal", workers=FreshThreads())) == []


@pytest.mark.parametrize("method", ["fedmd", "fedal"])
def test_the_order_in_which_uploads_arrive_changes_no_bit(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(method)
    server = methods.get(method).server
    original, shuffle = server.round, random.Random(0)

    def receiving_in_any_order(self: Any, t: int, clients: Any) -> Any:
        inner = original(self, t, clients)
        reply = next(inner)
        while True:
            uploads = yield reply
            names = list(uploads)
            shuffle.shuffle(names)
            try:
                reply = inner.send({name: uploads[name] for name in names})
            except StopIteration as stop:
                return stop.value

    monkeypatch.setattr(server, "round", receiving_in_any_order)
    assert differing_clients(expected, trained(method)) == []


# against the paper


@pytest.mark.parametrize("method", ["fedal", "fedmd-lf"])
@pytest.mark.parametrize(("n_clients", "rounds"), [(2, 1), (2, 3), (3, 2)])
def test_fedal_equals_autograd_of_the_papers_losses(method: str, n_clients: int, rounds: int) -> None:
    nets = dict(list({"anna": mlp, "ben": conv_batch_norm, "carl": mlp}.items())[:n_clients])
    adversary = {"discriminator_temperature": 2.0} if method == "fedal" else {}
    federation = build_federation(
        method, nets=nets, dtype=torch.float64, settings=TorchSettings(lr=0.01), tau=2, temperature=3.0, **adversary
    )
    naive = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
    start = copy.deepcopy(naive)
    naive_fedal(federation, naive, tau=2, rounds=rounds, E=3.0, E_d=2.0, lr=0.01, adversarial=method == "fedal")
    run_rounds(federation, rounds)
    for n, logic in federation.clients.items():
        for name, value in naive[n].state_dict().items():
            torch.testing.assert_close(logic.learner.weights()[name], value, rtol=0, atol=1e-10)
        assert not torch.allclose(next(start[n].parameters()), next(naive[n].parameters()), atol=1e-3)


def test_fedmd_equals_autograd_of_its_loss() -> None:
    check_against_plain("fedmd", towards_the_others)


def test_local_training_equals_autograd_of_cross_entropy() -> None:
    check_against_plain("local", None)


def test_the_balanced_local_loss_is_cross_entropy_on_logits_plus_log_label_frequencies() -> None:
    federation = build_federation(
        "local", nets={"anna": mlp}, dtype=torch.float64, tau=2, local_loss="balanced", prior_smoothing=0.05
    )
    private = federation.clients["anna"].private
    model = copy.deepcopy(federation.clients["anna"].learner.module)
    counts = private.label_counts.double()
    counts += 0.05 * counts.sum()
    assert len(set(counts.tolist())) > 1
    steps = torch.optim.Adam(model.parameters(), lr=0.01)
    for i in range(2):
        x, y = private.batch(0, i)
        steps.zero_grad()
        F.cross_entropy(model(x) + (counts / counts.sum()).log(), y).backward()
        steps.step()
    run_rounds(federation, 1)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(federation.clients["anna"].learner.weights()[name], value, rtol=0, atol=1e-12)


# learners and terms


VERBS = ("logits", "learn", "forget", "frozen", "predict", "state_dict", "load_state_dict")


class Opaque:
    """Only the verbs of the protocol, without any access to parameters."""

    __slots__ = VERBS

    def __init__(self, learner: TorchLearner) -> None:
        for verb in VERBS:
            setattr(self, verb, self._sealed(getattr(learner, verb)))

    @staticmethod
    def _sealed(verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = verb(*arguments, **keywords)
            if callable(result):  # an anchor: it may only be called
                return Opaque._sealed(result)
            return result

        return call


@pytest.mark.parametrize("method", ["local", "fedmd", "fedmd-lf", "fedal"])
def test_a_method_uses_only_the_verbs_of_a_learner(method: str) -> None:
    assert differing_clients(trained(method), trained(method, wrap=Opaque)) == []
    assert not hasattr(Opaque(TorchLearner(mlp())), "module")


def test_a_weight_of_zero_drops_its_term_even_if_the_term_is_infinite() -> None:
    infinite = torch.full((2, 3), torch.inf)
    assert weighted(0.0, infinite) is None
    assert weighted(2.0, torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_dropped_adversary_may_have_any_value(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained("fedmd-lf", 1)
    module = importlib.import_module("fedal.methods.outputs.fedal")
    spoiled = trained_with_spoiled_guidance(module, monkeypatch, adversarial=0.0)
    assert differing_clients(expected, spoiled) == []
    with pytest.raises(
        NonFiniteError, match=r'"anna", round 0, exchange 1: the gradient of adversarial has non-finite'
    ):
        trained_with_spoiled_guidance(module, monkeypatch, adversarial=1.0)


def trained_with_spoiled_guidance(module: Any, monkeypatch: pytest.MonkeyPatch, adversarial: float) -> Federation:
    """FedAL with an infinite gradient injected after the wire."""
    federation = build_federation("fedal", adversarial=adversarial)
    honest = federation.wire.down

    def spoiled(client_id: str, message: Any) -> Any:
        received = honest(client_id, message)
        return module.Guidance(received.mean, torch.full_like(received.grad, torch.inf), received.count)

    monkeypatch.setattr(federation.wire, "down", spoiled)
    return run_rounds(federation, 1)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedmd", {"distillation": 0.0}),
        ("fedmd-lf", {"distillation": 0.0, "keep_global": 0.0}),
        ("fedal", {"distillation": 0.0, "adversarial": 0.0, "keep_global": 0.0}),
    ],
)
def test_a_transfer_without_any_term_takes_no_step(method: str, options: dict[str, float]) -> None:
    nets = {"anna": mlp, "ben": mlp}  # without BatchNorm, whose averages change with every pass
    federation = trained(method, nets=nets, **options)
    if method == "fedmd":
        assert differing_clients(federation, trained("local", nets=nets)) == []
    assert federation.wire.up_bytes.total() > 0


def test_a_non_finite_gradient_names_the_term_and_takes_no_step() -> None:
    logic = build_federation("local", nets={"anna": mlp}).clients["anna"]
    before = fingerprint(logic.learner.state_dict())
    x, y = logic.private.batch(0, 0)
    f = logic.learner.logits(x)
    with pytest.raises(NonFiniteError, match="the gradient of keep_local has non-finite values"):
        logic.step(cross_entropy=d_cross_entropy(f, y), keep_local=torch.full_like(f, torch.nan))
    big = torch.full_like(f, 3e38)
    with pytest.raises(NonFiniteError, match="the gradient of the sum of all terms has non-finite values"):
        logic.step(cross_entropy=big, keep_local=big)
    logic.learner.forget()
    assert fingerprint(logic.learner.state_dict()) == before


def test_a_client_that_uses_public_data_has_to_declare_it() -> None:
    logic = build_federation("local", nets={"anna": mlp}).clients["anna"]
    with pytest.raises(RuntimeError, match="uses public data without declaring"):
        next(logic.public_passes(0))


def test_each_stage_makes_at_most_one_copy_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = TorchLearner.frozen
    monkeypatch.setattr(TorchLearner, "frozen", lambda self, mode="train": made.append(mode) or original(self, mode))
    for method, options, expected in [
        ("fedmd", {"tau": 3}, 0),
        ("fedmd-lf", {"tau": 1}, 0),  # an anchor that would never be used is not created
        ("fedmd-lf", {"tau": 3}, 2),
        ("fedal", {"tau": 3, "keep_local": 0.0}, 1),
    ]:
        made.clear()
        federation = trained(method, 2, nets={"anna": mlp, "ben": mlp}, **options)
        assert len(made) == 2 * 2 * expected
        assert all(len(logic.learner._spares) <= 1 for logic in federation.clients.values())


def test_the_first_anchor_pass_of_a_stage_is_really_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = TorchFrozen.__call__
    monkeypatch.setattr(TorchFrozen, "__call__", lambda self, x: asked.append(1) or original(self, x))
    trained("fedmd-lf", 2, nets={"anna": mlp, "ben": mlp}, tau=3)
    assert len(asked) == 2 * 2 * 2 * (3 - 1)  # rounds x clients x stages x (tau - 1)


def test_a_users_method_can_use_the_same_building_blocks() -> None:
    assert {"local_training", "public_passes", "anchor", "step"} <= set(vars(ClientLogic))
