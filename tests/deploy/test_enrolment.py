"""Enrolment with one-time tokens: keys stay at the site, a token works once, and a request only for its own key."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from commands import fedal
from deployments import SITES, Rehearsal, wait_for
from fedal.deploy.pki import authority as certs
from fedal.deploy.pki import enrolment
from fedal.deploy.pki.authority import REQUEST
from fedal.deploy.pki.enrolment import enrol, make_request, make_token
from fedal.errors import ConfigError


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certs.init(tmp_path / "certs", "test")
    return tmp_path / "certs"


def csr(key: Any, *names: x509.GeneralName) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def request_with(token_file: Path, path: Path, pem: bytes) -> Path:
    """A request by a site with this token, for any certificate request."""
    token = json.loads(token_file.read_text())
    content = {"number": token["number"], "request": pem.decode(), "proof": enrolment._proof(token["secret"], pem)}
    path.write_text(json.dumps(content))
    return path


def issued(folder: Path) -> int:
    return len(certs.serials_of(folder, "site-1"))


def test_enrolled_sites_take_part_with_keys_that_never_left_them(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, rounds=2)
    words = ("--config", tmp_path / "federation.toml", "--host", "127.0.0.1", "--out", tmp_path / "authority")
    assert fedal("certs", "all", *words, "--tokens").code == 0
    assert not list((tmp_path / "authority").glob("client-*/key.pem"))
    for site in SITES:
        token, own = tmp_path / f"authority/{site}.token", tmp_path / f"certs/{site}"
        for old in own.iterdir():
            old.unlink()
        assert fedal("certs", "request", token, "--out", own).code == 0
        assert fedal("certs", "enrol", own / REQUEST, "--out", tmp_path / "authority").code == 0
        (own / "cert.pem").write_bytes((tmp_path / f"authority/{site}.cert.pem").read_bytes())
        secret = (own / "key.pem").read_text().splitlines()[1]
        assert stat.S_IMODE((own / "key.pem").stat().st_mode) == 0o600
        assert not any(secret in path.read_text() for path in (tmp_path / "authority").rglob("*") if path.is_file())
        assert secret not in (own / REQUEST).read_text()
    for name in certs.PEMS:
        (tmp_path / "certs/server" / name).write_bytes((tmp_path / "authority/server" / name).read_bytes())
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        for thread, failure in joined:
            thread.join(30)
            assert not failure
    assert rehearsal.deployed() == rehearsal.alone()


def test_a_spent_token_is_refused_a_hundred_times(authority: Path, tmp_path: Path) -> None:
    token = make_token(authority, "site-1", None)
    enrol(authority, make_request(token, tmp_path / "site") / REQUEST)
    before = (authority / "site-1.cert.pem").read_bytes()
    for number in range(100):
        again = (
            tmp_path / "site" / REQUEST if number == 0 else make_request(token, tmp_path / f"thief-{number}") / REQUEST
        )
        with pytest.raises(ConfigError, match=r"already spent or void.*fedal certs revoke site-1"):
            enrol(authority, again)
    assert (authority / "site-1.cert.pem").read_bytes() == before and issued(authority) == 1


def test_of_many_concurrent_attempts_to_spend_a_token_one_succeeds(authority: Path, tmp_path: Path) -> None:
    token = make_token(authority, "site-1", None)
    requests = [make_request(token, tmp_path / f"claim-{number}") / REQUEST for number in range(16)]

    def succeeds(request: Path) -> bool:
        try:
            enrol(authority, request)
        except ConfigError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(succeeds, requests)) == 1
    assert issued(authority) == 1


def test_an_intercepted_request_cannot_be_reused_for_another_key(authority: Path, tmp_path: Path) -> None:
    request = make_request(make_token(authority, "site-1", None), tmp_path / "site") / REQUEST
    content = json.loads(request.read_text())
    content["request"] = csr(ec.generate_private_key(ec.SECP256R1())).decode()
    (tmp_path / "forged.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="not made with the token for site-1"):
        enrol(authority, tmp_path / "forged.json")
    assert issued(authority) == 0
    assert enrol(authority, request)[0] == "site-1", "the attempt did not spend the token"


def test_the_name_comes_from_the_token_not_from_the_request(authority: Path, tmp_path: Path) -> None:
    token = make_token(authority, "site-1", None)
    other = x509.UniformResourceIdentifier("fedal://test/site-2")
    pem = csr(ec.generate_private_key(ec.SECP256R1()), other, x509.DNSName("localhost"))
    _, path = enrol(authority, request_with(token, tmp_path / "r.json", pem))
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["fedal://test/site-1"]


def test_weak_keys_and_garbage_are_refused_and_the_token_stays_valid(authority: Path, tmp_path: Path) -> None:
    token = make_token(authority, "site-1", None)
    good = csr(ec.generate_private_key(ec.SECP256R1()))
    pems = [csr(rsa.generate_private_key(65537, 2048)), csr(ec.generate_private_key(ec.SECP192R1())), b"", b"nonsense"]
    lines = good.decode().splitlines()
    lines[-2] = ("B" if lines[-2][8] == "A" else "A").join([lines[-2][:8], lines[-2][9:]])  # in the signature
    for pem in (*pems, "\n".join(lines).encode()):
        with pytest.raises(ConfigError, match=r"elliptic-curve key|not a certificate request"):
            enrol(authority, request_with(token, tmp_path / "r.json", pem))
    assert enrol(authority, request_with(token, tmp_path / "r.json", good))[0] == "site-1"


def test_a_token_expires(authority: Path, tmp_path: Path) -> None:
    request = make_request(make_token(authority, "site-1", None, hours=-0.001), tmp_path / "site") / REQUEST
    with pytest.raises(ConfigError, match=r"expired at .* fedal certs token site-1"):
        enrol(authority, request)


def test_a_new_token_replaces_the_previous_one(authority: Path, tmp_path: Path) -> None:
    lost = make_request(make_token(authority, "site-1", None), tmp_path / "lost") / REQUEST
    found = make_request(make_token(authority, "site-1", None), tmp_path / "found") / REQUEST
    with pytest.raises(ConfigError, match="already spent or void"):
        enrol(authority, lost)
    assert enrol(authority, found)[0] == "site-1"


def test_revoking_a_site_voids_only_its_own_unused_tokens(authority: Path, tmp_path: Path) -> None:
    requests = {site: make_request(make_token(authority, site, None), tmp_path / site) / REQUEST for site in ("a", "b")}
    assert fedal("certs", "revoke", "a", "--out", authority).code == 0
    with pytest.raises(ConfigError, match="already spent or void"):
        enrol(authority, requests["a"])
    assert enrol(authority, requests["b"])[0] == "b"
    serial = x509.load_pem_x509_certificate((authority / "b.cert.pem").read_bytes()).serial_number
    assert certs.revoke(authority, "b") == [serial]


def test_a_crash_while_signing_costs_the_token_and_nothing_else(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_token(authority, "site-1", None)
    request = make_request(token, tmp_path / "site") / REQUEST
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        enrol(authority, request)
    monkeypatch.undo()
    assert not (authority / "site-1.cert.pem").exists()
    with pytest.raises(ConfigError, match="spent"):
        enrol(authority, request)
    again = make_request(make_token(authority, "site-1", None), tmp_path / "site") / REQUEST
    assert enrol(authority, again)[0] == "site-1"


def test_a_torn_line_in_the_list_of_certificates_hides_no_other_line(authority: Path, tmp_path: Path) -> None:
    certs.issue_client(authority, "site-1", None)
    with open(authority / certs.ISSUED, "a") as file:
        file.write('{"name": "site-1", "ser')
    certs.issue_client(authority, "site-1", None)
    assert issued(authority) == 2


def test_a_renewal_keeps_the_key(authority: Path, tmp_path: Path) -> None:
    folder = make_request(make_token(authority, "site-1", None), tmp_path / "site")
    key = (folder / "key.pem").read_bytes()
    enrol(authority, folder / REQUEST)
    make_request(make_token(authority, "site-1", "0" * 64), folder)
    _, path = enrol(authority, folder / REQUEST)
    (folder / "cert.pem").write_bytes(path.read_bytes())
    invitation = certs.read_invitation(folder)
    assert invitation.first.key == key and invitation.public_sha256 == "0" * 64
    assert certs.check_pems(invitation.pems(), folder) == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"secret": "x", "until": "soon", "days": 1}', "\x00"])
def test_a_damaged_token_record_is_reported_and_blocks_nothing_else(
    authority: Path, tmp_path: Path, content: str
) -> None:
    request = make_request(make_token(authority, "site-1", None), tmp_path / "site") / REQUEST
    (entry,) = (authority / enrolment.LEDGER).iterdir()
    entry.write_text(content)
    answer = fedal("certs", "enrol", request, "--out", authority)
    assert answer.code == 2 and entry.name in answer.err and "fedal certs token site-1" in answer.err
    assert fedal("certs", "revoke", "site-1", "--out", authority).code == 0
    again = make_request(make_token(authority, "site-1", None), tmp_path / "site") / REQUEST
    assert enrol(authority, again)[0] == "site-1"


@pytest.mark.parametrize("words", [("--hours", "1e300"), ("--hours", "nan"), ("--days", "99999999"), ("--days", "0")])
def test_absurd_times_are_refused(authority: Path, words: tuple[str, str]) -> None:
    answer = fedal("certs", "token", "site-1", "--out", authority, *words)
    assert answer.code == 2 and words[0] in answer.err and not (authority / enrolment.LEDGER).exists()


@pytest.mark.parametrize("hours", [float("nan"), float("inf")])
def test_a_token_that_would_never_expire_is_refused_in_python_too(authority: Path, hours: float) -> None:
    with pytest.raises(ConfigError, match="--hours"):
        make_token(authority, "site-1", None, hours)
    assert not (authority / enrolment.LEDGER).exists()


def test_a_key_that_cannot_be_written_leaves_the_old_one(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = certs.issue_client(authority, "site-1", None)
    before = certs.read_pems(folder)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match=r"no space.*key\.pem"):
        certs.write_secret(folder / "key.pem", b"new")
    assert certs.read_pems(folder) == before and stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600


def change_site(token: dict[str, Any]) -> None:
    token["site"] = "../outside"


def drop_secret(token: dict[str, Any]) -> None:
    del token["secret"]


def spoil_authority(token: dict[str, Any]) -> None:
    token["authority"] = "none"


def spoil_hash(token: dict[str, Any]) -> None:
    token["public_sha256"] = "abc"


@pytest.mark.parametrize("change", [change_site, drop_secret, spoil_authority, spoil_hash])
def test_a_damaged_token_leaves_nothing_behind(
    authority: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    content = json.loads(make_token(authority, "site-1", None).read_text())
    change(content)
    (tmp_path / "damaged.token").write_text(json.dumps(content))
    answer = fedal("certs", "request", tmp_path / "damaged.token", "--out", tmp_path / "site")
    assert answer.code == 2 and answer.err.startswith("error: ") and not (tmp_path / "site").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"number": "../../x", "request": "", "proof": ""}', None])
def test_an_invalid_request_is_reported(authority: Path, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    answer = fedal("certs", "enrol", tmp_path / "r.json", "--out", authority)
    assert answer.code == 2 and "r.json" in answer.err


def test_a_request_for_another_ca_is_reported(authority: Path, tmp_path: Path) -> None:
    certs.init(tmp_path / "other", "other")
    request = make_request(make_token(tmp_path / "other", "site-1", None), tmp_path / "site") / REQUEST
    with pytest.raises(ConfigError, match="did not make its token"):
        enrol(authority, request)
    with pytest.raises(ConfigError, match="is the invitation of site-1 in other"):
        make_request(make_token(authority, "site-1", None), tmp_path / "site")


def test_a_site_without_its_certificate_is_told_what_to_do(authority: Path, tmp_path: Path) -> None:
    folder = make_request(make_token(authority, "site-1", None), tmp_path / "site")
    answer = fedal("join", "--server", "localhost:1", "--name", "site-1", "--data", "x.npz", "--invitation", folder)
    assert answer.code == 2 and f"Send {folder / REQUEST} to the operator" in answer.err
