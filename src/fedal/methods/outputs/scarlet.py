"""SCARLET (Azuma, Nishio, Kitagawa, Nakano, Tanimura, IEEE TMC 2026; 10.1109/TMC.2026.3652819): cached soft labels.

DS-FL with a sharpening that has an identity, t = p^beta / sum p^beta, and a cache: a label is used for `lifetime`
rounds before the sample is asked for again. Clients upload outputs only where they hold no label. From the authors'
code, with two slips repaired: a renewed label is stored at once, and is never paid for before that.

Both ends know the age of every label that a client holds, so no request is needed: a client uploads the rows that it
lacks, and gets exactly these. A client that was absent lacks more; one whose reply was lost says so and starts afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from fedal.aggregate import Rule, combined
from fedal.errors import WireError
from fedal.lazy import Tensor, torch
from fedal.losses import kl_to_probs
from fedal.messages import Message, NewLabels, NewOutputs
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup, weighted
from fedal.methods.consensus import AggregateOptions, in_space
from fedal.methods.method import Method
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup

NONE = -1  # in place of the round in which a label was made


class ScarletOptions(AggregateOptions):
    aggregate: Rule = Field("power", description="how outputs are combined: power is the authors' Enhanced ERA")
    space: Literal["probabilities"] = Field("probabilities", description="what is combined, cached and sent")
    sharpness: float | None = Field(2.0, ge=0, description="exponent beta of aggregate=power; 1: the plain mean")
    distillation: float = Field(1.0, ge=0, description="weight of the KL divergence to the labels")
    lifetime: int = Field(10, ge=0, le=255, description="rounds D in which a label is used again; 0: no cache")
    warmup: int = Field(0, ge=0, description="initial iterations in which no label is kept: they are noise")


def lacking(made: Tensor, t: int, lifetime: int) -> Tensor:
    """Which labels, made in these rounds, are missing or too old in round t.  (B,) -> (B,)"""
    return (made == NONE) | (t - made >= lifetime)


class ScarletServer(ServerLogic):
    kept = ("_labels", "_made", "_held")

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        assert setup.public is not None
        self._labels = torch.zeros(len(setup.public), setup.n_classes, dtype=setup.dtype, device=setup.device)
        self._made = torch.full((len(setup.public),), NONE, device=setup.device)
        self._held = {n: self._made.clone() for n in setup.roster}  # when the labels that each client holds were made

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for i in range(self.hp.tau):
            up = yield reply
            ids = self._ids(t, i)
            lacks = {n: self._lacks(n, up[n], t, ids) for n in clients if n in up}
            old = lacking(self._made[ids], t, self.hp.lifetime)  # then every client lacks it
            f = torch.stack([up[n].values[old[lack]] for n, lack in lacks.items()])  # (N, *, K)
            self._labels[ids[old]] = combined(
                in_space(f, self.hp), self.hp.aggregate, self.hp.space, self.hp.trim, self.hp.sharpness
            )
            self._made[ids[old]] = t if t * self.hp.tau >= self.hp.warmup else t - self.hp.lifetime
            reply = {n: self._answer(n, ids[lack], t, begins=up[n].begins) for n, lack in lacks.items()}
        return reply

    def _ids(self, t: int, i: int) -> Tensor:
        assert self.public is not None
        return torch.from_numpy(self.public.ids(t, i)).to(self.device)

    def _lacks(self, client_id: str, message: NewOutputs, t: int, ids: Tensor) -> Tensor:
        """The samples of the batch that a client must have sent.  (B,) -> (B,)"""
        held = self._held[client_id][ids]
        return lacking(torch.full_like(held, NONE) if message.begins else held, t, self.hp.lifetime)

    def _answer(self, client_id: str, ids: Tensor, t: int, begins: int) -> NewLabels:
        held = torch.full_like(self._made, NONE) if begins else self._held[client_id]
        self._held[client_id] = held.index_copy(0, ids, self._made[ids])
        return NewLabels(self._labels[ids], (t - self._made[ids]).to(torch.uint8))

    def refuse_unfit(self, client_id: str, message: Message, t: int, i: int) -> None:
        assert isinstance(message, NewOutputs)
        expected = int(self._lacks(client_id, message, t, self._ids(t, i)).sum())
        if len(message.values) != expected:
            raise WireError(f"NewOutputs.values has {len(message.values)} rows; expected {expected} by what it holds.")


class ScarletClient(ClientLogic):
    kept = ("_labels", "_made", "_in_step")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        shape, dtype = (len(self.public), self.private.n_classes), self.public.batch_at(0).dtype
        self._labels = torch.zeros(shape, dtype=dtype, device=self.device)
        self._made = torch.full(shape[:1], NONE, device=self.device)
        self._in_step = False  # whether the last upload got its reply: both ends then know what this client holds

    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for i, (_x, f) in enumerate(self.public_passes(t)):
            ids = torch.from_numpy(self.public.ids(t, i)).to(self.device)
            down = yield self._upload(t, ids, f)
            self._keep(t, ids, down)
            taught = kl_to_probs(self._labels[ids], f, self.hp.temperature)
            self.step(distillation=weighted(self.hp.distillation, taught.gradient))

    def _upload(self, t: int, ids: Tensor, f: Tensor) -> NewOutputs:
        begins = not self._in_step
        if begins:
            self._made = torch.full_like(self._made, NONE)
        self._in_step = False  # until the reply is read
        return NewOutputs(f[lacking(self._made[ids], t, self.hp.lifetime)], int(begins))

    def _keep(self, t: int, ids: Tensor, down: Any) -> None:
        new = ids[lacking(self._made[ids], t, self.hp.lifetime)]
        self._labels = self._labels.index_copy(0, new, down.values)
        self._made = self._made.index_copy(0, new, t - down.ages.long())
        self._in_step = True


METHOD = Method(
    name="scarlet",
    summary="DS-FL with cached soft labels: outputs are sent only where no label is held",
    options=ScarletOptions,
    client=ScarletClient,
    server=ScarletServer,
    up=(NewOutputs,),
    down=(NewLabels,),
    needs=frozenset({"public", "fixed-samples"}),
    faithfulness="code",
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)
