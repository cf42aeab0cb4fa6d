"""FedDistill+, FedGen, FedFTG, DFRD, FedZKT and FedCVAE against autograd of their losses, and in their limits."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal.engine.loop import Federation
from fedal.generator import Generator, quota, spread, truncated
from splits import CLASSES, SHAPE, build_of_table_models, differing_clients, run_rounds
from weight_sharing import CLIENTS, LR, ROUNDS, TAU, Step, ce, divergence, equal, federation_of, plain

SMALL = {"generated": 8, "generator_noise": 5}


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, CLASSES).double()


def counts_of(federation: Federation) -> Tensor:
    return torch.stack([logic.private.label_counts for logic in federation.clients.values()]).double()


def kl_rows(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)


def spread_by_hand(z: Tensor, x: Tensor) -> Tensor:
    n, total = len(z), 0.0
    for i in range(n):
        for j in range(n):
            total = total + ((z[i] - z[j]) ** 2).mean() * (x[i] - x[j]).abs().mean()
    return torch.exp(-total / n**2)


class Game:
    """The generator of a federation's server, copied, with its optimizer."""

    def __init__(self, generator: Generator, lr: float, weight_decay: float = 0.0) -> None:
        self.net = copy.deepcopy(generator._learner.module)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=lr, weight_decay=weight_decay)

    def make(self, z: Tensor, labels: Tensor) -> Tensor:
        return self.net(torch.cat([z, labels], -1))  # type: ignore[no-any-return]

    def fixed(self, z: Tensor, labels: Tensor) -> Tensor:
        return copy.deepcopy(self.net)(torch.cat([z, labels], -1)).detach()  # type: ignore[no-any-return]

    def step(self, loss: Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()


def test_feddistill_plus_teaches_the_mean_logits_of_each_class() -> None:
    federation = federation_of("feddistill+", distillation=0.7)
    tables: dict[str, Tensor] = {}
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {n: [] for n in CLIENTS}

    def loss(step: Step) -> Tensor:
        z = step.z
        seen[step.n].append((z.detach(), step.y))
        taught = [
            kl_rows(torch.softmax(tables[int(k)], -1), torch.softmax(z[i], -1)) if int(k) in tables else 0 * z.sum()
            for i, k in enumerate(step.y)
        ]
        return ce(step) + 0.7 * torch.stack(taught).mean()

    def remember(t: int, models: Mapping[str, nn.Module], past: nn.Module) -> None:
        tables.clear()
        for k in range(CLASSES):
            means = []
            for n in CLIENTS:
                z, y = (torch.cat(parts) for parts in zip(*seen[n][-TAU:], strict=True))
                means += [z[y == k].mean(0)] if (y == k).any() else []
            if means:
                tables[k] = torch.stack(means).mean(0)  # type: ignore[index]

    expected = plain(federation, loss, remember)
    equal(run_rounds(federation, ROUNDS), expected)


def test_fedftg_plays_its_game_at_the_server() -> None:
    options = {**SMALL, "server_iterations": 2, "model_steps": 2, "fidelity": 0.7, "diversity": 0.5}
    federation = federation_of("fedftg", generator_lr=0.05, **options)
    draws, game, counts = federation.server.generator, Game(federation.server.generator, 0.05), counts_of(federation)

    def tune(t: int, student: nn.Module, teachers: dict[str, nn.Module]) -> None:
        adam = torch.optim.Adam(student.parameters(), lr=LR)
        y = quota(counts.sum(0), 8)
        omega = (counts / counts.sum(0))[:, y]
        for i in range(2):
            z = draws.noise(2 * t + i, 8)
            x = game.make(z, one_hot(y))
            loss = 0.5 * spread_by_hand(z, x)
            for w, teacher in zip(omega, teachers.values(), strict=True):
                f, s = teacher(x), student(x)
                hard = kl_rows(torch.softmax(f, -1), torch.softmax(s, -1))
                loss = loss + (w * (0.7 * F.cross_entropy(f, y, reduction="none") - hard)).mean()
            game.step(loss)
            x = game.fixed(z, one_hot(y))
            q = sum(w[:, None] * torch.softmax(m(x), -1) for w, m in zip(omega, teachers.values(), strict=True))
            for _ in range(2):
                adam.zero_grad()
                kl_rows(q.detach(), torch.softmax(student(x), -1)).mean().backward()
                adam.step()

    expected = plain(federation, ce, tune=tune)
    equal(run_rounds(federation, ROUNDS), expected)


def test_dfrd_replays_a_moving_average_of_its_generators() -> None:
    options = {**SMALL, "server_iterations": 2, "generator_steps": 2, "model_steps": 1, "temperature": 2.0}
    more = {"replay": 0.7, "memory": 0.4, "transferability": 0.6, "diversity": 0.5, "generator_lr": 0.05}
    federation = federation_of("dfrd", **options, **more)
    draws, game, counts = federation.server.generator, Game(federation.server.generator, 0.05), counts_of(federation)
    past = copy.deepcopy(game.net)
    y = quota(counts.sum(0), 8)
    tau = (counts / counts.sum(0))[:, y, None]

    def ensemble(teachers: dict[str, nn.Module], x: Tensor) -> Tensor:
        return sum(w * teacher(x) for w, teacher in zip(tau, teachers.values(), strict=True))

    def tune(t: int, student: nn.Module, teachers: dict[str, nn.Module]) -> None:
        adam = torch.optim.Adam(student.parameters(), lr=LR)
        for i in range(2):
            z = [draws.noise((2 * t + i) * 4 + j, 8) for j in range(4)]
            for j in range(2):
                x = game.make(z[j], one_hot(y))
                q, s = ensemble(teachers, x), student(x).detach()
                useful = (q.argmax(-1) == y) & (s.argmax(-1) != y)
                transfer = useful * kl_rows(torch.softmax(s / 2, -1), torch.softmax(q / 2, -1))
                h = (z[j] * game.net.embedding(one_hot(y))).detach()
                apart = [(x[a] - x[b]).square().mean().clamp(min=1e-12).sqrt() for a in range(8) for b in range(8)]
                wide = [(h[a] - h[b]).square().mean().clamp(min=1e-12).sqrt() for a in range(8) for b in range(8)]
                div = torch.exp(-(torch.stack(apart) * torch.stack(wide)).mean())
                game.step(F.cross_entropy(q, y) - 0.6 * transfer.mean() + 0.5 * div)
            x, x_past = game.fixed(z[2], one_hot(y)), copy.deepcopy(past)(torch.cat([z[3], one_hot(y)], -1)).detach()
            loss = divergence(ensemble(teachers, x).detach(), student(x), 2.0) / 4
            if t:
                loss = loss + 0.7 * divergence(ensemble(teachers, x_past).detach(), student(x_past), 2.0) / 4
            adam.zero_grad()
            loss.backward()
            adam.step()
        now = game.net.state_dict()
        mean = {k: 0.4 * v + 0.6 * now[k] if v.is_floating_point() else now[k] for k, v in past.state_dict().items()}
        past.load_state_dict(mean)

    expected = plain(federation, ce, tune=tune)
    equal(run_rounds(federation, ROUNDS), expected)


def test_fedgen_trains_its_generator_through_all_heads_and_the_heads_on_it() -> None:
    weights = {"generated_supervised": 0.7, "generated_distillation": 0.4, "diversity": 0.5}
    federation = federation_of("fedgen", **SMALL, generator_steps=3, generator_lr=0.05, **weights)
    draws, game = federation.server.generator, Game(federation.server.generator, 0.05, 0.01)
    counts = counts_of(federation) + 1
    taken: dict[str, int] = dict.fromkeys(CLIENTS, 0)

    def loss(step: Step) -> Tensor:
        i = taken[step.n]
        taken[step.n] += 1
        if step.t == 0:
            return ce(step)
        own, decay = federation.clients[step.n].generator, 0.98**step.t
        head, B = step.model.head, len(step.y)
        answers = head(game.fixed(own.noise(2 * i, B), one_hot(step.y))).detach()
        labels = own.labels(2 * i + 1, torch.ones(CLASSES), B)
        generated = head(game.fixed(own.noise(2 * i + 1, B), one_hot(labels)))
        taught = divergence(answers, step.z, 1.0)
        return ce(step) + 0.4 * decay * taught + 0.7 * decay * F.cross_entropy(generated, labels)

    def tune(t: int, student: nn.Module, teachers: dict[str, nn.Module]) -> None:
        omega = counts / counts.sum(0)
        for i in range(3):
            z, y = draws.noise(3 * t + i, 8), draws.labels(3 * t + i, torch.ones(CLASSES), 8)
            h = game.make(z, one_hot(y))
            total = 0.5 * spread_by_hand(z, h)
            for w, teacher in zip(omega, teachers.values(), strict=True):
                total = total + (w[y] * F.cross_entropy(teacher.head(h), y, reduction="none")).mean()
            game.step(total)

    expected = plain(federation, loss, tune=tune)
    equal(run_rounds(federation, ROUNDS), expected)


def test_fedzkt_plays_its_game_and_teaches_every_copy() -> None:
    options = {**SMALL, "proximity": 0.3, "server_iterations": 2, "transfer": 2, "server_model": "mlp-small"}
    federation = federation_of("fedzkt", generator_lr=0.05, **options)
    draws, game = federation.server.generator, Game(federation.server.generator, 0.05)
    models = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
    big = copy.deepcopy(federation.server.learner.module)
    big_adam, none = torch.optim.Adam(big.parameters(), lr=LR), torch.ones(8, 1).double()
    for t in range(ROUNDS):
        for n, model in models.items():
            received, adam = copy.deepcopy(model), torch.optim.Adam(model.parameters(), lr=LR)
            for i in range(TAU):
                x, y = federation.clients[n].private.batch(t, i)
                pairs = zip(model.parameters(), received.parameters(), strict=True)
                near = sum((a - b.detach()).square().sum() for a, b in pairs)
                adam.zero_grad()
                (F.cross_entropy(model(x), y) + 0.15 * near).backward()
                adam.step()

        def apart(x: Tensor) -> Tensor:
            q = torch.stack([torch.softmax(model(x), -1) for model in models.values()]).mean(0)
            return (torch.softmax(big(x), -1) - q).abs().sum(-1).mean()

        for i in range(2):
            z = draws.noise(4 * t + i, 8)
            game.step(-apart(game.make(z, none)))
            big_adam.zero_grad()
            apart(game.fixed(z, none)).backward()
            big_adam.step()
        adams = {n: torch.optim.Adam(model.parameters(), lr=LR) for n, model in models.items()}
        for i in range(2):
            x = game.fixed(draws.noise(4 * t + 2 + i, 8), none)
            for n, model in models.items():
                adams[n].zero_grad()
                divergence(big(x).detach(), model(x), 1.0).backward()
                adams[n].step()
    equal(run_rounds(federation, ROUNDS), models)


def test_fedcvae_trains_decoders_then_one_decoder_then_a_classifier() -> None:
    options: dict[str, Any] = {"latent": 4, "hidden": 6, "autoencoder_lr": 0.02, "divergence": 0.5, "truncation": 2.0}
    federation = federation_of("fedcvae", autoencoder_steps=2 * TAU, decoder_steps=4, classifier_steps=3, **options)
    server, width, decoders = federation.server, math.prod(SHAPE), {}
    for n, logic in federation.clients.items():
        net = copy.deepcopy(logic.autoencoder.learner.module)
        adam = torch.optim.Adam(net.parameters(), lr=0.02)
        draws = Generator((1,), 1, noise=4, owner=n, dtype=torch.float64)
        for step in range(2 * TAU):
            x, y = logic.private.batch(*divmod(step, TAU))
            mean, log_variance = net.encoder(torch.cat([x.flatten(1), one_hot(y)], -1)).chunk(2, -1)
            z = mean + torch.exp(log_variance / 2) * draws.noise(step, len(y))
            made = net.decoder(torch.cat([z, one_hot(y)], -1))
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
            adam.zero_grad()
            ((made - x.flatten(1)).square().sum(-1) + 0.5 * kl).mean().backward()
            adam.step()
        decoders[n] = net.decoder
    student = copy.deepcopy(server.new_decoder()._learner.module)
    draws, counts = server.new_decoder(), counts_of(federation)
    adam, taught = torch.optim.Adam(student.parameters(), lr=0.02), []
    owners = quota(counts.sum(1), 4).tolist()
    for step, i in enumerate(sorted(range(4), key=lambda k: k * (math.sqrt(5) - 1) / 2 % 1)):
        z = truncated(draws.noise(step, 32), 2.0)
        inputs = torch.cat([z, one_hot(quota(counts[owners[i]], 32))], -1)
        adam.zero_grad()
        (student(inputs) - [*decoders.values()][owners[i]](inputs).detach()).square().sum(-1).mean().backward()
        adam.step()
        taught.append(owners[i])
    assert set(taught) == {0, 1}
    classifier = copy.deepcopy(server.new_learner("client-00").module)
    adam = torch.optim.Adam(classifier.parameters(), lr=LR)
    for step in range(4, 7):
        y = draws.labels(step, torch.ones(CLASSES), 32)
        x = student(torch.cat([truncated(draws.noise(step, 32), 2.0), one_hot(y)], -1)).detach()
        adam.zero_grad()
        F.cross_entropy(classifier(x.view(-1, *SHAPE)), y).backward()
        adam.step()
    run_rounds(federation, ROUNDS)  # the exchange is in the second round; the third changes nothing
    equal(federation, dict.fromkeys(CLIENTS, classifier))
    assert width == 16


# limits


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("feddistill+", {"distillation": 0.0}),
        ("fedgen", {"generated_supervised": 0.0, "generated_distillation": 0.0, "generator_steps": 1}),
        ("fedftg", {"server_iterations": 0}),
        ("dfrd", {"server_iterations": 0}),
    ],
)
def test_without_its_term_a_method_is_fedavg_bit_for_bit(method: str, options: dict[str, Any]) -> None:
    expected = run_rounds(build_of_table_models("fedavg", "cnn-small-bn", options={"tau": 2}), 2)
    bare = run_rounds(build_of_table_models(method, "cnn-small-bn", options={"tau": 2, **options}), 2)
    assert differing_clients(expected, bare) == []
    whole = run_rounds(build_of_table_models(method, "cnn-small-bn", options={"tau": 2}), 2)
    assert differing_clients(expected, whole) == list(expected.clients)


