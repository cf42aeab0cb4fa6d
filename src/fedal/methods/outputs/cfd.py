"""CFD (Sattler, Marban, Rischke, Samek 2020; arXiv 2012.00632): MHAT with soft labels of a few bits.

From the authors' public code: constrained quantiser in both directions, probabilities averaged, dual distillation
(into the server's model and back). Their code estimates delta coding with an ideal entropy coder. Here it is real: the
bytes counted are those that a codec writes (fedal/quantise.py). Defaults: one bit each way, as the authors use.
Preset `paper`: 32 bits and no delta coding, as in the FedAL paper, which equates CFD with MHAT.
Differences: client models are kept between rounds, each exchange covers one public batch, and the server teaches only
after a warm-up, because hard labels of an untrained model are noise (docs/methods/cfd.md).
"""

from __future__ import annotations

from pydantic import Field

from fedal.aggregate import Space
from fedal.lazy import Tensor
from fedal.messages import Codes, Message
from fedal.methods.client import ClientSetup
from fedal.methods.consensus import in_space
from fedal.methods.method import Method
from fedal.methods.outputs.server_distillation import DistillingServer, ServerDistillationOptions, TaughtClient
from fedal.methods.server import ServerSetup
from fedal.quantise import UNQUANTISED, LabelCodec
from fedal.seeding import Indices


class CFDOptions(ServerDistillationOptions):
    space: Space = Field("probabilities", description="what the server combines; logits need b_up = 32")
    b_up: int = Field(1, ge=1, le=UNQUANTISED, description="bits of the quantiser for uploads; 32: no quantiser")
    b_down: int = Field(1, ge=1, le=UNQUANTISED, description="bits of the quantiser for replies; 32: no quantiser")
    delta: bool = Field(True, description="send only soft labels that changed since the sample was last sent")
    server_steps: int = Field(5, ge=1, description="steps of the server's model on each public batch")
    warmup: int = Field(100, ge=0, description="initial iterations in which the server learns but does not teach yet")


def codecs(options: CFDOptions, n_samples: int, n_classes: int) -> dict[str, LabelCodec]:
    """The codecs `up` and `down` of one client, at one end."""
    bits = {"up": options.b_up, "down": options.b_down}
    return {way: LabelCodec(each, n_samples, n_classes, delta=options.delta) for way, each in bits.items()}


class CFDServer(DistillingServer):
    kept = ("learner", "_codecs")

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        assert setup.public is not None
        self._dtype = setup.dtype
        self._codecs = {n: codecs(self.hp, len(setup.public), setup.n_classes) for n in setup.roster}

    def read(self, client_id: str, message: Message, ids: Indices) -> Tensor:
        assert isinstance(message, Codes)
        if message.begins:
            for codec in self._codecs[client_id].values():
                codec.reset()
        return self._codecs[client_id]["up"].decode(message.packed, ids, self._dtype, self.device)

    def refuse_unfit(self, client_id: str, message: Message, t: int, i: int) -> None:
        assert isinstance(message, Codes) and self.public is not None
        up, ids = self._codecs[client_id]["up"], self.public.ids(t, i)
        up.refuse_malformed(message.packed, ids, self._dtype, begins=bool(message.begins))

    def write(self, client_id: str, f: Tensor, ids: Indices) -> Codes:
        return Codes(self._codecs[client_id]["down"].encode(self.probs(f), ids))


class CFDClient(TaughtClient):
    kept = ("_up", "_down", "_in_step")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._up, self._down = codecs(self.hp, len(self.public), self.private.n_classes).values()
        self._in_step = False  # whether the last upload got its reply: both ends then keep the same codes

    def write(self, f: Tensor, ids: Indices) -> Codes:
        begins = not self._in_step
        if begins:
            self._up.reset()
            self._down.reset()
        self._in_step = False  # until the reply is read; after a lost reply both ends start from scratch
        return Codes(self._up.encode(in_space(f, self.hp), ids), int(begins))

    def read(self, message: Message, f: Tensor, ids: Indices) -> Tensor:
        assert isinstance(message, Codes)
        labels = self._down.decode(message.packed, ids, f.dtype, f.device)
        self._in_step = True
        return labels


def _refuse(options: CFDOptions, n_classes: int) -> str | None:
    if options.space == "logits" and options.b_up != UNQUANTISED:
        return f"space = logits needs logits; b_up = {options.b_up} sends quantised probabilities. Set b_up = 32."
    return None


METHOD = Method(
    name="cfd",
    summary="MHAT with soft labels quantised to a few bits and delta coded, both ways",
    options=CFDOptions,
    client=CFDClient,
    server=CFDServer,
    up=(Codes,),
    down=(Codes,),
    needs=frozenset({"public", "server-model", "fixed-samples"}),
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
    transfer_steps=lambda options, t: int(options.transfer_steps(t)),
)
