"""A site that holds the operator's list refuses a server whose certificate is in it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments import SITES, Rehearsal, free_port, grpc, wait_for
from fedal.deploy import site
from fedal.deploy.channel import ask_status, open_channel
from fedal.deploy.pki import authority as certs
from fedal.deploy.pki import pinning
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.site import Site
from fedal.errors import ConfigError

pytestmark = pytest.mark.processes


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Rehearsal]:
    rehearsal = Rehearsal(tmp_path, export=False)
    with rehearsal.service():
        yield rehearsal


def revoke(rehearsal: Rehearsal, name: str) -> None:
    """As the operator does on another machine; the running server keeps its certificate."""
    certs.revoke(rehearsal.folder / "certs", name)
    (rehearsal.folder / "certs/server/crl.pem").unlink()


def status(rehearsal: Rehearsal) -> str:
    with open_channel(rehearsal.address, rehearsal.invitation("operator")) as channel:
        return ask_status(channel, 10.0).federation


def test_a_revoked_server_is_refused_by_a_site_that_holds_the_list(scene: Rehearsal) -> None:
    assert status(scene) == "test"
    revoke(scene, "server")
    with pytest.raises(Refused, match=r"the certificate of the server at .+ is revoked by .+crl\.pem") as refused:
        status(scene)
    assert refused.value.code == Code.REVOKED
    (scene.folder / "sites").mkdir()
    data = scene.folder / "sites/client-00.npz"
    data.touch()
    with pytest.raises(Refused) as refused:
        Site(scene.site_plan("client-00"), lambda text: None).run()
    assert refused.value.code == Code.REVOKED
    (scene.folder / "certs/operator/crl.pem").unlink()  # who has no list cannot know
    assert status(scene) == "test"


def test_a_list_about_others_and_a_new_certificate_are_no_obstacle(scene: Rehearsal) -> None:
    revoke(scene, "stranger")
    assert status(scene) == "test"
    revoke(scene, "server")
    certs.issue_server(scene.folder / "certs", ["localhost", "127.0.0.1"])  # presented from the next handshake on
    assert status(scene) == "test"


def test_a_new_invitation_carries_the_list(scene: Rehearsal) -> None:
    revoke(scene, "server")
    out = certs.issue_client(scene.folder / "certs", "late", None)
    assert (out / "crl.pem").read_bytes() == (scene.folder / "certs/crl.pem").read_bytes()


def test_the_channel_trusts_only_the_certificate_that_was_checked(
    scene: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone relays the first handshake to a server that is not revoked, and answers the second itself."""
    revoke(scene, "stranger")
    shutil.copytree(scene.folder / "certs", scene.folder / "other")
    certs.issue_server(scene.folder / "other", ["localhost", "127.0.0.1"])
    another = certs.x509.load_pem_x509_certificate((scene.folder / "other/server/cert.pem").read_bytes())
    encoding = certs.serialization.Encoding.DER
    monkeypatch.setattr(pinning, "_presented", lambda address, authority: another.public_bytes(encoding))
    with pytest.raises(grpc.RpcError, match="CERTIFICATE_VERIFY_FAILED"):
        status(scene)


def test_a_list_of_another_authority_is_refused(scene: Rehearsal, tmp_path: Path) -> None:
    certs.init(tmp_path / "others", "test")
    certs.issue_server(tmp_path / "others", ["localhost"])
    certs.revoke(tmp_path / "others", "server")
    shutil.copy(tmp_path / "others/crl.pem", scene.folder / "certs/operator/crl.pem")
    with pytest.raises(ConfigError, match="its signature is not from this certificate authority"):
        status(scene)


def test_an_unreachable_server_is_no_revoked_one(scene: Rehearsal) -> None:
    revoke(scene, "stranger")
    scene.address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Refused) as refused:
        status(scene)
    assert refused.value.code == Code.UNREACHABLE


def test_a_running_site_applies_a_new_list_also_while_it_waits_for_others(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, rounds=10_000)
    with rehearsal.service() as service:
        sites = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(lambda: service.journal.rounds > 2)
        revoke(rehearsal, "stranger")  # a list that is not about the server: all go on
        before = service.journal.rounds
        wait_for(lambda: service.journal.rounds > before + 10)
        assert [failure for _, failure in sites] == [[], [], []]
        revoke(rehearsal, "server")
        for thread, failure in sites:
            thread.join(30)
            assert [error.code for error in failure] == [Code.REVOKED]  # type: ignore[attr-defined]


def test_nothing_watches_the_list_when_a_site_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that outlived its site could free the site's models while the interpreter shuts down: an abort."""

    def slow_version(invitation: object) -> None:
        if threading.current_thread().name == site.WATCHER:
            time.sleep(0.5)

    monkeypatch.setattr(site, "list_version", slow_version)
    monkeypatch.setattr(site, "LIST_CHECK_S", 0.01)
    rehearsal = Rehearsal(tmp_path, rounds=1)
    with rehearsal.service():
        sites = [rehearsal.join_in_thread(name) for name in SITES]
        for thread, failure in sites:
            thread.join(60)
            assert not failure
        assert site.WATCHER not in [thread.name for thread in threading.enumerate()]