def test_fedzkt_without_server_and_proximity_is_local_training_bit_for_bit() -> None:
    off = {"server_iterations": 0, "transfer": 0, "proximity": 0.0}
    alone, bare = (
        run_rounds(build_of_table_models(name, "cnn-small-bn,mlp-small", options={"tau": 2, **options}), 2)
        for name, options in (("local", {}), ("fedzkt", off))
    )
    assert differing_clients(alone, bare) == []


def test_fedcvae_before_its_exchange_is_local_training_before_its_first_step_bit_for_bit() -> None:
    late = build_of_table_models("fedcvae", options={"tau": 2, "autoencoder_steps": 5})
    untrained = build_of_table_models("local", options={"tau": 2})
    assert differing_clients(run_rounds(late, 2), untrained) == []
    run_rounds(late, range(2, 3))  # with the exchange
    assert differing_clients(late, untrained) == list(late.clients)
    first, *others = [logic.learner.weights() for logic in late.clients.values()]
    assert all(torch.equal(value, other[name]) for other in others for name, value in first.items())


def test_the_copies_of_absent_clients_stay_in_the_ensemble() -> None:
    federation = build_of_table_models("fedzkt", options={"tau": 1, "server_iterations": 1, "transfer": 1})
    federation.run_round(0)
    federation.run_round(1, lambda client, exchange: client == "client-02")
    kept = federation.server._copies
    assert list(kept) == list(federation.roster)
    mine = federation.clients["client-02"].learner.weights()
    assert all(torch.equal(value, mine[name]) for name, value in kept["client-02"].items())


