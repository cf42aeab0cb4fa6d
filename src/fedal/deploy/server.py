"""The network side of the server: one stream per site, in a thread with its own event loop.

`admission` decides about a call before any of it is read. A stream's first message must name the site of its
certificate. The server checks every message before it changes anything. A refused message ends its stream with a code.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.admission import QUOTA, Admission, Caller
from fedal.deploy.callbacks import Callbacks
from fedal.deploy.channel import CHUNK_BYTES, KEEPALIVE, PROTOCOL_MAJOR, SERVICE, refuse_remote_plain_text
from fedal.deploy.pki.identity import ServerIdentity
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

    def __init__(self, outbox: _Outbox, caller: Caller) -> None:
        self._outbox, self.caller = outbox, caller
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
        self._admission = Admission(self._federation, callbacks.seats, identity, callbacks.refusals)
        self._holders: dict[str, Caller] = {}  # who took each seat last
        self._readers: set[asyncio.Future[None]] = set()
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
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def flush(self) -> None:
        """Sends the queued messages of all streams."""
        self._outbox.flush()

    async def _open(self) -> None:
        options = [
            ("grpc.max_receive_message_length", self._largest),
            ("grpc.max_concurrent_streams", QUOTA),
            ("grpc.max_connection_idle_ms", 60_000),  # without any call; a site always has one
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", int(HELLO_S * 1000)),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # no compression: a small message cannot expand
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            *KEEPALIVE,
        ]
        self._server = grpc.aio.server(options=options)
        # As streams, also where the client sends one request: gRPC then calls us before it has read any of it.
        handlers = {
            "Join": grpc.stream_stream_rpc_method_handler(self._join, None, pb.FromServer.SerializeToString),
            "PublicSet": grpc.stream_stream_rpc_method_handler(self._public_set, None, pb.Chunk.SerializeToString),
            "Status": grpc.stream_stream_rpc_method_handler(self._status, None, pb.StatusReply.SerializeToString),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if self._identity is None:
            self.port = self._server.add_insecure_port(self._address)
        else:
            self.port = self._server.add_secure_port(self._address, self._identity.credentials())
        await self._server.start()

    async def _stop(self) -> None:
        """Stops the server and waits for all readers: one that is left would need the loop after it is closed."""
        if self.port:
            await self._server.stop(0.5)
        for reader in (readers := list(self._readers)):
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _join(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async with self._admission.admitted(context, sites_only=True) as caller:
            stream = _Stream(self._outbox, caller)
            reader = asyncio.ensure_future(self._read(requests, stream))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
            try:
                with suppress(grpc.aio.BaseError):  # the caller is gone; gRPC would print a traceback
                    while (message := await stream.next()) is not None:
                        await context.write(message)
            finally:
                reader.cancel()

    async def _read(self, requests: AsyncIterator[bytes], stream: _Stream) -> None:
        seat: Seat | None = None
        try:
            first = _parsed(await asyncio.wait_for(anext(aiter(requests)), HELLO_S))
            seat = self._seat_for(first, stream.caller)
            seat.connect(stream, first.hello, self._callbacks.welcome(seat.site))
            self._holders[seat.site] = stream.caller
            self._callbacks.refusals.limited("joined", seat.site)
            async for message in requests:
                stream.caller.refuse_revoked()
                seat.take(_parsed(message), stream)
        except Refused as refused:
            self._callbacks.refusals.add(seat.site if seat else stream.caller.name or "", refused)
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
                self._callbacks.refusals.limited("disconnected", seat.site)

    def _seat_for(self, first: pb.FromSite, caller: Caller) -> Seat:
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
        if caller.name is None and hello.site not in self._callbacks.seats:
            raise Refused(Code.NOT_IN_ROSTER, "this site is not in the roster of the federation.")
        if caller.name not in (None, hello.site):
            raise Refused(Code.WRONG_IDENTITY, f"the certificate is for {caller.name}; the message names another site.")
        seat = self._callbacks.seats[hello.site]
        if (holder := self._holders.get(seat.site)) is not None and holder.is_revoked:
            seat.expel(Refused(Code.REVOKED, "the operator has revoked this certificate."))
        seat.refuse_second(hello.session)
        self._callbacks.admit(hello)
        return seat

    async def _public_set(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async with self._admission.admitted(context) as caller:
            raw = self._callbacks.plan.public_bytes
            with suppress(grpc.aio.BaseError):
                for start in range(0, len(raw), CHUNK_BYTES):
                    caller.refuse_revoked()
                    await context.write(pb.Chunk(data=bytes(raw[start : start + CHUNK_BYTES])))

    async def _status(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async with self._admission.admitted(context) as caller:
            await context.write(self._callbacks.status(None if caller.is_operator else caller.name))


def _parsed(raw: bytes) -> pb.FromSite:
    try:
        return pb.FromSite.FromString(raw)
    except DecodeError:
        raise Refused(Code.NOT_A_MESSAGE, f"{len(raw)} bytes that are not a message of this protocol.") from None
