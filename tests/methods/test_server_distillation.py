"""CFD and MHAT: one algorithm, with and without a codec between the clients and the server's model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedal
from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.engine.threads import thread_workers
from fedal.errors import ConfigError, NotApplicableError
from fedal.learners.torch_learner import TorchLearner
from fedal.messages import Codes, Leak, Outputs
from fedal.methods.outputs import cfd, mhat
from fedal.models import build
from fedal.quantise import dequantise, quantise
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import prepare_split
from splits import BATCH, CLASSES, NETS, build_federation, differing_clients, fingerprint, mlp, run_rounds

UNCOMPRESSED = dict(cfd.METHOD.paper_options) | {"tau": 2}
Absent = Callable[[str, int], bool]


def trained(method: str, rounds: int = 3, **options: Any) -> Federation:
    return run_rounds(build_federation(method, **options), rounds)


def same_everywhere(a: Federation, b: Federation) -> bool:
    """Whether the weights of all clients and of the server are equal."""
    servers = [fingerprint(each.server.learner.state_dict()) for each in (a, b)]
    return differing_clients(a, b) == [] and servers[0] == servers[1]


# against the papers


def naive_round(federation: Federation, models: dict[str, Any], steps: Any, t: int, tau: int, average: str) -> None:
    """The papers' algorithms with autograd, on the same batches; 'server' is one of the models."""
    names = [n for n in models if n != "server"]
    for n in names:
        for i in range(tau):
            x, y = federation.clients[n].private.batch(t, i)
            steps(n, F.cross_entropy(models[n](x), y))
    for i in range(tau):
        x = federation.clients[names[0]].public.batch(t, i)
        f = {n: models[n](x) for n in names}
        if average == "logits":
            target = torch.softmax(sum(f.values()) / len(f), -1).detach()
        else:
            target = (sum(torch.softmax(values, -1) for values in f.values()) / len(f)).detach()
        steps("server", F.kl_div(torch.log_softmax(models["server"](x), -1), target, reduction="batchmean"))
        taught = torch.softmax(models["server"](x), -1).detach()
        for n in names:
            steps(n, F.kl_div(torch.log_softmax(f[n], -1), taught, reduction="batchmean"))


@pytest.mark.parametrize(("method", "average"), [("mhat", "logits"), ("cfd", "probs")])
def test_the_algorithm_written_with_autograd_gives_the_same_weights(method: str, average: str) -> None:
    nets = {"anna": mlp, "bob": mlp, "cleo": mlp}
    options = UNCOMPRESSED if method == "cfd" else {"tau": 2}
    federation = build_federation(method, nets=nets, dtype=torch.float64, **options)
    assert isinstance(federation.server.learner, TorchLearner)
    learners = {n: federation.clients[n].learner for n in nets} | {"server": federation.server.learner}
    models = {n: copy.deepcopy(learner.module) for n, learner in learners.items()}
    lr = {n: learner.settings.lr for n, learner in learners.items()}
    optimizers = {n: torch.optim.Adam(model.parameters(), lr=lr[n]) for n, model in models.items()}

    def step(name: str, loss: Tensor) -> None:
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()

    for t in range(3):
        federation.run_round(t)
        naive_round(federation, models, step, t, tau=2, average=average)
    for n, learner in learners.items():
        for found, expected in zip(learner.module.parameters(), models[n].parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"server_steps": 3}, {"public_mode": "frozen"}])
def test_mhat_is_cfd_at_32_bits_with_logit_averaging(options: dict[str, Any]) -> None:
    plain = trained("mhat", tau=2, **options)
    coded = trained("cfd", space="logits", **(UNCOMPRESSED | options))
    assert same_everywhere(plain, coded)
    assert plain.wire.state_dict() == coded.wire.state_dict()


def test_averaging_probabilities_gives_different_weights() -> None:
    logits, probs = trained("mhat", tau=2), trained("mhat", tau=2, space="probabilities")
    assert differing_clients(logits, probs) == list(NETS)
    assert same_everywhere(probs, trained("cfd", **UNCOMPRESSED))


