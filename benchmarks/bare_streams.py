"""Traffic on a bare gRPC stream: opaque bytes, or logits in fedal's messages."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fedal.deploy import fedal_pb2 as pb  # before gRPC, whose TLS it restricts

CLIENTS, BATCH, CLASSES = 10, 32, 10
OUTPUT_BYTES = 4 * BATCH * CLASSES
HEADER_BYTES = 70  # fedal's overhead per message, besides the numbers


class Traffic(Protocol):
    """The messages on a bare stream: how a client writes an upload, and how the server reads it and replies."""

    def upload(self) -> bytes: ...
    def read(self, upload: bytes) -> Any: ...
    def reply(self, content: Any) -> bytes: ...
    def read_reply(self, reply: bytes) -> None: ...


class Blank:
    """As many bytes as FedAL's messages have, never parsed."""

    def __init__(self) -> None:
        self._up, self._down = (b"\0" * (count * OUTPUT_BYTES + HEADER_BYTES) for count in (1, 2))

    def upload(self) -> bytes:
        return self._up

    def read(self, upload: bytes) -> None: ...

    def reply(self, content: None) -> bytes:
        return self._down

    def read_reply(self, reply: bytes) -> None: ...


class Logits:
    """Logits as tensors on both sides, in fedal's messages: the server sends back what it received."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self._f = torch.randn(BATCH, CLASSES)

    def upload(self) -> bytes:
        message = pb.FromSite()
        upload = message.upload
        upload.incarnation, upload.round, upload.exchange, upload.batch = 1 << 47, 1, 1, "0123456789abcdef"
        _write(upload.payload, "Outputs", "values", self._f)
        return message.SerializeToString()

    def read(self, upload: bytes) -> Any:
        return _read(pb.FromSite.FromString(upload).upload.payload)

    def reply(self, content: Any) -> bytes:
        message = pb.FromServer()
        reply = message.reply
        reply.incarnation, reply.round, reply.exchange = 1 << 47, 1, 1
        reply.payload.numbers["count"] = CLIENTS
        _write(reply.payload, "Consensus", "mean", content)
        return message.SerializeToString()

    def read_reply(self, reply: bytes) -> None:
        _read(pb.FromServer.FromString(reply).reply.payload)


def _write(payload: pb.Payload, kind: str, name: str, tensor: Any) -> None:
    payload.kind = kind
    payload.tensors.add(name=name, dtype="float32", shape=tensor.shape, data=tensor.numpy().tobytes())


def _read(payload: pb.Payload) -> Any:
    import torch

    (tensor,) = payload.tensors
    return torch.from_numpy(np.frombuffer(bytearray(tensor.data), tensor.dtype).reshape(tuple(tensor.shape)))
