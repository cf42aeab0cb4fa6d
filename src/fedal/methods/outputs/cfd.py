"""CFD (Sattler, Marban, Rischke, Samek 2020; arXiv 2012.00632): MHAT with soft labels squeezed into a few bits.

From the authors' public code: constrained quantiser in both directions, probabilities averaged, dual distillation
(into the server's model and back). Delta coding, which their code leaves to a later measurement, is real here: the
bytes on the meter are those of a codec that encodes and decodes (fedal/quantise.py). Defaults: as the authors, one bit
each way. Preset `paper`: 32 bits and no delta coding, as the FedAL paper, which equates CFD with MHAT.
Differs: client models are kept between rounds, exchanges go by public batch, and the server teaches only after a
warm-up, because hard labels of an untrained model are noise that clients would believe (docs/methods/cfd.md).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedal.lazy import Tensor
from fedal.learners.base import State
from fedal.messages import Codes, Message
from fedal.methods.client import ClientSetup
from fedal.methods.method import Method
from fedal.methods.outputs.server_distillation import DistillingServer, ServerDistillationOptions, TaughtClient
from fedal.methods.server import ServerSetup
from fedal.quantise import UNQUANTISED, LabelCodec
from fedal.seeding import Indices


class CFDOptions(ServerDistillationOptions):
    average: Literal["logits", "probs"] = Field(
        "probs", description="the server's target: mean of the probabilities, or (b_up = 32) softmax of the mean logits"
    )
    b_up: int = Field(1, ge=1, le=UNQUANTISED, description="bits of the quantiser, upwards; 32: no quantiser")
    b_down: int = Field(1, ge=1, le=UNQUANTISED, description="bits of the quantiser, downwards; 32: no quantiser")
    delta: bool = Field(True, description="send only soft labels that changed since the sample was last sent")
    server_steps: int = Field(5, ge=1, description="steps of the server's model on each public batch")
    warmup: int = Field(
        50, ge=0, description="iterations at the start in which the server learns but does not teach yet"
    )


class CFDServer(DistillingServer):
    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        assert setup.public is not None
        size, delta = (len(setup.public), setup.n_classes), self.hp.delta
        self._dtype, self._device = setup.dtype, setup.device
        self._up = {n: LabelCodec(self.hp.b_up, *size, delta=delta) for n in setup.roster}
        self._down = {n: LabelCodec(self.hp.b_down, *size, delta=delta) for n in setup.roster}

    def read(self, client_id: str, message: Message, ids: Indices) -> Tensor:
        assert isinstance(message, Codes)
        if message.begins:
            self._up[client_id].reset()
            self._down[client_id].reset()
        return self._up[client_id].decode(message.packed, ids, self._dtype, self._device)

    def write(self, client_id: str, f: Tensor, ids: Indices) -> Codes:
        return Codes(self._down[client_id].encode(self.probs(f), ids))

    def state_dict(self) -> State:
        codecs = {n: {"up": self._up[n].state_dict(), "down": self._down[n].state_dict()} for n in self._up}
        return {**super().state_dict(), "codecs": codecs}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for n, codecs in state["codecs"].items():
            self._up[n].load_state_dict(codecs["up"])
            self._down[n].load_state_dict(codecs["down"])


class CFDClient(TaughtClient):
    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        size, delta = (len(self.public), self.private.n_classes), self.hp.delta
        self._up = LabelCodec(self.hp.b_up, *size, delta=delta)
        self._down = LabelCodec(self.hp.b_down, *size, delta=delta)
        self._in_step = False  # whether the last upload was answered: then both ends remember the same codes

    def write(self, f: Tensor, ids: Indices) -> Codes:
        begins = not self._in_step
        if begins:
            self._up.reset()
            self._down.reset()
        self._in_step = False  # until the answer is read; a client that is cut off begins anew
        labels = f if self.hp.average == "logits" else self.probs(f)
        return Codes(self._up.encode(labels, ids), int(begins))

    def read(self, message: Message, f: Tensor, ids: Indices) -> Tensor:
        assert isinstance(message, Codes)
        labels = self._down.decode(message.packed, ids, f.dtype, f.device)
        self._in_step = True
        return labels

    def state_dict(self) -> State:
        return {"up": self._up.state_dict(), "down": self._down.state_dict(), "in_step": self._in_step}

    def load_state_dict(self, state: State) -> None:
        self._up.load_state_dict(state["up"])
        self._down.load_state_dict(state["down"])
        self._in_step = state["in_step"]


def _refuse(options: CFDOptions, n_classes: int) -> str | None:
    if options.average == "logits" and options.b_up != UNQUANTISED:
        return f"average = logits needs logits, b_up = {options.b_up} sends quantised probabilities. Set b_up = 32."
    return None


METHOD = Method(
    name="cfd",
    summary="MHAT with soft labels quantised to a few bits and delta coded, both ways",
    options=CFDOptions,
    client=CFDClient,
    server=CFDServer,
    up=(Codes,),
    down=(Codes,),
    needs=frozenset({"public", "server-model"}),
    faithfulness="code",
    paper_options={
        "tau": 1,
        "b_up": UNQUANTISED,
        "b_down": UNQUANTISED,
        "delta": False,
        "server_steps": 1,
        "warmup": 0,
    },
    refuse=_refuse,
)
