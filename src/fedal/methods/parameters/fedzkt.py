"""FedZKT (Zhang et al., ICDCS 2022, arXiv 2109.03775): zero-shot transfer between models of different architectures.

A reconstruction from the paper's text. The server has copies of all models, a large model F and a generator. Generator
and F have a game: the distance between F and the ensemble; then F teaches every copy, and the copies go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field

from fedal.generator import Generator
from fedal.lazy import Tensor, torch
from fedal.learners.base import GradientLearner, Learner
from fedal.losses import d_kl
from fedal.messages import Weights
from fedal.methods.client import ClientRound
from fedal.methods.method import Method
from fedal.methods.options import SERVER_MODEL, LocalStagesOptions
from fedal.methods.parameters.data_free import refuse_non_finite
from fedal.methods.parameters.groups import GroupClient
from fedal.methods.parameters.rebuilt import RebuildingServer
from fedal.methods.server import ServerRound, ServerSetup


class FedZKTOptions(LocalStagesOptions):
    proximity: float = Field(0.01, ge=0, description="mu: weight of |theta - theta received|^2 / 2 in local training")
    server_model: str = SERVER_MODEL
    server_iterations: int = Field(10, ge=0, description="n_D: turns of generator and F per round (paper: 200 to 500)")
    transfer: int = Field(5, ge=0, description="steps in which F teaches each copy, per round")
    generator_lr: float = Field(1e-3, gt=0, description="step size of the generator's Adam")
    generator_noise: int = Field(100, ge=1, description="numbers of noise that a sample is made from")
    generated: int = Field(32, ge=2, description="samples that the generator makes at once (paper: 256)")


class FedZKTServer(RebuildingServer):
    learner: Learner
    kept = ("learner", "generator", "_copies")

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        assert setup.make_learner is not None
        self._roster = setup.roster
        self.learner = setup.make_learner(self.hp.server_model, None)  # F
        self.generator = Generator(
            setup.input_shape, 1, noise=self.hp.generator_noise, lr=self.hp.generator_lr,
            seed=setup.seed, dtype=setup.dtype, device=setup.device,
        )  # fmt: skip
        self._copies: dict[str, dict[str, Tensor]] = {}  # the newest weights of every client, also of absent ones

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        up = yield None
        copies = {**self._copies, **{n: up[n].values for n in clients if n in up}}
        models = {n: self.rebuilt(n, copies[n]) for n in self._roster if n in copies}
        draws = t * (self.hp.server_iterations + self.hp.transfer)
        for i in range(self.hp.server_iterations):
            self._game(draws + i, [*models.values()])
        for i in range(self.hp.transfer):
            x = self._samples(draws + self.hp.server_iterations + i)  # fresh ones; the generator is fixed
            taught = self.learner.predict(x)
            for n in up:
                models[n].learn(d_kl(taught, models[n].logits(x)))
        refuse_non_finite(self.generator)
        sent = {n: Weights(models[n].weights(), up[n].samples, 2 if self.hp.transfer else 1) for n in up}
        self._copies = {**copies, **{n: message.values for n, message in sent.items()}}
        return dict(sent)

    def _game(self, step: int, models: Sequence[Any]) -> None:
        """One step of the generator up, and one of F down, on L = |softmax(F(x)) - mean_n softmax(f_n(x))|_1."""
        z, y = self._noise(step)
        x = self.generator.make(z, y)
        f, back = cast("Any", self.learner).through(x)
        passes = [model.through(x) for model in models]
        p, each = torch.softmax(f, -1), [torch.softmax(g, -1) for g, _ in passes]
        d_p = (p - torch.stack(each).mean(0)).sign() / len(x)  # dL/dp; that w.r.t. the ensemble is the opposite
        d_x = -back(_through_softmax(p, d_p))
        for p_n, (_, back_n) in zip(each, passes, strict=True):
            d_x = d_x + back_n(_through_softmax(p_n, d_p)) / len(models)
        self.generator.learn(d_x)
        x = self.generator.fixed(z, y)
        q = torch.stack([torch.softmax(model.predict(x), -1) for model in models]).mean(0)
        p = torch.softmax(self.learner.logits(x), -1)
        self.learner.learn(_through_softmax(p, (p - q).sign() / len(x)))

    def _noise(self, step: int) -> tuple[Tensor, Tensor]:
        z = self.generator.noise(step, self.hp.generated)
        return z, torch.zeros(len(z), dtype=torch.int64, device=z.device)  # the generator has no labels: one class

    def _samples(self, step: int) -> Tensor:
        return self.generator.fixed(*self._noise(step))


def _through_softmax(p: Tensor, d_p: Tensor) -> Tensor:
    """The gradient w.r.t. logits of a loss with gradient d_p w.r.t. their softmax p.  (B, K), (B, K) -> (B, K)"""
    return p * (d_p - (p * d_p).sum(-1, keepdim=True))


class FedZKTClient(GroupClient):
    def round(self, t: int) -> ClientRound:
        learner = cast("GradientLearner", self.learner)
        received = learner.trainable()
        for x, y in self.private_batches(t, self.hp.local_stages):
            f = self.learner.logits(x)
            self.step(cross_entropy=self.d_supervised(f, y), weights=self._pull(learner, received))
        yield from self.group_step()

    def _pull(self, learner: GradientLearner, received: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The gradient of mu / 2 * |theta - theta received|^2."""
        if not self.hp.proximity:
            return None
        return {name: self.hp.proximity * (theta - received[name]) for name, theta in learner.trainable().items()}


METHOD = Method(
    name="fedzkt",
    summary="zero-shot transfer between architectures: a generator, a large model and copies of all models",
    options=FedZKTOptions,
    client=FedZKTClient,
    server=FedZKTServer,
    up=(Weights,),
    down=(Weights,),
    needs=frozenset({"weights", "weight-gradients", "server-model"}),
    faithfulness="reconstruction",
    per={Weights: "round"},
    local_steps=lambda options: int(options.local_steps),
)
