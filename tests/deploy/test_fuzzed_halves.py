"""Valid-looking messages to every method's server half: refused, used, or blamed on their sender; nothing else."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pytest
import torch

from deployments import pb
from fedal import methods
from fedal.aggregate import Rule, Space
from fedal.deploy.codec import Reader, encode
from fedal.deploy.containment import Containment
from fedal.deploy.player import upload_check
from fedal.deploy.refusals import Refused
from fedal.engine.loop import Federation
from fedal.messages import LARGEST, Message
from fedal.wire import Wire
from splits import QUICK, build_of_table_models, fingerprint, run_rounds

SENDER = "client-00"
HALVES = {(m.server, m.up, m.down): m.name for m in map(methods.get, reversed(methods.MODULES)) if m.exchanges}
METHODS = [*reversed(HALVES.values())]  # one of the methods that share their server's half and messages
OPTIONS: dict[str, dict[str, Any]] = {
    "fccl": {"pretrain_iterations": 0},
    "feddf": {"transfer": "server", "server_steps": 1},
    "mhat": {"server_model": "mlp-small"},
    "cfd": {"server_model": "mlp-small", "server_steps": 1},
    "fedgkt": {"server_steps": 1},
    **QUICK,
    **{name: {**QUICK[name], "generated": 2, "generator_noise": 2} for name in ("fedgen", "fedftg", "dfrd", "fedzkt")},
    "fedcvae": {**QUICK["fedcvae"], "decoder_steps": 1, "latent": 2},
}  # models and batches are as small as they can be: a message counts, not what it is worth
ROUNDS = {"hfd": 0, "feddf-al": 0}  # the first round has other exchanges than the rest; 1 for all others


class Scene:
    """The server's half of a method at the start of a round, and the honest uploads of that round."""

    def __init__(self, name: str, **options: Any) -> None:
        self.method = methods.get(name)
        federation = build_of_table_models(name, options={"tau": 2, **OPTIONS.get(name, {}), **options})
        self.t = ROUNDS.get(name, 1)
        run_rounds(federation, self.t)
        self.server = federation.server
        self.uploads = uploads_of(federation, self.t)
        self.sizes, self.dtype = federation.wire._sizes, federation.wire._dtype
        self.check = upload_check(Reader(self.method.up, self.sizes, self.dtype), self.server)
        self.containment = Containment(
            self.server,
            federation.roster,
            lambda: copy.deepcopy(self.server),
            lambda: Wire(self.method.up, self.method.down, self.sizes, self.dtype),
        )
        self.roster, self.before = federation.roster, fingerprint(self.server.state_dict())
        self.honest = [self._honest(exchange) for exchange in range(len(self.uploads))]

    def _honest(self, exchange: int) -> pb.Upload:
        batch = self.server.expected_batch(self.t, exchange) or ""
        payload = encode(self.uploads[exchange][SENDER])
        return pb.Upload(round=self.t, exchange=exchange, batch=batch, payload=payload)

    def try_message(self, exchange: int, upload: pb.Upload) -> str:
        """What becomes of an upload of `SENDER`; raises whatever nobody is blamed for."""
        try:
            message = self.check(SENDER, upload)
        except Refused as refused:
            assert fingerprint(self.server.state_dict()) == self.before
            return str(refused.code)
        self.containment.begin()
        try:
            return self._play(exchange, message)
        finally:
            self.containment.undo()
            assert fingerprint(self.server.state_dict()) == self.before

    def _play(self, exchange: int, message: Message) -> str:
        wire = Wire(self.method.up, self.method.down, self.sizes, self.dtype)
        playing = self.server.round(self.t, self.roster)
        try:
            next(playing)
            for index, honest in enumerate(self.uploads[: exchange + 1]):
                uploads = {**honest, SENDER: message} if index == exchange else honest
                self.containment.keep(uploads)
                for site, reply in playing.send(uploads).items():  # type: ignore[union-attr]
                    wire.down(site, reply)
        except StopIteration as stop:
            for site, reply in stop.value.items():
                wire.down(site, reply)
        except Exception:
            assert self.containment.is_cause(self.t) and self.containment.culprit(self.t) == SENDER
            return "blamed"
        return "used"


