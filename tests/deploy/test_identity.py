"""The end of certificates: revoked while a federation runs, renewed without a restart, refused if unusable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from commands import fedal
from deployments import SITES, Rehearsal, Stranger, files_up_to, grpc, wait_for
from fedal.deploy.channel import ask_status, open_channel
from fedal.deploy.pki import authority as certs
from fedal.deploy.refusals import Code, Refused
from fedal.errors import ConfigError


def revoke(rehearsal: Rehearsal, name: str) -> None:
    assert fedal("certs", "revoke", name, "--out", rehearsal.folder / "certs").code == 0


def renew(rehearsal: Rehearsal, name: str) -> None:
    public_sha256 = rehearsal.invitation(name).public_sha256
    certs.issue_client(rehearsal.folder / "certs", name, public_sha256)


def test_a_revoked_site_is_refused_at_once_and_returns_with_a_new_certificate(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, rounds=12, checkpoint_every=1)
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(lambda: service.journal.rounds > 1)
        revoke(rehearsal, "client-00")
        wait_for(lambda: joined[0][1])
        assert isinstance(joined[0][1][0], Refused) and joined[0][1][0].code == Code.REVOKED
        assert not service.folder.summary.exists(), "it took effect while the federation ran"
        thief = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        thief.hello("client-00")
        assert thief.refusal() == Code.REVOKED
        thief.close()
        renew(rehearsal, "client-00")
        joined[0] = rehearsal.join_in_thread("client-00")
        wait_for(service.folder.summary.exists)
        for thread, failure in joined:
            thread.join(30)
            assert not failure
    assert rehearsal.deployed() == rehearsal.alone()


def test_with_policy_continue_the_others_continue_without_a_revoked_site(tmp_path: Path) -> None:
    deployment = {"policy": "continue", "deadline_s": 2.0}
    rehearsal = Rehearsal(tmp_path, deployment, clients=4, rounds=12)
    certs.issue_client(tmp_path / "certs", "client-03", None)
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in (*SITES, "client-03")]
        wait_for(lambda: service.journal.rounds > 1)
        revoke(rehearsal, "client-03")
        wait_for(service.folder.summary.exists)
    assert [bool(failure) for _, failure in joined] == [False, False, False, True]


def test_a_revoked_operator_is_refused(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service(), open_channel(rehearsal.address, rehearsal.invitation("operator")) as channel:
        assert ask_status(channel, 10).federation == "test"
        revoke(rehearsal, "operator")
        with pytest.raises(grpc.RpcError, match=Code.REVOKED):
            ask_status(channel, 10)


@pytest.mark.parametrize("content", [b"", b"no list", "of another authority"])
def test_a_list_not_signed_by_this_ca_changes_nothing(tmp_path: Path, content: Any) -> None:
    rehearsal, events = Rehearsal(tmp_path), []
    if isinstance(content, str):
        certs.init(tmp_path / "other", "test")
        certs.issue_client(tmp_path / "other", "client-00", None)
        certs.revoke(tmp_path / "other", "client-00")
        content = (tmp_path / "other/crl.pem").read_bytes()
    revoke(rehearsal, "client-01")
    with rehearsal.service(lambda event, **fields: events.append((event, fields))) as service:
        (tmp_path / "certs/server/crl.pem").write_bytes(content)
        for site, expected in (("client-00", "welcome"), ("client-01", Code.REVOKED)):
            stranger = Stranger(rehearsal.address, rehearsal.invitation(site))
            stranger.hello(site)
            found = stranger.receive().WhichOneof("body") if expected == "welcome" else stranger.refusal()
            stranger.close()
            assert found == expected
        assert any("stays in force" in fields.get("text", "") for _, fields in events)
        wait_for(lambda: not service.seats["client-00"].connected)
    with pytest.raises(ConfigError, match="certs revoke"), rehearsal.service():
        pass


def test_no_certificate_is_issued_if_its_record_cannot_be_written(tmp_path: Path) -> None:
    """It could not be revoked. Here the disk accepts only a part of the record."""
    certs.init(tmp_path, "clinics")
    certs.issue_client(tmp_path, "site-1", None)
    record = tmp_path / certs.ISSUED
    with files_up_to(record.stat().st_size + 20):
        refused = fedal("certs", "client", "site-2", "--out", tmp_path)
    assert refused.code == 1 and str(record) in refused.err and "Traceback" not in refused.err
    assert not (tmp_path / "site-2").exists() and not certs.serials_of(tmp_path, "site-2")
    certs.issue_client(tmp_path, "site-2", None)
    assert len(certs.serials_of(tmp_path, "site-2")) == 1
    assert len(certs.revoke(tmp_path, "site-1")) == 1


def test_a_mistyped_name_revokes_no_site(tmp_path: Path) -> None:
    assert fedal("certs", "init", "--out", tmp_path / "certs").code == 0
    assert fedal("certs", "client", "site-1", "--out", tmp_path / "certs").code == 0
    answer = fedal("certs", "revoke", "site-2", "--out", tmp_path / "certs")
    assert answer.code == 2 and "site-2" in answer.err and not (tmp_path / "certs/crl.pem").exists()


def test_certificates_renewed_while_a_federation_runs_change_no_bit(tmp_path: Path) -> None:
    """The server uses its new certificate at the next handshake, a site at its next connection; the old key fails."""
    rehearsal, events = Rehearsal(tmp_path, rounds=12, checkpoint_every=6), []
    with rehearsal.service(lambda event, **fields: events.append(event)) as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(lambda: service.journal.rounds > 1)
        certs.issue_server(tmp_path / "certs", ["localhost", "127.0.0.1"])
        for site in SITES:
            old = rehearsal.invitation(site)
            renew(rehearsal, site)
            assert rehearsal.invitation(site).first.certificate != old.first.certificate
            link = service.seats[site]._link
            assert link is not None
            link.close()  # the next connection uses what is in the folder
            wait_for(lambda link=link, site=site: service.seats[site]._link not in (None, link))
        wait_for(service.folder.summary.exists)
        for thread, failure in joined:
            thread.join(30)
            assert not failure
    assert "certificate renewed" in events and "round lost" not in events
    assert rehearsal.deployed() == rehearsal.alone()


def garbage(folder: Path) -> None:
    (folder / "cert.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def key_of_another(folder: Path) -> None:
    shutil.copy(folder.parent / "operator/key.pem", folder / "key.pem")


def expired(folder: Path) -> None:
    if folder.name == "server":
        certs.issue_server(folder.parent, ["localhost"], days=-1)
    else:
        certs.issue_client(folder.parent, folder.name, None, days=-1)


def missing(folder: Path) -> None:
    (folder / "ca.pem").unlink()


def a_pickle(folder: Path) -> None:
    (folder / "key.pem").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")


UNUSABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbage": (garbage, "Copy the folder again"),
    "the key of another": (key_of_another, "does not match"),
    "expired": (expired, "valid from"),
    "missing": (missing, "cannot be read"),
    "a pickle": (a_pickle, "Copy the folder again"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_files_are_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    rehearsal = Rehearsal(tmp_path)
    monkeypatch.chdir(tmp_path)
    spoil, said = UNUSABLE[case]
    join = ["join", "--server", rehearsal.address, "--name", "client-00", "--data", "sites/client-00.npz"]
    commands = {"server": ["serve", "--config", "federation.toml"],
                "client-00": [*join, "--invitation", "certs/client-00"]}  # fmt: skip
    for who, words in commands.items():
        spoil(tmp_path / "certs" / who)
        answer = fedal(*words)
        assert answer.code == 2 and said in answer.err and f"certs/{who}" in answer.err
    assert not (tmp_path / "server").exists() and not (tmp_path / "client-00-state").exists()
    assert not (tmp_path / "executed").exists()


def test_a_certificate_about_to_expire_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    certs.init(tmp_path / "certs", "fedal")
    certs.issue_client(tmp_path / "certs", "operator", None, days=5)
    answer = fedal("status", "--server", "127.0.0.1:1", "--invitation", "certs/operator")
    assert "expires in 4 days" in answer.err and "no answer" in answer.err


def test_a_whole_roster_is_invited_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text('clients = 3\n[deployment]\nfederation = "wards"\n')
    words = ("certs", "all", "--config", "federation.toml", "--host", "localhost")
    assert fedal(*words).code == 0
    for site in (*SITES, "operator"):
        found = certs.read_invitation(tmp_path / "certs" / site)
        assert (found.federation, found.site) == ("wards", site) and found.public_sha256 is not None
    authority = (tmp_path / "certs/ca.pem").read_bytes()
    assert fedal(*words).code == 0, "again: to renew"
    assert (tmp_path / "certs/ca.pem").read_bytes() == authority
    (tmp_path / "federation.toml").write_text('clients = 3\n[deployment]\nfederation = "other"\n')
    answer = fedal(*words)
    assert answer.code == 2 and "authority of wards" in answer.err


def test_no_certificate_is_valid_outside_the_time_of_its_ca(tmp_path: Path) -> None:
    """Neither before, while the CA is new, nor after."""
    certs.init(tmp_path, "clinics")
    issued = [certs.issue_server(tmp_path, ["localhost"]), certs.issue_client(tmp_path, "site-1", None, days=10**4)]
    authority, *leaves = (
        x509.load_pem_x509_certificate((folder / name).read_bytes())
        for folder, name in ((tmp_path, "ca.pem"), *((folder, "cert.pem") for folder in issued))
    )
    for leaf in leaves:
        assert authority.not_valid_before_utc <= leaf.not_valid_before_utc
        assert leaf.not_valid_after_utc <= authority.not_valid_after_utc
