"""Who may speak on a channel: mutual TLS 1.3, or plain text on the loopback interface for experiments."""

from __future__ import annotations

import ipaddress

import grpc

from fedal.engine.grpc import TLS_1_3_ONLY
from fedal.engine.grpc import fedal_pb2 as pb
from fedal.engine.grpc.certs import Invitation
from fedal.errors import ConfigError

PROTOCOL_MAJOR, PROTOCOL_MINOR = 1, 0
SERVICE = "fedal.v1.Federation"
CONTROL_BYTES = 1 << 16  # the largest message that carries no tensors
CHUNK_BYTES = 1 << 20
KEEPALIVE = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]


def is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_plain_text_abroad(address: str) -> None:
    if not is_loopback(address):
        raise ConfigError(f"--insecure with {address}: plain text is for loopback addresses only. Use certificates.")


def server_credentials(authority: bytes, certificate: bytes, key: bytes) -> grpc.ServerCredentials:
    if not TLS_1_3_ONLY:
        raise ConfigError("gRPC was imported before fedal and would allow TLS 1.2: import fedal.engine.grpc first.")
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)


def open_channel(address: str, invitation: Invitation | None, largest: int = CHUNK_BYTES * 2) -> grpc.Channel:
    """A channel to the server; without an invitation in plain text, on loopback only."""
    options = [("grpc.max_receive_message_length", largest), ("grpc.max_send_message_length", largest), *KEEPALIVE]
    options += [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2000)]
    options += [("grpc.use_local_subchannel_pool", 1)]
    if invitation is None:
        refuse_plain_text_abroad(address)
        return grpc.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(invitation.authority, invitation.key, invitation.certificate)
    return grpc.secure_channel(address, credentials, options)


def reason_of(error: grpc.RpcError) -> str:
    """What gRPC says about a failed call."""
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)


def ask_status(channel: grpc.Channel, timeout_s: float) -> pb.StatusReply:
    call = channel.unary_unary(
        f"/{SERVICE}/Status", pb.StatusRequest.SerializeToString, pb.StatusReply.FromString
    )  # fmt: skip
    reply: pb.StatusReply = call(pb.StatusRequest(), timeout=timeout_s)
    return reply