def test_one_bit_up_makes_the_target_a_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Tensor] = []
    read: list[Tensor] = []
    write_as_ever, read_as_ever = cfd.CFDClient.write, cfd.CFDServer.read

    def write(self: Any, f: Tensor, ids: Any) -> Codes:
        sent.append(f)
        return write_as_ever(self, f, ids)

    def reads(self: Any, *arguments: Any) -> Tensor:
        read.append(read_as_ever(self, *arguments))
        return read[-1]

    monkeypatch.setattr(cfd.CFDClient, "write", write)
    monkeypatch.setattr(cfd.CFDServer, "read", reads)
    trained("cfd", rounds=6, tau=1)
    assert len(sent) == len(read) == 6 * len(NETS)
    for f, labels in zip(sent, read, strict=True):
        assert torch.equal(labels, F.one_hot(f.argmax(-1), CLASSES).float())


def test_the_server_teaches_its_outputs_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[Tensor] = []
    read_as_ever = cfd.CFDClient.read

    def reads(self: Any, *arguments: Any) -> Tensor:
        taught.append(read_as_ever(self, *arguments))
        return taught[-1]

    monkeypatch.setattr(cfd.CFDClient, "read", reads)
    federation = trained("cfd", rounds=1, tau=1, b_down=3)
    x = federation.server.public.batch(0, 0)
    f = federation.server.learner.logits(x, "frozen")
    expected = dequantise(quantise(torch.softmax(f, -1), 3), 3, f.dtype)
    assert all(torch.equal(labels, expected) for labels in taught)


@pytest.mark.parametrize("method", ["mhat", "cfd"])
@pytest.mark.parametrize("options", [{"warmup": 6}, {"distillation": 0.0}])
def test_during_warm_up_clients_train_alone_while_the_server_learns(method: str, options: dict[str, Any]) -> None:
    """`frozen`: passes on public data leave no trace in BatchNorm."""
    untaught = trained(method, tau=2, public_mode="frozen", **options)
    assert differing_clients(untaught, trained("local", tau=2)) == []
    start = build_federation(method, tau=2).server.learner.state_dict()
    assert fingerprint(untaught.server.learner.state_dict()) != fingerprint(start)
    assert differing_clients(run_rounds(untaught, range(3, 4)), trained("local", rounds=4, tau=2)) == (
        list(NETS) if "warmup" in options else []
    )


