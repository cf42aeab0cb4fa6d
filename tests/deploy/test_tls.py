"""Refusals before a byte of application data is read, and what the invitation protects."""

from __future__ import annotations

import itertools
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from deployments import SITES, Rehearsal, Stranger, grpc, wait_for
from fedal.deploy.channel import ask_status, open_channel, refuse_remote_plain_text
from fedal.deploy.pki import authority as certs
from fedal.deploy.pki.authority import ExtendedKeyUsageOID, NameOID, ec, hashes, serialization, x509
from fedal.deploy.refusals import Code
from fedal.errors import ConfigError
from splits import fingerprint


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rehearsal, Any]]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("tls"))
    with rehearsal.service() as service:
        yield rehearsal, service


def other_authority(folder: Path) -> certs.Invitation:
    certs.init(folder, "test")
    return certs.read_invitation(certs.issue_client(folder, "client-00", None))


Names = tuple[x509.GeneralName, ...]


def site_uri(name: str, federation: str = "test") -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(certs.identity_uri(federation, name))


OWN_NAME: Names = (site_uri("client-00"),)


def odd_certificate(
    rehearsal: Rehearsal,
    names: Names = OWN_NAME,
    days: tuple[int, int] = (-1, 1),
    purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    signed_by: str = "certs/ca",
) -> certs.Invitation:
    """A client certificate of any kind, signed by the federation's CA, by a site, or by itself."""
    good, now = rehearsal.invitation("client-00"), datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    signer: Any = key
    issuer = subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client-00")])
    chain = b""
    if signed_by != "itself":
        paths = [rehearsal.folder / f"{signed_by}{end}" for end in (".key", ".pem")]
        signer = serialization.load_pem_private_key(paths[0].read_bytes(), None)
        chain = paths[1].read_bytes()
        issuer = x509.load_pem_x509_certificate(chain).subject
    certificate = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pems = good.first._replace(certificate=certificate.public_bytes(pem) + chain, key=secret)
    return replace(good, first=pems, folder=None)


def signed_by_a_site(rehearsal: Rehearsal) -> certs.Invitation:
    for end, name in ((".key", "key.pem"), (".pem", "cert.pem")):
        shutil.copy(rehearsal.folder / "certs/client-01" / name, rehearsal.folder / f"certs/site-as-authority{end}")
    return odd_certificate(rehearsal, signed_by="certs/site-as-authority")


def another_authoritys(rehearsal: Rehearsal) -> certs.Invitation:
    made = other_authority(rehearsal.folder / "other")
    authority = rehearsal.invitation("client-00").first.authority
    return replace(made, first=made.first._replace(authority=authority), folder=None)


def without_certificate(rehearsal: Rehearsal) -> Any:
    good, nothing = rehearsal.invitation("client-00"), cast(Any, None)
    return replace(good, first=good.first._replace(certificate=nothing, key=nothing), folder=None)


def the_servers_own(rehearsal: Rehearsal) -> certs.Invitation:
    return certs.Invitation("test", "client-00", None, certs.read_pems(rehearsal.folder / "certs/server"))


