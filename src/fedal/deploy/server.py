"""The network side of the server: one stream per site, in a thread with its own event loop.

The server admits a stream if its certificate names a site of the roster and its first message agrees. It checks every
message before it changes anything. A refused message ends its stream with a typed code.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.callbacks import Callbacks
from fedal.deploy.channel import CHUNK_BYTES, KEEPALIVE, PROTOCOL_MAJOR, SERVICE, refuse_remote_plain_text
from fedal.deploy.pki.authority import OPERATOR, identity_uri
from fedal.deploy.pki.identity import ServerIdentity, serial_of
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat
from fedal.errors import ConfigError

HELLO_S = 10.0


class _Outbox:
    """A queue from other threads to the network thread, which wakes up once for all waiting messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[_Stream, pb.FromServer | None]] = deque()

    def put(self, stream: _Stream, message: pb.FromServer | None) -> None:
        self._waiting.append((stream, message))

    def flush(self) -> None:
        if self._waiting:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._waiting:
            stream, message = self._waiting.popleft()
            stream.deliver(message)


class _Stream:
    """The sending half of one stream."""

    def __init__(self, outbox: _Outbox) -> None:
        self._outbox = outbox
        self._delivered: deque[pb.FromServer | None] = deque()
        self._delivery: asyncio.Future[None] | None = None  # awaited while the queue is empty

    def send(self, message: pb.FromServer) -> None:
        self._outbox.put(self, message)

    def flush(self) -> None:
        self._outbox.flush()

    def close(self) -> None:
        self._outbox.put(self, None)
        self._outbox.flush()

    def refuse(self, refused: Refused) -> None:
        self.send(pb.FromServer(refusal=pb.Refusal(code=refused.code, text=refused.text)))
        self.close()

    # in the network thread

    def deliver(self, message: pb.FromServer | None) -> None:
        self._delivered.append(message)
        if self._delivery is not None and not self._delivery.done():
            self._delivery.set_result(None)

    async def next(self) -> pb.FromServer | None:
        """The next message to send; None at the end. An asyncio.Queue would need three times as many calls."""
        if not self._delivered:
            self._delivery = asyncio.get_running_loop().create_future()
            await self._delivery
        return self._delivered.popleft()