# the generator


def test_a_quota_has_each_class_by_its_share() -> None:
    assert quota(torch.tensor([1, 0, 3]), 8).tolist() == [0, 0, 2, 2, 2, 2, 2, 2]
    assert sorted(set(quota(torch.tensor([0, 0, 0]), 9).tolist())) == [0, 1, 2], "uniform if nobody has anything"
    assert quota(torch.tensor([2**31 - 1, 2**31 - 1]), 4).tolist() == [0, 0, 1, 1]


def test_noise_and_labels_are_functions_of_the_step() -> None:
    one, other = (Generator((2,), 3, noise=4, seed=1) for _ in range(2))
    assert torch.equal(one.noise(7, 5), other.noise(7, 5)) and not torch.equal(one.noise(7, 5), one.noise(8, 5))
    assert abs(float(one.noise(0, 5000).std()) - 1) < 0.03
    drawn = one.labels(3, torch.tensor([1.0, 0.0, 1.0]), 1000)
    assert set(drawn.tolist()) == {0, 2} and abs(int((drawn == 0).sum()) - 500) < 60


def test_truncated_noise_stays_inside_and_keeps_its_law() -> None:
    z = truncated(Generator((2,), 3, noise=4, dtype=torch.float64).noise(0, 5000), 1.0)
    assert float(z.abs().max()) <= 1 and abs(float(z.std()) - 0.5396) < 0.01  # of a normal law cut at one deviation


def test_spread_is_one_for_equal_samples_and_its_gradient_drives_them_apart() -> None:
    z = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert float(spread(z, torch.zeros(2, 3, dtype=torch.float64)).value) == 1.0
    apart = spread(z, torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    assert float(apart.value) == pytest.approx(math.exp(-0.5))
    assert apart.gradient.flatten().tolist() == pytest.approx([0.5 * math.exp(-0.5), -0.5 * math.exp(-0.5)])
