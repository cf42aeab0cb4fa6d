"""Addresses: a wrong host or port is refused before a socket, a folder or a certificate is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import fedal
from fedal.deploy.address import refuse_bad_address, refuse_bad_host
from fedal.errors import ConfigError

GOOD_HOSTS = ("localhost", "fedal.example.org", "fedal.example.org.", "fedal_server", "10.0.0.1", "::1", "2001:db8::7")
BAD_HOSTS = (
    "",
    "bad host!",
    "bad_host!",
    "-a.org",
    "a..b",
    "a" * 64,
    "1.2.3.999",
    "1.2.3",
    "münchen.de",
    "http://a.org",
)
BAD_ADDRESSES = (
    "localhost", "localhost:", "localhost:0", "localhost:65536", "localhost:99999", "localhost:-1", "localhost:https",
    "localhost:7443x", "localhost:٣", ":7443", "bad host!:7443", "::1:7443", "http://localhost:7443", "1.2.3.999:7443",
)  # fmt: skip


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_host_names_and_ip_addresses_are_accepted(host: str) -> None:
    refuse_bad_host(host, "host")
    refuse_bad_address(f"[{host}]:1" if ":" in host else f"{host}:65535", "--server")


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_other_texts_are_not_hosts(host: str) -> None:
    with pytest.raises(ConfigError, match="not a host name or an IP address"):
        refuse_bad_host(host, "host", wildcard=True)


def test_a_host_with_a_port_is_told_to_leave_it_out() -> None:
    with pytest.raises(ConfigError, match=r"Leave out the port: a\.org\."):
        refuse_bad_host("a.org:7443", "host")


def test_only_certificates_take_a_wildcard() -> None:
    refuse_bad_host("*.example.org", "host", wildcard=True)
    with pytest.raises(ConfigError):
        refuse_bad_host("*.example.org", "host")


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_other_texts_are_not_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="--server"):
        refuse_bad_address(address, "--server")


def test_the_commands_refuse_them_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text('clients = 3\n[deployment]\nlisten = "127.0.0.1:70000"\n')
    before = sorted(tmp_path.rglob("*"))
    serve = fedal("serve", "--config", "federation.toml", "--insecure")
    join = fedal("join", "--server", "localhost:70000", "--name", "a", "--data", "a.npz", "--insecure")
    status = fedal("status", "--server", "localhost", "--insecure")
    assert [answer.code for answer in (serve, join, status)] == [2, 2, 2]
    assert "federation.toml, deployment.listen '127.0.0.1:70000': the port '70000'. Expected HOST:PORT" in serve.err
    assert "--server 'localhost:70000': the port '70000'" in join.err
    assert "--server 'localhost': no port" in status.err
    assert sorted(tmp_path.rglob("*")) == before


def test_no_certificate_is_made_for_a_bad_host(tmp_path: Path) -> None:
    assert fedal("certs", "init", "--out", tmp_path / "certs").code == 0
    before = sorted(tmp_path.rglob("*"))
    answer = fedal("certs", "server", "--host", "localhost", "--host", "bad host!", "--out", tmp_path / "certs")
    assert answer.code == 2 and "--host 'bad host!': not a host name or an IP address" in answer.err
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "federation.toml").write_text("clients = 3\n[deployment]\n")
    words = ("--config", tmp_path / "federation.toml", "--host", "a:b", "--out", tmp_path / "new")
    assert fedal("certs", "all", *words).code == 2 and not (tmp_path / "new").exists()
