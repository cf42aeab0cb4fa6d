"""Hybrid federated distillation, HFD (Ahn, Simeone, Kang 2019, arXiv 1907.02745): FD on mean inputs.

The clients exchange the mean input of each class once. These K blurred samples then serve all clients as labelled
public data for exchanging outputs. A reconstruction from the papers' abstracts (docs/methods/hfd.md): there is no
public code, and the details were not available. `joint` adds the term to the local steps instead of extra steps.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal

from pydantic import Field

from fedal.aggregate import class_means_of_others
from fedal.lazy import Tensor, torch
from fedal.learners.base import State
from fedal.losses import soft_cross_entropy
from fedal.messages import ClassInputs, MeanInputOutputs, Message
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, Uploads
from fedal.methods.statistics.mean_inputs import mean_inputs_of_others, of_others_and_all, own_mean_inputs

MIN_BATCH = 8  # samples; fewer make poor batch statistics


class HFDOptions(MethodOptions):
    distillation: float = Field(
        0.5, ge=0, le=1, description="share beta of the others' outputs in the target; the rest is the label"
    )
    distillation_steps: int | None = Field(None, ge=1, description="steps h on the mean inputs per round; default: tau")
    joint: bool = Field(False, description="add the term to every local step instead (then h is unused)")
    mean_input_mode: Literal["train", "eval", "frozen"] = Field(
        "frozen", description="what BatchNorm does on mean inputs; frozen keeps them out of the running averages"
    )


class HFDServer(ServerLogic):
    kept = ("_inputs",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._roster = setup.roster
        self._inputs: dict[str, State] = {}  # client -> its mean inputs and label counts

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(2 if t == 0 else 1):
            up = yield reply
            reply = {**self._inputs_of_others(up), **_outputs_of_others(clients, up)}
        return reply

    def _inputs_of_others(self, up: Uploads) -> Replies:
        """Replies to clients that sent mean inputs: all of them in the first round, later those that missed it."""
        new = {n: message for n, message in up.items() if isinstance(message, ClassInputs)}
        if not new:
            return {}
        self._inputs = {**self._inputs, **{n: {"values": m.values, "counts": m.counts} for n, m in new.items()}}
        tables = mean_inputs_of_others({n: self._inputs[n] for n in self._roster if n in self._inputs})
        return {n: tables[n] for n in new}


def _outputs_of_others(clients: Sequence[str], up: Uploads) -> Replies:
    present = [n for n in clients if isinstance(up.get(n), MeanInputOutputs)]
    if not present:
        return {}
    outputs = torch.stack([up[n].values for n in present])
    answered = (outputs.sum(-1) > 0).double()  # a client that joined early may lack some classes
    return dict(zip(present, map(MeanInputOutputs, class_means_of_others(outputs, answered)), strict=True))


class HFDClient(ClientLogic):
    kept = ("_inputs", "_teacher")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._inputs: State = {}  # the mean inputs over the others and over all, each with its number of clients
        self._teacher: Tensor | None = None  # for `joint`: the others' outputs on mean inputs

    def round(self, t: int) -> ClientRound:
        if t == 0:
            yield from self._exchange_inputs()
        self._train(t)
        if not self._inputs:  # absent in the first round: distils from the next one on
            yield from self._exchange_inputs()
            return
        down = yield MeanInputOutputs(self._answers(t))
        if self.hp.joint:
            self._teacher = down.values
            return
        for _ in range(self.hp.distillation_steps or self.hp.tau):
            self.step(mean_inputs=self._d_mean_inputs(t, down.values))

    def _exchange_inputs(self) -> Generator[Message, Any, None]:
        mine = own_mean_inputs(self.private)
        down = yield mine
        self._inputs = of_others_and_all(mine, down, tuple(self.private.batch(0, 0)[0].shape[1:]))

    def _train(self, t: int) -> None:
        if self._teacher is None:
            self.local_training(t)
            return
        for x, y in self.private_batches(t):
            own = {"cross_entropy": self.d_supervised(self.learner.logits(x), y)}
            shared = self._d_mean_inputs(t, self._teacher)
            self.step(own, *([] if shared is None else [{"mean_inputs": shared}]))

    def _answers(self, t: int) -> Tensor:
        """s_n: probabilities on each class's mean input over all clients; zeros for a class without one.  -> (K, K)"""
        classes = self._inputs["all"].nonzero().flatten()
        f = self._logits(self._inputs["of_all"][classes], t)[: len(classes)]
        self.learner.forget()
        return f.new_zeros(self.private.n_classes, f.shape[1]).index_copy(0, classes, torch.softmax(f, -1))

    def _d_mean_inputs(self, t: int, teacher: Tensor) -> Tensor | None:
        """Gradient of (1 - beta) CE(l, f) + beta CE(teacher_l, f) for a new pass on the others' mean inputs."""
        classes = self._inputs["others"].nonzero().flatten()
        if not len(classes):
            return None
        f = self._logits(self._inputs["of_others"][classes], t)
        labels = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)
        target = torch.lerp(labels, teacher, self.hp.distillation)[classes]
        gradient = torch.zeros_like(f)
        gradient[: len(classes)] = soft_cross_entropy(target, f[: len(classes)]).gradient
        return gradient

    def _logits(self, x: Tensor, t: int) -> Tensor:
        """Logits of a pending pass on mean inputs, joined by a private batch if there are fewer than `MIN_BATCH`."""
        if len(x) < MIN_BATCH:
            x = torch.cat([x, self.private.batch(t, 0)[0]])
        return self.learner.logits(x, self.hp.mean_input_mode)


METHOD = Method(
    name="hfd",
    summary="FD on the mean inputs of each class, exchanged once as shared blurred samples; no public data",
    options=HFDOptions,
    client=HFDClient,
    server=HFDServer,
    up=(ClassInputs, MeanInputOutputs),
    down=(ClassInputs, MeanInputOutputs),
    faithfulness="reconstruction",
    per={ClassInputs: "run", MeanInputOutputs: "round"},
    transfer_steps=lambda options, t: 0 if options.joint else options.distillation_steps or options.tau,
)
