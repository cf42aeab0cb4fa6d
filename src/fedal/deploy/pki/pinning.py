"""Revocation of the server, checked by a site that holds a list: `crl.pem` in its invitation folder.

gRPC for Python takes no revocation list and does not show the server's certificate. So the site looks at the
certificate in a handshake of its own and checks it against CA, host name and list. Then it opens its channel with that
one certificate as the only one it trusts. Relaying the first handshake to another server gains an attacker nothing.
"""

from __future__ import annotations

import os
import socket
import ssl

from cryptography import x509

from fedal.deploy.pki.authority import REVOKED, Invitation, revoked_serials
from fedal.deploy.refusals import Code, Refused

HANDSHAKE_S = 10.0

Version = tuple[int, int]
"""Of a file: another one when it was changed or replaced."""


def list_version(invitation: Invitation | None) -> Version | None:
    """The version of a site's revocation list; None without one."""
    if invitation is None or invitation.folder is None:
        return None
    return file_version(os.path.join(invitation.folder, REVOKED))


def file_version(path: str) -> Version | None:
    if not os.access(path, os.F_OK):  # the usual case for the list, checked at every message: avoids an exception
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def trusted_certificates(address: str, invitation: Invitation, authority: bytes) -> bytes:
    """What the channel trusts, in PEM: the CA; with a revocation list, only the certificate that the server presents.

    Raises Refused if that one is revoked, and ConfigError if the list is not the CA's.
    """
    path = invitation.folder / REVOKED if invitation.folder is not None else None
    if path is None or not path.exists():
        return authority
    revoked = revoked_serials(path, authority)
    presented = _presented(address, authority)
    if x509.load_der_x509_certificate(presented).serial_number in revoked:
        raise Refused(
            Code.REVOKED,
            f"the certificate of the server at {address} is revoked by {path}. Ask the operator, over a channel that "
            "you trust, which server is the right one.",
        )
    return ssl.DER_cert_to_PEM_cert(presented).encode()


def _presented(address: str, authority: bytes) -> bytes:
    """The server's certificate, which the CA has signed for this host. In TLS 1.3 it precedes the client's own."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=authority.decode())
    try:
        with (
            socket.create_connection((host, int(port)), HANDSHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except OSError as error:
        text = f"no connection to {address} ({error}). Is the server running?"
        raise Refused(Code.UNREACHABLE, text) from None
