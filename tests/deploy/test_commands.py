"""The commands of a deployment: mistakes end with exit code 2 and one message, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedal as package
from commands import fedal
from deployments import Rehearsal, files_up_to, free_port
from fedal.deploy.entering import checked_settings
from fedal.deploy.refusals import Code, Refused

ROOT = Path(__file__).parents[2]


def test_plain_text_beyond_loopback_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text('clients = 3\n[deployment]\nlisten = "0.0.0.0:7443"\n')
    answer = fedal("serve", "--config", "federation.toml", "--insecure")
    assert answer.code == 2 and "loopback" in answer.err and not (tmp_path / "federation").exists()


def test_a_site_without_invitation_is_told_to_ask_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = fedal("join", "--server", "localhost:1", "--name", "site-1", "--data", "own.npz")
    assert answer.code == 2 and "invitation" in answer.err and list(tmp_path.iterdir()) == []


def test_the_invitation_of_another_site_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedal("certs", "init", "--federation", "test").code == 0
    assert fedal("certs", "client", "site-2").code == 0
    words = ("--server", "localhost:1", "--name", "site-1", "--data", "own.npz", "--invitation", "certs/site-2")
    answer = fedal("join", *words)
    assert answer.code == 2 and "site-2" in answer.err


def test_an_unreachable_server_exits_with_its_code(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    words = ["--server", f"127.0.0.1:{free_port()}", "--name", "client-00", "--patience", "0"]
    words += ["--data", tmp_path / "sites/client-00.npz", "--state", tmp_path / "state"]
    answer = fedal("join", *words, "--invitation", rehearsal.folder / "certs/client-00")
    assert answer.code == 1 and Code.UNREACHABLE in answer.err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("min_clients = 2", "min_clients"),
        ("polic = 1", "polic"),
        ("deadline_s = 0", "deadline_s"),
        ("n_classes = 3", "public"),
    ],
)
def test_mistakes_in_the_deployment_table_are_reported(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "federation.toml").write_text(f"clients = 3\n[deployment]\n{table}\n")
    answer = fedal("serve", "--config", tmp_path / "federation.toml")
    assert answer.code == 2 and said in answer.err


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ('{"method": "os:system"}', Code.NAMES_CODE),
        ('{"options": {"server_model": "os:system"}}', Code.NAMES_CODE),
        ('{"data": "/etc/passwd"}', Code.SETTINGS),
        ('{"allow_nondeterministic": true}', Code.SETTINGS),
        ('{"method": "nothing"}', Code.SETTINGS),
        ("[]]", Code.SETTINGS),
        ("3", Code.SETTINGS),
        ('{"lr": -1}', Code.SETTINGS),
    ],
)
def test_a_site_refuses_settings_that_the_server_may_not_set(settings: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        checked_settings(settings)
    assert refused.value.code == code


def test_a_deployment_never_unpickles_or_evaluates() -> None:
    sources = Path(package.__file__).parent.glob("deploy/**/*.py")
    text = "".join(path.read_text() for path in sources)
    assert not [word for word in ("import pickle", "eval(", "exec(", "torch.load(", "import_module") if word in text]


@pytest.mark.parametrize(
    "words", [("export-sites", "--out", "sites"), ("serve", "--insecure")], ids=lambda words: words[0]
)
def test_a_partition_that_gives_everything_to_everyone_is_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = (ROOT / "configs/federation.toml").read_text()
    Path("pooled.toml").write_text(config.replace('dataset = "digits"', 'dataset = "digits"\npartition = "pooled"'))
    refused = fedal(*words, "--config", "pooled.toml")
    assert refused.code == 2 and "partition = pooled: it gives every client the private samples of all" in refused.err
    assert f"fedal {words[0]} refuses it" in refused.err and not Path("sites").exists()


def test_a_full_disk_leaves_no_partial_site_file(tmp_path: Path) -> None:
    with files_up_to(10_000):
        refused = fedal("export-sites", "--config", ROOT / "configs/federation.toml", "--out", tmp_path / "sites")
    assert refused.code == 1 and str(tmp_path / "sites" / "client-00.npz") in refused.err
    assert "Traceback" not in refused.err and not [*(tmp_path / "sites").iterdir()]