class GrpcServer:
    """Listens on an address until it is closed."""

    def __init__(self, callbacks: Callbacks, address: str, identity: ServerIdentity | None, largest: int) -> None:
        if identity is None:
            refuse_remote_plain_text(address)
        self._callbacks, self._address, self._identity, self._largest = callbacks, address, identity, largest
        self._federation = callbacks.plan.deployment.federation
        self._server: Any = None
        self.port = 0

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._outbox = _Outbox(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedal-grpc", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except RuntimeError as error:
            self.close()
            raise ConfigError(f"cannot listen on {self._address}: {error}. Is the port in use?") from None

    def close(self) -> None:
        if self.port:
            asyncio.run_coroutine_threadsafe(self._server.stop(0.5), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def flush(self) -> None:
        """Sends the queued messages of all streams."""
        self._outbox.flush()

    async def _open(self) -> None:
        options = [
            ("grpc.max_receive_message_length", self._largest),
            ("grpc.max_concurrent_streams", 4),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", int(HELLO_S * 1000)),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # no compression: a small message cannot expand
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            *KEEPALIVE,
        ]
        limit = 4 * len(self._callbacks.seats) + 8
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limit)
        handlers = {
            "Join": grpc.stream_stream_rpc_method_handler(self._join, None, pb.FromServer.SerializeToString),
            "PublicSet": grpc.unary_stream_rpc_method_handler(
                self._public_set, pb.PublicSetRequest.FromString, pb.Chunk.SerializeToString
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self._status, pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if self._identity is None:
            self.port = self._server.add_insecure_port(self._address)
        else:
            self.port = self._server.add_secure_port(self._address, self._identity.credentials())
        await self._server.start()

    async def _join(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[pb.FromServer]:
        stream = _Stream(self._outbox)
        reader = asyncio.ensure_future(self._read(requests, context, stream))
        try:
            while (message := await stream.next()) is not None:
                yield message
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[bytes], context: Any, stream: _Stream) -> None:
        seat: Seat | None = None
        try:
            first = _parsed(await asyncio.wait_for(anext(aiter(requests)), HELLO_S))
            refuse_revoked = self._revocation(context)
            seat = self._admit(first, context)
            seat.connect(stream, first.hello, self._callbacks.welcome(seat.site))
            self._callbacks.log("joined", site=seat.site)
            async for message in requests:
                refuse_revoked()
                seat.take(_parsed(message), stream)
        except Refused as refused:
            self._callbacks.log("refused", site=seat.site if seat else "", code=refused.code, text=refused.text)
            stream.refuse(refused)
            if seat is not None:
                self._callbacks.strike(seat.site, refused)
                seat.refuse(str(refused), stream)
        except (TimeoutError, StopAsyncIteration, grpc.RpcError, grpc.aio.BaseError):
            pass  # the stream ended; `finally` informs its seat
        finally:
            stream.close()
            if seat is not None:
                seat.disconnect(stream)
                self._callbacks.log("disconnected", site=seat.site)

    def _admit(self, first: pb.FromSite, context: Any) -> Seat:
        if first.WhichOneof("body") != "hello":
            raise Refused(Code.UNEXPECTED, "the first message of a stream must be Hello.")
        hello = first.hello
        if hello.protocol_major != PROTOCOL_MAJOR:
            raise Refused(
                Code.PROTOCOL_MAJOR,
                f"protocol {hello.protocol_major}; expected {PROTOCOL_MAJOR}. Install the server's fedal release.",
            )
        if hello.federation != self._federation:
            raise Refused(Code.WRONG_FEDERATION, f"this is federation {self._federation}.")
        site = self._caller(context, hello.site)
        if site not in self._callbacks.seats:
            raise Refused(Code.NOT_IN_ROSTER, "this site is not in the roster of the federation.")
        if hello.site != site:
            raise Refused(Code.WRONG_IDENTITY, f"the certificate is for {site}; the message names another site.")
        seat = self._callbacks.seats[site]
        seat.refuse_second(hello.session)
        self._callbacks.admit(hello)
        return seat

    def _revocation(self, context: Any) -> Callable[[], None]:
        """Returns a check that raises Refused once the caller's certificate is revoked."""
        if self._identity is None:
            return lambda: None
        (certificate,) = context.auth_context()["x509_pem_cert"]
        return partial(self._identity.refuse_revoked, serial_of(certificate))

    def _caller(self, context: Any, claimed: str) -> str:
        """The site that the certificate names; the claimed site on plain-text loopback."""
        if self._identity is None:
            return claimed
        self._revocation(context)()
        prefix = identity_uri(self._federation, "")
        names = [
            name.decode(errors="replace") for name in context.auth_context().get("x509_subject_alternative_name", [])
        ]
        ours = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if len(ours) != 1 or not re.fullmatch(r"[a-z0-9-]{1,63}", ours[0]):
            raise Refused(Code.WRONG_IDENTITY, "the certificate names no site of this federation.")
        return str(ours[0])

    async def _public_set(self, request: pb.PublicSetRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        await self._abort_strangers(context)
        raw = np.ascontiguousarray(self._callbacks.plan.public_x).tobytes()
        for start in range(0, len(raw), CHUNK_BYTES):
            yield pb.Chunk(data=raw[start : start + CHUNK_BYTES])

    async def _status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        await self._abort_strangers(context)
        return self._callbacks.status()

    async def _abort_strangers(self, context: Any) -> None:
        try:
            site = self._caller(context, OPERATOR)
        except Refused as refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refused))
        if site != OPERATOR and site not in self._callbacks.seats:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{Code.NOT_IN_ROSTER}: not in the roster.")


def _parsed(raw: bytes) -> pb.FromSite:
    try:
        return pb.FromSite.FromString(raw)
    except DecodeError:
        raise Refused(Code.NOT_A_MESSAGE, f"{len(raw)} bytes that are not a message of this protocol.") from None
