"""Who is refused before a byte of application data is read, and what the invitation protects."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments import Rehearsal, Stranger, grpc
from fedal.engine.grpc import certs
from fedal.engine.grpc.channel import ask_status, open_channel, refuse_plain_text_abroad
from fedal.engine.grpc.refusals import Code
from fedal.errors import ConfigError


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rehearsal, Any]]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("tls"))
    with rehearsal.service() as service:
        yield rehearsal, service


def other_authority(folder: Path) -> certs.Invitation:
    certs.init(folder, "test")
    return certs.read_invitation(certs.issue_client(folder, "client-00", None))


def expired(rehearsal: Rehearsal) -> certs.Invitation:
    return certs.read_invitation(certs.issue_client(rehearsal.folder / "certs", "expired", None, days=-1))


def the_servers_own(rehearsal: Rehearsal) -> certs.Invitation:
    folder = rehearsal.folder / "certs/server"
    pems = [certs.read_pem(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")]
    return certs.Invitation("test", "client-00", None, *pems)


@pytest.mark.parametrize("case", ["no certificate", "another authority", "expired", "the server's own"])
def test_a_certificate_that_is_not_a_sites_is_refused(scene: Any, case: str, tmp_path: Path) -> None:
    rehearsal, service = scene
    good = rehearsal.invitation("client-00")
    invitations = {
        "no certificate": lambda: replace(good, certificate=None, key=None),
        "another authority": lambda: replace(other_authority(tmp_path / "other"), authority=good.authority),
        "expired": lambda: expired(rehearsal),
        "the server's own": lambda: the_servers_own(rehearsal),
    }
    stranger = Stranger(rehearsal.address, invitations[case]())
    stranger.hello("client-00")
    assert stranger.refusal() in ("UNAVAILABLE", Code.WRONG_IDENTITY)
    stranger.close()
    assert not service.seats["client-00"].connected


def test_plain_text_is_refused(scene: Any) -> None:
    rehearsal, service = scene
    stranger = Stranger(rehearsal.address, None)
    stranger.hello("client-00")
    assert stranger.refusal() == "UNAVAILABLE"
    stranger.close()
    assert not service.seats["client-00"].connected


def test_a_certificate_of_one_site_cannot_speak_for_another(scene: Any) -> None:
    rehearsal, _ = scene
    for own, claimed in (("client-00", "client-01"), ("client-01", "client-00"), ("operator", "client-00")):
        stranger = Stranger(rehearsal.address, rehearsal.invitation(own))
        stranger.hello(claimed)
        assert stranger.refusal() in (Code.WRONG_IDENTITY, Code.NOT_IN_ROSTER)
        stranger.close()


def test_a_site_refuses_a_server_of_another_authority_or_of_another_name(scene: Any, tmp_path: Path) -> None:
    rehearsal, _ = scene
    good = rehearsal.invitation("client-00")
    other = other_authority(tmp_path / "other").authority
    wrong_name = f"127.0.0.2:{rehearsal.port}"  # not in the server's certificate
    for address, invitation in ((rehearsal.address, replace(good, authority=other)), (wrong_name, good)):
        stranger = Stranger(address, invitation)
        stranger.hello("client-00")
        assert stranger.refusal() == "UNAVAILABLE"
        stranger.close()


@pytest.mark.parametrize(("version", "works"), [(ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)])
def test_below_tls_1_3_there_is_no_handshake(scene: Any, version: ssl.TLSVersion, works: bool) -> None:
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
        refuse_plain_text_abroad(address)


def test_keys_are_readable_by_their_owner_only(scene: Any) -> None:
    rehearsal, _ = scene
    keys = [*(rehearsal.folder / "certs").rglob("*key*")]
    assert len(keys) >= 5
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


def test_an_authority_is_not_overwritten(scene: Any) -> None:
    rehearsal, _ = scene
    with pytest.raises(ConfigError, match="already"):
        certs.init(rehearsal.folder / "certs", "test")


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", "a\n", "-a", "a" * 64, "server"])
def test_a_site_name_that_could_be_a_path_or_an_escape_is_refused(scene: Any, name: str) -> None:
    rehearsal, _ = scene
    with pytest.raises(ConfigError):
        certs.issue_client(rehearsal.folder / "certs", name, None)
