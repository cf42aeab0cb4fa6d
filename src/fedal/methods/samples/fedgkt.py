"""FedGKT (He, Annavaram, Avestimehr, NeurIPS 2020), for reference: it sends features AND labels of private samples.

A head at the server learns on the features of all clients' private samples; clients learn from its logits on their own.
From the authors' code (FedML). Differences: the server's logits are stored by sample, not by position (their loader
shuffles, so from the second round on their targets belong to other samples); each exchange covers one private batch,
not the whole dataset; the head is a small perceptron on the feature vector; the client's own model is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.learners.base import FeatureLearner
from fedal.losses import d_cross_entropy, d_kl
from fedal.messages import PrivateAnswers, PrivateSamples
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup, weighted
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup


class FedGKTOptions(MethodOptions):
    temperature: float = Field(3.0, gt=0, description="temperature T of both KL divergences, which have a factor T^2")
    distillation: float = Field(1.0, ge=0, description="weight alpha of the KL divergence from the head, at the client")
    server_distillation: float = Field(
        1.0, ge=0, description="weight of the KL divergence from the client, at the head"
    )
    server_supervised: float = Field(1.0, ge=0, description="weight alpha of the cross-entropy on labels, at the head")
    server_steps: int = Field(5, ge=1, description="steps of the head on each client's batch (authors: 1 to 20)")


class FedGKTServer(ServerLogic):
    kept = ("_head",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        assert setup.make_learner is not None
        # Not `self.learner`: it takes features, so it cannot be evaluated on test inputs.
        self._head = setup.make_learner("mlp-small", (setup.feature_width,))

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present = [n for n in clients if n in up]
            for _step in range(self.hp.server_steps):
                for n in present:
                    self._learn_from(up[n])
            reply = {n: PrivateAnswers(self._head.predict(up[n].features)) for n in present}
        return reply

    def _learn_from(self, batch: PrivateSamples) -> None:
        """One step on L_s = T^2 KL(client || head) + alpha CE."""
        T = self.hp.temperature
        z = self._head.logits(batch.features)
        self._head.learn(
            self.hp.server_distillation * T**2 * d_kl(batch.values, z, T)
            + self.hp.server_supervised * d_cross_entropy(z, batch.labels.long())
        )


class FedGKTClient(ClientLogic):
    learner: FeatureLearner
    kept = ("_answers", "_answered")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        # The head's last logits on each private sample; double, so that no run loses precision by storing them.
        shape = len(self.private), self.private.n_classes
        self._answers = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._answered = self._answers.new_zeros(len(self.private), dtype=torch.bool)

    def round(self, t: int) -> ClientRound:
        for i, (x, y) in enumerate(self.private_batches(t)):  # L_c = CE + alpha T^2 KL(head || client)
            f = self.learner.logits(x)
            pull = weighted(
                self.hp.distillation * self.hp.temperature**2, self._d_distillation(self.private.ids(t, i), f)
            )
            self.step(cross_entropy=self.d_supervised(f, y), distillation=pull)
        for i in range(self.hp.tau):
            x, y = self.private.batch(t, i)
            f, features = self.learner.logits_and_features(x, "eval")
            self.learner.forget()  # nothing is learned from this pass
            down = yield PrivateSamples(features, f, y.int())
            own = self.private.ids(t, i)
            self._answers[own] = down.values.double()
            self._answered[own] = True

    def _d_distillation(self, own: Tensor, f: Tensor) -> Tensor:
        """Gradient of KL(head || client) w.r.t. f; zero for samples new to the head.  (B,), (B, K) -> (B, K)"""
        gradient = d_kl(self._answers[own].to(f.dtype), f, self.hp.temperature)
        return gradient * self._answered[own].unsqueeze(-1)


METHOD = Method(
    name="fedgkt",
    summary="a head at the server learns on all clients' private features and labels, and teaches on them",
    options=FedGKTOptions,
    client=FedGKTClient,
    server=FedGKTServer,
    up=(PrivateSamples,),
    down=(PrivateAnswers,),
    needs=frozenset({"features", "same-features", "server-model", "fixed-samples"}),
    faithfulness="code",
)
