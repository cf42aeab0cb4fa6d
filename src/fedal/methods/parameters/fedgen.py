"""FedGen (Zhu et al., ICML 2021): a generator of features, trained at the server, teaches every client's last layer.

The generator learns through the last layers of all clients, each weighted by its share of a class. Clients get it with
the average, and train their last layers also on its features. From the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pydantic import Field

from fedal.generator import Generator, spread
from fedal.lazy import Tensor, torch
from fedal.learners.base import FeatureLearner, InputLearner
from fedal.losses import d_cross_entropy, d_kl
from fedal.messages import LabelCounts, ServerModule
from fedal.methods.client import ClientRound, ClientSetup
from fedal.methods.parameters.data_free import refuse_non_finite
from fedal.methods.parameters.fedavg import FedAvgOptions
from fedal.methods.parameters.groups import GroupClient, GroupServer
from fedal.methods.parameters.less_forgetting import averaging
from fedal.methods.parameters.rebuilt import RebuildingServer
from fedal.methods.server import Replies, ServerRound, ServerSetup, Uploads

AVAILABLE = "labels"  # the name under which the generator's message holds which labels any client has
DECAY, LEAST = 0.98, 1e-4  # of the weights alpha and beta, per round


class FedGenOptions(FedAvgOptions):
    generated_supervised: float = Field(10.0, ge=0, description="alpha: weight of the labels of generated features")
    generated_distillation: float = Field(10.0, ge=0, description="beta: weight of the outputs on generated features")
    generator_steps: int = Field(
        12, ge=1, description="steps of the generator in each round (authors: 50 for 20 local steps)"
    )
    generator_lr: float = Field(3e-4, gt=0, description="step size of the generator's Adam (weight decay 0.01)")
    generator_noise: int = Field(32, ge=1, description="numbers of noise that features are made from")
    generated: int = Field(32, ge=2, description="features that the generator makes at once")
    diversity: float = Field(1.0, ge=0, description="weight of the term that keeps generated features apart")

    def decayed(self, weight: float, t: int) -> float:
        return max(LEAST, weight * DECAY**t) if weight else 0.0

    def generator(self, width: int, n_classes: int, **more: object) -> Generator:
        return Generator(
            (width,), n_classes, noise=self.generator_noise, bounded=False, draws="uniform",
            lr=self.generator_lr, weight_decay=0.01, **more,  # type: ignore[arg-type]
        )  # fmt: skip


class FedGenServer(RebuildingServer, GroupServer):
    kept = ("generator",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        about = {"seed": setup.seed, "dtype": setup.dtype, "device": setup.device}
        self.generator = self.hp.generator(setup.feature_width, setup.n_classes, **about)

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        up = yield reply
        counts = yield self.average_of_each(clients, up)
        return self._taught(t, [n for n in clients if n in counts], up, counts)

    def _taught(self, t: int, present: Sequence[str], up: Uploads, counts: Uploads) -> Replies:
        """The generator, after its steps through the last layers as they were before the average."""
        hp, heads = self.hp, [self.rebuilt(n, up[n].values) for n in present]
        labels = torch.stack([counts[n].counts for n in present]).double() + 1  # no client has weight 0, as in the code
        omega, available = (labels / labels.sum(0)).to(self.dtype), labels.amax(0) > 1
        for i in range(hp.generator_steps):
            step = t * hp.generator_steps + i
            z, y = self.generator.noise(step, hp.generated), self.generator.labels(step, available, hp.generated)
            h = self.generator.make(z, y)
            d_h = hp.diversity * spread(z, h).gradient
            for head, share in zip(heads, omega, strict=True):
                f, back = head.through(h, at="features")
                d_h += back(share[y, None] * d_cross_entropy(f, y))
            self.generator.learn(d_h)
        refuse_non_finite(self.generator)
        return dict.fromkeys(present, ServerModule({**self.generator.weights(), AVAILABLE: available.to(self.dtype)}))


class FedGenClient(GroupClient):
    kept = ("generator", "_available", "_rounds")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        K, learner = self.private.n_classes, cast("FeatureLearner", self.learner)
        dtype = next(value.dtype for value in self.learner.weights().values() if value.is_floating_point())
        about = {"seed": setup.seed, "owner": setup.client_id, "dtype": dtype, "device": self.device}
        self.generator = self.hp.generator(learner.feature_width, K, **about)
        self._available = torch.zeros(K, dtype=dtype, device=self.device)  # which labels any client has
        self._rounds = 0  # in which the generator was received

    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        alpha, beta = (self.hp.decayed(w, t) for w in (self.hp.generated_supervised, self.hp.generated_distillation))
        for i, (x, y) in enumerate(self.private_batches(t, self.hp.local_stages)):
            f = self.learner.logits(x)
            terms = [{"cross_entropy": self.d_supervised(f, y)}]
            step = 2 * (t * self.hp.local_steps + i)
            if self._rounds and beta:
                terms[0]["distillation"] = beta * d_kl(self._answers(step, y), f)
            if self._rounds and alpha:
                terms.append({"generated": alpha * self._generated(step + 1, len(y))})
            self.step(*terms)
        yield from self.group_step()
        down = yield LabelCounts(self.private.label_counts.to(torch.int32))
        self._available, self._rounds = down.values[AVAILABLE], self._rounds + 1
        self.generator.load_weights({name: value for name, value in down.values.items() if name != AVAILABLE})

    def _answers(self, step: int, y: Tensor) -> Tensor:
        """The own last layer's logits on generated features of the labels y.  (B,) -> (B, K)"""
        h = self.generator.fixed(self.generator.noise(step, len(y)), y)
        return cast("InputLearner", self.learner).through(h, at="features")[0]

    def _generated(self, step: int, count: int) -> Tensor:
        """A pending pass of the last layer on features of any label, and the gradient of its cross-entropy."""
        y = self.generator.labels(step, self._available, count)
        h = self.generator.fixed(self.generator.noise(step, count), y)
        return d_cross_entropy(cast("FeatureLearner", self.learner).logits_of_features(h), y)


METHOD = averaging(
    "fedgen",
    "FedAvg, and a generator of features that teaches the clients' last layers",
    FedGenOptions,
    FedGenClient,
    "paper+code",
    server=FedGenServer,
    up=(LabelCounts,),
    down=(ServerModule,),
    needs=frozenset(  # the generator of the last round teaches
        {"features", "same-features", "input-gradients", "server-model", "every-client"}
    ),
)
