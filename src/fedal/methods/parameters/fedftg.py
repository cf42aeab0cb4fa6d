"""FedFTG (Zhang et al., CVPR 2022): the server fine-tunes the average on hard samples that a generator makes.

The generator looks for samples on which the average differs from the clients' models, of a class that these models
recognise, and different from each other. From the paper; the authors' code differs, see docs/methods/fedftg.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from fedal.generator import quota, spread
from fedal.lazy import Tensor, torch
from fedal.losses import d_cross_entropy, kl_both, kl_to_probs
from fedal.messages import LabelCounts
from fedal.methods.parameters.data_free import CountingClient, DataFreeServer, GeneratorOptions
from fedal.methods.parameters.less_forgetting import averaging


class FedFTGOptions(GeneratorOptions):
    fidelity: float = Field(1.0, ge=0, description="lambda_cls: weight of the clients' cross-entropy on the label")


class FedFTGServer(DataFreeServer):
    def distil(self, t: int, student: Any, teachers: Sequence[Any], shares: Tensor, counts: Tensor) -> None:
        hp = self.hp
        y = quota(counts, hp.generated)  # p(c) is proportional to the samples of class c
        omega = shares[:, y, None]  # (N, B, 1)
        for i in range(hp.server_iterations):
            z = self.generator.noise(t * hp.server_iterations + i, hp.generated)
            x = self.generator.make(z, y)
            s, back_to_x = student.through(x)
            d_s, d_x = torch.zeros_like(s), hp.diversity * spread(z, x).gradient
            for teacher, share in zip(teachers, omega, strict=True):
                f, back = teacher.through(x)
                apart, of_teacher = kl_both(f, s)  # the generator raises it, the student lowers it
                d_s -= share * apart.gradient
                d_x += back(share * (hp.fidelity * d_cross_entropy(f, y) - of_teacher))
            self.generator.learn(d_x + back_to_x(d_s))
            x = self.generator.fixed(z, y)
            answers = torch.stack([torch.softmax(teacher.predict(x), -1) for teacher in teachers])
            for _ in range(hp.model_steps):
                student.learn(kl_to_probs((omega * answers).sum(0), student.logits(x)).gradient)


METHOD = averaging(
    "fedftg",
    "FedAvg, fine-tuned at the server on generated hard samples",
    FedFTGOptions,
    CountingClient,
    "paper+code",
    server=FedFTGServer,
    up=(LabelCounts,),
    down=(LabelCounts,),
    needs=frozenset({"server-model"}),
)
