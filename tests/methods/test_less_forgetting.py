"""The less-forgetting methods that share weights, against autograd of their losses and in the limits they must have."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal import methods
from fedal.methods.parameters.fedrad import relations
from fedal.methods.parameters.fedssd import credibility
from splits import CLASSES, build_of_table_models, differing_clients, run_rounds, state_of
from weight_sharing import (
    CLIENTS,
    LR,
    ROUNDS,
    TAU,
    LocalLoss,
    Step,
    average,
    ce,
    divergence,
    equal,
    federation_of,
    plain,
)

# the terms R, written without any code of fedal


def without_label(z: Tensor, y: Tensor) -> Tensor:
    others = [[k for k in range(CLASSES) if k != int(label)] for label in y]
    return z.gather(1, torch.tensor(others))


def lsd(step: Step) -> Tensor:
    return ce(step) + 0.7 * divergence(step.known, step.z, 2.0)


def ntd(step: Step) -> Tensor:
    return ce(step) + 0.7 * divergence(without_label(step.known, step.y), without_label(step.z, step.y), 2.0)


def kim(step: Step) -> Tensor:
    absent = [k for k in range(CLASSES) if k not in CLIENTS[step.n]]
    target = torch.sigmoid(2.0 * step.known[:, absent])
    return ce(step) + 0.7 * F.binary_cross_entropy_with_logits(step.z[:, absent], target)


def rad(step: Step) -> Tensor:
    u, v, T = step.z, step.known, 2.0
    p = torch.softmax(v, -1)
    e = -(p * p.log()).sum(-1) / math.log(CLASSES)
    q = torch.softmax(v / T, -1)
    single = T**2 * (q * (q.log() - torch.log_softmax(u / T, -1))).sum(-1)
    return ce(step) + 0.7 * (((1 - e) * single).mean() + e.mean() * (distances(v, u) + 2 * angles(v, u)))


def distances(v: Tensor, u: Tensor) -> Tensor:
    n, total = len(u), 0.0
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    mean_u, mean_v = (torch.stack([(z[i] - z[j]).norm() for i, j in pairs]).mean() for z in (u, v))
    for i, j in pairs:
        total = total + F.huber_loss((u[i] - u[j]).norm() / mean_u, (v[i] - v[j]).norm() / mean_v)
    return total / n**2


def angles(v: Tensor, u: Tensor) -> Tensor:
    def cosine(z: Tensor, i: int, j: int, k: int) -> Tensor:
        return F.cosine_similarity(z[i] - z[j], z[i] - z[k], dim=0)

    n = len(u)
    triples = [(i, j, k) for i in range(n) for j in range(n) for k in range(n) if j != i != k]
    u_angles, v_angles = (torch.stack([cosine(z, *triple) for triple in triples]) for z in (u, v))
    return F.huber_loss(u_angles, v_angles, reduction="sum") / n**3


def ssd(step: Step) -> Tensor:
    confusion = torch.zeros(CLASSES, CLASSES)
    for logic in step.federation.clients.values():
        for i in range(TAU):
            x, y = logic.private.batch(step.t, i)
            for label, guess in zip(y, step.past(x).argmax(-1), strict=True):
                confusion[label, guess] += 1
    A = confusion / confusion.sum(1, keepdim=True)
    c = [A[k, k] * (1 - max(A[j, k] for j in range(CLASSES) if j != k)) for k in range(CLASSES)]
    s = 1 - (1 - torch.softmax(step.known, -1)[torch.arange(len(step.y)), step.y]).sqrt()
    M = 0.8 * torch.relu(torch.stack(c)[None].double() * s[:, None] - 0.1)
    return ce(step) + 0.7 * (M * (step.known - step.z)).square().sum(1).mean()


def br(step: Step) -> Tensor:
    frozen = copy.deepcopy(step.past).requires_grad_(False)
    hybrid = frozen.head(step.model.body(step.x))  # the gradient flows through the frozen layer
    apart = (torch.softmax(hybrid, -1) * (hybrid.log_softmax(-1) - step.z.log_softmax(-1))).sum(-1).mean()
    return ce(step) + 0.7 * (0.5 * F.cross_entropy(hybrid, step.y) + 2.0 * apart)


REFERENCES: dict[str, tuple[LocalLoss, dict[str, Any]]] = {
    "fedlsd": (lsd, {"keep_local": 0.7, "temperature": 2.0}),
    "fedntd": (ntd, {"keep_local": 0.7, "temperature": 2.0}),
    "kim-2024": (kim, {"keep_local": 0.7, "sharpening": 2.0}),
    "fedrad": (rad, {"keep_local": 0.7, "temperature": 2.0, "entropy_of": "teacher"}),
    "fedssd": (ssd, {"keep_local": 0.7, "largest": 0.8}),
    "fedbr": (br, {"keep_local": 0.7, "hybrid_supervised": 0.5, "hybrid_distillation": 2.0}),
}


@pytest.mark.parametrize("method", list(REFERENCES))
def test_rounds_equal_autograd_of_the_loss(method: str) -> None:
    loss, options = REFERENCES[method]
    federation = federation_of(method, **options)
    expected = plain(federation, loss)
    without = plain(federation, ce)
    run_rounds(federation, ROUNDS)
    equal(federation, expected)
    with pytest.raises(AssertionError):  # the term matters
        equal(federation, without)


def test_fedgkd_distils_the_mean_of_the_last_global_models() -> None:
    federation = federation_of("fedgkd", keep_local=0.7, temperature=2.0, buffer=2)
    seen: list[nn.Module] = []

    def loss(step: Step) -> Tensor:
        if step.t == 0:
            return ce(step)
        teacher = copy.deepcopy(step.past)
        states = [model.state_dict() for model in seen[-2:]]
        teacher.load_state_dict({name: sum(s[name] for s in states) / len(states) for name in states[0]})
        return ce(step) + 0.7 * divergence(teacher(step.x).detach(), step.z, 2.0)

    def remember(t: int, models: dict[str, nn.Module], past: nn.Module) -> None:
        together = {n: copy.deepcopy(model) for n, model in models.items()}
        average(together, dict.fromkeys(together, 1))
        seen.append(together["client-00"])

    expected = plain(federation, loss, remember)
    equal(run_rounds(federation, ROUNDS), expected)


def test_fedcurv_penalises_by_the_fisher_information_of_the_others() -> None:
    federation = federation_of("fedcurv", keep_local=0.3, fisher_samples=10)
    known: dict[str, tuple[list[Tensor], list[Tensor]]] = {}

    def loss(step: Step) -> Tensor:
        others = [known[m] for m in known if m != step.n]
        theta = list(step.model.parameters())
        penalty = sum(
            (u * (p - anchor).square()).sum()
            for fisher, anchors in others
            for u, anchor, p in zip(fisher, anchors, theta, strict=True)
        )
        return ce(step) + 0.3 * penalty

    def remember(t: int, models: dict[str, nn.Module], past: nn.Module) -> None:
        for n, model in models.items():
            batches = [federation.clients[n].private.batch(t, i) for i in range(TAU)]
            x, y = (torch.cat(parts)[:10] for parts in zip(*batches, strict=True))
            each = [
                torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
                for i in range(10)
            ]
            fisher = [torch.stack([g.square() for g in parts]).mean(0) for parts in zip(*each, strict=True)]
            known[n] = fisher, [p.detach().clone() for p in model.parameters()]

    expected = plain(federation, loss, remember)
    equal(run_rounds(federation, ROUNDS), expected)


def test_pfedsd_distils_the_previous_personal_model() -> None:
    federation = federation_of("pfedsd", keep_local=0.7, temperature=2.0)
    models = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
    first = models["client-00"].state_dict()
    for t in range(ROUNDS):
        personal = {n: copy.deepcopy(model) for n, model in models.items()}
        average(models, {"client-00": 1, "client-01": 1 if t else 0})
        assert t or all(torch.equal(models["client-01"].state_dict()[name], value) for name, value in first.items())
        for n, model in models.items():
            adam = torch.optim.Adam(model.parameters(), lr=LR)
            for i in range(TAU):
                x, y = federation.clients[n].private.batch(t, i)
                adam.zero_grad()
                loss = F.cross_entropy(model(x), y)
                if t:
                    loss = loss + 0.7 * divergence(personal[n](x).detach(), model(x), 2.0)
                loss.backward()
                adam.step()
    equal(run_rounds(federation, ROUNDS), models)
    a, b = (federation.clients[n].learner.weights() for n in CLIENTS)
    assert not torch.equal(a["head.bias"], b["head.bias"]), "the personal models are evaluated"


def test_fedreg_projects_every_step() -> None:
    options = {"mixture": 0.4, "perturbation": 0.2, "perturbation_steps": 3}
    federation = federation_of("fedreg", **options)
    models = {n: copy.deepcopy(federation.clients["client-00"].learner.module) for n in CLIENTS}
    for t in range(ROUNDS):
        old = copy.deepcopy(models["client-00"])
        for n, model in models.items():
            adam = torch.optim.Adam(model.parameters(), lr=LR)
            for i in range(TAU):
                fedreg_step(model, old, adam, *federation.clients[n].private.batch(t, i))
        average(models, dict.fromkeys(models, 1))
    equal(run_rounds(federation, ROUNDS), models)


def fedreg_step(model: nn.Module, old: nn.Module, adam: torch.optim.Adam, x: Tensor, y: Tensor) -> None:
    start = [p.detach().clone() for p in old.parameters()]

    def gradient_at(share: float, x: Tensor, target: Tensor) -> list[Tensor]:
        there = copy.deepcopy(model)
        for p, s in zip(there.parameters(), start, strict=True):
            p.data = share * p.data + (1 - share) * s
        return list(torch.autograd.grad(F.cross_entropy(there(x), target), list(there.parameters())))

    def ascended(step: float) -> Tensor:
        moved = x.clone()
        for _ in range(3):
            moved = moved.clone().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(old(moved), y), moved)
            moved = (moved.detach() + step * slope.sign()).clamp(x.min(), x.max())
        return moved

    for p, g in zip(model.parameters(), gradient_at(0.4, x, y), strict=True):
        p.grad = g
    adam.step()
    x_s, x_p = ascended(0.2), ascended(0.002)
    g2, g3 = gradient_at(0.5, x_s, torch.softmax(old(x_s), -1).detach()), gradient_at(0.5, x_p, y)
    moved = torch.cat([(p.data - s).flatten() for p, s in zip(model.parameters(), start, strict=True)])
    flat2, flat3 = (torch.cat([g.flatten() for g in gs]) for gs in (g2, g3))
    w2 = max(0.0, float(moved @ flat2 / (flat2 @ flat2)))
    w3 = max(0.0, float((moved - w2 * flat2) @ flat3 / (flat3 @ flat3)))
    for p, a, b in zip(model.parameters(), g2, g3, strict=True):
        p.data = p.data - w2 * a - w3 * b


def test_flashback_weights_its_teachers_by_the_labels_they_have_seen() -> None:
    federation = federation_of("flashback", recall=0.4, server_steps=2, temperature=2.0)
    counts = {n: logic.private.label_counts.double() for n, logic in federation.clients.items()}
    seen, previous = torch.zeros(CLASSES, dtype=torch.float64), None
    models = {n: copy.deepcopy(federation.clients["client-00"].learner.module) for n in CLIENTS}

    def weighted(a: Tensor, teacher: Tensor, student: Tensor) -> Tensor:
        p, q = torch.softmax(teacher / 2, -1), torch.softmax(student / 2, -1)
        return 4 * (a * p * (p / q).log()).sum(-1).mean()

    for t in range(ROUNDS):
        past = copy.deepcopy(models["client-00"])
        for n, model in models.items():
            alpha = seen / (seen + counts[n]).clamp(min=1e-9)
            adam = torch.optim.Adam(model.parameters(), lr=LR)
            for i in range(TAU):
                x, y = federation.clients[n].private.batch(t, i)
                f = model(x)
                own = ((1 - alpha)[y] * F.cross_entropy(f, y, reduction="none")).mean()
                adam.zero_grad()
                (own + weighted(alpha, past(x).detach(), f)).backward()
                adam.step()
        teachers = [(copy.deepcopy(models[n]), counts[n]) for n in models]
        teachers += [(previous, seen)] if previous is not None else []
        total = sum(labels for _, labels in teachers)
        average(models, {n: len(federation.clients[n].private) for n in models})
        student = models["client-00"]
        adam = torch.optim.Adam(student.parameters(), lr=LR)
        for i in range(2):
            x = federation.server.public.batch_at(t * 2 + i)
            adam.zero_grad()
            sum(weighted(labels / total, m(x).detach(), student(x)) for m, labels in teachers).backward()
            adam.step()
        models["client-01"].load_state_dict(student.state_dict())
        previous = copy.deepcopy(student)
        seen = sum(min(1.0, (t + 1) * 0.4) * counts[n] for n in counts)
    equal(run_rounds(federation, ROUNDS), models)
    torch.testing.assert_close(federation.server._seen, sum(counts.values()))  # three times 0.4 is capped at 1


# limits


LOSS_TERMS = ("fedlsd", "fedntd", "kim-2024", "fedrad", "fedssd", "fedbr", "fedgkd", "fedcurv")
WITHOUT_THE_TERM: dict[str, dict[str, Any]] = {
    **{name: {"keep_local": 0.0} for name in LOSS_TERMS},
    "flashback": {"keep_local": 0.0, "server_steps": 0},
    "fedreg": {"keep_local": 0.0, "mixture": 1.0},
}


@pytest.mark.parametrize("method", list(WITHOUT_THE_TERM))
def test_without_its_term_a_method_is_fedavg_bit_for_bit(method: str) -> None:
    options = {"tau": 2, "weighting": "samples"}
    expected = run_rounds(build_of_table_models("fedavg", "cnn-small-bn", options=options), 2)
    bare = run_rounds(build_of_table_models(method, "cnn-small-bn", options=options | WITHOUT_THE_TERM[method]), 2)
    assert differing_clients(expected, bare) == []
    if method != "kim-2024":  # every client has every class here, so nothing is absent
        whole = run_rounds(build_of_table_models(method, "cnn-small-bn", options=options), 2)
        assert differing_clients(expected, whole) == list(expected.clients)


def test_kim_2024_is_fedavg_if_every_client_has_every_class() -> None:
    options = {"tau": 2, "weighting": "samples"}
    federations = [run_rounds(build_of_table_models(method, options=options), 2) for method in ("fedavg", "kim-2024")]
    assert differing_clients(*federations) == []


def test_pfedsd_without_its_term_is_fedavg_before_the_last_average() -> None:
    personal = run_rounds(build_of_table_models("pfedsd", options={"tau": 2, "keep_local": 0.0}), 3)
    averaged = build_of_table_models("fedavg", options={"tau": 2, "weighting": "uniform"})
    sent: list[Any] = []
    averaged.watch.exchanged = sent.append
    run_rounds(averaged, 3)
    for n, logic in personal.clients.items():
        assert all(torch.equal(value, sent[-1][n].values[name]) for name, value in logic.learner.weights().items())


def test_fedgkd_with_one_model_is_fedlsd_after_the_first_round() -> None:
    options = {"tau": 3, "keep_local": 0.7, "weighting": "samples"}
    gkd = run_rounds(build_of_table_models("fedgkd", options={**options, "buffer": 1}), 1)
    lsd = build_of_table_models("fedlsd", options=options)
    lsd.load_state_dict(state_of(gkd))
    assert differing_clients(run_rounds(gkd, range(1, 3)), run_rounds(lsd, range(1, 3))) == []


def test_fedntd_refuses_two_classes() -> None:
    method = methods.get("fedntd")
    assert "always 0" in str(method.refuse(method.options(), 2)) and method.refuse(method.options(), 3) is None


def test_the_credibility_of_a_class_falls_with_misses_and_with_false_alarms() -> None:
    assert credibility(torch.tensor([[8.0, 2.0], [0.0, 4.0]])).tolist() == pytest.approx([0.8, 0.8])
    assert credibility(torch.zeros(2, 2)).tolist() == [0.0, 0.0]


def test_relations_do_not_depend_on_scale_and_shift() -> None:
    z = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert float(relations(z, 3 * z + 1, 2.0)) == pytest.approx(0, abs=1e-12)
    assert float(relations(z, z.flip(0), 2.0)) > 1e-3
