"""FedCVAE-KD (Heinbaugh et al., ICLR 2023): one exchange, of decoders that make samples like the clients' own.

Clients train a conditional variational autoencoder and no classifier. After `autoencoder_steps` they upload the decoder
once; the server distils all decoders into one, trains a classifier on what it makes, and sends that classifier. From
the authors' code, with networks of one hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import Field

from fedal.autoencoder import Autoencoder
from fedal.errors import NonFiniteError
from fedal.finite import is_finite
from fedal.generator import Generator, quota, truncated
from fedal.lazy import Tensor, torch
from fedal.learners.base import WeightLearner
from fedal.losses import d_cross_entropy, l2
from fedal.messages import DecoderWeights, LabelCounts, ServerModule
from fedal.methods.client import ClientRound, ClientSetup
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions
from fedal.methods.parameters.groups import GroupClient
from fedal.methods.parameters.rebuilt import RebuildingServer
from fedal.methods.server import Replies, ServerRound, ServerSetup, Uploads

BATCH = 32  # of the server's steps


class FedCVAEOptions(MethodOptions):
    autoencoder_steps: int = Field(100, ge=1, description="steps of each client's autoencoder before the one exchange")
    latent: int = Field(10, ge=1, description="width of z")
    hidden: int = Field(256, ge=1, description="width of the hidden layers of encoder and decoder")
    autoencoder_lr: float = Field(1e-3, gt=0, description="step size of the clients' Adam and of the server's decoder")
    divergence: float = Field(1.0, ge=0, description="beta: weight of KL(N(mu, sigma^2) || N(0, I))")
    truncation: float = Field(1.0, gt=0, description="z is drawn from a normal law, truncated at this many deviations")
    decoder_steps: int = Field(300, ge=1, description="steps of the server's decoder, taught by the clients' decoders")
    classifier_steps: int = Field(300, ge=1, description="steps of the server's classifier")

    def exchanges_in(self, t: int) -> bool:
        """Whether round t is the one with the exchange: the round in which `autoencoder_steps` are complete."""
        return t + 1 == -(-self.autoencoder_steps // self.tau)


class FedCVAEServer(RebuildingServer):
    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._setup = setup
        self._shape, self._n_classes = setup.input_shape, setup.n_classes

    def new_decoder(self) -> Generator:
        about = self._setup
        return Generator(
            (math.prod(about.input_shape),), about.n_classes, noise=self.hp.latent, hidden=self.hp.hidden,
            bounded=False, norm=False, lr=self.hp.autoencoder_lr, seed=about.seed, dtype=about.dtype,
            device=about.device,
        )  # fmt: skip

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        if not self.hp.exchanges_in(t):
            return None
        counts = yield None
        up = yield dict(counts)  # every client gets its own counts back: nothing else has to be told
        return self._classifier([n for n in clients if n in up], counts, up)

    def _classifier(self, present: Sequence[str], counts: Mapping[str, LabelCounts], up: Uploads) -> Replies:
        decoder = self._distilled([up[n] for n in present], torch.stack([counts[n].counts for n in present]).double())
        classifier = cast("WeightLearner", self.new_learner(present[0]))
        uniform = torch.ones(self._n_classes, device=self.device)
        for i in range(self.hp.classifier_steps):
            step = self.hp.decoder_steps + i
            y = decoder.labels(step, uniform, BATCH)
            x = decoder.fixed(truncated(decoder.noise(step, BATCH), self.hp.truncation), y).view(-1, *self._shape)
            classifier.learn(d_cross_entropy(classifier.logits(x), y))
        weights = classifier.weights()
        if not all(is_finite(value) for value in weights.values() if value.is_floating_point()):
            raise NonFiniteError("the classifier has non-finite values. A smaller lr usually helps.")
        return dict.fromkeys(present, ServerModule(weights))

    def _distilled(self, decoders: Sequence[DecoderWeights], counts: Tensor) -> Generator:
        """The server's decoder: it learns what each client's decoder makes of the same z and y, by their samples."""
        student, teacher = self.new_decoder(), self.new_decoder()
        owners = quota(counts.sum(1), self.hp.decoder_steps).tolist()  # a step for each, in proportion
        for step, owner in enumerate(owners[i] for i in _mixed_up(len(owners))):
            teacher.load_weights(decoders[owner].values)
            z = truncated(student.noise(step, BATCH), self.hp.truncation)
            y = quota(counts[owner], BATCH)  # by the client's label frequencies
            student.learn(l2(teacher.fixed(z, y), student.make(z, y)).gradient)
        return student


def _mixed_up(count: int) -> list[int]:
    """Every index once, spread evenly: neighbours come far apart (the golden section)."""
    return sorted(range(count), key=lambda index: (index * 0.6180339887498949) % 1)


class FedCVAEClient(GroupClient):
    kept = ("autoencoder",)

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        hp, (x, _) = self.hp, self.private.batch(0, 0)
        self.autoencoder = Autoencoder(
            tuple(x.shape[1:]), self.private.n_classes, latent=hp.latent, hidden=hp.hidden, lr=hp.autoencoder_lr,
            divergence=hp.divergence, seed=setup.seed, owner=setup.client_id, dtype=x.dtype, device=self.device,
        )  # fmt: skip

    def round(self, t: int) -> ClientRound:
        if (t * self.hp.tau) < self.hp.autoencoder_steps:
            for i, (x, y) in enumerate(self.private_batches(t)):
                self.autoencoder.learn(x, y, t * self.hp.tau + i)
        if self.hp.exchanges_in(t):
            yield LabelCounts(self.private.label_counts.to(torch.int32))
            down = yield DecoderWeights(self.autoencoder.decoder())
            self.learner.load_weights(down.values)


METHOD = Method(
    name="fedcvae",
    summary="one exchange of decoders; the server trains a classifier on what they make",
    options=FedCVAEOptions,
    client=FedCVAEClient,
    server=FedCVAEServer,
    up=(LabelCounts, DecoderWeights),
    down=(LabelCounts, ServerModule),
    needs=frozenset({"weights", "same-architecture", "server-model", "every-client"}),  # one exchange
    evaluates="server",
    faithfulness="paper+code",
    per={LabelCounts: "run", DecoderWeights: "run", ServerModule: "run"},
    local_steps=lambda options: 0,
    transfer_steps=lambda options, t: options.tau if t * options.tau < options.autoencoder_steps else 0,
)