# the codec in the federation


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_delta_coding_changes_the_traffic_but_no_bit_of_a_model(bits: int) -> None:
    options = {"tau": 2, "b_up": bits, "b_down": bits, "warmup": 0}
    delta, plain = trained("cfd", 10, delta=True, **options), trained("cfd", 10, delta=False, **options)
    assert same_everywhere(delta, plain)
    assert plain.wire.up_bytes == plain.wire.down_bytes
    for meter in (delta.wire.up_bytes, delta.wire.down_bytes):
        assert all(meter[n] < plain.wire.up_bytes[n] + 20 * -(-BATCH // 8) for n in NETS)
    if bits == 1:
        assert delta.wire.up_bytes.total() < 0.9 * plain.wire.up_bytes.total()


ABSENCES: dict[str, Absent] = {
    "misses the first exchange": lambda n, exchange: n == "ben" and exchange == 0,
    "is disconnected after an upload": lambda n, exchange: n == "ben" and exchange == 1,
    "misses the last reply": lambda n, exchange: n == "ben" and exchange == 2,
    "two are disconnected at different times": lambda n, exchange: {"ben": 1, "dora": 2}.get(n) == exchange,
}


@pytest.mark.parametrize("absent", ABSENCES.values(), ids=ABSENCES)
def test_a_client_that_missed_messages_is_decoded_correctly_when_it_returns(absent: Absent) -> None:
    """The two ends would diverge if one kept codes that the other never received."""

    def with_absences(delta: bool) -> Federation:
        federation = build_federation("cfd", tau=2, delta=delta, warmup=0)
        for t in range(9):
            federation.run_round(t, absent if t % 3 == 1 else lambda n, exchange: False)
        return federation

    delta = with_absences(True)
    assert same_everywhere(delta, with_absences(False))
    for n, client in delta.clients.items():
        memories = delta.server.state_dict()["codecs"][n]
        assert fingerprint(memories) == fingerprint({key: client.state_dict()[key] for key in ("up", "down")})


@pytest.mark.parametrize("method", ["mhat", "cfd"])
def test_the_order_in_which_uploads_arrive_changes_no_bit(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(method, warmup=0)
    server = {"mhat": mhat, "cfd": cfd}[method].METHOD.server
    original = server.round

    def receives_in_reverse(self: Any, t: int, clients: Any) -> Any:
        inner = original(self, t, clients)
        reply = next(inner)
        while True:
            uploads = yield reply
            try:
                reply = inner.send(dict(reversed(uploads.items())))
            except StopIteration as stop:
                return stop.value

    monkeypatch.setattr(server, "round", receives_in_reverse)
    assert same_everywhere(expected, trained(method, warmup=0))


# what is declared


def test_declarations() -> None:
    assert mhat.METHOD.up == mhat.METHOD.down == (Outputs,)
    assert cfd.METHOD.up == cfd.METHOD.down == (Codes,)
    for method in (mhat.METHOD, cfd.METHOD):
        assert method.black_box
        assert method.reveals == Leak.PUBLIC_OUTPUTS
        assert "server-model" in method.needs


def test_the_presets_are_those_of_the_authors_and_of_the_fedal_paper() -> None:
    original = fedal.Config(method="cfd").options
    assert (original.b_up, original.b_down, original.delta, original.space) == (1, 1, True, "probabilities")
    paper = fedal.Config(method="cfd", preset="paper").options
    assert (paper.b_up, paper.b_down, paper.delta, paper.space) == (32, 32, False, "probabilities")
    assert (paper.server_steps, paper.warmup) == (1, 0), "only the average differs from MHAT"


@pytest.mark.parametrize(
    ("method", "options", "up", "down"),
    [
        ("mhat", {}, 1280, 1280),
        ("cfd", {"delta": False}, 16, 16),
        ("cfd", {"delta": False, "b_down": 32}, 16, 1280),
        ("cfd", UNCOMPRESSED, 1280, 1280),
        ("cfd", {"delta": False, "b_up": 8, "b_down": 4}, 216, 84),
    ],
)
def test_bytes_per_iteration(method: str, options: dict[str, Any], up: int, down: int, tmp_path: Path) -> None:
    config = fedal.Config(method=method, dataset="digits", clients=2, iterations=4, **({"tau": 2} | options))
    final = fedal.run(config, tmp_path / "run").final
    assert (final["up_bytes"], final["down_bytes"]) == (2 * 4 * up, 2 * 4 * down)
    assert 0 <= final["server_test_accuracy"] <= 1


def test_averaging_logits_that_are_not_sent_is_refused_before_training(tmp_path: Path) -> None:
    config = fedal.Config(method="cfd", dataset="digits", clients=2, iterations=5, space="logits")
    with pytest.raises(NotApplicableError, match=r"b_up = 1 sends quantised probabilities\. Set b_up = 32"):
        fedal.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# they learn


@pytest.fixture(scope="module")
def finals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    folder = tmp_path_factory.mktemp("learns")
    settings = dict(dataset="digits", clients=4, iterations=60, eval_every=60, eval_after_local=False, lr=0.003)
    options: dict[str, dict[str, Any]] = {"local": {}, "mhat": {}, "cfd": {"warmup": 30}}
    return {
        method: fedal.run(fedal.Config(method=method, **settings, **given), folder / method).final
        for method, given in options.items()
    }


@pytest.mark.parametrize("method", ["mhat", "cfd"])
def test_clients_and_server_beat_local_only_training(method: str, finals: dict[str, dict[str, float]]) -> None:
    alone = finals["local"]["test_accuracy"]
    assert finals[method]["test_accuracy"] > alone + 0.03
    assert finals[method]["server_test_accuracy"] > alone + 0.03


def test_compressed_labels_cost_a_hundredth(finals: dict[str, dict[str, float]]) -> None:
    for direction in ("up_bytes", "down_bytes"):
        assert finals["cfd"][direction] < finals["mhat"][direction] / 100


@pytest.mark.parametrize(("named", "built"), [("auto", "cnn-small-bn"), ("mlp-small", "mlp-small")])
def test_the_servers_model_is_the_largest_candidate_or_the_one_that_is_named(named: str, built: str) -> None:
    config = Config(method="mhat", clients=3, server_model=named)
    with thread_workers(1) as workers:
        server: Any = assemble(config, prepare_split(config), workers).federation.server
    expected = {name: tuple(tensor.shape) for name, tensor in build(built, (1, 8, 8), 10).state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in server.learner.state_dict()["model"].items()}
    assert found == expected


def test_a_config_cannot_name_code_as_the_servers_model() -> None:
    with pytest.raises(ConfigError, match=r"server_model = .*expected auto or a name of `fedal models`"):
        Config(method="cfd", server_model="somebody.elses:model")
