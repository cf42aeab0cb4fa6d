"""DFRD (Luo et al., NeurIPS 2023): as FedFTG, with an average of past generators that keeps old samples alive.

From the code of a later method by the same authors, which contains it. The part against forgetting is the replay: the
model also learns on samples of a generator whose weights are a moving average over the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from fedal.generator import quota, spread
from fedal.lazy import Tensor, torch
from fedal.losses import d_cross_entropy, kl
from fedal.messages import LabelCounts
from fedal.methods.parameters.data_free import CountingClient, DataFreeServer, GeneratorOptions, refuse_non_finite
from fedal.methods.parameters.less_forgetting import averaging
from fedal.methods.server import ServerSetup


class DFRDOptions(GeneratorOptions):
    model_steps: int = Field(2, ge=1, description="I_d: steps of the model in each turn")
    generator_steps: int = Field(2, ge=1, description="I_g: steps of the generator in each turn (authors: more)")
    generator_lr: float = Field(2e-4, gt=0, description="step size of the generator's Adam")
    temperature: float = Field(10.0, gt=0, description="temperature T of the KL divergences")
    transferability: float = Field(
        1.0, ge=0, description="beta_tran: weight of disagreement where the ensemble is right"
    )
    replay: float = Field(0.5, ge=0, description="alpha: weight of the samples of the moving average")
    memory: float = Field(0.5, ge=0, lt=1, description="lambda: share of the past in the moving average")


class DFRDServer(DataFreeServer):
    kept = ("generator", "past_generator")
    product = True  # h = z * Emb(y)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.past_generator = self.new_generator(setup)

    def distil(self, t: int, student: Any, teachers: Sequence[Any], shares: Tensor, counts: Tensor) -> None:
        hp, T = self.hp, self.hp.temperature
        y = quota(counts, hp.generated)
        tau = shares[:, y, None]  # (N, B, 1): the weight of each client for each sample
        for i in range(hp.server_iterations):
            first = (t * hp.server_iterations + i) * (hp.generator_steps + 2)  # draws of noise in each turn
            *drawn, z, z_past = (self.generator.noise(first + j, hp.generated) for j in range(hp.generator_steps + 2))
            for for_generator in drawn:
                self._improve(for_generator, y, tau, student, teachers)
            samples = [self.generator.fixed(z, y), self.past_generator.fixed(z_past, y)]
            ensembles = [sum(w * m.predict(x) for w, m in zip(tau, teachers, strict=True)) for x in samples]
            for _ in range(hp.model_steps):
                f = [student.logits(x) for x in (samples if hp.replay and t else samples[:1])]
                weights = (1.0, hp.replay)[: len(f)]
                student.learn(*(w * kl(q, s, T).gradient for w, q, s in zip(weights, ensembles, f, strict=False)))
        self._remember()

    def _improve(self, z: Tensor, y: Tensor, tau: Tensor, student: Any, teachers: Sequence[Any]) -> None:
        """One step of the generator on L_fid + beta_tran L_tran + beta_div L_div."""
        hp, T = self.hp, self.hp.temperature
        x = self.generator.make(z, y)
        passes = [teacher.through(x) for teacher in teachers]
        q = (tau * torch.stack([f for f, _ in passes])).sum(0)
        s = student.predict(x)
        useful = ((q.argmax(-1) == y) & (s.argmax(-1) != y))[:, None]  # epsilon
        d_q = d_cross_entropy(q, y) - hp.transferability * useful * kl(s, q, T).gradient
        d_x = hp.diversity * spread(self.generator.mixed(z, y), x, order=2).gradient
        self.generator.learn(d_x + sum(back(share * d_q) for share, (_, back) in zip(tau, passes, strict=True)))

    def _remember(self) -> None:
        """The moving average of the generators' weights, after each round."""
        now, past = self.generator.weights(), self.past_generator.weights()
        share = self.hp.memory
        mixed = {k: share * past[k] + (1 - share) * v if v.is_floating_point() else v for k, v in now.items()}
        self.past_generator.load_weights(mixed)
        refuse_non_finite(self.past_generator)


METHOD = averaging(
    "dfrd",
    "FedAvg, fine-tuned at the server on generated samples, with replay of past generators",
    DFRDOptions,
    CountingClient,
    "code",
    server=DFRDServer,
    up=(LabelCounts,),
    down=(LabelCounts,),
    needs=frozenset({"server-model"}),
)
