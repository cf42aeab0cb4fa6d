"""Channels between server and sites: mutual TLS 1.3, or plain text on the loopback interface for experiments."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

import grpc

from fedal.deploy import TLS_1_3_ONLY
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.pki.authority import Invitation, Pems
from fedal.deploy.pki.pinning import trusted_certificates
from fedal.deploy.refusals import Refused
from fedal.errors import ConfigError
from fedal.printable import printable

PROTOCOL_MAJOR, PROTOCOL_MINOR = 1, 0
SERVICE = "fedal.v1.Federation"
CONTROL_BYTES = 1 << 16  # the largest message that carries no tensors
CHUNK_BYTES = 1 << 20
KEEPALIVE = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # for other pings: a pending one replaces the keepalive ping
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


def refuse_remote_plain_text(address: str) -> None:
    if not is_loopback(address):
        raise ConfigError(f"--insecure with {address}: plain text is for loopback addresses only. Use certificates.")


def server_credentials(first: Pems, renewed: Callable[[], Pems | None] = lambda: None) -> grpc.ServerCredentials:
    """Credentials for the server. `renewed` is called at every handshake; a result replaces the previous files."""
    if not TLS_1_3_ONLY:
        raise ConfigError("gRPC was imported before fedal and would allow TLS 1.2: import fedal.deploy first.")

    def configured(pems: Pems) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authority)

    def fetch() -> grpc.ServerCertificateConfiguration:
        found = renewed()
        return configured(found) if found else None  # type: ignore[return-value]  # None: unchanged; not in the stubs

    return grpc.dynamic_ssl_server_credentials(configured(first), fetch, require_client_authentication=True)


def open_channel(address: str, invitation: Invitation | None, largest: int = CHUNK_BYTES * 2) -> grpc.Channel:
    """A channel to the server. Without an invitation it is plain text, allowed on loopback only.

    Raises Refused if the site holds a list that revokes the server's certificate.
    """
    options = [("grpc.max_receive_message_length", largest), ("grpc.max_send_message_length", largest), *KEEPALIVE]
    options += [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2000)]
    options += [("grpc.use_local_subchannel_pool", 1)]
    if invitation is None:
        refuse_remote_plain_text(address)
        return grpc.insecure_channel(address, options)
    pems = invitation.pems()
    trusted = trusted_certificates(address, invitation, pems.authority)
    credentials = grpc.ssl_channel_credentials(trusted, pems.key, pems.certificate)
    return grpc.secure_channel(address, credentials, options)


def reason_of(error: grpc.RpcError) -> str:
    """gRPC's reason for a failed call; the other side may have written it."""
    details = getattr(error, "details", None)
    return printable(str(details() if callable(details) else error))


def refusal_of(error: grpc.RpcError) -> Refused | None:
    """The refusal with which the server ended a call at its first byte; None if the call failed for another reason."""
    found = re.fullmatch(r"(FEDAL-E\d{3}): (.{1,1000})", reason_of(error), re.DOTALL)
    return Refused(*found.groups()) if found else None


def ask_status(channel: grpc.Channel, timeout_s: float) -> pb.StatusReply:
    call = channel.unary_unary(
        f"/{SERVICE}/Status", pb.StatusRequest.SerializeToString, pb.StatusReply.FromString
    )  # fmt: skip
    reply: pb.StatusReply = call(pb.StatusRequest(), timeout=timeout_s)
    return reply