HANDSHAKE = "UNAVAILABLE"
CERTIFICATES: dict[str, tuple[Callable[[Rehearsal], certs.Invitation], str]] = {
    "none": (without_certificate, HANDSHAKE),
    "signed by itself": (lambda r: odd_certificate(r, signed_by="itself"), HANDSHAKE),
    "signed by another authority": (another_authoritys, HANDSHAKE),
    "signed by a site": (signed_by_a_site, HANDSHAKE),
    "expired": (lambda r: odd_certificate(r, days=(-3, -1)), HANDSHAKE),
    "not yet valid": (lambda r: odd_certificate(r, days=(1, 3)), HANDSHAKE),
    "for servers only": (lambda r: odd_certificate(r, purpose=ExtendedKeyUsageOID.SERVER_AUTH), HANDSHAKE),
    "the server's own": (the_servers_own, HANDSHAKE),
    "of another federation": (lambda r: odd_certificate(r, (site_uri("client-00", "other"),)), Code.WRONG_IDENTITY),
    "of no site": (lambda r: odd_certificate(r, (x509.DNSName("client-00"),)), Code.WRONG_IDENTITY),
    "of two sites": (
        lambda r: odd_certificate(r, (site_uri("client-00"), site_uri("client-01"))),
        Code.WRONG_IDENTITY,
    ),
    "of a path": (lambda r: odd_certificate(r, (site_uri("../client-00"),)), Code.WRONG_IDENTITY),
    "of a longer name": (lambda r: odd_certificate(r, (site_uri("client-00/more"),)), Code.WRONG_IDENTITY),
    "of a site not in the roster": (lambda r: odd_certificate(r, (site_uri("client-77"),)), Code.NOT_IN_ROSTER),
    "good": (odd_certificate, "welcome"),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_only_a_certificate_of_a_site_of_this_federation_is_admitted(scene: Any, case: str) -> None:
    rehearsal, service = scene
    make, expected = CERTIFICATES[case]
    before = fingerprint(service.server.state_dict())
    stranger = Stranger(rehearsal.address, make(rehearsal))
    stranger.hello("client-00")
    assert (stranger.receive().WhichOneof("body") if expected == "welcome" else stranger.refusal()) == expected
    stranger.close()
    assert fingerprint(service.server.state_dict()) == before
    wait_for(lambda: not service.seats["client-00"].connected)


def test_a_hundred_valid_certificates_outside_the_roster_are_refused(scene: Any) -> None:
    rehearsal, service = scene
    for number in range(100):
        stranger = Stranger(rehearsal.address, odd_certificate(rehearsal, (site_uri(f"sybil-{number}"),)))
        stranger.hello(f"sybil-{number}")
        assert stranger.refusal() == Code.NOT_IN_ROSTER
        stranger.close()
    assert not any(seat.connected for seat in service.seats.values())


def test_plain_text_is_refused(scene: Any) -> None:
    rehearsal, service = scene
    stranger = Stranger(rehearsal.address, None)
    stranger.hello("client-00")
    assert stranger.refusal() == "UNAVAILABLE"
    stranger.close()
    assert not service.seats["client-00"].connected


def test_a_certificate_of_one_site_cannot_act_for_another(scene: Any) -> None:
    rehearsal, _ = scene
    for own, claimed in itertools.permutations((*SITES, "operator", "stranger"), 2):
        stranger = Stranger(rehearsal.address, rehearsal.invitation(own))
        stranger.hello(claimed)
        assert stranger.refusal() == (Code.WRONG_IDENTITY if own in SITES else Code.NOT_IN_ROSTER)
        stranger.close()


def test_another_protocol_inside_tls_is_refused(scene: Any) -> None:
    rehearsal, _ = scene
    folder = rehearsal.folder / "certs/client-00"
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["http/1.1"])
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", rehearsal.port), 10) as raw,
        suppress(OSError),
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = secure.recv(1)
    assert answer == b""


def test_a_site_refuses_a_server_with_another_ca_or_name(scene: Any, tmp_path: Path) -> None:
    rehearsal, _ = scene
    good = rehearsal.invitation("client-00")
    other = other_authority(tmp_path / "other").first.authority
    wrong_name = f"127.0.0.2:{rehearsal.port}"  # not in the server's certificate
    wrong_authority = replace(good, first=good.first._replace(authority=other), folder=None)
    for address, invitation in ((rehearsal.address, wrong_authority), (wrong_name, good)):
        stranger = Stranger(address, invitation)
        stranger.hello("client-00")
        assert stranger.refusal() == "UNAVAILABLE"
        stranger.close()


@pytest.mark.parametrize(("version", "works"), [(ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)])
def test_a_handshake_below_tls_1_3_fails(scene: Any, version: ssl.TLSVersion, works: bool) -> None:
    rehearsal, _ = scene
    folder = rehearsal.folder / "certs/client-00"
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", rehearsal.port), 10) as raw:
        if works:
            with context.wrap_socket(raw, server_hostname="localhost") as secure:
                assert secure.version() == "TLSv1.3"
        else:
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(raw, server_hostname="localhost")


def test_the_status_is_for_the_operator_and_the_sites(scene: Any) -> None:
    rehearsal, _ = scene
    with open_channel(rehearsal.address, rehearsal.invitation("operator")) as channel:
        reply = ask_status(channel, 10)
    assert [site.site for site in reply.sites] == ["client-00", "client-01", "client-02"]
    assert reply.state.startswith("waiting for client-00")
    with open_channel(rehearsal.address, rehearsal.invitation("stranger")) as channel, pytest.raises(grpc.RpcError):
        ask_status(channel, 10)


@pytest.mark.parametrize("address", ["0.0.0.0:7443", "192.0.2.1:7443", "example.org:7443", "[::]:7443"])
def test_plain_text_beyond_loopback_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        refuse_remote_plain_text(address)


def test_keys_are_readable_by_their_owner_only(scene: Any) -> None:
    rehearsal, _ = scene
    keys = [*(rehearsal.folder / "certs").rglob("*key*")]
    assert len(keys) >= 5
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


def test_a_ca_is_not_overwritten(scene: Any) -> None:
    rehearsal, _ = scene
    with pytest.raises(ConfigError, match="already"):
        certs.init(rehearsal.folder / "certs", "test")


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", "a\n", "-a", "a" * 64, "server"])
def test_a_site_name_that_could_be_a_path_or_an_escape_is_refused(scene: Any, name: str) -> None:
    rehearsal, _ = scene
    with pytest.raises(ConfigError):
        certs.issue_client(rehearsal.folder / "certs", name, None)