def uploads_of(federation: Federation, t: int) -> list[Mapping[str, Any]]:
    """The honest uploads of each exchange of round t; the server stays as it was."""
    seen: list[Mapping[str, Any]] = []
    start = federation.server.state_dict()
    federation.watch.exchanged = seen.append
    federation.run_round(t)
    federation.server.load_state_dict(start)
    return seen


def fuzzed(scene: Scene, exchange: int, chance: random.Random) -> pb.Upload:
    """A message of a declared kind, usually with the right form, whose content is odd in a few places."""
    honest: Message = scene.uploads[exchange][SENDER]
    upload = pb.Upload()
    upload.CopyFrom(scene.honest[exchange])
    others = [other.payload for other in scene.honest if other.payload.kind != upload.payload.kind]
    if others and chance.random() < 0.1:  # what is due in another exchange
        upload.payload.CopyFrom(chance.choice(others))
        upload.batch = chance.choice([upload.batch, ""])
    for name in upload.payload.numbers:
        if chance.random() < 0.5:
            low, high = type(honest).ranges.get(name, (0, 1))
            upload.payload.numbers[name] = chance.choice([low - 1, low, int(high), int(high) + 1, 0, 2**62, -(2**63)])
    for tensor in upload.payload.tensors:
        if chance.random() < 0.7:
            _distort(tensor, scene.sizes["K"], chance, free=not honest.layout)
    return upload


def _distort(tensor: pb.Tensor, classes: int, chance: random.Random, *, free: bool) -> None:
    values = np.frombuffer(tensor.data, tensor.dtype).copy()
    if not len(values):
        return
    draw = np.random.Generator(np.random.SFC64(chance.getrandbits(64)))  # many numbers at once
    count = min(len(values), chance.choice([1, 2, len(values)]))
    places = draw.permutation(len(values))[:count]
    if tensor.dtype == "uint8":
        values[places] = draw.integers(256, size=count)
        values = values[: chance.choice([len(values), len(values), len(values) - 1])]
        del tensor.shape[:]
        tensor.shape.extend([len(values)])
    elif values.dtype.kind == "i":
        values[places] = draw.choice([-1, 0, 1, classes - 1, classes, 2**31 - 1, -(2**31)], count)
    else:
        most = chance.choice([1e-30, 1.0, LARGEST, LARGEST * (1 + 1e-6), 1e-45])
        values[places] = draw.uniform(-most, most, count)
        if chance.random() < 0.3:
            values[places[0]] = chance.choice([LARGEST, -LARGEST, np.nextafter(np.float32(LARGEST), np.inf), np.nan])
    if free and chance.random() < 0.05:  # a tensor of a model that has another shape
        del tensor.shape[:]
        tensor.shape.extend([len(values)])
    tensor.data = values.tobytes()


def drive(name: str, count: int, **options: Any) -> None:
    torch.set_num_threads(1)
    scene, chance, seen = Scene(name, **options), random.Random(0), dict[str, int]()
    for _ in range(count):
        exchange = chance.randrange(len(scene.uploads))
        became = scene.try_message(exchange, fuzzed(scene, exchange, chance))
        seen[became] = seen.get(became, 0) + 1
    print(f"{name} {options or ''}: {seen}")
    assert seen.get("used", 0) > count / 50, "valid content is used"
    assert sum(seen.values()) - seen.get("used", 0) > count / 50, "and odd content is not"


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(36000)])])
@pytest.mark.parametrize("name", METHODS)
def test_no_message_raises_in_a_half_without_its_sender_being_blamed(name: str, count: int) -> None:
    drive(name, count)


@pytest.mark.parametrize("count", [50, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("space", get_args(Space))
@pytest.mark.parametrize("aggregate", get_args(Rule))
def test_nor_does_one_with_another_aggregate(aggregate: str, space: str, count: int) -> None:
    drive("fedmd", count, aggregate=aggregate, space=space)
